/*
 * staging.h - brings bytes of planes and gradients to host memory, for other nodes and for the CPU.
 *
 * Bytes are sent from where they lie if the path takes them from there, and nobody can write to
 * them in a way that breaks it.  Otherwise they are copied first: at once from host memory, else by
 * an offload thread.  These payloads wait for their turn: the copies in progress take at most
 * STAGING_BYTES, or are one larger payload.
 */
#pragma once

#include "daemon/job/transfer/transfer.h"

enum { STAGING_BYTES = 256 << 20 };

/* What a node transfers. */
struct transfer {
        struct list calls, asks, staged;
        uint64_t staging_bytes; /* in use by staged payloads */
        uint64_t last_call;
};

/* The link is down: ends what waits for it. */
void staging_down(struct engine *x, uint32_t node);
/* ask.c.  The job is dropped: each of its asks ends with -ECANCELED. */
void asks_forget(struct job *job, int status, const char *text);
