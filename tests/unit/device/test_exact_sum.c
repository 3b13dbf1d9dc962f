/* The exact sum against integer arithmetic: order, merging, rounding, range. */
#include <criterion/criterion.h>
#include <float.h>
#include <math.h>
#include <string.h>

#include "daemon/compute/device/exact_sum.h"

enum { N = 500, PARTS = 7 };

static uint64_t random_bits(uint64_t *state)
{
        *state ^= *state << 13;
        *state ^= *state >> 7;
        *state ^= *state << 17;
        return *state;
}

/* Any finite double: all exponents alike. */
static double random_double(uint64_t *state)
{
        uint64_t bits;
        double x;

        do {
                bits = random_bits(state);
                memcpy(&x, &bits, sizeof(x));
        } while (!isfinite(x));
        return x;
}

static void shuffle(double *x, int n, uint64_t *state)
{
        for (int i = n - 1; i > 0; i--) {
                int j = (int)(random_bits(state) % (uint64_t)(i + 1));
                double swap = x[i];

                x[i] = x[j];
                x[j] = swap;
        }
}

static struct exact_sum sum_of(const double *x, int n)
{
        struct exact_sum s;

        exact_sum_init(&s);
        for (int i = 0; i < n; i++)
                exact_sum_add(&s, x[i]);
        return s;
}

static double value_of(const double *x, int n)
{
        struct exact_sum s = sum_of(x, n);

        return exact_sum_value(&s);
}

static bool same_bits(double a, double b)
{
        return memcmp(&a, &b, sizeof(a)) == 0;
}

Test(exact_sum, one_number_is_itself)
{
        uint64_t state = 1;

        for (int i = 0; i < 100000; i++) {
                double x = random_double(&state);

                cr_assert(same_bits(value_of(&x, 1), x), "%a", x);
        }
}

Test(exact_sum, order_and_merging_do_not_matter)
{
        uint64_t state = 2;
        double x[N];
        struct exact_sum first, merged, part[PARTS];

        for (int i = 0; i < N; i++)
                x[i] = random_double(&state);
        first = sum_of(x, N);
        exact_sum_normalize(&first);
        for (int round = 0; round < 200; round++) {
                shuffle(x, N, &state);
                for (int p = 0; p < PARTS; p++)
                        exact_sum_init(&part[p]);
                for (int i = 0; i < N; i++)
                        exact_sum_add(&part[random_bits(&state) % PARTS], x[i]);
                exact_sum_init(&merged);
                for (int p = PARTS - 1; p >= 0; p--)
                        exact_sum_merge(&merged, &part[p]);
                cr_assert(same_bits(exact_sum_value(&merged), exact_sum_value(&first)));
                exact_sum_normalize(&merged);
                cr_assert(!memcmp(merged.bin, first.bin, sizeof(first.bin)));
        }
}

/* Terms are integers below 2^100 times one power of two: their sum fits 128 bits, and the
 * compiler's conversion of that to double rounds to nearest, ties to even. */
Test(exact_sum, is_rounded_as_an_integer_sum)
{
        uint64_t state = 3;

        for (int round = 0; round < 5000; round++) {
                int unit = (int)(random_bits(&state) % 1950) - 1074;
                int n = (int)(random_bits(&state) % 20) + 1;
                __int128 exact = 0;
                double x[20];

                for (int i = 0; i < n; i++) {
                        int64_t mantissa = (int64_t)random_bits(&state) >> (11 + i % 50);
                        int shift = (int)(random_bits(&state) % 47);

                        exact += (__int128)mantissa * ((__int128)1 << shift);
                        x[i] = ldexp((double)mantissa, unit + shift);
                }
                /* above the subnormals scaling is exact; below, so is the sum */
                cr_assert(same_bits(value_of(x, n), ldexp((double)exact, unit)),
                          "round %d, unit %d", round, unit);
        }
}

Test(exact_sum, cancels_to_zero)
{
        uint64_t state = 4;
        double x[2 * N];

        for (int i = 0; i < N; i++) {
                x[i] = random_double(&state);
                x[N + i] = -x[i];
        }
        shuffle(x, 2 * N, &state);
        cr_assert(same_bits(value_of(x, 2 * N), 0.0));
}

Test(exact_sum, keeps_what_cancellation_leaves)
{
        cr_assert_eq(value_of((double[]){ 1e300, 1.0, -1e300 }, 3), 1.0);
        cr_assert_eq(value_of((double[]){ DBL_MAX, 0x1p-1074, -DBL_MAX }, 3), 0x1p-1074);
        cr_assert_eq(value_of((double[]){ DBL_MAX, DBL_MAX, -DBL_MAX }, 3), DBL_MAX);
}

Test(exact_sum, ties_go_to_even_and_anything_beyond_a_tie_does_not)
{
        cr_assert_eq(value_of((double[]){ 0x1p53, 1.0 }, 2), 0x1p53);
        cr_assert_eq(value_of((double[]){ 0x1p53 + 2, 1.0 }, 2), 0x1p53 + 4);
        cr_assert_eq(value_of((double[]){ 0x1p53, 1.0, 0x1p-1074 }, 3), 0x1p53 + 2);
        cr_assert_eq(value_of((double[]){ -0x1p53, -1.0, -0x1p-1074 }, 3), -0x1p53 - 2);
        cr_assert_eq(value_of((double[]){ 0x1p53 + 2, 1.0, -0x1p-1074 }, 3), 0x1p53 + 2);
}

Test(exact_sum, leaves_the_range_only_where_rounding_does)
{
        double half_ulp = 0x1p970;

        cr_assert_eq(value_of((double[]){ DBL_MAX, DBL_MAX }, 2), (double)INFINITY);
        cr_assert_eq(value_of((double[]){ -DBL_MAX, -DBL_MAX }, 2), (double)-INFINITY);
        cr_assert_eq(value_of((double[]){ DBL_MAX, half_ulp }, 2), (double)INFINITY);
        cr_assert_eq(value_of((double[]){ DBL_MAX, half_ulp, -0x1p-1074 }, 3), DBL_MAX);
}

Test(exact_sum, adds_subnormals_exactly)
{
        cr_assert_eq(value_of((double[]){ 0x1p-1074, 0x1p-1074, 0x1p-1074 }, 3), 3 * 0x1p-1074);
        cr_assert_eq(value_of((double[]){ DBL_MIN, -0x1p-1074 }, 2), DBL_MIN - 0x1p-1074);
}

/* So many additions of x that the bins are one short of overflow: put them there, go on. */
Test(exact_sum, survives_more_additions_than_a_bin_could_hold)
{
        enum { MORE = 1000 };
        const int64_t times = INT32_MAX;
        double x = -DBL_MAX / 0x1p200;
        struct exact_sum s = sum_of(&x, 1), merged;

        for (int i = 0; i < EXACT_SUM_BINS; i++)
                s.bin[i] *= times;
        s.pending = (uint32_t)times;
        merged = s;
        for (int i = 0; i < MORE; i++)
                exact_sum_add(&s, x);
        cr_assert_eq(exact_sum_value(&s), x * (double)(times + MORE));
        exact_sum_merge(&merged, &merged);
        cr_assert_eq(exact_sum_value(&merged), x * (double)(2 * times));
}

/* Bins from another node may be anything. */
Test(exact_sum, any_bins_have_one_normal_form)
{
        uint64_t state = 5;

        for (int round = 0; round < 1000; round++) {
                struct exact_sum s = { .pending = (uint32_t)random_bits(&state) }, once, sum;

                for (int i = 0; i < EXACT_SUM_BINS; i++)
                        s.bin[i] = round % 3 == 0   ? (int64_t)random_bits(&state)
                                   : round % 3 == 1 ? INT64_MIN
                                                    : INT64_MAX;
                exact_sum_init(&sum);
                exact_sum_merge(&sum, &s);
                exact_sum_merge(&sum, &s);
                cr_assert(!isnan(exact_sum_value(&sum)));
                exact_sum_normalize(&s);
                once = s;
                exact_sum_normalize(&s);
                cr_assert(!memcmp(&s, &once, sizeof(s)));
        }
}
