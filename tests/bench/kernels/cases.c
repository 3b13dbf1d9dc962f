/* What is measured: each case over a range of the planes, which is a
 * multiple of the chunk. */
#include "tests/bench/kernels/bench.h"
#include "tests/support/adamw.h"

static struct update_scalars scalars(void)
{
        return adamw_scalars(1e-4, 0.9, 0.999, 1e-8, 0.01, 10, 1.0);
}

/* An update as the store commits it: hold the slot, keep old values, raise the version, free. */
static void adamw_undo(const struct work *w, size_t first, size_t count)
{
        const struct planes *x = w->planes;
        struct update_scalars s = scalars();
        struct undo_buffer *u = w->undo;
        struct update_undo undo = { { u->values, u->values + w->chunk, u->values + 2 * w->chunk },
                                    &u->kept,
                                    0 };

        for (size_t i = first, end = first + count, n; i < end; i += n) {
                n = end - i < w->chunk ? end - i : w->chunk;
                u->kept = undo_mark(0);
                __atomic_store_n(&u->held, 1, __ATOMIC_RELEASE);
                run_adamw(w->ops, &s, n, x->p + i, x->m + i, x->v + i, x->grad + i, &undo);
                __atomic_store_n(&u->version, i, __ATOMIC_RELEASE);
                __atomic_store_n(&u->held, 0, __ATOMIC_RELEASE);
                w->ops->serve(ZERO_BF16, x->serve + i, x->p + i, n);
        }
}

static void adamw_in_place(const struct work *w, size_t first, size_t count)
{
        const struct planes *x = w->planes;
        struct update_scalars s = scalars();

        for (size_t i = first, end = first + count, n; i < end; i += n) {
                float *p = x->p + i, *m = x->m + i, *v = x->v + i;

                n = end - i < w->chunk ? end - i : w->chunk;
                run_adamw(w->ops, &s, n, p, m, v, x->grad + i, NULL);
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

static void cast_to_fp16(const struct work *w, size_t first, size_t n)
{
        w->ops->cast(ZERO_FP16, w->planes->serve + first, ZERO_FP32, w->planes->p + first, n);
}

static void cast_from_fp16(const struct work *w, size_t first, size_t n)
{
        w->ops->cast(ZERO_FP32, w->planes->scratch + first, ZERO_FP16, w->planes->serve + first, n);
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

enum {
        ADAMW_UNDO,
        ADAMW_IN_PLACE,
        ADAMW_LIMIT,
        TRIAD,
        COPY,
        TO_BF16,
        FROM_BF16,
        TO_FP16,
        FROM_FP16,
        SUM4,
        NORM
};

const struct bench_case bench_cases[] = {
        [ADAMW_UNDO] = { "adamw, undo slot", 30, adamw_undo },
        [ADAMW_IN_PLACE] = { "adamw, in place", 30, adamw_in_place },
        [ADAMW_LIMIT] = { "adamw, loads and stores only", 30, adamw_limit },
        [TRIAD] = { "triad", 12, triad },
        [COPY] = { "copy", 8, copy },
        [TO_BF16] = { "cast fp32 to bf16", 6, cast_to_bf16 },
        [FROM_BF16] = { "cast bf16 to fp32", 6, cast_from_bf16 },
        [TO_FP16] = { "cast fp32 to fp16", 6, cast_to_fp16 },
        [FROM_FP16] = { "cast fp16 to fp32", 6, cast_from_fp16 },
        [SUM4] = { "sum of 4 fp32 to bf16", 18, sum_of_4 },
        [NORM] = { "norm", 4, norm },
};
const unsigned n_bench_cases = sizeof(bench_cases) / sizeof(bench_cases[0]);

const struct bench_row bench_rows[] = {
        { "adamw_undo/loads_and_stores", ADAMW_UNDO, ADAMW_LIMIT },
        { "adamw_undo/triad", ADAMW_UNDO, TRIAD },
        { "adamw_in_place/loads_and_stores", ADAMW_IN_PLACE, ADAMW_LIMIT },
        { "cast_fp32_bf16/copy", TO_BF16, COPY },
        { "cast_bf16_fp32/copy", FROM_BF16, COPY },
        { "cast_fp32_fp16/copy", TO_FP16, COPY },
        { "cast_fp16_fp32/copy", FROM_FP16, COPY },
        { "sum_of_4/copy", SUM4, COPY },
        { "norm/copy", NORM, COPY },
};
const unsigned n_bench_rows = sizeof(bench_rows) / sizeof(bench_rows[0]);
