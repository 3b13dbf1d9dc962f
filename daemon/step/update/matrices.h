/* matrices.h - the matrices in an owner's shard of a group, for an update. */
#pragma once

#include "daemon/job/shard/shard.h"

struct shard_matrix {
        uint32_t tensor;
        struct layout_matrix matrix;
        const struct plan_run *run;
        uint64_t master, moment; /* of its first element, in the planes MASTER and GRAD */
};

/* Zeros: before the first one. */
struct matrix_walk {
        uint32_t segment;
        uint64_t matrix; /* of that segment's tensor */
};

/* Goes to the next matrix that has a gradient; false: there is none. */
bool matrix_next(const struct replica *h, uint32_t group, struct matrix_walk *walk,
                 struct shard_matrix *ret);
static inline uint64_t matrix_elements(const struct shard_matrix *m)
{
        return m->matrix.rows * m->matrix.cols;
}
/* How many elements from `first` on lie in one chunk, at most `most`. */
uint64_t matrix_in_chunk(const struct shard_matrix *m, uint64_t first, uint64_t most,
                         uint32_t *ret_chunk);
