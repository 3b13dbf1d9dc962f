/*
 * probe.h - whether payloads really pass over a bulk path: a small and a large one
 * each way, compared byte for byte; and one from GPU memory to GPU memory, where the path takes it.
 *
 * Its memory outlives the peer's close.  Loop thread; ended is called at most once, and not
 * after probe_free().
 */
#pragma once

#include "daemon/fabric/bulk/bulk.h"

struct probe;

/* Makes the buffers and expects the other side's probes; token seeds their bytes. */
int probe_new(struct bulk_peer *bulk, uint64_t token, void (*ended)(void *arg, bool whole),
              void *arg, struct probe **ret);
/* The other side turns out to take no GPU memory: none is sent, none comes. */
void probe_without_gpu(struct probe *probe);
/* Sends this side's; ended(true) when all have gone and all have come whole. */
int probe_send(struct probe *probe);
/* Frees it, when the path has let go of its memory. */
void probe_free(struct probe *probe);
