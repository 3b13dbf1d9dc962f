/*
 * staging.h - bytes of planes and gradients for those who need them in host memory: other nodes,
 * and the CPU.
 *
 * What is in host memory is taken where it lies.  What is on a GPU is copied first, in an offload
 * thread; payloads wait for their turn, so that copies under way take at most STAGING_BYTES, or as
 * much as one payload that is larger.
 */
#pragma once

#include "daemon/transfer/transfer.h"

enum { STAGING_BYTES = 256 << 20 };

/* The link is lost: what waits for it ends. */
void staging_down(struct engine *x, uint32_t node);
/* ask.c.  The job is dropped: nothing is waited for any more; done says -ECANCELED. */
void asks_forget(struct job *job, int status, const char *text);
