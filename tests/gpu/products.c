/*
 * Products of matrices by tensor cores beside sums in double, and Newton-Schulz on the GPU beside
 * the host's.  Sums are added up in another order there, so results are close and not the same;
 * twice on one GPU they are the same.  Prints how fast Newton-Schulz is.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "daemon/compute/device/gpu/gpu.h"
#include "daemon/compute/device/host.h"
#include "daemon/compute/matrix/matrix.h"
#include "proto/dtype.h"
#include "tests/gpu/gpu.h"

enum { ROUNDS = 11, FORMS = 6, QUICK = 3 };

/* ---- one product ------------------------------------------------------------------------ */

/* Around a tile of a tensor core, and of a thread block. */
static const size_t sides[] = { 1, 16, 33, 128, 130, 300 };
static const size_t depths[] = { 1, 16, 31, 33, 96, 500 };
enum { SIDES = sizeof sides / sizeof sides[0], DEPTHS = sizeof depths / sizeof depths[0] };

/* A matrix on both sides, each line followed by `gap` elements. */
struct matrix {
        struct twin twin;
        struct matrix_view host, gpu;
};

static struct matrix matrix_new(const struct gpu *gpu, size_t rows, size_t cols, bool transposed,
                                uint64_t *state)
{
        size_t gap = dice(state) % 5, stride = (transposed ? rows : cols) + gap;
        size_t n = (transposed ? cols : rows) * stride;
        struct matrix m = { .twin = twin_new(gpu, ZERO_BF16, n, dice(state) % 2 * 3, state) };
        uint16_t *x = m.twin.host;

        for (size_t i = 0; i < n; i++)
                x[i] = dtype_bf16_from_fp32((float)((double)(dice(state) >> 11) * 0x1p-52 - 1));
        gpu_move(gpu, m.twin.gpu, x, n * sizeof *x);
        m.host = (struct matrix_view){ x, stride, transposed };
        m.gpu = (struct matrix_view){ m.twin.gpu, stride, transposed };
        return m;
}

static double element(const struct matrix_view *m, size_t row, size_t col)
{
        return (double)dtype_fp32_from_bf16(m->transposed ? m->x[col * m->stride + row]
                                                          : m->x[row * m->stride + col]);
}

/* How far a result may be from the exact one: rounded to bf16, of a sum in fp32 of any order. */
static double allowed(double value, double magnitude)
{
        return fabs(value) * 0x1p-8 + magnitude * 0x1p-18;
}

static void check_element(const struct product *p, const struct matrix *a, const struct matrix *b,
                          const struct matrix *add, size_t i, size_t j, double got)
{
        double sum = 0, magnitude = 0;

        for (size_t k = 0; k < p->depth; k++) {
                double x = element(&a->host, i, k) * element(&b->host, k, j);

                sum += x;
                magnitude += fabs(x);
        }
        if (p->add) {
                double more = (double)p->beta * element(&add->host, i, j);

                sum = (double)p->alpha * sum + more;
                magnitude = fabs((double)p->alpha) * magnitude + fabs(more);
        }
        if (!(fabs(got - sum) <= allowed(sum, magnitude)))
                die("product %zux%zu, depth %zu%s%s: [%zu][%zu] is %g, not %g", p->rows, p->cols,
                    p->depth, p->a.transposed ? ", of a transposed" : "",
                    p->b.transposed ? ", by a transposed" : "", i, j, got, sum);
}

static void check_product(const struct gpu *gpu, size_t rows, size_t cols, size_t depth,
                          unsigned form, uint64_t *state)
{
        struct matrix a = matrix_new(gpu, rows, depth, form % 3 == 1, state);
        struct matrix b = matrix_new(gpu, depth, cols, form % 3 == 2, state);
        struct matrix add = matrix_new(gpu, rows, cols, false, state);
        size_t stride = add.host.stride, n = add.twin.n;
        struct twin out = twin_new(gpu, ZERO_BF16, n, dice(state) % 2 * 3, state);
        struct product p = { rows,    cols,    depth,   a.gpu, b.gpu, form < 3 ? add.gpu.x : NULL,
                             2.0315f, -4.775f, out.gpu, stride };
        uint16_t *first = malloc(n * sizeof *first), *second = malloc(n * sizeof *second);

        must(gpu->ops->product(&p, gpu->stream), "product");
        gpu_move(gpu, first, out.gpu, n * sizeof *first);
        must(gpu->ops->product(&p, gpu->stream), "product");
        gpu_move(gpu, second, out.gpu, n * sizeof *second);
        for (size_t i = 0; i < rows; i++)
                for (size_t j = 0; j < cols; j++) {
                        uint16_t x = first[i * stride + j];

                        check_element(&p, &a, &b, &add, i, j, (double)dtype_fp32_from_bf16(x));
                        ((uint16_t *)out.host)[i * stride + j] = x;
                }
        if (memcmp(first, second, n * sizeof *first) || !twin_same(gpu, &out) ||
            !twin_same(gpu, &a.twin) || !twin_same(gpu, &b.twin) || !twin_same(gpu, &add.twin))
                die("product %zux%zu, depth %zu: other bits the second time, or beside the result",
                    rows, cols, depth);
        twin_free(gpu, &a.twin);
        twin_free(gpu, &b.twin);
        twin_free(gpu, &add.twin);
        twin_free(gpu, &out);
        free(first);
        free(second);
}

static void check_products(const struct gpu *gpu)
{
        uint64_t state = 1;
        size_t done = 0, steps = gpu->quick ? 5 : 1;

        for (size_t i = 0; i < SIDES * SIDES * DEPTHS; i += steps, done++)
                check_product(gpu, sides[i % SIDES], sides[i / SIDES % SIDES],
                              depths[i / SIDES / SIDES], (unsigned)(done % FORMS), &state);
        printf("%zu products are near the exact ones\n", done);
}

/* ---- quotients ----------------------------------------------------------------------------- */

static void check_divide(const struct gpu *gpu)
{
        static const size_t sizes[] = { 1, 7, 2049, 100003 };
        uint64_t state = 2;

        for (int i = 0; i < 8; i++) {
                size_t n = sizes[i % 4];
                struct twin from = twin_new(gpu, ZERO_BF16, n, (size_t)i / 4, &state);
                struct twin to = twin_new(gpu, ZERO_BF16, n, (size_t)i % 2, &state);
                uint16_t *x = to.host, *y = from.host;

                for (size_t k = 0; k < n; k++)
                        x[k] = dtype_bf16_from_fp32(dtype_fp32_from_bf16(y[k]) / 0.734f);
                must(gpu->ops->divide(to.gpu, from.gpu, 0.734f, n, gpu->stream), "divide");
                if (!twin_same(gpu, &to) || !twin_same(gpu, &from))
                        die("divide: %zu elements differ", n);
                twin_free(gpu, &to);
                twin_free(gpu, &from);
        }
}

/* ---- Newton-Schulz ----------------------------------------------------------------------------
 */

static const struct ortho_params params = { 3.4445f, -4.775f, 2.0315f, 1e-7f, 5 };

static void on_host(uint64_t rows, uint64_t cols, uint16_t *x)
{
        size_t bytes = (ortho_bytes(rows, cols) + 63) / 64 * 64;
        void *memory = aligned_alloc(64, bytes);
        struct ortho o;

        if (!memory)
                die("out of memory");
        ortho_begin(&o, rows, cols, &params, memory, device_host(NULL));
        memcpy(ortho_values(&o), x, rows * cols * sizeof *x);
        for (uint32_t stage = 0; stage < ortho_stages(&o); stage++)
                for (uint32_t part = 0; part < ortho_parts(&o, stage); part++)
                        ortho_part(&o, stage, part);
        memcpy(x, ortho_values(&o), rows * cols * sizeof *x);
        free(memory);
}

/* Returns the seconds that it takes. */
static double on_gpu(uint64_t rows, uint64_t cols, void *memory, const uint16_t *x, uint16_t *ret)
{
        struct timespec begin, end;
        struct ortho o;

        ortho_begin(&o, rows, cols, &params, memory, gpu_ops());
        gpu_ops()->copy(ortho_values(&o), x, rows * cols * sizeof *x);
        clock_gettime(CLOCK_MONOTONIC, &begin);
        ortho_launch(&o);
        gpu_updated(0);
        clock_gettime(CLOCK_MONOTONIC, &end);
        gpu_ops()->copy(ret, ortho_values(&o), rows * cols * sizeof *x);
        return (double)(end.tv_sec - begin.tv_sec) + 1e-9 * (double)(end.tv_nsec - begin.tv_nsec);
}

static void check_ortho(uint64_t rows, uint64_t cols)
{
        size_t n = rows * cols, bytes = n * sizeof(uint16_t);
        uint16_t *x = malloc(bytes), *got = malloc(bytes), *again = malloc(bytes);
        double most = 0, sum = 0, best = INFINITY;
        uint64_t state = rows;
        struct fault fault;
        void *memory;

        if (!x || !got || !again ||
            gpu_alloc(0, ortho_launch_bytes(rows, cols), "a test's matrix", &memory, &fault))
                die("out of memory");
        for (size_t i = 0; i < n; i++)
                x[i] = dtype_bf16_from_fp32((float)((double)(dice(&state) >> 11) * 0x1p-52 - 1));
        on_gpu(rows, cols, memory, x, got);
        for (int i = 0; i < ROUNDS; i++) {
                double seconds = on_gpu(rows, cols, memory, x, again);

                best = seconds < best ? seconds : best;
                if (memcmp(got, again, bytes))
                        die("Newton-Schulz of %zux%zu has other bits the next time", (size_t)rows,
                            (size_t)cols);
        }
        on_host(rows, cols, x);
        for (size_t i = 0; i < n; i++) {
                double d = fabs((double)dtype_fp32_from_bf16(got[i]) -
                                (double)dtype_fp32_from_bf16(x[i]));

                most = d > most ? d : most;
                sum += d * d;
        }
        /* all singular values are about 1 */
        printf("Newton-Schulz of %zux%zu: %.0f GFLOP/s, %.0f us; from the host's %.1e at most, "
               "%.1e "
               "of its norm\n",
               (size_t)rows, (size_t)cols, ortho_flops(rows, cols, params.steps) / best / 1e9,
               best * 1e6, most, sqrt(sum / (double)(rows < cols ? rows : cols)));
        if (!(most <= 1e-2 && sum <= 2e-2 * 2e-2 * (double)(rows < cols ? rows : cols)))
                die("Newton-Schulz of %zux%zu is not the host's", (size_t)rows, (size_t)cols);
        gpu_free(memory);
        free(x);
        free(got);
        free(again);
}

int main(int argc, char *argv[])
{
        static const uint64_t whole[][2] = { { 17, 33 },    { 768, 768 },   { 768, 3072 },
                                             { 3072, 768 }, { 2048, 2048 }, { 4096, 1024 },
                                             { 1023, 2047 } };
        static const uint64_t small[QUICK][2] = { { 17, 33 }, { 130, 61 }, { 96, 96 } };
        struct fault fault;
        struct gpu gpu;

        gpu_load(argc, argv, &gpu);
        gpu_start(&gpu);
        check_products(&gpu);
        check_divide(&gpu);
        if (gpus_open(argv[1], device_host(NULL), &fault))
                die("%s", fault.text);
        for (size_t i = 0; i < (gpu.quick ? QUICK : sizeof whole / sizeof *whole); i++)
                check_ortho((gpu.small ? small : whole)[i][0], (gpu.small ? small : whole)[i][1]);
        gpus_close();
        return 0;
}
