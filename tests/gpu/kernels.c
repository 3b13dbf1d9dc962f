/*
 * Every kernel by the plugin's table against the scalar truth, to the bit, at awkward sizes,
 * alignments and values.  The conformance suite holds gpu_ops() to the same; this goes also where
 * gpu_ops() does not.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/device/host.h"
#include "proto/dtype.h"
#include "tests/gpu/gpu.h"

/* Around a quad, a block of norm(), a tile of a thread block; more than a wave of blocks, also of
 * the emulated GPU. */
static const size_t sizes[] = { 1,    3,    4,    7,    127,  128,    129,    1023,
                                1024, 1025, 2047, 2048, 2049, 100003, 6000011 };
static const size_t quick_sizes[] = { 1, 5, 129, 2049, 60011 };
static const size_t offsets[] = { 0, 1, 4, 7 };
static const enum zero_dtype dtypes[] = { ZERO_FP32, ZERO_BF16, ZERO_FP16 };

enum { DTYPES = 3, SOURCES = 5 };

struct run {
        const struct gpu *gpu;
        size_t n, offset;
        uint64_t state;
};

static struct twin array(struct run *r, enum zero_dtype dtype)
{
        return twin_new(r->gpu, dtype, r->n, r->offset, &r->state);
}

/* One argument starts where it is aligned, whatever the others do. */
static struct twin aligned_array(struct run *r, enum zero_dtype dtype)
{
        return twin_new(r->gpu, dtype, r->n, 0, &r->state);
}

static void finish(struct run *r, struct twin *t, size_t count, const char *what)
{
        for (size_t i = 0; i < count; i++) {
                if (!twin_same(r->gpu, &t[i]))
                        die("%s: argument %zu differs, %zu elements, offset %zu", what, i, r->n,
                            r->offset);
                twin_free(r->gpu, &t[i]);
        }
}

static void check_cast(struct run *r)
{
        for (int from = 0; from < DTYPES; from++)
                for (int to = 0; to < DTYPES; to++) {
                        struct twin t[] = { array(r, dtypes[from]), aligned_array(r, dtypes[to]) };

                        if (from == to || from == 0 || to == 0) {
                                host_scalar_ops.cast(dtypes[to], t[1].host, dtypes[from], t[0].host,
                                                     r->n);
                                must(r->gpu->ops->cast(dtypes[to], t[1].gpu, dtypes[from], t[0].gpu,
                                                       r->n, r->gpu->stream),
                                     "cast");
                        }
                        finish(r, t, 2, "cast");
                }
}

static void check_sum_of(struct run *r, enum zero_dtype to, enum zero_dtype from, size_t k)
{
        const void *on_host[SOURCES], *on_gpu[SOURCES];
        struct twin t[SOURCES + 1];

        for (size_t i = 0; i < k; i++) {
                t[i] = array(r, from);
                on_host[i] = t[i].host;
                on_gpu[i] = t[i].gpu;
        }
        t[k] = array(r, to);
        host_scalar_ops.sum(to, t[k].host, from, on_host, k, r->n);
        must(r->gpu->ops->sum(to, t[k].gpu, from, on_gpu, k, r->n, r->gpu->stream), "sum");
        finish(r, t, k + 1, "sum");
}

static void check_sum(struct run *r)
{
        for (int from = 0; from < DTYPES; from++)
                for (size_t k = 1; k <= SOURCES; k += 2) {
                        check_sum_of(r, ZERO_FP32, dtypes[from], k);
                        check_sum_of(r, ZERO_BF16, dtypes[from], k);
                }
}

enum { P, M, V, GRAD, SERVE, PLANES };

/* The update of one set of planes on both sides, and what is served. */
static void check_update(struct run *r, enum zero_dtype serve)
{
        struct adamw_scalars s = adamw_scalars(1e-3, 0.9, 0.999, 1e-8, 0.1, 3, 0.7);
        struct twin t[PLANES] = { array(r, ZERO_FP32), array(r, ZERO_FP32), array(r, ZERO_FP32),
                                  array(r, ZERO_FP32), aligned_array(r, serve) };
        struct zero_cuda_adamw update = { .scalars = s, .n = r->n, .serve_dtype = serve };

        host_scalar_ops.adamw(&s, r->n, t[P].host, t[M].host, t[V].host, t[GRAD].host, t[P].host,
                              t[M].host, t[V].host);
        host_scalar_ops.serve(serve, t[SERVE].host, t[P].host, r->n);
        update.p = update.out_p = t[P].gpu;
        update.m = update.out_m = t[M].gpu;
        update.v = update.out_v = t[V].gpu;
        update.grad = t[GRAD].gpu;
        update.serve = t[SERVE].gpu;
        must(r->gpu->ops->adamw(&update, r->gpu->stream), "adamw");
        finish(r, t, PLANES, "adamw");
}

static void check_adamw(struct run *r)
{
        for (int serve = 0; serve < DTYPES; serve++)
                check_update(r, dtypes[serve]);
}

/* Ordinary numbers of many sizes, of which there is a norm. */
static void make_finite(struct run *r, struct twin *t)
{
        int spread = t->dtype == ZERO_FP16 ? 5 : 100;

        for (size_t i = 0; i < r->n; i++) {
                float x = ldexpf((float)(dice(&r->state) % 1000),
                                 (int)(dice(&r->state) % (2 * (unsigned)spread)) - spread);

                host_scalar_ops.cast(t->dtype, (char *)t->host + i * dtype_size(t->dtype),
                                     ZERO_FP32, &x, 1);
        }
        gpu_move(r->gpu, t->gpu, t->host, r->n * dtype_size(t->dtype));
}

struct reduction {
        enum zero_dtype wire, from;
        size_t k;
        bool first, norm, finite; /* finite: the values; else any bits */
};

static void check_norms(struct run *r, const struct exact_sum *host, bool finite,
                        const struct zero_cuda_norm *acc)
{
        struct exact_sum gpu = { .pending = 0 }, expected = *host;
        struct zero_cuda_norm came;

        gpu_move(r->gpu, &came, acc, sizeof came);
        memcpy(gpu.bin, came.bin, sizeof gpu.bin);
        exact_sum_normalize(&gpu);
        exact_sum_normalize(&expected);
        if (memcmp(gpu.bin, expected.bin, sizeof gpu.bin) || finite != (came.nonfinite == 0))
                die("norm differs, %zu elements, offset %zu", r->n, r->offset);
}

static void check_reduction(struct run *r, struct reduction c)
{
        const void *on_host[SOURCES], *on_gpu[SOURCES];
        struct zero_cuda_norm *acc = gpu_new(r->gpu, sizeof *acc);
        struct exact_sum norm;
        struct twin t[SOURCES + 1];
        bool finite = true;

        for (size_t i = 0; i <= c.k; i++) {
                enum zero_dtype dtype = i < c.k ? c.from : ZERO_FP32;

                t[i] = i % 2 ? aligned_array(r, dtype) : array(r, dtype);
                if (c.finite)
                        make_finite(r, &t[i]);
                if (i == c.k)
                        break;
                on_host[i] = t[i].host;
                on_gpu[i] = t[i].gpu;
        }
        exact_sum_init(&norm);
        host_scalar_ops.reduce(&(struct reduce_piece){ t[c.k].host, r->n, c.k, on_host, c.first },
                               1, c.wire, c.from, 0.3, c.norm ? &norm : NULL, &finite);
        must(r->gpu->ops->zero(acc, sizeof *acc, r->gpu->stream), "zero");
        must(r->gpu->ops->reduce(&(struct zero_cuda_reduce){ .acc = t[c.k].gpu,
                                                             .n = r->n,
                                                             .k = c.k,
                                                             .src = on_gpu,
                                                             .wire = c.wire,
                                                             .from = c.from,
                                                             .first = c.first,
                                                             .scale = 0.3,
                                                             .norm = c.norm ? acc : NULL },
                                 r->gpu->stream),
             "reduce");
        check_norms(r, &norm, finite, acc);
        finish(r, t, c.k + 1, "reduce");
        r->gpu->ops->free(acc);
}

/* All dtypes and numbers of sources, of the eight ways two, others each time. */
static void check_reduce(struct run *r)
{
        unsigned way = (unsigned)r->state;

        for (int from = 0; from < DTYPES; from++)
                for (size_t k = 0; k <= SOURCES; k += k == 1 ? 1 : k + 1)
                        for (int i = 0; i < 2; i++, way += 3)
                                check_reduction(r, (struct reduction){ .wire = dtypes[way % 2],
                                                                       .from = dtypes[from],
                                                                       .k = k,
                                                                       .first = way & 2,
                                                                       .norm = (way + k) % 4 != 3,
                                                                       .finite = way & 4 });
}

/* Zeroes with one NaN or infinity, at an end or within: the norm says so. */
static void check_nonfinite(struct run *r)
{
        static const uint32_t bad[DTYPES] = { 0x7fc00000, 0xff80, 0x7c00 };
        struct zero_cuda_norm *acc = gpu_new(r->gpu, sizeof *acc), came;
        float *sum = gpu_new(r->gpu, r->n * sizeof *sum);

        for (int d = 0; d < DTYPES; d++)
                for (int where = -1; where < 3; where++) {
                        struct twin t = array(r, dtypes[d]);
                        size_t at = where < 2 ? (size_t)(where > 0) * (r->n - 1) : r->n / 2;
                        size_t bytes = dtype_size(dtypes[d]);
                        const void *src = t.gpu;

                        memset(t.host, 0, r->n * bytes);
                        if (where >= 0)
                                memcpy((char *)t.host + at * bytes, &bad[d], bytes);
                        gpu_move(r->gpu, t.gpu, t.host, r->n * bytes);
                        must(r->gpu->ops->zero(acc, sizeof *acc, r->gpu->stream), "zero");
                        must(r->gpu->ops->reduce(&(struct zero_cuda_reduce){ .acc = sum,
                                                                             .n = r->n,
                                                                             .k = 1,
                                                                             .src = &src,
                                                                             .wire = ZERO_FP32,
                                                                             .from = dtypes[d],
                                                                             .first = true,
                                                                             .scale = 1,
                                                                             .norm = acc },
                                                 r->gpu->stream),
                             "reduce");
                        gpu_move(r->gpu, &came, acc, sizeof came);
                        if ((came.nonfinite != 0) != (where >= 0))
                                die("finiteness: %zu elements, element %zu", r->n, at);
                        finish(r, &t, 1, "finiteness");
                }
        r->gpu->ops->free(acc);
        r->gpu->ops->free(sum);
}

static void check_bytes(struct run *r)
{
        struct twin t[] = { array(r, ZERO_BF16), aligned_array(r, ZERO_BF16), array(r, ZERO_BF16) };
        size_t bytes = r->n * sizeof(uint16_t);

        memcpy(t[1].host, t[0].host, bytes);
        memset(t[2].host, 0, bytes);
        must(r->gpu->ops->copy(t[1].gpu, t[0].gpu, bytes, r->gpu->stream), "copy");
        must(r->gpu->ops->zero(t[2].gpu, bytes, r->gpu->stream), "zero");
        finish(r, t, 3, "copy and zero");
}

int main(int argc, char *argv[])
{
        void (*const checks[])(struct run *) = { check_cast,   check_sum,       check_adamw,
                                                 check_reduce, check_nonfinite, check_bytes };
        struct gpu gpu;
        size_t done = 0;

        gpu_load(argc, argv, &gpu);
        gpu_start(&gpu);
        for (size_t i = 0; i < (gpu.quick ? sizeof quick_sizes : sizeof sizes) / sizeof(size_t);
             i++)
                for (size_t j = 0; j < sizeof offsets / sizeof offsets[0]; j++)
                        for (size_t k = 0; k < sizeof checks / sizeof checks[0]; k++) {
                                struct run r = { .gpu = &gpu,
                                                 .n = (gpu.quick ? quick_sizes : sizes)[i],
                                                 .offset = offsets[j],
                                                 .state = ++done };

                                checks[k](&r);
                        }
        printf("%zu checks of kernels, all bits the same\n", done);
        return 0;
}
