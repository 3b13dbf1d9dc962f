/*
 * The decision of a step: a pure function of the votes, the ranks' parameters and the state of the
 * loss scale.  So everyone who collects the same votes decides the same.
 */
#pragma once

#include "daemon/compute/device/device.h"
#include "daemon/compute/optimizer/optimizer.h"
#include "proto/fault.h"
#include "proto/zero.pb-c.h"

/* The parameters on which all ranks agree (StepParams, checked). */
struct step_params {
        uint32_t n_sets;
        struct hyper_set sets[ZERO_SET_MAX];
        double clip_norm;
        double loss_scale; /* never 0 */
        uint32_t growth_interval;
};

/* An owner's vote, or the sum of all owners' votes. */
struct votes {
        struct exact_sum norm; /* of squares, divisors applied, loss scale left in */
        bool finite;
        struct fault refused; /* why an owner cannot carry out this step; or OK */
};

struct decision {
        bool commit;
        bool overflow; /* not committed because a gradient was not finite */
        bool finite;
        double grad_norm; /* loss scale taken out */
        /* Factor for a summed gradient, without its group's divisor: the clip factor over the
         * loss scale.  It is recorded, so an update repeated from the record has the same bits. */
        double grad_scale;
        double loss_scale; /* of the next step */
        uint32_t good_steps;
};

/* The Euclidean norm of all votes, loss scale left in; NaN if not finite. */
double votes_norm(const struct votes *votes);
/* True if two votes come from the same gradients.  Votes that are not finite have no norm: they are
 * equal whatever their sums are. */
bool votes_equal(const struct votes *a, const struct votes *b);
struct decision decide(const struct votes *votes, const struct step_params *params,
                       uint32_t good_steps);
int step_params_from_message(const Zero__StepParams *m, struct step_params *ret,
                             struct fault *fault);
/* As step_params_from_message(), for a message of a rank.  Ranks have bounds that nodes and disks
 * of earlier releases do not keep. */
int step_params_given(const Zero__StepParams *m, struct step_params *ret, struct fault *fault);
/* Checks that owners may update before a step ends with these parameters: the update must not
 * depend on the norm or on an overflow.  ZERO_EINVAL: the fault says what stands in the way. */
int step_params_ahead(const struct step_params *params, struct fault *fault);
/* The parameters as a message, which the parameters must outlive. */
struct step_params_message {
        Zero__StepParams message;
        Zero__HyperSet sets[ZERO_SET_MAX];
        struct hyper_values values[ZERO_SET_MAX];
        Zero__HyperSet *pointers[ZERO_SET_MAX];
};
Zero__StepParams *step_params_to_message(const struct step_params *params,
                                         struct step_params_message *ret);
/* True if equal; else text names the first difference ("set 0: lr 0.1 and 0.2"). */
bool step_params_equal(const struct step_params *a, const struct step_params *b, char *text,
                       size_t size);
