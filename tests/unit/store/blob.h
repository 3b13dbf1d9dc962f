/* The bytes that ranks keep in tests: a function of rank and attempt, perhaps empty. */
#pragma once

#include "daemon/store/store.h"

/* Stages the rank's blob of the record's attempt; 0 or -errno. */
int blob_stage(struct state *s, uint32_t rank);
/* Whether the state has the rank's blob of that attempt. */
bool blob_is(const struct state *s, uint32_t rank, uint64_t attempt);
