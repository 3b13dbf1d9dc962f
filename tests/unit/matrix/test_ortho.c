/* Newton-Schulz: the bits of every instruction set, of any order of parts; what comes out. */
#include <criterion/criterion.h>
#include <math.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "daemon/compute/matrix/matrix.h"
#include "proto/dtype.h"

static const struct ortho_params torchs = { 3.4445f, -4.7750f, 2.0315f, 1e-7f, 5 };

/* splitmix64 */
static uint64_t dice(uint64_t *state)
{
        uint64_t z = *state += UINT64_C(0x9e3779b97f4a7c15);

        z = (z ^ z >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
        z = (z ^ z >> 27) * UINT64_C(0x94d049bb133111eb);
        return z ^ z >> 31;
}

/* Numbers in [-1, 1) by steps of 2^-7: bf16 has them all. */
static uint16_t *matrix_new(uint64_t rows, uint64_t cols, uint64_t seed)
{
        uint16_t *x = malloc(rows * cols * sizeof *x);

        for (uint64_t i = 0; i < rows * cols; i++)
                x[i] = dtype_bf16_from_fp32((float)(dice(&seed) >> 56) / 128 - 1);
        return x;
}

static uint16_t *transposed(const uint16_t *x, uint64_t rows, uint64_t cols)
{
        uint16_t *t = malloc(rows * cols * sizeof *t);

        for (uint64_t i = 0; i < rows; i++)
                for (uint64_t j = 0; j < cols; j++)
                        t[j * rows + i] = x[i * cols + j];
        return t;
}

/* ---- runs -------------------------------------------------------------------------- */

struct crew {
        const struct ortho *o;
        uint32_t stage, parts, next;
        const uint32_t *order;
};

static void *crew_main(void *arg)
{
        struct crew *c = arg;
        uint32_t i;

        while ((i = __atomic_fetch_add(&c->next, 1, __ATOMIC_RELAXED)) < c->parts)
                ortho_part(c->o, c->stage, c->order[i]);
        return NULL;
}

static uint32_t *shuffled(uint32_t parts, uint64_t *seed)
{
        uint32_t *order = malloc(parts * sizeof *order);

        for (uint32_t i = 0; i < parts; i++) {
                uint32_t at = (uint32_t)(dice(seed) % (i + 1));

                order[i] = order[at];
                order[at] = i;
        }
        return order;
}

static void run_shuffled(const struct ortho *o, uint32_t stage, uint64_t *seed)
{
        enum { THREADS = 3 };
        uint32_t parts = ortho_parts(o, stage), *order = shuffled(parts, seed);
        struct crew c = { o, stage, parts, 0, order };
        pthread_t threads[THREADS];

        for (int i = 0; i < THREADS; i++)
                cr_assert_eq(pthread_create(&threads[i], NULL, crew_main, &c), 0);
        for (int i = 0; i < THREADS; i++)
                pthread_join(threads[i], NULL);
        free(order);
}

/* seed: of the parts' order; 0: one by one.  Memory beside what was asked for stays. */
static uint16_t *ortho_of(const char *isa, const uint16_t *x, uint64_t rows, uint64_t cols,
                          const struct ortho_params *params, uint64_t seed)
{
        size_t bytes = ortho_bytes(rows, cols), values = rows * cols * sizeof *x;
        uint8_t *memory = aligned_alloc(64, bytes + 64);
        uint16_t *result = malloc(values);
        struct ortho o;

        memset(memory, 0xff, bytes + 64); /* NaN: what is read before it is written shows */
        ortho_begin(&o, rows, cols, params, memory, device_host(isa));
        memcpy(ortho_values(&o), x, values);
        for (uint32_t stage = 0; stage < ortho_stages(&o); stage++) {
                for (uint32_t i = 0; !seed && i < ortho_parts(&o, stage); i++)
                        ortho_part(&o, stage, i);
                if (seed)
                        run_shuffled(&o, stage, &seed);
        }
        memcpy(result, ortho_values(&o), values);
        for (int i = 0; i < 64; i++)
                cr_assert_eq(memory[bytes + i], 0xff);
        free(memory);
        return result;
}

static bool same(const uint16_t *a, const uint16_t *b, uint64_t rows, uint64_t cols)
{
        return memcmp(a, b, rows * cols * sizeof *a) == 0;
}

/* ---- bits -------------------------------------------------------------------------- */

static const struct shape {
        uint64_t rows, cols;
        uint32_t steps;
} shapes[] = {
        { 1, 1, 5 },     { 1, 77, 5 },   { 77, 1, 5 },    { 2, 3, 0 },     { 17, 33, 5 },
        { 33, 17, 5 },   { 64, 64, 4 },  { 130, 257, 5 }, { 257, 130, 2 }, { 193, 400, 1 },
        { 400, 200, 1 }, { 3, 9001, 2 }, { 9001, 2, 2 },  { 2, 90000, 2 }, { 90000, 3, 1 },
};
enum { N_SHAPES = sizeof shapes / sizeof shapes[0] };

Test(ortho, has_the_bits_of_the_scalar_truth_on_every_instruction_set)
{
        static const char *const isas[] = { "avx2", "avx512" };

        for (int i = 0; i < N_SHAPES; i++) {
                uint64_t rows = shapes[i].rows, cols = shapes[i].cols;
                struct ortho_params params = torchs;
                uint16_t *x = matrix_new(rows, cols, 1);
                uint16_t *truth;

                params.steps = shapes[i].steps;
                truth = ortho_of("scalar", x, rows, cols, &params, 0);
                for (int k = 0; k < 2; k++) {
                        uint16_t *o;

                        if (!device_host(isas[k]))
                                continue;
                        o = ortho_of(isas[k], x, rows, cols, &params, 0);
                        cr_assert(same(o, truth, rows, cols), "%s, %u x %u", isas[k],
                                  (unsigned)rows, (unsigned)cols);
                        free(o);
                }
                free(x);
                free(truth);
        }
}

Test(ortho, has_the_same_bits_whatever_the_order_of_parts)
{
        static const struct shape large[] = { { 700, 900, 2 }, { 900, 700, 3 }, { 4, 600000, 1 } };

        for (int i = 0; i < 3; i++) {
                uint64_t rows = large[i].rows, cols = large[i].cols;
                struct ortho_params params = torchs;
                uint16_t *x = matrix_new(rows, cols, 2), *truth;

                params.steps = large[i].steps;
                truth = ortho_of(NULL, x, rows, cols, &params, 0);
                for (uint64_t seed = 1; seed < 4; seed++) {
                        uint16_t *o = ortho_of(NULL, x, rows, cols, &params, seed);

                        cr_assert(same(o, truth, rows, cols));
                        free(o);
                }
                free(x);
                free(truth);
        }
}

static uint16_t *normed(const uint16_t *x, uint64_t rows, uint64_t cols);

/* sum over k of a[k * a_step] * b[k * b_step], as one chain. */
static float chain(const uint16_t *a, size_t a_step, const uint16_t *b, size_t b_step, size_t n)
{
        float sum = 0;

        for (size_t k = 0; k < n; k++)
                sum = fmaf(dtype_fp32_from_bf16(a[k * a_step]), dtype_fp32_from_bf16(b[k * b_step]),
                           sum);
        return sum;
}

static uint16_t combined(float alpha, float sum, float beta, uint16_t add)
{
        return dtype_bf16_from_fp32(alpha * sum + beta * dtype_fp32_from_bf16(add));
}

/* One step by chains that nothing cuts. */
static uint16_t *step_of(const uint16_t *x, size_t n, size_t m)
{
        uint16_t *v = normed(x, n, m), *out = malloc(n * m * sizeof *out);
        uint16_t *g = malloc(2 * n * n * sizeof *g), *u = g + n * n;

        for (size_t i = 0; i < n; i++)
                for (size_t j = 0; j < n; j++)
                        g[i * n + j] = dtype_bf16_from_fp32(chain(v + i * m, 1, v + j * m, 1, m));
        for (size_t i = 0; i < n; i++)
                for (size_t j = 0; j < n; j++)
                        u[i * n + j] = combined(torchs.c, chain(g + i * n, 1, g + j, n, n),
                                                torchs.b, g[i * n + j]);
        for (size_t i = 0; i < n; i++)
                for (size_t j = 0; j < m; j++)
                        out[i * m + j] = combined(1, chain(u + i * n, 1, v + j, m, n), torchs.a,
                                                  v[i * m + j]);
        free(v);
        free(g);
        return out;
}

/* The depth of each is cut, for one square and for many. */
Test(ortho, has_the_bits_of_chains_that_nothing_cuts)
{
        static const size_t sides[][2] = { { 1, 120001 }, { 5, 90000 }, { 97, 12000 } };

        for (int i = 0; i < 3; i++) {
                size_t n = sides[i][0], m = sides[i][1];
                struct ortho_params params = torchs;
                uint16_t *x = matrix_new(n, m, 9), *t = transposed(x, n, m);
                uint16_t *expected = step_of(x, n, m), *o, *of_t, *back;

                params.steps = 1;
                o = ortho_of(NULL, x, n, m, &params, 1);
                of_t = ortho_of(NULL, t, m, n, &params, 1);
                back = transposed(of_t, m, n);
                cr_assert(same(o, expected, n, m), "%zu x %zu", n, m);
                cr_assert(same(back, expected, n, m), "%zu x %zu", m, n);
                free(x);
                free(t);
                free(expected);
                free(o);
                free(of_t);
                free(back);
        }
}

Test(ortho, of_the_transposed_matrix_is_the_transposed)
{
        enum { ROWS = 210, COLS = 450 };
        uint16_t *x = matrix_new(ROWS, COLS, 3), *t = transposed(x, ROWS, COLS);
        uint16_t *o = ortho_of(NULL, x, ROWS, COLS, &torchs, 0);
        uint16_t *of_t = ortho_of(NULL, t, COLS, ROWS, &torchs, 0);
        uint16_t *back = transposed(of_t, COLS, ROWS);

        cr_assert(same(o, back, ROWS, COLS));
        free(x);
        free(t);
        free(o);
        free(of_t);
        free(back);
}

/* ---- values ------------------------------------------------------------------------ */

/* Newton-Schulz in double, without a rounding between; n <= m. */
static double *reference(const uint16_t *values, size_t n, size_t m)
{
        double *x = malloc(2 * n * m * sizeof *x), *next = x + n * m, square = 0;
        double *g = malloc(2 * n * n * sizeof *g), *u = g + n * n;

        for (size_t i = 0; i < n * m; i++) {
                x[i] = dtype_fp32_from_bf16(values[i]);
                square += x[i] * x[i];
        }
        for (size_t i = 0; i < n * m; i++)
                x[i] /= sqrt(square);
        for (uint32_t step = 0; step < torchs.steps; step++) {
                memset(g, 0, 2 * n * n * sizeof *g);
                for (size_t i = 0; i < n; i++)
                        for (size_t j = 0; j < n; j++)
                                for (size_t k = 0; k < m; k++)
                                        g[i * n + j] += x[i * m + k] * x[j * m + k];
                for (size_t i = 0; i < n; i++)
                        for (size_t j = 0; j < n; j++) {
                                u[i * n + j] = (double)torchs.b * g[i * n + j];
                                for (size_t k = 0; k < n; k++)
                                        u[i * n + j] +=
                                                (double)torchs.c * g[i * n + k] * g[k * n + j];
                        }
                for (size_t i = 0; i < n; i++)
                        for (size_t j = 0; j < m; j++) {
                                next[i * m + j] = (double)torchs.a * x[i * m + j];
                                for (size_t k = 0; k < n; k++)
                                        next[i * m + j] += u[i * n + k] * x[k * m + j];
                        }
                memcpy(x, next, n * m * sizeof *x);
        }
        free(g);
        return x;
}

/* |a - b| / |b| */
static double distance(const uint16_t *a, const double *b, size_t n)
{
        double difference = 0, square = 0;

        for (size_t i = 0; i < n; i++) {
                double d = dtype_fp32_from_bf16(a[i]) - b[i];

                difference += d * d;
                square += b[i] * b[i];
        }
        return sqrt(difference / square);
}

/* A rounding adds up to 2^-9, and a step makes up to 3.4445 times as much of it.  PyTorch's result
 * is 0.010 to 0.014 from that in double. */
Test(ortho, is_close_to_one_in_double)
{
        /* more than one square, of both sizes */
        static const size_t sides[][2] = { { 40, 100 }, { 200, 230 }, { 100, 4100 } };

        for (int i = 0; i < 3; i++) {
                size_t n = sides[i][0], m = sides[i][1];
                uint16_t *x = matrix_new(n, m, 4), *o = ortho_of(NULL, x, n, m, &torchs, 0);
                double *expected = reference(x, n, m);

                cr_assert_lt(distance(o, expected, n * m), 0.02);
                free(x);
                free(o);
                free(expected);
        }
}

/* What torch 2.15's _zeropower_via_newtonschulz() makes of the same matrix on a CPU.  Sums as short
 * as these round alike in any order, so the bits tell that norm, factors and roundings do. */
Test(ortho, of_a_small_matrix_has_the_bits_of_pytorchs)
{
        enum { N = 6, M = 10 };
        static const uint16_t torch[N * M] = {
                0xbe0e, 0xbf04, 0x3f11, 0xbe18, 0xbe88, 0xbed5, 0xbd94, 0xbe35, 0xbe29, 0x3af8,
                0xbe3e, 0x3eda, 0x3ec2, 0x3e41, 0x3f08, 0xbcad, 0x3e90, 0x3cea, 0x3e06, 0x3e88,
                0x3d9c, 0xbea9, 0xbcaa, 0xbe2b, 0x3ea9, 0x3eef, 0xbedd, 0xbe23, 0x3f2d, 0x3ca8,
                0x3eef, 0xbe48, 0xbcfd, 0xbe1e, 0x3e74, 0x3ca4, 0xbe87, 0x3f13, 0xbec9, 0xbe7e,
                0x3d46, 0x3e21, 0x3e7b, 0xbed5, 0xbeaf, 0xbe21, 0xbd9b, 0x3e6e, 0x3ec5, 0x3e09,
                0x3e3d, 0xbe22, 0xbf06, 0xbe74, 0x3ea0, 0xbee5, 0x3dc0, 0xbe8b, 0xbbae, 0x3e51,
        };
        uint16_t *x = matrix_new(N, M, 7), *o = ortho_of(NULL, x, N, M, &torchs, 0);

        cr_assert(same(o, torch, N, M));
        free(x);
        free(o);
}

/* Turns rows p and q of g, and its columns, so that g[p][q] is 0. */
static void rotate(double *g, int n, int p, int q)
{
        double angle = 0.5 * atan2(2 * g[p * n + q], g[q * n + q] - g[p * n + p]);
        double c = cos(angle), s = sin(angle);

        for (int k = 0; k < n; k++) {
                double x = g[k * n + p], y = g[k * n + q];

                g[k * n + p] = c * x - s * y;
                g[k * n + q] = s * x + c * y;
        }
        for (int k = 0; k < n; k++) {
                double x = g[p * n + k], y = g[q * n + k];

                g[p * n + k] = c * x - s * y;
                g[q * n + k] = s * x + c * y;
        }
}

/* The squares of the singular values, by Jacobi: in the diagonal of g. */
static void squares_of(const uint16_t *x, int n, int m, double *g)
{
        for (int i = 0; i < n; i++)
                for (int j = 0; j < n; j++) {
                        g[i * n + j] = 0;
                        for (int k = 0; k < m; k++)
                                g[i * n + j] += (double)dtype_fp32_from_bf16(x[i * m + k]) *
                                                (double)dtype_fp32_from_bf16(x[j * m + k]);
                }
        for (int sweep = 0; sweep < 12; sweep++)
                for (int p = 0; p < n; p++)
                        for (int q = p + 1; q < n; q++)
                                rotate(g, n, p, q);
}

Test(ortho, has_singular_values_near_1)
{
        enum { N = 48, M = 60 };
        uint16_t *x = matrix_new(N, M, 5), *o = ortho_of(NULL, x, N, M, &torchs, 0);
        double *g = malloc(N * N * sizeof *g);

        squares_of(o, N, M, g);
        for (int i = 0; i < N; i++) /* the band that five steps lead to, and rounding */
                cr_assert(g[i * N + i] > 0.66 * 0.66 && g[i * N + i] < 1.23 * 1.23, "%g",
                          sqrt(g[i * N + i]));
        free(x);
        free(o);
        free(g);
}

Test(ortho, of_not_a_number_or_infinity_is_not_a_number)
{
        enum { N = 20, M = 50 };
        static const float bad[] = { NAN, INFINITY, -INFINITY };

        for (uint32_t steps = 0; steps < 6; steps++)
                for (int i = 0; i < 3; i++) {
                        struct ortho_params params = torchs;
                        uint16_t *x = matrix_new(N, M, 6), *o;

                        params.steps = steps;
                        x[N * M / 2 + i] = dtype_bf16_from_fp32(bad[i]);
                        o = ortho_of(NULL, x, N, M, &params, 0);
                        for (int k = 0; k < N * M; k++)
                                cr_assert(isnan(dtype_fp32_from_bf16(o[k])));
                        free(x);
                        free(o);
                }
}

/* The values after norm and division alone. */
static uint16_t *normed(const uint16_t *x, uint64_t rows, uint64_t cols)
{
        struct ortho_params params = torchs;

        params.steps = 0;
        return ortho_of(NULL, x, rows, cols, &params, 1);
}

Test(ortho, divides_by_the_norm_of_all_parts)
{
        enum { N = 3, M = 900001 };
        uint16_t *x = matrix_new(N, M, 8), *o = normed(x, N, M);
        double square = 0;

        for (int i = 0; i < N * M; i++)
                square += pow(dtype_fp32_from_bf16(o[i]), 2);
        cr_assert(fabs(square - 1) < 0x1p-7, "%g", square); /* the norm's rounding, twice */
        free(x);
        free(o);
}

Test(ortho, divides_by_eps_at_least_and_by_infinity_at_most)
{
        float eps = dtype_fp32_from_bf16(dtype_bf16_from_fp32(torchs.eps));
        uint16_t small = dtype_bf16_from_fp32(0x1p-30f), large[2] = { 0x7f7f, 0xff7f };
        uint16_t *of_small = normed(&small, 1, 1), *of_large = normed(large, 1, 2);

        cr_assert_eq(*of_small, dtype_bf16_from_fp32(0x1p-30f / eps));
        cr_assert_eq(of_large[0], 0);
        cr_assert_eq(of_large[1], 0x8000);
        free(of_small);
        free(of_large);
}

Test(ortho, of_zeros_is_zeros)
{
        uint16_t x[6 * 9] = { 0 }, *o = ortho_of(NULL, x, 6, 9, &torchs, 0);

        for (int i = 0; i < 6 * 9; i++)
                cr_assert_eq(dtype_fp32_from_bf16(o[i]), 0);
        free(o);
}

Test(ortho, is_as_large_as_its_bound_without_overflow)
{
        static const uint64_t sides[][2] = { { UINT64_C(1) << 20, UINT64_C(1) << 20 },
                                             { 1, UINT64_C(1) << 40 },
                                             { UINT64_C(1) << 40, 1 } };
        _Alignas(64) char nowhere[64]; /* no part runs */
        struct ortho o;

        cr_assert_eq(ortho_bytes(1 << 20, 1 << 20) >> 43, 1);
        for (int i = 0; i < 3; i++) {
                ortho_begin(&o, sides[i][0], sides[i][1], &torchs, nowhere, device_host(NULL));
                for (uint64_t stage = 0; stage < ortho_stages(&o);
                     stage += 1 + ortho_stages(&o) / 1000)
                        cr_assert(ortho_parts(&o, (uint32_t)stage) >= 1 &&
                                  ortho_parts(&o, (uint32_t)stage) < UINT32_C(1) << 31);
        }
}

/* ---- work of a part ----------------------------------------------------------------- */

/* Multiplications that take as long as a part does. */
static double work;

static double up(size_t x, size_t block)
{
        return (double)((x + block - 1) / block * block);
}

/* A whole block is multiplied; each row and column is moved, and each sum rounded. */
static void count_product(const struct product *p, const float *from, float *to)
{
        double rows = up(p->rows, 12), cols = up(p->cols, 32), depth = (double)p->depth;

        (void)from;
        (void)to;
        work += (rows * cols + 64 * (rows + cols)) * depth + 64 * rows * cols + 4096 * rows;
}

static void count_cast(enum zero_dtype to, void *dst, enum zero_dtype from, const void *src,
                       size_t n)
{
        (void)src;
        (void)from;
        memset(dst, 0, n * dtype_bytes(to, 1));
        work += 100 * (double)n;
}

static void count_norm(const float *x, size_t n, double scale, struct exact_sum *sum, bool *finite)
{
        (void)x;
        (void)scale;
        (void)sum;
        (void)finite;
        work += 100 * (double)n;
}

static const struct device_ops counting = {
        .name = "counting", .cast = count_cast, .norm = count_norm, .product = count_product
};

Test(ortho, counts_its_stages_without_overflow)
{
        struct ortho_params params = torchs;
        _Alignas(64) char nowhere[64];
        struct ortho o;

        params.steps = ORTHO_STEPS;
        ortho_begin(&o, 1, ORTHO_MOST, &params, nowhere, &counting);
        cr_assert_eq(ortho_stages(&o), 2 + ORTHO_STEPS * ((UINT64_C(1) << 24) + 2));
}

/* 3e8: about 2 ms.  A long product of many rows and columns may take twice that. */
Test(ortho, has_parts_that_are_short_and_not_too_many)
{
        static const size_t sides[][2] = {
                { 1, 1 },        { 1, 9000000 },  { 9000000, 1 },  { 2, 4000000 },
                { 4000000, 3 },  { 13, 700001 },  { 96, 200000 },  { 97, 90000 },
                { 128, 151936 }, { 151936, 128 }, { 192, 12000 },  { 193, 40000 },
                { 1 << 26, 1 },  { 4096, 4096 },  { 30000, 4200 }, { 12000, 12500 },
        };

        for (size_t i = 0; i < sizeof sides / sizeof sides[0]; i++) {
                size_t rows = sides[i][0], cols = sides[i][1], bytes = ortho_bytes(rows, cols);
                void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE,
                                    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
                struct ortho_params params = torchs;
                struct ortho o;

                cr_assert_neq(memory, MAP_FAILED);
                params.steps = 1;
                ortho_begin(&o, rows, cols, &params, memory, &counting);
                for (uint32_t stage = 0; stage < ortho_stages(&o); stage++) {
                        uint32_t parts = ortho_parts(&o, stage);
                        double all = 0;

                        for (uint32_t part = 0; part < parts; part++, all += work) {
                                work = 0;
                                ortho_part(&o, stage, part);
                                cr_assert_leq(work, rows > 10000 && cols > 10000 ? 6e8 : 3e8,
                                              "%zu x %zu, stage %u, part %u: %g", rows, cols, stage,
                                              part, work);
                        }
                        cr_assert_leq(parts, 2 + all / 2e7, "%zu x %zu, stage %u: %u parts", rows,
                                      cols, stage, parts);
                }
                munmap(memory, bytes);
        }
}

Test(ortho, has_a_load_that_counts_steps_blocks_and_passes)
{
        _Alignas(64) char nowhere[64];
        struct ortho_params params = torchs;
        struct ortho o;
        double five;

        ortho_begin(&o, 128, 128, &params, nowhere, &counting);
        five = ortho_load(&o);
        cr_assert_lt(five, 1);
        params.steps = 50;
        ortho_begin(&o, 128, 128, &params, nowhere, &counting);
        cr_assert(ortho_load(&o) > 9 * five);
        params.steps = 0;
        ortho_begin(&o, 1000, 2000, &params, nowhere, &counting);
        cr_assert_gt(ortho_load(&o), 1);
        params.steps = 5;
        ortho_begin(&o, 128, 128, &params, nowhere, device_host("scalar"));
        cr_assert_gt(ortho_load(&o), 30 * five);
        ortho_begin(&o, 1, 200000, &params, nowhere, &counting);
        cr_assert_gt(ortho_load(&o), 1);
}
