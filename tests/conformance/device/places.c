/* Every operation with its operands in every combination of host and GPU; on hosts alone there is
 * one. */
#include <criterion/criterion.h>
#include <string.h>

#include "proto/dtype.h"
#include "tests/conformance/device/material.h"
#include "tests/conformance/device/placed.h"
#include "tests/support/adamw.h"

/* More than the pinned memory of a lane holds of the widest operation. */
enum { N = 70001, OPERANDS = 7, SOURCES = 3, MANY = 70 };

/* Of more combinations than this, which two GPUs have, some are tried. */
enum { TRIED_MAX = 128 };

static struct plate plates[OPERANDS], truths[OPERANDS];

static void new (void)
{
        struct dice d = { 11 };

        for (int i = 0; i < OPERANDS; i++) {
                plates[i] = plate_new(ZERO_FP32, N, (size_t)i % 3);
                truths[i] = plate_new(ZERO_FP32, N, (size_t)i % 3);
                plate_fill(&plates[i], ZERO_FP32, N, &d);
                memcpy(truths[i].memory, plates[i].memory, plates[i].bytes);
        }
}

static void done(void)
{
        for (int i = 0; i < OPERANDS; i++) {
                plate_free(&plates[i]);
                plate_free(&truths[i]);
        }
}

static void check(uint64_t places)
{
        for (int i = 0; i < OPERANDS; i++)
                cr_assert(plate_same(&plates[i], &truths[i], ZERO_FP32, N),
                          "operand %d, places %llu", i, (unsigned long long)places);
}

static uint64_t combinations(uint32_t operands)
{
        uint64_t n = 1;

        for (uint32_t i = 0; i < operands; i++)
                n *= gpus_tested() ? placed_kinds() : 1;
        return n;
}

/* Runs an operation by both, operands in every combination of places. */
static void everywhere(uint32_t operands,
                       void (*run)(const struct device_ops *ops, const struct plate *p))
{
        const struct device_ops *ops = tested_ops();
        uint64_t all = combinations(operands), step = all > TRIED_MAX ? all / TRIED_MAX | 1 : 1;

        for (uint64_t places = 0; places < all; places += step) {
                placed_set(places);
                run(ops, plates);
                run(truth_ops(), truths);
                check(places);
        }
        placed_set(PLACES_IN_TURN);
}

static const struct update_scalars *scalars(void)
{
        static struct update_scalars s;

        s = adamw_scalars(1e-3, 0.9, 0.999, 1e-8, 0.01, 7, 0.37);
        return &s;
}

static void adamw(const struct device_ops *ops, const struct plate *p)
{
        run_adamw(ops, scalars(), N, p[0].data, p[1].data, p[2].data, p[3].data, NULL);
}

Test(places, adamw, .init = new, .fini = done)
{
        everywhere(4, adamw);
}

static void run_cast(const struct device_ops *ops, const struct plate *p)
{
        static const enum zero_dtype half[] = { ZERO_BF16, ZERO_FP16 };

        for (int i = 0; i < 2; i++) {
                ops->cast(half[i], p[0].data, ZERO_FP32, p[1].data, N);
                ops->cast(ZERO_FP32, p[1].data, half[i], p[0].data, N);
        }
}

Test(places, cast_there_and_back, .init = new, .fini = done)
{
        everywhere(2, run_cast);
}

static void run_serve(const struct device_ops *ops, const struct plate *p)
{
        ops->serve(ZERO_BF16, p[0].data, p[1].data, N);
        ops->serve(ZERO_FP32, p[2].data, p[1].data, N);
}

Test(places, serve, .init = new, .fini = done)
{
        everywhere(2, run_serve);
}

static void run_accumulate(const struct device_ops *ops, const struct plate *p)
{
        ops->accumulate(p[0].data, ZERO_FP32, p[1].data, N, true);
        ops->accumulate(p[0].data, ZERO_BF16, p[2].data, N, false);
        ops->accumulate(p[0].data, ZERO_FP16, p[3].data, N, false);
}

Test(places, accumulate, .init = new, .fini = done)
{
        everywhere(2, run_accumulate);
}

/* For the comparison, in which a NaN is any NaN. */
static void widen(const struct plate *half, const struct plate *wide)
{
        truth_ops()->cast(ZERO_FP32, wide->data, ZERO_BF16, half->data, N);
        truth_ops()->zero(half->data, N * sizeof(uint16_t));
}

static void run_sum(const struct device_ops *ops, const struct plate *p)
{
        const void *sources[SOURCES] = { p[1].data, p[2].data, p[3].data };

        ops->sum(ZERO_FP32, p[0].data, ZERO_BF16, sources, SOURCES, N);
        ops->sum(ZERO_BF16, p[4].data, ZERO_FP32, sources, SOURCES, N);
        widen(&p[4], &p[5]);
}

Test(places, sum, .init = new, .fini = done)
{
        everywhere(1 + SOURCES, run_sum);
}

/* More sources than a GPU takes at once. */
static void run_sum_of_many(const struct device_ops *ops, const struct plate *p)
{
        const void *sources[MANY];

        for (size_t i = 0; i < MANY; i++)
                sources[i] = (const float *)p[1].data + i * 16;
        ops->sum(ZERO_BF16, p[0].data, ZERO_FP32, sources, MANY, N - MANY * 16);
        widen(&p[0], &p[2]);
}

Test(places, sum_of_many, .init = new, .fini = done)
{
        everywhere(2, run_sum_of_many);
}

static void run_norm(const struct device_ops *ops, const struct plate *p)
{
        struct exact_sum sum;
        bool finite = true;

        exact_sum_init(&sum);
        ops->norm(p[0].data, N, 0.3, &sum, &finite);
        exact_sum_normalize(&sum);
        memcpy(p[1].data, sum.bin, sizeof sum.bin);
        memcpy((char *)p[1].data + sizeof sum.bin, &finite, sizeof finite);
}

Test(places, norm, .init = new, .fini = done)
{
        everywhere(1, run_norm);
}

/* Two pieces of three sources each, the second added to; then the norm of a third alone. */
static void run_reduce(const struct device_ops *ops, const struct plate *p)
{
        const void *sources[SOURCES] = { p[1].data, p[2].data, p[3].data };
        const struct reduce_piece pieces[] = {
                { .acc = p[0].data, .n = N, .k = SOURCES, .src = sources, .first = true },
                { .acc = p[4].data, .n = N - 1000, .k = 1, .src = sources + 1 },
                { .acc = p[5].data, .n = N },
        };
        struct exact_sum sum;
        bool finite = true;

        exact_sum_init(&sum);
        ops->reduce(pieces, 3, ZERO_BF16, ZERO_FP32, 0.3, &sum, &finite);
        exact_sum_normalize(&sum);
        memcpy(p[6].data, sum.bin, sizeof sum.bin);
        memcpy((char *)p[6].data + sizeof sum.bin, &finite, sizeof finite);
}

Test(places, reduce, .init = new, .fini = done)
{
        everywhere(SOURCES + 3, run_reduce);
}

/* Shifted, so that none is another's: sources of pieces may overlap, but not a piece's acc. */
static void run_reduce_of_many(const struct device_ops *ops, const struct plate *p)
{
        const void *sources[MANY];
        struct reduce_piece piece = { p[0].data, N - MANY * 16, MANY, sources, false };

        for (size_t i = 0; i < MANY; i++)
                sources[i] = (const float *)p[1].data + i * 16;
        ops->reduce(&piece, 1, ZERO_BF16, ZERO_FP32, 0, NULL, NULL);
}

Test(places, reduce_of_many, .init = new, .fini = done)
{
        everywhere(2, run_reduce_of_many);
}

static void run_copy(const struct device_ops *ops, const struct plate *p)
{
        ops->copy(p[0].data, p[1].data, N * sizeof(float));
        ops->zero(p[2].data, N * sizeof(float));
}

Test(places, copy_and_zero, .init = new, .fini = done)
{
        everywhere(2, run_copy);
}
