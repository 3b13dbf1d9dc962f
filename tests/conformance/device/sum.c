/* accumulate and sum: in order, in fp32, rounded once, to the bit as the scalar truth. */
#include <criterion/criterion.h>
#include <math.h>

#include "proto/dtype.h"
#include "tests/conformance/device/material.h"

enum { SOURCES_MAX = 7 };

static const enum zero_dtype dtypes[] = { ZERO_FP32, ZERO_BF16, ZERO_FP16 };

static void check_accumulate(enum zero_dtype from, size_t n, size_t offset, bool first,
                             struct dice *d)
{
        struct plate src = plate_new(from, n, (offset + 7) % 16);
        struct plate acc = plate_new(ZERO_FP32, n, offset), truth;
        struct dice again = *d;

        truth = plate_new(ZERO_FP32, n, offset);
        plate_fill(&acc, ZERO_FP32, n, d);
        plate_fill(&truth, ZERO_FP32, n, &again);
        plate_fill(&src, from, n, d);
        tested_ops()->accumulate(acc.data, from, src.data, n, first);
        truth_ops()->accumulate(truth.data, from, src.data, n, first);
        cr_assert(plate_same(&acc, &truth, ZERO_FP32, n), "%s, n %zu, offset %zu, first %d",
                  dtype_name(from), n, offset, first);
        plate_free(&src);
        plate_free(&acc);
        plate_free(&truth);
}

Test(accumulate, equals_the_scalar_truth)
{
        struct dice d = { 1 };

        for (int k = 0; k < 3; k++)
                for (size_t i = 0; i < n_awkward_sizes; i++)
                        for (size_t j = 0; j < n_awkward_offsets; j++)
                                for (int first = 0; first < 2; first++)
                                        check_accumulate(dtypes[k], awkward_sizes[i],
                                                         awkward_offsets[j], first, &d);
}

Test(accumulate, first_ignores_what_was_there)
{
        float acc[40], src[40];

        for (int i = 0; i < 40; i++) {
                acc[i] = NAN;
                src[i] = -0.0f;
        }
        tested_ops()->accumulate(acc, ZERO_FP32, src, 40, true);
        for (int i = 0; i < 40; i++)
                cr_assert(acc[i] == 0.0f && signbit(acc[i]));
}

static void check_sum(enum zero_dtype to, enum zero_dtype from, size_t k, size_t n, size_t offset,
                      struct dice *d)
{
        struct plate src[SOURCES_MAX], dst = plate_new(to, n, offset);
        struct plate truth = plate_new(to, n, offset);
        const void *places[SOURCES_MAX];

        for (size_t j = 0; j < k; j++) {
                src[j] = plate_new(from, n, (offset + j) % 16);
                plate_fill(&src[j], from, n, d);
                places[j] = src[j].data;
        }
        tested_ops()->sum(to, dst.data, from, places, k, n);
        truth_ops()->sum(to, truth.data, from, places, k, n);
        cr_assert(plate_same(&dst, &truth, to, n), "%s from %zu of %s, n %zu, offset %zu",
                  dtype_name(to), k, dtype_name(from), n, offset);
        for (size_t j = 0; j < k; j++)
                plate_free(&src[j]);
        plate_free(&dst);
        plate_free(&truth);
}

Test(sum, equals_the_scalar_truth)
{
        struct dice d = { 2 };

        for (int to = 0; to < 3; to++)
                for (int from = 0; from < 3; from++)
                        for (size_t i = 0; i < n_awkward_sizes; i++)
                                for (size_t k = 1; k <= SOURCES_MAX; k += k == 1 ? 1 : 5)
                                        check_sum(dtypes[to], dtypes[from], k, awkward_sizes[i],
                                                  awkward_offsets[(i + k) % n_awkward_offsets], &d);
}

Test(sum, equals_accumulate_and_one_cast)
{
        enum { N = 1000 };
        struct dice d = { 3 };
        struct plate src[3], acc = plate_new(ZERO_FP32, N, 0);
        struct plate dst = plate_new(ZERO_BF16, N, 1), expected = plate_new(ZERO_BF16, N, 1);
        const void *places[3];

        for (int j = 0; j < 3; j++) {
                src[j] = plate_new(ZERO_BF16, N, 0);
                plate_fill(&src[j], ZERO_BF16, N, &d);
                places[j] = src[j].data;
                tested_ops()->accumulate(acc.data, ZERO_BF16, src[j].data, N, j == 0);
        }
        tested_ops()->cast(ZERO_BF16, expected.data, ZERO_FP32, acc.data, N);
        tested_ops()->sum(ZERO_BF16, dst.data, ZERO_BF16, places, 3, N);
        cr_assert(plate_same(&dst, &expected, ZERO_BF16, N));
        for (int j = 0; j < 3; j++)
                plate_free(&src[j]);
        plate_free(&acc);
        plate_free(&dst);
        plate_free(&expected);
}

/* 1 + 2^-8 is a tie in bf16: two of 2^-9 make it, rounding each would lose both. */
Test(sum, rounds_once)
{
        uint16_t one[40], small[40], dst[40];
        const void *places[] = { one, small, small, small };

        for (int i = 0; i < 40; i++) {
                one[i] = dtype_bf16_from_fp32(1.0f);
                small[i] = dtype_bf16_from_fp32(0x1p-9f);
        }
        tested_ops()->sum(ZERO_BF16, dst, ZERO_BF16, places, 4, 40);
        for (int i = 0; i < 40; i++)
                cr_assert_eq(dst[i], dtype_bf16_from_fp32(1.0f + 0x1p-7f));
}
