/*
 * rpc.h - the daemon's unix socket: sessions of trainers and of zeroctl.
 *
 * A session is one connection.  Its peer's credentials decide what it may do: it can be one rank of
 * one job, or observe one job.  Whatever a client does, only its own session ends.
 */
#pragma once

#include "daemon/cluster/engine/engine.h"

struct rpc;

/*
 * Makes a listening socket at a path; mode is octal.  Replaces a stale socket file; ZERO_EBUSY if
 * somebody listens on it.  The caller deletes the file.
 */
int rpc_listen(const char *path, const char *mode, int *ret_fd, struct fault *fault);
/* Serves the clients of the listening socket fd, which it owns from now on, even after a fault. */
int rpc_open(struct engine *x, int fd, struct rpc **ret, struct fault *fault);
/* Stops listening and ends all sessions; calls closed() when they are gone. */
void rpc_close(struct rpc *rpc, void (*closed)(void *arg), void *arg);
