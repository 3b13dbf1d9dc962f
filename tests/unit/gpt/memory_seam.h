/*
 * A seam over plain arrays that checks how the model uses it: parameters only while
 * acquired, groups in the promised order, every gradient pushed once a micro-batch.
 */
#pragma once

#include "seam.h"
#include "spec.h"

struct memory_seam {
        struct seam seam;
        const struct gpt_spec *spec;
        real **params, **grads;
        uint32_t held;          /* groups acquired and not released */
        uint32_t acquired;      /* calls */
        uint32_t expected;      /* the group that the last acquire named as next, or GPT_NO_GROUP */
        uint32_t next_push;     /* group that must be pushed next */
        uint32_t micro_batches; /* pushes of group 0 */
};

/* Parameters are random and large enough that no gradient is tiny. */
void memory_seam_init(struct memory_seam *m, const struct gpt_spec *spec, uint64_t seed);
void memory_seam_deinit(struct memory_seam *m);
void memory_seam_clear(struct memory_seam *m);
