/* What is measured: each case over a range of the planes, which is a
 * multiple of the chunk. */
#include "tests/bench/kernels/bench.h"

static struct adamw_scalars scalars(void)
{
        return adamw_scalars(1e-4, 0.9, 0.999, 1e-8, 0.01, 10, 1.0);
}

/* An update as the store commits it: into the buffer, mark, copy home, serve, free. */
static void adamw_redo(const struct work *w, size_t first, size_t count)
{
        const struct planes *x = w->planes;
        struct adamw_scalars s = scalars();
        struct redo_buffer *r = w->redo;
        float *p = r->values, *m = p + w->chunk, *v = m + w->chunk;

        for (size_t i = first, end = first + count, n; i < end; i += n) {
                n = end - i < w->chunk ? end - i : w->chunk;
                w->ops->adamw(&s, n, x->p + i, x->m + i, x->v + i, x->grad + i, p, m, v);
                __atomic_store_n(&r->valid, 1, __ATOMIC_RELEASE);
                w->ops->copy(x->p + i, p, n * sizeof(float));
                w->ops->copy(x->m + i, m, n * sizeof(float));
                w->ops->copy(x->v + i, v, n * sizeof(float));
                w->ops->serve(ZERO_BF16, x->serve + i, p, n);
                __atomic_store_n(&r->version, i, __ATOMIC_RELEASE);
                __atomic_store_n(&r->valid, 0, __ATOMIC_RELEASE);
        }
}

static void adamw_in_place(const struct work *w, size_t first, size_t count)
{
        const struct planes *x = w->planes;
        struct adamw_scalars s = scalars();

        for (size_t i = first, end = first + count, n; i < end; i += n) {
                float *p = x->p + i, *m = x->m + i, *v = x->v + i;

                n = end - i < w->chunk ? end - i : w->chunk;
                w->ops->adamw(&s, n, p, m, v, x->grad + i, p, m, v);
                w->ops->serve(ZERO_BF16, x->serve + i, p, n);
        }
}

static void adamw_limit(const struct work *w, size_t first, size_t n)
{
        const struct planes *x = w->planes;

        w->limit->adamw(n, x->p + first, x->m + first, x->v + first, x->grad + first,
                        x->serve + first);
}

static void triad(const struct work *w, size_t first, size_t n)
{
        const struct planes *x = w->planes;

        w->limit->triad(n, x->scratch + first, x->p + first, x->grad + first, 3.0f);
}

static void copy(const struct work *w, size_t first, size_t n)
{
        w->ops->copy(w->planes->scratch + first, w->planes->grad + first, n * sizeof(float));
}

static void cast_to_bf16(const struct work *w, size_t first, size_t n)
{
        w->ops->cast(ZERO_BF16, w->planes->serve + first, ZERO_FP32, w->planes->p + first, n);
}

static void cast_from_bf16(const struct work *w, size_t first, size_t n)
{
        w->ops->cast(ZERO_FP32, w->planes->scratch + first, ZERO_BF16, w->planes->serve + first, n);
}

static void sum_of_4(const struct work *w, size_t first, size_t n)
{
        const struct planes *x = w->planes;
        const void *src[] = { x->p + first, x->m + first, x->v + first, x->grad + first };

        w->ops->sum(ZERO_BF16, x->serve + first, ZERO_FP32, src, 4, n);
}

static void norm(const struct work *w, size_t first, size_t n)
{
        struct exact_sum sum;
        bool finite = true;

        exact_sum_init(&sum);
        w->ops->norm(w->planes->grad + first, n, 1.0, &sum, &finite);
}

enum { ADAMW_REDO, ADAMW_IN_PLACE, ADAMW_LIMIT, TRIAD, COPY, TO_BF16, FROM_BF16, SUM4, NORM };

const struct bench_case bench_cases[] = {
        [ADAMW_REDO] = { "adamw, redo buffer", 30, adamw_redo },
        [ADAMW_IN_PLACE] = { "adamw, in place", 30, adamw_in_place },
        [ADAMW_LIMIT] = { "adamw, loads and stores only", 30, adamw_limit },
        [TRIAD] = { "triad", 12, triad },
        [COPY] = { "copy", 8, copy },
        [TO_BF16] = { "cast fp32 to bf16", 6, cast_to_bf16 },
        [FROM_BF16] = { "cast bf16 to fp32", 6, cast_from_bf16 },
        [SUM4] = { "sum of 4 fp32 to bf16", 18, sum_of_4 },
        [NORM] = { "norm", 4, norm },
};
const unsigned n_bench_cases = sizeof(bench_cases) / sizeof(bench_cases[0]);

const struct bench_row bench_rows[] = {
        { "adamw_redo/loads_and_stores", ADAMW_REDO, ADAMW_LIMIT },
        { "adamw_redo/triad", ADAMW_REDO, TRIAD },
        { "adamw_in_place/loads_and_stores", ADAMW_IN_PLACE, ADAMW_LIMIT },
        { "cast_fp32_bf16/copy", TO_BF16, COPY },
        { "cast_bf16_fp32/copy", FROM_BF16, COPY },
        { "sum_of_4/copy", SUM4, COPY },
        { "norm/copy", NORM, COPY },
};
const unsigned n_bench_rows = sizeof(bench_rows) / sizeof(bench_rows[0]);
