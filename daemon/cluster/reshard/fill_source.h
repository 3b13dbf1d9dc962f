/* fill_source.h - a source of fills, for other nodes and for fills on the same node. */
#pragma once

#include "daemon/cluster/reshard/reshard.h"

/* Which replica is expected, and in which state. */
struct fill_source {
        uint64_t epoch; /* of the placement that numbers the owners */
        uint32_t owner, copy;
        uint64_t version, attempt, puts; /* attempt: the last decided one */
};

/* The replica, if it is here in that state; otherwise NULL, and why. */
struct replica *fill_source_find(const struct job *job, const struct fill_source *g,
                                 struct fault *fault);
/* Bytes of a part of a group in MASTER or a moment; 0: this replica lacks some of it. */
uint64_t fill_source_bytes(const struct replica *h, struct plane plane, uint32_t group,
                           struct range part);
