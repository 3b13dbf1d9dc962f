/* norm: the same bins as the scalar truth, however a range is cut at blocks of 128. */
#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tests/conformance/device/material.h"

enum { BLOCK = 128 };

struct outcome {
        struct exact_sum sum;
        bool finite;
};

static struct outcome start(void)
{
        struct outcome o = { .finite = true };

        exact_sum_init(&o.sum);
        return o;
}

static struct outcome norm_of(const struct device_ops *ops, const float *x, size_t n, double scale)
{
        struct outcome o = start();

        ops->norm(x, n, scale, &o.sum, &o.finite);
        exact_sum_normalize(&o.sum);
        return o;
}

static bool same(const struct outcome *a, const struct outcome *b)
{
        return a->finite == b->finite && memcmp(a->sum.bin, b->sum.bin, sizeof(a->sum.bin)) == 0;
}

static void fill_finite(float *x, size_t n, struct dice *d)
{
        for (size_t i = 0; i < n; i++)
                x[i] = (float)ldexp(2 * dice_unit(d) - 1, (int)(dice_bits(d) % 250) - 125);
}

Test(norm, equals_the_scalar_truth)
{
        struct dice d = { 1 };

        for (size_t i = 0; i < n_awkward_sizes; i++)
                for (size_t j = 0; j < n_awkward_offsets; j++)
                        for (int ordinary = 0; ordinary < 2; ordinary++) {
                                size_t n = awkward_sizes[i];
                                struct plate x = plate_new(ZERO_FP32, n, awkward_offsets[j]);
                                struct outcome a, b;

                                plate_fill(&x, ZERO_FP32, n, &d);
                                if (ordinary)
                                        fill_finite(x.data, n, &d);
                                a = norm_of(tested_ops(), x.data, n, 0.3);
                                b = norm_of(truth_ops(), x.data, n, 0.3);
                                cr_assert(same(&a, &b), "n %zu", n);
                                cr_assert(!ordinary || a.finite);
                                plate_free(&x);
                        }
}

Test(norm, does_not_depend_on_cuts_at_blocks_or_on_order)
{
        enum { BLOCKS = 40, N = BLOCKS * BLOCK + 17 };
        struct dice d = { 2 };
        float *x = malloc(N * sizeof(*x));
        struct outcome whole, parts = start(), other = start();

        fill_finite(x, N, &d);
        whole = norm_of(tested_ops(), x, N, 1.7);
        for (int b = BLOCKS; b >= 0; b -= 2) {
                size_t first = (size_t)b * BLOCK, n = N - first < 2 * BLOCK ? N - first : 2 * BLOCK;

                tested_ops()->norm(x + first, n, 1.7, b % 4 ? &parts.sum : &other.sum,
                                   &parts.finite);
        }
        exact_sum_merge(&parts.sum, &other.sum);
        exact_sum_normalize(&parts.sum);
        cr_assert(same(&whole, &parts));
        free(x);
}

Test(norm, is_the_sum_of_squares_within_rounding)
{
        enum { N = 10007 };
        struct dice d = { 3 };
        float *x = malloc(N * sizeof(*x));
        long double expected = 0;
        struct outcome o;

        for (int i = 0; i < N; i++) {
                x[i] = (float)(2 * dice_unit(&d) - 1);
                expected += (long double)x[i] * x[i] * 0.25L;
        }
        o = norm_of(tested_ops(), x, N, 0.25);
        cr_assert(fabsl(exact_sum_value(&o.sum) - expected) <= 1e-14L * expected);
        free(x);
}

Test(norm, non_finite_element_clears_finite_and_only_its_block_is_left_out)
{
        static const float bad[] = { INFINITY, -INFINITY, NAN };
        enum { N = 3 * BLOCK + 5 };
        float x[N];

        for (int at = 0; at < N; at++) {
                int block = at / BLOCK, length = block == 3 ? 5 : BLOCK;
                struct outcome o;

                for (int i = 0; i < N; i++)
                        x[i] = 2.0f;
                x[at] = bad[at % 3];
                o = norm_of(tested_ops(), x, N, 1.0);
                cr_assert(!o.finite);
                cr_assert_eq(exact_sum_value(&o.sum), 4.0 * (N - length));
        }
}

Test(norm, of_the_largest_floats_is_finite)
{
        float x[BLOCK + 3];
        struct outcome o;

        for (int i = 0; i < BLOCK + 3; i++)
                x[i] = 0x1.fffffep127f;
        o = norm_of(tested_ops(), x, BLOCK + 3, 1.0);
        cr_assert(o.finite && isfinite(exact_sum_value(&o.sum)));
}

/* A block whose scaled sum leaves the range of double counts as not finite. */
Test(norm, scale_out_of_range_clears_finite)
{
        float x[BLOCK];
        double scales[] = { INFINITY, NAN, 0x1p1000 };

        for (int i = 0; i < BLOCK; i++)
                x[i] = 0x1p100f;
        for (int k = 0; k < 3; k++) {
                struct outcome o = norm_of(tested_ops(), x, BLOCK, scales[k]);

                cr_assert(!o.finite);
                cr_assert_eq(exact_sum_value(&o.sum), 0.0);
        }
}
