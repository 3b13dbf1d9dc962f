/* muon.h - what an update by Muon needs beside its rules' scalars.  Included by optimizer.h. */
#pragma once

#include "daemon/compute/matrix/matrix.h"

struct hyper_set;

struct muon {
        struct ortho_params ns;
        bool nesterov;
};

/* set: of Muon. */
struct muon muon_of(const struct hyper_set *set);
/* s: of a tensor.  Returns the scalars by which rule DIRECTION changes a matrix of that shape. */
struct update_scalars muon_direction(const struct update_scalars *s, uint64_t rows, uint64_t cols);
