/*
 * staging.h - bytes of planes for those who need them in host memory: other nodes, and the CPU.
 *
 * Where a state is in host memory they are taken where they lie.  Where it is on a GPU they are
 * copied first, in an offload thread; payloads wait for their turn, so that copies under way take
 * at most STAGING_BYTES, or as much as one payload that is larger.
 */
#pragma once

#include "daemon/exchange/exchange.h"

/* What computes on a holding's planes. */
const struct device_ops *holding_ops(const struct holding *h);

enum { STAGING_BYTES = 256 << 20 };

/*
 * fabric_payload() of n bytes of a holding's planes, which stay as they are until done().  The
 * holding's job is referred to by the caller until then.
 */
int plane_payload(struct holding *h, uint32_t node, uint64_t transfer, enum traffic kind,
                  const void *p, size_t n, bulk_done *done, void *arg);
/* The link is lost: what waits for it ends. */
void staging_down(struct exchange *x, uint32_t node);
/* n bytes at p of the state's planes, for the CPU: they themselves, or copied to the buffer.  For
 * an offload thread. */
const void *plane_read(const struct holding *h, const void *p, size_t n, void *buffer);
