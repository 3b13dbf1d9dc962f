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

static void pass_on(uint64_t *bins, const struct exact_terms *t)
{
        for (int i = 0; i < EXACT_TERMS; i++)
                bins[t->bin + (unsigned)i] += t->term[i];
}

/* Adds as a thread of the kernel does; returns how often it had to flush its registers. */
static int add_up(const double *x, int n, struct exact_sum *ret_sum)
{
        struct exact_terms run = { 0 };
        uint64_t bins[EXACT_SUM_BINS] = { 0 };
        int passed = 0;

        for (int i = 0; i < n; i++) {
                struct exact_terms t = exact_terms_of(x[i]);

                if (exact_terms_join(&run, &t))
                        continue;
                pass_on(bins, &run);
                run = t;
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

Test(exact, terms_of_every_exponent_and_sign_are_the_hosts)
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

Test(exact, sums_of_one_size_stay_in_registers)
{
        static double x[N];
        struct exact_sum sum;

        for (int i = 0; i < N; i++)
                x[i] = i % 2 ? 0.0 : one_size();
        agrees(x, N);
        cr_assert_leq(add_up(x, N, &sum), 2);
}
