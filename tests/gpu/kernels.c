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

static void check_accumulate(struct run *r)
{
        for (int from = 0; from < DTYPES; from++)
                for (int first = 0; first < 2; first++) {
                        struct twin t[] = { array(r, dtypes[from]), aligned_array(r, ZERO_FP32) };

                        host_scalar_ops.accumulate(t[1].host, dtypes[from], t[0].host, r->n, first);
                        must(r->gpu->ops->accumulate(t[1].gpu, dtypes[from], t[0].gpu, r->n, first,
                                                     r->gpu->stream),
                             "accumulate");
                        finish(r, t, 2, "accumulate");
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

enum { P, M, V, GRAD, SERVE, SCALE, SKIP, PLANES };

/* The update of one set of planes on both sides; skip: it must change nothing. */
static void check_update(struct run *r, enum zero_dtype serve, bool scale_on_gpu, bool skip)
{
        struct adamw_scalars s = adamw_scalars(1e-3, 0.9, 0.999, 1e-8, 0.1, 3, 0.7);
        struct run one = { .gpu = r->gpu, .n = 1, .state = r->state };
        struct twin t[PLANES] = { array(r, ZERO_FP32), array(r, ZERO_FP32), array(r, ZERO_FP32),
                                  array(r, ZERO_FP32), aligned_array(r, serve) };
        struct zero_cuda_adamw update = { .scalars = s, .n = r->n, .serve_dtype = serve };
        const uint32_t word = skip;

        t[SCALE] = array(&one, ZERO_FP32);
        t[SKIP] = array(&one, ZERO_FP32);
        memcpy(t[SCALE].host, &s.grad_scale, sizeof s.grad_scale);
        memcpy(t[SKIP].host, &word, sizeof word);
        gpu_move(r->gpu, t[SCALE].gpu, t[SCALE].host, sizeof(float));
        gpu_move(r->gpu, t[SKIP].gpu, t[SKIP].host, sizeof word);
        if (!skip) {
                host_scalar_ops.adamw(&s, r->n, t[P].host, t[M].host, t[V].host, t[GRAD].host,
                                      t[P].host, t[M].host, t[V].host);
                host_scalar_ops.serve(serve, t[SERVE].host, t[P].host, r->n);
        }
        update.p = update.out_p = t[P].gpu;
        update.m = update.out_m = t[M].gpu;
        update.v = update.out_v = t[V].gpu;
        update.grad = t[GRAD].gpu;
        update.serve = t[SERVE].gpu;
        update.skip = t[SKIP].gpu;
        if (scale_on_gpu) {
                update.grad_scale = t[SCALE].gpu;
                update.scalars.grad_scale = 1e9f; /* not this one */
        }
        must(r->gpu->ops->adamw(&update, r->gpu->stream), "adamw");
        finish(r, t, PLANES, "adamw");
}

static void check_adamw(struct run *r)
{
        for (int serve = 0; serve < DTYPES; serve++)
                check_update(r, dtypes[serve], serve == 1, false);
        check_update(r, ZERO_BF16, false, true);
}

static void check_norm_of(struct run *r, bool finite_values)
{
        struct twin t = array(r, ZERO_FP32);
        struct zero_cuda_norm *acc = gpu_new(r->gpu, sizeof *acc), came;
        struct exact_sum host, gpu = { .pending = 0 };
        bool finite = true;

        if (finite_values) {
                for (size_t i = 0; i < r->n; i++)
                        ((float *)t.host)[i] = ldexpf((float)(dice(&r->state) % 1000),
                                                      (int)(dice(&r->state) % 200) - 100);
                gpu_move(r->gpu, t.gpu, t.host, r->n * sizeof(float));
        }
        exact_sum_init(&host);
        host_scalar_ops.norm(t.host, r->n, 0.3, &host, &finite);
        exact_sum_normalize(&host);
        must(r->gpu->ops->zero(acc, sizeof *acc, r->gpu->stream), "zero");
        must(r->gpu->ops->norm(t.gpu, r->n, 0.3, acc, r->gpu->stream), "norm");
        gpu_move(r->gpu, &came, acc, sizeof came);
        memcpy(gpu.bin, came.bin, sizeof gpu.bin);
        exact_sum_normalize(&gpu);
        if (memcmp(gpu.bin, host.bin, sizeof gpu.bin) || finite != (came.nonfinite == 0))
                die("norm differs, %zu elements, offset %zu", r->n, r->offset);
        finish(r, &t, 1, "norm");
        r->gpu->ops->free(acc);
}

static void check_norm(struct run *r)
{
        check_norm_of(r, false);
        check_norm_of(r, true);
}

/* Zeroes with one NaN or infinity, at an end or within, or with none. */
static void check_nonfinite(struct run *r)
{
        static const uint32_t bad[DTYPES] = { 0x7fc00000, 0xff80, 0x7c00 };
        static const size_t bytes[DTYPES] = { 4, 2, 2 };
        uint32_t *flag = gpu_new(r->gpu, sizeof *flag), came;

        for (int d = 0; d < DTYPES; d++)
                for (int where = -1; where < 3; where++) {
                        struct twin t = array(r, dtypes[d]);
                        size_t at = where < 2 ? (size_t)(where > 0) * (r->n - 1) : r->n / 2;

                        memset(t.host, 0, r->n * bytes[d]);
                        if (where >= 0)
                                memcpy((char *)t.host + at * bytes[d], &bad[d], bytes[d]);
                        gpu_move(r->gpu, t.gpu, t.host, r->n * bytes[d]);
                        must(r->gpu->ops->zero(flag, sizeof *flag, r->gpu->stream), "zero");
                        must(r->gpu->ops->nonfinite(dtypes[d], t.gpu, r->n, flag, r->gpu->stream),
                             "nonfinite");
                        gpu_move(r->gpu, &came, flag, sizeof came);
                        if (came != (where >= 0))
                                die("nonfinite: %u, %zu elements, element %zu", came, r->n, at);
                        finish(r, &t, 1, "nonfinite");
                }
        r->gpu->ops->free(flag);
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
        void (*const checks[])(struct run *) = { check_cast,  check_accumulate, check_sum,
                                                 check_adamw, check_norm,       check_nonfinite,
                                                 check_bytes };
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
