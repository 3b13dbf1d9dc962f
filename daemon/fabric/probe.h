/*
 * probe.h - tests whether payloads really pass over a bulk path: a small and a large one each way,
 * compared byte for byte, and one from GPU memory to GPU memory if the path takes that.
 *
 * A probe's memory outlives the peer's close.  Loop thread; ended() is called at most once, and not
 * after probe_free().
 */
#pragma once

#include "daemon/fabric/bulk/bulk.h"

struct probe;

/* Makes the buffers and expects the other side's probes; token seeds their bytes.  -ENOBUFS: the
 * GPU has no memory for one; nothing is expected. */
int probe_new(struct bulk_peer *bulk, uint64_t token, void (*ended)(void *arg, bool whole),
              void *arg, struct probe **ret);
/* Leaves GPU memory out: the other side turns out not to take it. */
void probe_without_gpu(struct probe *probe);
/* Sends this side's probes.  ended(true) follows when all are sent and the other side's have all
 * come whole. */
int probe_send(struct probe *probe);
/* Frees the probe as soon as the path no longer uses its memory. */
void probe_free(struct probe *probe);
