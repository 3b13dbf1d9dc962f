/* What the GPU adds to the bins of an exact sum, computed here: the same bits as the host's. */
#include <criterion/criterion.h>
#include <float.h>
#include <math.h>
#include <string.h>

#include "cuda/exact.h"

enum { N = 100000 };

static uint64_t state = 1;

static uint64_t bits(void)
{
        state = state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
        return state ^ state >> 29;
}

/* Any finite double. */
static double any(void)
{
        uint64_t b;
        double x;

        do {
                b = bits();
                memcpy(&x, &b, sizeof(x));
        } while (!isfinite(x));
        return x;
}

static double one_size(void)
{
        return ldexp(1 + ldexp((double)(bits() >> 12), -52), 12);
}

static void pass_on(uint64_t *bins, const struct exact_window *w)
{
        for (int i = 0; i < EXACT_PARTS; i++)
                bins[w->bin + (unsigned)i] += exact_window_part(w, i);
}

/* Adds as a thread of the kernel does; returns how often it had to flush its registers. */
static int add_up(const double *x, int n, struct exact_sum *ret_sum)
{
        struct exact_window run = { 0 }, other;
        uint64_t bins[EXACT_SUM_BINS] = { 0 };
        int passed = 0;

        for (int i = 0; i < n; i++) {
                if (exact_window_add(&run, x[i], &other))
                        continue;
                pass_on(bins, &run);
                run = other;
                passed++;
        }
        pass_on(bins, &run);
        exact_sum_init(ret_sum);
        memcpy(ret_sum->bin, bins, sizeof(bins));
        exact_sum_normalize(ret_sum);
        return passed;
}

static void agrees(const double *x, int n)
{
        struct exact_sum host, gpu;

        exact_sum_init(&host);
        for (int i = 0; i < n; i++)
                exact_sum_add(&host, x[i]);
        exact_sum_normalize(&host);
        add_up(x, n, &gpu);
        cr_assert_arr_eq(gpu.bin, host.bin, sizeof(host.bin), "%d doubles from %a", n, x[0]);
}

Test(exact, every_exponent_and_sign_is_the_hosts)
{
        for (int exponent = -1074; exponent < 1024; exponent++)
                for (int sign = -1; sign <= 1; sign += 2) {
                        double x = sign * ldexp(1 + 0x1.fedcba9876543p-1, exponent - 1);

                        agrees(&x, 1);
                }
}

Test(exact, edges_are_the_bits_of_the_host)
{
        const double edges[] = { 0.0,     -0.0,     DBL_MIN, DBL_TRUE_MIN, -DBL_TRUE_MIN,
                                 DBL_MAX, -DBL_MAX, 1.0,     -1.0,         0x1p-1022 - 0x1p-1074 };

        for (size_t i = 0; i < sizeof(edges) / sizeof(edges[0]); i++)
                agrees(&edges[i], 1);
        agrees(edges, sizeof(edges) / sizeof(edges[0]));
}

Test(exact, sum_of_many_is_the_hosts)
{
        static double x[N];

        for (int i = 0; i < N; i++)
                x[i] = i % 3 ? any() : one_size();
        agrees(x, N);
}

/* The sum of squares of a block of gradients, n of them, with that root of their mean square. */
static double block_of(double rms, int n)
{
        double sum = 0;

        for (int i = 0; i < n; i++) {
                double x = 0; /* normal, nearly */

                for (int j = 0; j < 12; j++)
                        x += ldexp((double)(bits() >> 11), -53) - 0.5;
                sum += x * rms * x * rms;
        }
        return sum;
}

/* All sizes that gradients have; at 2.7e-6 half of the sums lie on each side of a bin's bound. */
Test(exact, sums_of_one_size_stay_in_registers)
{
        static const double rms[] = { 0.7, 1e-2, 1e-4, 1e-5, 2.7e-6, 1e-6, 1e-7 };
        static double x[N / 16];
        const int n = sizeof(x) / sizeof(x[0]);
        struct exact_sum sum;

        for (size_t r = 0; r < sizeof(rms) / sizeof(rms[0]); r++) {
                int passed;

                for (int i = 0; i < n; i++)
                        x[i] = i % 8 ? block_of(rms[r], i % 16 ? 128 : 32) : 0.0;
                agrees(x, n);
                passed = add_up(x, n, &sum);
                cr_assert_leq(passed, 2, "%d of %d sums at %g", passed, n, rms[r]);
        }
}

/* The first two bins of a window: sums that differ by up to 2^32. */
Test(exact, sums_in_two_neighbouring_bins_stay_in_registers)
{
        static double x[N];
        struct exact_sum sum;

        for (int i = 0; i < N; i++)
                x[i] = ldexp(one_size(), i % 33);
        agrees(x, N);
        cr_assert_leq(add_up(x, N, &sum), 2);
}

/* The largest that go in, after one that the window begins with: a thousand fill it. */
Test(exact, full_window_is_passed_on)
{
        enum { EACH = 2000 };
        static double x[N];
        struct exact_sum sum;

        for (int sign = -1; sign <= 1; sign += 2) {
                for (int i = 0; i < N; i++)
                        x[i] = sign * (i % EACH ? ldexp(2 - 0x1p-52, 33) : 0x1p-30);
                agrees(x, N);
                cr_assert_eq(add_up(x, N, &sum), 2 * N / EACH);
        }
}
