/* listen.h - the listening socket of HTTP. */
#pragma once

#include "daemon/floor/conf/conf.h"

/* ZERO_EBUSY: somebody else has the address.  The caller deletes the file of a unix socket. */
int http_listen(const struct http_place *place, const char *http, int *ret_fd, struct fault *fault);
