/*
 * What the model sees of the service that holds its parameters: a group's parameters
 * while it works on the group, and a place for the group's gradient.
 *
 * Every call returns 0 or a positive code that the model only forwards; the seam's owner has the
 * error sentence.  Calls may block.
 */
#pragma once

#include "real.h"

#define GPT_NO_GROUP UINT32_MAX

struct seam;

struct seam_ops {
        /*
         * The group's parameters, flat, until release().  next is the group that will be
         * acquired after this one, or GPT_NO_GROUP: it may be fetched meanwhile.
         */
        int (*acquire)(struct seam *seam, uint32_t group, uint32_t next, const real **ret_params);
        int (*release)(struct seam *seam, uint32_t group);
        /* Where to add the group's gradient, flat as the parameters, until push(); what is
         * there is zero or what earlier micro-batches of this step left, alignment gaps too. */
        int (*grad)(struct seam *seam, uint32_t group, real **ret_grad);
        /* This micro-batch's gradient of the group is complete; last: no micro-batch follows.
         * Groups come in descending order. */
        int (*push)(struct seam *seam, uint32_t group, bool last);
        /* Keeps n values for the backward: the input of a block, which runs again there. */
        int (*keep)(struct seam *seam, uint64_t key, const real *values, size_t n);
        /* What was kept, until let_go(), after which it is gone. */
        int (*kept)(struct seam *seam, uint64_t key, const real **ret_values);
        int (*let_go)(struct seam *seam, uint64_t key);
};

struct seam {
        const struct seam_ops *ops;
};
