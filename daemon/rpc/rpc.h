/*
 * rpc.h - the daemon's unix socket: sessions of trainers and of zeroctl.
 *
 * A session is one connection.  Its peer credentials decide what it may do; it may hold one rank of
 * one job, or observe one.  Whatever a client does, only its own session ends.
 */
#pragma once

#include "daemon/engine/engine.h"

struct rpc;

/*
 * A listening socket at a path; mode: octal.  A stale socket file is replaced, a live one is
 * ZERO_EBUSY.  The file is the caller's to delete.
 */
int rpc_listen(const char *path, const char *mode, int *ret_fd, struct fault *fault);
/* Serves who comes through the listening socket fd, which is taken over in any case. */
int rpc_open(struct engine *x, int fd, struct rpc **ret, struct fault *fault);
/* Stops listening and ends all sessions; closed() comes when they are gone. */
void rpc_close(struct rpc *rpc, void (*closed)(void *arg), void *arg);
