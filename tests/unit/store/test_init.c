/* First values: their distribution, and that they do not depend on cuts. */
#include <criterion/criterion.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* the series are private to it */
#include "daemon/store/init.c"
#include "proto/cleanup.h"

enum { N = 1 << 20 };

static struct layout_tensor tensor(enum zero_init init, double value, uint64_t seed, uint64_t n)
{
        return (struct layout_tensor){ .name = "t",
                                       .ndim = 1,
                                       .shape = { n },
                                       .init = init,
                                       .init_value = value,
                                       .init_seed = seed,
                                       .elements = n };
}

static float *values(const struct layout_tensor *t, uint64_t first, uint64_t count)
{
        float *v = malloc(count * sizeof(*v) + 1);

        init_fill(v, t, first, count);
        return v;
}

/* The mean of ((x - 0) / scale)^power. */
static double moment(const float *v, size_t n, double scale, int power)
{
        double sum = 0;

        for (size_t i = 0; i < n; i++)
                sum += pow(v[i] / scale, power);
        return sum / (double)n;
}

static double beyond(const float *v, size_t n, double limit)
{
        size_t count = 0;

        for (size_t i = 0; i < n; i++)
                count += fabs(v[i]) > limit;
        return (double)count / (double)n;
}

/* Limits are five standard errors. */
Test(init, normal_values_have_the_moments_of_a_normal_distribution)
{
        struct layout_tensor t = tensor(ZERO_INIT_NORMAL, 0.02, 7, N);
        CLEANUP(cleanup_free) float *v = values(&t, 0, N);

        cr_assert_float_eq(moment(v, N, 0.02, 1), 0, 5 / sqrt(N));
        cr_assert_float_eq(moment(v, N, 0.02, 2), 1, 5 * sqrt(2.0 / N));
        cr_assert_float_eq(moment(v, N, 0.02, 3), 0, 5 * sqrt(15.0 / N));
        cr_assert_float_eq(moment(v, N, 0.02, 4), 3, 5 * sqrt(96.0 / N));
}

Test(init, normal_values_have_the_tails_of_a_normal_distribution)
{
        struct layout_tensor t = tensor(ZERO_INIT_NORMAL, 1, 8, N);
        CLEANUP(cleanup_free) float *v = values(&t, 0, N);

        for (double limit = 0.5; limit < 4.1; limit += 0.5) {
                double p = erfc(limit / sqrt(2));

                cr_assert_float_eq(beyond(v, N, limit), p, 5 * sqrt(p / N), "beyond %g", limit);
        }
        cr_assert_eq(beyond(v, N, 8.6), 0);
}

static double correlation(const float *a, const float *b, size_t n)
{
        double sum = 0;

        for (size_t i = 0; i < n; i++)
                sum += (double)a[i] * b[i];
        return sum / (double)n;
}

Test(init, neighbours_and_neighbouring_seeds_are_uncorrelated)
{
        struct layout_tensor t = tensor(ZERO_INIT_NORMAL, 1, 9, N);
        CLEANUP(cleanup_free) float *a = values(&t, 0, N);
        t.init_seed = 10;
        CLEANUP(cleanup_free) float *b = values(&t, 0, N);

        for (int lag = 1; lag <= 4; lag++) {
                cr_assert_float_eq(correlation(a, a + lag, N - 4), 0, 5 / sqrt(N));
                cr_assert_float_eq(correlation(a, b + lag, N - 4), 0, 5 / sqrt(N));
        }
        cr_assert_float_eq(correlation(a, b, N), 0, 5 / sqrt(N));
}

Test(init, the_series_agree_with_the_mathematics_library)
{
        for (uint64_t i = 0; i < 200000; i++) {
                double u = (double)(bits53(1, i) + 1) * 0x1p-53, s, c;

                if (i % 2)
                        u = ldexp(u, -(int)(i % 53)); /* near 0, too */
                cr_assert_float_eq(log_unit(u) / log(u), 1, 1e-15, "log %a", u);
                sine_cosine_turn(u, &s, &c);
                cr_assert_float_eq(s, sin(2 * M_PI * u), 1e-15, "sin %a", u);
                cr_assert_float_eq(c, cos(2 * M_PI * u), 1e-15, "cos %a", u);
        }
        cr_assert_eq(log_unit(1), 0);
}

Test(init, cuts_do_not_change_a_value)
{
        enum { COUNT = 5000 };
        struct layout_tensor t = tensor(ZERO_INIT_NORMAL, 0.1, 11, COUNT - 37);
        CLEANUP(cleanup_free) float *whole = values(&t, 0, COUNT);

        for (uint64_t length = 1; length < 700; length = length * 2 + 1)
                for (uint64_t at = 0; at < COUNT; at += length) {
                        uint64_t n = at + length > COUNT ? COUNT - at : length;
                        CLEANUP(cleanup_free) float *part = values(&t, at, n);

                        cr_assert_arr_eq(part, whole + at, n * sizeof(float));
                }
}

Test(init, the_gap_behind_a_tensor_is_zero)
{
        static const enum zero_init all[] = { ZERO_INIT_ZEROS, ZERO_INIT_CONSTANT, ZERO_INIT_NORMAL,
                                              ZERO_INIT_PUT };

        for (int k = 0; k < 4; k++) {
                struct layout_tensor t = tensor(all[k], 3.5, 1, 100);
                CLEANUP(cleanup_free) float *v = values(&t, 90, 38), *gap = values(&t, 110, 18);

                for (int i = 10; i < 38; i++)
                        cr_assert_eq(v[i], 0);
                for (int i = 0; i < 18; i++)
                        cr_assert_eq(gap[i], 0);
        }
}

Test(init, constant_and_zeros_are_what_they_say)
{
        struct layout_tensor constant = tensor(ZERO_INIT_CONSTANT, 3.5, 1, 100);
        struct layout_tensor zeros = tensor(ZERO_INIT_ZEROS, 3.5, 1, 100);
        CLEANUP(cleanup_free) float *a = values(&constant, 0, 100), *b = values(&zeros, 0, 100);

        for (int i = 0; i < 100; i++) {
                cr_assert_eq(a[i], 3.5f);
                cr_assert_eq(b[i], 0);
        }
}

/* Recorded bits: a change to them changes the first values of every job. */
Test(init, values_stay_what_they_are)
{
        struct layout_tensor t = tensor(ZERO_INIT_NORMAL, 1, 42, 1000);
        CLEANUP(cleanup_free) float *v = values(&t, 0, 1000);
        uint32_t sum = 0;

        for (int i = 0; i < 1000; i++) {
                uint32_t bits;
                memcpy(&bits, &v[i], sizeof(bits));
                sum = sum * 31 + bits;
        }
        cr_assert_eq(sum, UINT32_C(4196495502), "%" PRIu32, sum);
}
