/*
 * fabric_inproc.h - several nodes in one process and one loop, behind fabric.h; for tests
 * and for the thread sanitizer, which cannot follow UCX.
 *
 * Messages are packed and unpacked on their way, payloads go over bulk_inproc; nothing
 * arrives inside a call.  Nodes see each other as soon as both are there.
 */
#pragma once

#include "daemon/fabric/fabric.h"

struct inproc_net;

int inproc_net_new(uv_loop_t *loop, uint32_t n_nodes, struct inproc_net **ret);
/* All its fabrics must be closed. */
void inproc_net_free(struct inproc_net *net);

/* A fabric for node `self`, which must not be there yet; delay_ms as in struct fabric_options. */
int fabric_new_inproc(struct inproc_net *net, uint32_t self, uint32_t delay_ms,
                      const struct fabric_events *events, struct fabric **ret);

/* The two ends of a bulk path in one process; GPU memory may be sent over it. */
int bulk_inproc_pair(uv_loop_t *loop, uint64_t token, struct bulk_peer **ret_a,
                     struct bulk_peer **ret_b);
