/*
 * rpc.h - the daemon's unix socket: sessions of trainers and of zeroctl.
 *
 * A session is one connection.  Its peer credentials decide what it may do; it may hold one rank of
 * one job, or observe one.  Whatever a client does, only its own session ends.
 */
#pragma once

#include "daemon/exchange/exchange.h"

enum { ZERO_PROTOCOL = 2 };

struct rpc;

/*
 * Listens at conf->socket (a stale socket file is replaced, a live one is ZERO_EBUSY), or
 * on a descriptor passed by the service manager (passed_fd >= 0).
 */
int rpc_open(struct exchange *x, int passed_fd, struct rpc **ret, struct fault *fault);
/* Stops listening and ends all sessions; closed() comes when they are gone. */
void rpc_close(struct rpc *rpc, void (*closed)(void *arg), void *arg);
