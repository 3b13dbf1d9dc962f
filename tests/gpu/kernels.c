/*
 * Every kernel by the plugin's table against the scalar truth, to the bit, at awkward sizes,
 * alignments and values.  The conformance suite holds gpu_ops() to the same; this goes also where
 * gpu_ops() does not.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/compute/device/host.h"
#include "proto/dtype.h"
#include "tests/gpu/gpu.h"
#include "tests/support/adamw.h"

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
                for (size_t k = 1; k <= SOURCES; k += 2)
                        for (int to = 0; to < DTYPES; to++)
                                check_sum_of(r, dtypes[to], dtypes[from], k);
}

enum { P, M, V, E, GRAD, SERVE, PLANES };

/* One of each rule at least, with an average and without. */
static const struct sample {
        const struct optimizer *optimizer;
        double values[OPTIMIZER_VALUES];
        float ema_rate;
} samples[] = {
        { &optimizer_adamw, { 1e-3, 0.9, 0.999, 1e-8, 0.1 } },
        { &optimizer_adam, { 1e-3, 0.9, 0.999, 1e-8, 0.1 } },
        { &optimizer_lion, { 1e-3, 0.9, 0.99, 0.1 } },
        { &optimizer_lion, { 1e-3, 0.9, 0.99, 0.1, 1 } },
        { &optimizer_sgd, { 0.1, 0, 0, 0.01 } },
        { &optimizer_sgd_momentum, { 0.1, 0.9, 0.1, 0.01, 1 } },
        { &optimizer_adamw, { 1e-3, 0.9, 0.999, 1e-8, 0.1 }, 0.001f },
        { &optimizer_adam, { 1e-3, 0.9, 0.999, 1e-8, 0.1 }, 0.1f },
        { &optimizer_lion, { 1e-3, 0.9, 0.99, 0.1 }, 0.1f },
        { &optimizer_sgd, { 0.1, 0, 0, 0.01 }, 0.1f },
        { &optimizer_sgd_momentum, { 0.1, 0.9, 0.1, 0.01, 1 }, 0.1f },
};

/* The update of one set of planes on both sides, and what is served; planes that the rule lacks
 * stay. */
static void check_update(struct run *r, const struct sample *sample, enum zero_dtype serve)
{
        const struct optimizer *o = sample->optimizer;
        struct update_scalars s = o->scalars(sample->values, 3, 0.7);
        struct twin t[PLANES] = {
                array(r, ZERO_FP32), array(r, ZERO_FP32), array(r, ZERO_FP32),
                array(r, ZERO_FP32), array(r, ZERO_FP32), aligned_array(r, serve)
        };
        struct update_piece update = {
                .rule = o->rule, .scalars = s, .n = r->n, .serve_dtype = serve
        };
        float *const planes[] = { t[P].host, t[M].host, t[V].host, t[E].host };

        s.ema_rate = update.scalars.ema_rate = sample->ema_rate;
        host_scalar_ops.update(o->rule, &s, r->n, planes, t[GRAD].host, NULL);
        host_scalar_ops.serve(serve, t[SERVE].host, t[P].host, r->n);
        update_in_place(&update, t);
        update.grad[0] = t[GRAD].gpu;
        update.k = 1;
        update.from = update.wire = ZERO_FP32;
        update.serve = t[SERVE].gpu;
        must(r->gpu->ops->update(&update, 1, r->gpu->stream), o->name);
        finish(r, t, PLANES, o->name);
}

static void check_updates(struct run *r)
{
        for (size_t i = 0; i < sizeof(samples) / sizeof(samples[0]); i++)
                for (int serve = 0; serve < DTYPES; serve++)
                        check_update(r, &samples[i], dtypes[serve]);
}

/* An update of contributions is the update of what reduce() would have made of them. */
static void check_fused_of(struct run *r, enum zero_dtype wire, enum zero_dtype from, uint32_t k)
{
        struct update_scalars s = adamw_scalars(1e-3, 0.9, 0.999, 1e-8, 0.1, 3, 0.7);
        struct update_piece update = { .scalars = s,
                                       .n = r->n,
                                       .k = k,
                                       .from = from,
                                       .wire = wire,
                                       .serve_dtype = ZERO_BF16 };
        struct twin t[PLANES] = { array(r, ZERO_FP32),         array(r, ZERO_FP32),
                                  array(r, ZERO_FP32),         array(r, ZERO_FP32),
                                  aligned_array(r, ZERO_FP32), aligned_array(r, ZERO_BF16) };
        struct twin sources[UPDATE_SOURCES];
        const void *on_host[UPDATE_SOURCES];

        for (uint32_t i = 0; i < k; i++) {
                sources[i] = (i % 2 ? array : aligned_array)(r, from);
                on_host[i] = sources[i].host;
                update.grad[i] = sources[i].gpu;
        }
        host_scalar_ops.reduce(&(struct reduce_piece){ t[GRAD].host, r->n, k, on_host, true }, 1,
                               wire, from, 0, NULL, NULL);
        run_adamw(&host_scalar_ops, &s, r->n, t[P].host, t[M].host, t[V].host, t[GRAD].host, NULL);
        host_scalar_ops.serve(ZERO_BF16, t[SERVE].host, t[P].host, r->n);
        update_in_place(&update, t);
        update.serve = t[SERVE].gpu;
        must(r->gpu->ops->update(&update, 1, r->gpu->stream), "adamw");
        gpu_move(r->gpu, t[GRAD].gpu, t[GRAD].host, r->n * sizeof(float)); /* of the host's alone */
        finish(r, t, PLANES, "adamw of contributions");
        finish(r, sources, k, "a contribution");
}

static void check_fused(struct run *r)
{
        for (int from = 0; from < DTYPES; from++)
                for (uint32_t k = 1; k <= UPDATE_SOURCES; k++)
                        check_fused_of(r, dtypes[k % DTYPES], dtypes[from], k);
        for (int wire = 0; wire < DTYPES; wire++)
                check_fused_of(r, dtypes[wire], dtypes[wire], 1);
        check_fused_of(r, ZERO_BF16, ZERO_FP32, 2);
        check_fused_of(r, ZERO_FP32, ZERO_BF16, 2);
}

/* Ordinary numbers of many sizes, of which there is a norm. */
static void make_finite(struct run *r, struct twin *t)
{
        int spread = t->dtype == ZERO_FP16 ? 5 : 100;

        for (size_t i = 0; i < r->n; i++) {
                float x = ldexpf((float)(dice(&r->state) % 1000),
                                 (int)(dice(&r->state) % (2 * (unsigned)spread)) - spread);

                host_scalar_ops.cast(t->dtype, (char *)t->host + dtype_bytes(t->dtype, i),
                                     ZERO_FP32, &x, 1);
        }
        gpu_move(r->gpu, t->gpu, t->host, dtype_bytes(t->dtype, r->n));
}

/* The root of their mean square is `size`; of either sign. */
static void make_sized(struct run *r, struct twin *t, double size)
{
        for (size_t i = 0; i < r->n; i++) {
                float x = (float)(size * sqrt(3) * ldexp((double)(int32_t)dice(&r->state), -31));

                host_scalar_ops.cast(t->dtype, (char *)t->host + dtype_bytes(t->dtype, i),
                                     ZERO_FP32, &x, 1);
        }
        gpu_move(r->gpu, t->gpu, t->host, dtype_bytes(t->dtype, r->n));
}

/* With a scale of 0.3, as the truth is asked for; norm: zeroed before, or NULL. */
static void reduce(struct run *r, const struct reduce_piece *pieces, size_t n, enum zero_dtype wire,
                   enum zero_dtype from, struct zero_cuda_norm *norm)
{
        const struct zero_cuda_reduce reduce = { .pieces = pieces,
                                                 .n_pieces = n,
                                                 .wire = wire,
                                                 .from = from,
                                                 .scale = 0.3,
                                                 .norm = norm };

        must(r->gpu->ops->reduce(&reduce, r->gpu->stream), "reduce");
}

struct reduction {
        enum zero_dtype wire, from;
        size_t k;
        bool first, norm, finite; /* finite: the values; else any bits */
        bool kept;                /* else there is only a norm; first */
        double size;              /* not 0: the values', which are finite then */
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
        float *sum;

        for (size_t i = 0; i <= c.k; i++) {
                enum zero_dtype dtype = i < c.k ? c.from : ZERO_FP32;

                t[i] = i % 2 ? aligned_array(r, dtype) : array(r, dtype);
                if (c.size > 0)
                        make_sized(r, &t[i], c.size);
                else if (c.finite)
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
        sum = c.kept ? t[c.k].gpu : NULL;
        reduce(r, &(struct reduce_piece){ sum, r->n, c.k, on_gpu, c.first }, 1, c.wire, c.from,
               c.norm ? acc : NULL);
        check_norms(r, &norm, finite, acc);
        if (!c.kept)
                gpu_move(r->gpu, t[c.k].gpu, t[c.k].host, r->n * sizeof(float));
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
                                check_reduction(
                                        r, (struct reduction){ .wire = dtypes[way / 3 % DTYPES],
                                                               .from = dtypes[from],
                                                               .k = k,
                                                               .first = way & 2,
                                                               .norm = (way + k) % 4 != 3,
                                                               .finite = way & 4,
                                                               .kept = true });
        for (int from = 0; from < DTYPES; from++, way++)
                check_reduction(r, (struct reduction){ .wire = dtypes[way % DTYPES],
                                                       .from = dtypes[from],
                                                       .k = 1 + way % SOURCES,
                                                       .first = true,
                                                       .norm = true,
                                                       .finite = way & 2 });
}

/* One contribution that crosses the wire as it is, of all sizes that gradients have.  At 4.92e-6
 * half of the blocks' sums of squares, scaled, lie on each side of a bin's bound. */
static void check_sizes(struct run *r)
{
        static const double rms[] = { 0.7, 1e-4, 1e-5, 4.92e-6, 1e-6 };

        for (size_t i = 0; i < sizeof rms / sizeof rms[0]; i++)
                for (int d = 0; d < DTYPES; d++)
                        check_reduction(r, (struct reduction){ .wire = dtypes[d],
                                                               .from = dtypes[d],
                                                               .k = 1,
                                                               .first = i % 2,
                                                               .norm = true,
                                                               .kept = true,
                                                               .size = rms[i] });
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
                        size_t bytes = dtype_bytes(dtypes[d], 1);
                        const void *src = t.gpu;

                        memset(t.host, 0, r->n * bytes);
                        if (where >= 0)
                                memcpy((char *)t.host + at * bytes, &bad[d], bytes);
                        gpu_move(r->gpu, t.gpu, t.host, r->n * bytes);
                        must(r->gpu->ops->zero(acc, sizeof *acc, r->gpu->stream), "zero");
                        reduce(r, &(struct reduce_piece){ sum, r->n, 1, &src, true }, 1, ZERO_FP32,
                               dtypes[d], acc);
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

/* ---- many pieces in one call ------------------------------------------------------ */

/* More than one launch takes, of some elements, none, or many. */
enum { MANY = ZERO_CUDA_PIECES + 9 };

static size_t piece_elements(struct run *r)
{
        return dice(&r->state) % 8 == 0 ? 0 : 1 + dice(&r->state) % r->n;
}

static void check_many_updates(struct run *r)
{
        struct update_piece updates[MANY];
        struct twin t[MANY][PLANES];
        size_t n = r->n;

        for (uint32_t i = 0; i < MANY; i++) {
                struct update_scalars s =
                        adamw_scalars(1e-3 * (i + 1), 0.9, 0.999, 1e-8, 0.1, 3, 1);
                enum zero_dtype serve = dtypes[i % DTYPES];
                struct twin *x = t[i];

                r->n = piece_elements(r);
                for (int a = 0; a < PLANES; a++)
                        x[a] = (i % 4 ? array : aligned_array)(r, a == SERVE ? serve : ZERO_FP32);
                run_adamw(&host_scalar_ops, &s, r->n, x[P].host, x[M].host, x[V].host, x[GRAD].host,
                          NULL);
                host_scalar_ops.serve(serve, x[SERVE].host, x[P].host, r->n);
                updates[i] = (struct update_piece){ .scalars = s,
                                                    .n = r->n,
                                                    .in = { x[P].gpu, x[M].gpu, x[V].gpu },
                                                    .grad = { x[GRAD].gpu },
                                                    .k = 1,
                                                    .from = ZERO_FP32,
                                                    .wire = ZERO_FP32,
                                                    .out = { x[P].gpu, x[M].gpu, x[V].gpu },
                                                    .serve = x[SERVE].gpu,
                                                    .serve_dtype = serve };
                r->n = n;
        }
        must(r->gpu->ops->update(updates, MANY, r->gpu->stream), "adamw");
        for (int i = 0; i < MANY; i++)
                finish(r, t[i], PLANES, "adamw of many pieces");
}

/* Every other piece has sources, one less than the one before, and the last ones as many as there
 * may be: they make the lists of a launch full before its pieces. */
static void check_many_sums(struct run *r)
{
        struct zero_cuda_norm *acc = gpu_new(r->gpu, sizeof *acc);
        const void *on_host[ZERO_CUDA_SUM_MAX], *on_gpu[ZERO_CUDA_SUM_MAX];
        enum zero_dtype from = dtypes[r->state % DTYPES];
        struct reduce_piece pieces[MANY], truth[MANY];
        struct twin t[MANY + 1];
        struct exact_sum norm;
        bool finite = true;

        exact_sum_init(&norm);
        t[MANY] = array(r, from);
        make_finite(r, &t[MANY]);
        for (size_t i = 0; i < ZERO_CUDA_SUM_MAX; i++) {
                on_host[i] = t[MANY].host;
                on_gpu[i] = t[MANY].gpu;
        }
        for (size_t i = 0; i < MANY; i++) {
                size_t n = r->n, k = i % 2 ? 0 : i < MANY / 2 ? i % 5 : ZERO_CUDA_SUM_MAX;

                r->n = piece_elements(r);
                t[i] = (i % 4 ? array : aligned_array)(r, ZERO_FP32);
                make_finite(r, &t[i]);
                truth[i] = (struct reduce_piece){ t[i].host, r->n, k, on_host, k && i % 3 };
                pieces[i] = (struct reduce_piece){ t[i].gpu, r->n, k, on_gpu, k && i % 3 };
                r->n = n;
        }
        host_scalar_ops.reduce(truth, MANY, ZERO_BF16, from, 0.3, &norm, &finite);
        must(r->gpu->ops->zero(acc, sizeof *acc, r->gpu->stream), "zero");
        reduce(r, pieces, MANY, ZERO_BF16, from, acc);
        check_norms(r, &norm, finite, acc);
        finish(r, t, MANY + 1, "reduce of many pieces");
        r->gpu->ops->free(acc);
}

static void check_many(struct run *r)
{
        static const size_t enough = 20011; /* elements: what is larger shows nothing more */

        r->n = r->n < enough ? r->n : enough;
        check_many_updates(r);
        check_many_sums(r);
}

int main(int argc, char *argv[])
{
        void (*const checks[])(struct run *) = { check_cast,   check_sum,       check_updates,
                                                 check_reduce, check_nonfinite, check_bytes,
                                                 check_fused,  check_many,      check_sizes };
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
