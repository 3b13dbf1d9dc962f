#include "daemon/job/rules/round.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "proto/cleanup.h"
#include "proto/text.h"

static void round_end(struct round *r)
{
        free(STEAL(r->from));
        free(STEAL(r->values));
        r->given = 0;
}

void round_reset(struct round *r)
{
        round_end(r);
        r->done = 0;
}

int numbers_check(const struct numbers *c, struct fault *fault)
{
        if (c->n == 0 || c->n > ZERO_VALUES_MAX)
                return fault_set(fault, ZERO_EINVAL, "a reduction has 1 to %d numbers, not %u",
                                 ZERO_VALUES_MAX, c->n);
        if (c->op > ZERO_REDUCE_MIN)
                return fault_set(fault, ZERO_EINVAL, "there is no reduction %u", c->op);
        if (strlen(c->name) > ROUND_NAME)
                return fault_set(fault, ZERO_EINVAL,
                                 "the name of a reduction has at most %d bytes, not %zu",
                                 ROUND_NAME, strlen(c->name));
        return 0;
}

static double combined(uint32_t op, double a, double b)
{
        if (op == ZERO_REDUCE_SUM)
                return a + b;
        if (isnan(a) || isnan(b))
                return NAN;
        return (op == ZERO_REDUCE_MAX) == (b > a) ? b : a;
}

static void combine(struct round *r, uint32_t world_size)
{
        for (uint32_t i = 0; i < r->n; i++) {
                r->result[i] = r->values[i];
                for (uint32_t rank = 1; rank < world_size; rank++)
                        r->result[i] = combined(r->op, r->result[i], r->values[rank * r->n + i]);
        }
}

static int begin(struct round *r, uint32_t world_size, uint32_t rank, const struct numbers *c,
                 struct fault *fault)
{
        r->from = calloc(world_size, sizeof *r->from);
        r->values = calloc((size_t)world_size * c->n, sizeof *r->values);
        if (!r->from || !r->values) {
                round_end(r);
                return fault_set(fault, ZERO_ENOMEM, "out of memory");
        }
        snprintf(r->name, sizeof r->name, "%s", c->name);
        r->op = c->op;
        r->n = c->n;
        r->first = rank;
        return 0;
}

int round_give(struct round *r, uint32_t world_size, uint32_t rank, const struct numbers *c,
               bool *ret_over, struct fault *fault)
{
        static const char *const names[] = { "sum", "max", "min" };
        int status = r->from ? 0 : begin(r, world_size, rank, c, fault);

        if (status)
                return status;
        if (c->op != r->op || c->n != r->n || strcmp(c->name, r->name) != 0)
                return fault_set(
                        fault, ZERO_ECONFLICT,
                        "rank %u reduces %s (%s of %u numbers), and rank %u reduces %s (%s "
                        "of %u numbers)",
                        rank, text_quote(c->name).text, names[c->op], c->n, r->first,
                        text_quote(r->name).text, names[r->op], r->n);
        *ret_over = false;
        if (r->from[rank])
                return 0;
        r->from[rank] = true;
        memcpy(r->values + (size_t)rank * r->n, c->values, r->n * sizeof *r->values);
        if (++r->given < world_size)
                return 0;
        combine(r, world_size);
        round_end(r);
        r->done++;
        *ret_over = true;
        return 0;
}
