/*
 * measure.h - how fast this node updates, copies and receives, for zeroctl plan.
 *
 * A node measures one of these at a time, as a step does it: the optimizer's kernel (without undo
 * slots, which cost about 2 %) and copies on the compute threads, payloads over the bulk path from
 * all other nodes at once.  All nodes are asked together, so that they share what they share in a
 * step.
 *
 * The bytes lie in memory of the node's own, at most MEASURE_BYTES, which is kept for
 * MEASURE_KEEP_MS because another node may still read it.  No new work begins MEASURE_MS after the
 * first, or after MEASURE_MOST bytes.  A node with a job that trains measures nothing.
 */
#pragma once

#include "daemon/job/core/core.h"

enum {
        MEASURE_BYTES = 256 << 20,
        MEASURE_MS = 400,
        MEASURE_KEEP_MS = 2000,
        MEASURE_CALL_MS = 5000, /* for one payload */
};
#define MEASURE_MOST (UINT64_C(8) << 30)

struct measured {
        double bytes_per_s;         /* read and written; of links: received.  NAN: no other node */
        double from[ZERO_NODE_MAX]; /* of links: [node], bytes a second received from it */
};
/* status 0, or text says what failed. */
typedef void measure_done(void *arg, int status, const char *text, const struct measured *measured);

/* what: "update", "copy" or "link".  On success done() is called once, never before this returns.
 */
int measure_start(struct engine *x, const char *what, measure_done *done, void *arg,
                  struct fault *fault);
/* Another node, which measures its links, asks for bytes. */
void measure_pull_message(struct engine *x, uint32_t node, const Zero__LinkMessage *m);

extern const struct module measure_module;
