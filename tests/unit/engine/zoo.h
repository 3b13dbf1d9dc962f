/* A small model with everything a layout can have. */
#pragma once

#include "proto/layout.h"

enum zoo_group {
        ZOO_BIG,    /* bf16, over all owners; a frozen tensor, a scalar, two hyperparameter sets */
        ZOO_FLOAT,  /* fp32; a tensor without elements, one of one element, a large one */
        ZOO_EMPTY,  /* nothing but a tensor without elements */
        ZOO_TINY,   /* fp32; smaller than the number of owners */
        ZOO_FROZEN, /* fp32; frozen */
        ZOO_EVEN,   /* bf16; of the ranks with even numbers */
        ZOO_LAST,   /* fp32; of the last rank alone */
        ZOO_WHOLE,  /* bf16; two whole tensors of different sizes, so slices differ, too */
        ZOO_GROUPS,
};

/* For ranks 0 to world_size - 1.  part: what the large tensors' elements are divided by. */
layout *zoo_layout(uint32_t world_size, uint64_t part);
