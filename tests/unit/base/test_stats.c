/* The histogram: any quantile within 1/16, whatever values come. */
#include <criterion/criterion.h>

#include "daemon/base/stats.h"

#include <math.h>
#include <stdlib.h>

static struct histogram h;

/* A different magnitude each time, from 0 to 2^64 - 1. */
static uint64_t next_value(uint64_t *state)
{
        *state = *state * 6364136223846793005ull + 1442695040888963407ull;
        return *state >> (*state >> 33) % 64;
}

static int compare(const void *a, const void *b)
{
        uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

        return (x > y) - (x < y);
}

Test(stats, empty_is_zero)
{
        cr_assert_eq(histogram_quantile(&h, 0.5), 0);
}

Test(stats, small_values_are_exact)
{
        for (uint64_t i = 0; i < 16; i++)
                histogram_add(&h, i);
        for (uint64_t i = 0; i < 16; i++)
                cr_assert_eq(histogram_quantile(&h, (double)(i + 1) / 16), i);
}

Test(stats, quantiles_against_sorted_values)
{
        enum { N = 5000 };
        static uint64_t values[N];
        uint64_t state = 7;

        for (int i = 0; i < N; i++)
                histogram_add(&h, values[i] = next_value(&state));
        qsort(values, N, sizeof(values[0]), compare);
        for (int i = 0; i < N; i += 7) {
                uint64_t q = histogram_quantile(&h, (i + 0.5) / N);

                cr_assert_geq(q, values[i]);
                cr_assert_leq(q - values[i], values[i] / 16, "value %d", i);
        }
        cr_assert_eq(histogram_quantile(&h, 1), values[N - 1]);
        cr_assert_eq(h.max, values[N - 1]);
}

Test(stats, every_power_of_two_and_its_neighbours)
{
        for (int bit = 0; bit < 64; bit++) {
                for (int d = -1; d <= 1; d++) {
                        struct histogram one = { 0 };
                        uint64_t value = ((uint64_t)1 << bit) + (uint64_t)d;

                        histogram_add(&one, value);
                        cr_assert_eq(histogram_quantile(&one, 0.5), value);
                }
        }
}

Test(stats, sum_stops_at_its_largest_value)
{
        histogram_add(&h, UINT64_MAX);
        histogram_add(&h, 5);
        cr_assert_eq(h.sum, UINT64_MAX);
        cr_assert_eq(h.count, 2);
}
