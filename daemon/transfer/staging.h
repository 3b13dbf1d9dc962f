/*
 * staging.h - bytes of planes and gradients for those who need them in host memory: other nodes,
 * and the CPU.
 *
 * What is in host memory is taken where it lies.  What is on a GPU is copied first, in an offload
 * thread; payloads wait for their turn, so that copies under way take at most STAGING_BYTES, or as
 * much as one payload that is larger.
 */
#pragma once

#include "daemon/engine/engine.h"

/* What computes on a holding's planes. */
const struct device_ops *holding_ops(const struct holding *h);

enum { STAGING_BYTES = 256 << 20 };

/*
 * fabric_payload() of n bytes that stay as they are until done(); on_gpu: they are not for the CPU.
 * The job is referred to by the caller until then.
 */
int staged_payload(struct job *job, bool on_gpu, uint32_t node, uint64_t transfer,
                   enum traffic kind, const void *p, size_t n, bulk_done *done, void *arg);
/* The same for a holding's planes. */
int plane_payload(struct holding *h, uint32_t node, uint64_t transfer, enum traffic kind,
                  const void *p, size_t n, bulk_done *done, void *arg);
/* The link is lost: what waits for it ends. */
void staging_down(struct exchange *x, uint32_t node);
/* n bytes at p of the state's planes, for the CPU: they themselves, or copied to the buffer.  For
 * an offload thread. */
const void *plane_read(const struct holding *h, const void *p, size_t n, void *buffer);
