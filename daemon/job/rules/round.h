/*
 * round.h - one zero_all_reduce() of a job: each rank gives a few numbers, and all get the same.
 *
 * When the last rank has given its numbers, they are combined in the order of ranks.  So the result
 * has the same bits whoever came last.  What a rank has given is final.
 */
#pragma once

#include "proto/client.pb-c.h"
#include "proto/fault.h"
#include "proto/zero_types.h"

enum { ROUND_NAME = 63 }; /* bytes of a name */

/* A rank's numbers for a round. */
struct numbers {
        uint32_t number; /* of the round in the attempt, from 0 */
        const char *name;
        uint32_t op, n; /* enum zero_reduction */
        const double *values;
};

struct round {
        char name[ROUND_NAME + 1];
        uint32_t op, n;
        uint32_t first, given;          /* the rank that began it; ranks that have given */
        bool *from;                     /* [rank]; NULL: nobody has begun a round */
        double *values;                 /* [rank][n] */
        uint32_t done;                  /* rounds of the attempt that are over */
        double result[ZERO_VALUES_MAX]; /* of the last of them */
};

/* Points into the message. */
static inline struct numbers numbers_of(const Zero__AllReduce *m)
{
        return (struct numbers){ .number = m->number,
                                 .name = m->name,
                                 .op = m->op,
                                 .n = (uint32_t)m->n_values,
                                 .values = m->values };
}

/* The attempt is over. */
void round_reset(struct round *r);
/* Checks that numbers, name and operation are within bounds: 0 or ZERO_EINVAL. */
int numbers_check(const struct numbers *c, struct fault *fault);
/*
 * Takes a rank's numbers for the open round, or begins a round.  A second call of the same rank
 * changes nothing.  ZERO_ECONFLICT: the numbers belong to another reduction.  *ret_over: all ranks
 * have given theirs, and the result is there.
 */
int round_give(struct round *r, uint32_t world_size, uint32_t rank, const struct numbers *c,
               bool *ret_over, struct fault *fault);
