/* fill_source.h - a source of fills, shared with what copies from one on the same node. */
#pragma once

#include "daemon/reshard/reshard.h"

/* Whose state is meant, and as what. */
struct fill_source {
        uint64_t epoch; /* of the placement that counts the owners */
        uint32_t owner, copy;
        uint64_t version, attempt, puts; /* attempt: the last decided one */
};

/* The replica, if it is that; else NULL and why. */
struct replica *fill_source_find(const struct job *job, const struct fill_source *g,
                                 struct fault *fault);
/* Where a part of a group lies in MASTER or a moment; NULL: not all of it is here. */
const void *fill_source_place(const struct replica *h, enum zero_plane plane, uint32_t group,
                              struct range part, uint64_t *ret_bytes);
