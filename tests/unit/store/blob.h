/* The bytes that ranks keep in tests: they follow from rank and attempt, and may be none. */
#pragma once

#include "daemon/store/store.h"

/* Stages what rank keeps with the attempt that the record is in; 0 or -errno. */
int blob_stage(struct state *s, uint32_t rank);
/* Whether what is there is what the rank kept with that attempt. */
bool blob_is(const struct state *s, uint32_t rank, uint64_t attempt);
