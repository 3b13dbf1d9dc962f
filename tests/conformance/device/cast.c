/* Casts and serve: every bit as the scalar truth, NaN included, at every address. */
#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "proto/dtype.h"
#include "tests/conformance/device/material.h"

static const struct {
        enum zero_dtype to, from;
} pairs[] = {
        { ZERO_BF16, ZERO_FP32 }, { ZERO_FP16, ZERO_FP32 }, { ZERO_FP32, ZERO_BF16 },
        { ZERO_FP32, ZERO_FP16 }, { ZERO_FP32, ZERO_FP32 }, { ZERO_BF16, ZERO_BF16 },
        { ZERO_FP16, ZERO_FP16 },
};
enum { N_PAIRS = sizeof(pairs) / sizeof(pairs[0]) };

static void check_cast(size_t pair, size_t n, size_t to_offset, size_t from_offset, struct dice *d)
{
        enum zero_dtype to = pairs[pair].to, from = pairs[pair].from;
        struct plate src = plate_new(from, n, from_offset);
        struct plate dst = plate_new(to, n, to_offset), truth = plate_new(to, n, to_offset);

        plate_fill(&src, from, n, d);
        tested_ops()->cast(to, dst.data, from, src.data, n);
        truth_ops()->cast(to, truth.data, from, src.data, n);
        cr_assert(plate_identical(&dst, &truth), "%s from %s, n %zu, offsets %zu and %zu",
                  dtype_name(to), dtype_name(from), n, to_offset, from_offset);
        plate_free(&src);
        plate_free(&dst);
        plate_free(&truth);
}

Test(cast, equals_the_scalar_truth)
{
        struct dice d = { 1 };

        for (size_t pair = 0; pair < N_PAIRS; pair++)
                for (size_t i = 0; i < n_awkward_sizes; i++)
                        for (size_t j = 0; j < n_awkward_offsets; j++)
                                check_cast(pair, awkward_sizes[i], awkward_offsets[j],
                                           awkward_offsets[(i + j) % n_awkward_offsets], &d);
}

Test(cast, of_more_than_a_cache_equals_the_scalar_truth)
{
        struct dice d = { 2 };

        for (size_t pair = 0; pair < N_PAIRS; pair++)
                for (size_t j = 0; j < 3; j++)
                        check_cast(pair, 600011 + j, awkward_offsets[j], awkward_offsets[2], &d);
}

Test(cast, of_every_16_bit_value_equals_the_truth_and_back_keeps_it)
{
        enum { N = 1 << 16 };
        uint16_t *values = malloc(N * 2 * sizeof(*values)), *back = values + N;
        float *wide = malloc(N * 2 * sizeof(*wide)), *truth = wide + N;
        enum zero_dtype dtypes[] = { ZERO_BF16, ZERO_FP16 };

        for (int i = 0; i < N; i++)
                values[i] = (uint16_t)i;
        for (int k = 0; k < 2; k++) {
                tested_ops()->cast(ZERO_FP32, wide, dtypes[k], values, N);
                truth_ops()->cast(ZERO_FP32, truth, dtypes[k], values, N);
                cr_assert(memcmp(wide, truth, N * sizeof(*wide)) == 0);
                tested_ops()->cast(dtypes[k], back, ZERO_FP32, wide, N);
                for (int i = 0; i < N; i++)
                        cr_assert(isnan(wide[i]) ? back[i] == (values[i] | (k ? 0x200 : 0x40))
                                                 : back[i] == values[i]);
        }
        free(values);
        free(wide);
}

/* All values around the ties of both formats: low bits from a few, high bits all. */
Test(cast, rounds_as_dtype_does_around_every_tie)
{
        static const uint32_t low[] = {
                0, 1, 0xfff, 0x1000, 0x1001, 0x7fff, 0x8000, 0x8001, 0xffff
        };
        enum { N = 1 << 16 };
        float *x = malloc(N * sizeof(*x));
        uint16_t *bf16 = malloc(N * 2 * sizeof(*bf16)), *fp16 = bf16 + N;

        for (size_t k = 0; k < sizeof(low) / sizeof(low[0]); k++) {
                for (uint32_t i = 0; i < N; i++)
                        memcpy(&x[i], &(uint32_t){ i << 16 | low[k] }, sizeof(x[i]));
                tested_ops()->cast(ZERO_BF16, bf16, ZERO_FP32, x, N);
                tested_ops()->cast(ZERO_FP16, fp16, ZERO_FP32, x, N);
                for (int i = 0; i < N; i++) {
                        cr_assert_eq(bf16[i], dtype_bf16_from_fp32(x[i]));
                        cr_assert_eq(fp16[i], dtype_fp16_from_fp32(x[i]));
                }
        }
        free(x);
        free(bf16);
}

Test(serve, equals_cast_from_fp32)
{
        static const enum zero_dtype to[] = { ZERO_FP32, ZERO_BF16, ZERO_FP16 };
        struct dice d = { 3 };

        for (int t = 0; t < 3; t++)
                for (size_t i = 0; i < n_awkward_sizes; i++)
                        for (size_t j = 0; j < n_awkward_offsets; j++) {
                                size_t n = awkward_sizes[i], offset = awkward_offsets[j];
                                struct plate src = plate_new(ZERO_FP32, n, (i + j) % 16);
                                struct plate dst = plate_new(to[t], n, offset);
                                struct plate truth = plate_new(to[t], n, offset);

                                plate_fill(&src, ZERO_FP32, n, &d);
                                tested_ops()->serve(to[t], dst.data, src.data, n);
                                truth_ops()->cast(to[t], truth.data, ZERO_FP32, src.data, n);
                                cr_assert(plate_identical(&dst, &truth), "%s, n %zu, offset %zu",
                                          dtype_name(to[t]), n, offset);
                                plate_free(&src);
                                plate_free(&dst);
                                plate_free(&truth);
                        }
}
