/* What is measured: each case over a range of the planes, which is a
 * multiple of the chunk. */
#include <string.h>

#include "daemon/store/file.h"
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

/* ---- states of fewer bytes ---- */

struct formats {
        unsigned set; /* of planes */
        enum format of[PACKED];
};
static const struct formats bf16_moments = { 0, { FORMAT_FP32, FORMAT_BF16, FORMAT_BF16 } };
static const struct formats codes_16 = { 1, { FORMAT_BF16_16, FORMAT_8BIT, FORMAT_8BIT_SQUARE } };
static const struct formats codes_8 = { 2, { FORMAT_BF16_8, FORMAT_8BIT, FORMAT_8BIT_SQUARE } };

static void *packed_at(const struct planes *x, const struct formats *f, int k, size_t i)
{
        return (char *)x->packed[f->set].plane[k] + format_bytes(f->of[k], i);
}

/* A chunk as the store commits it: its bytes are kept first. */
static void packed_chunk(const struct work *w, const struct formats *f, size_t i, size_t n)
{
        const struct planes *x = w->planes;
        struct undo_buffer *u = w->undo;
        struct update_scalars s = scalars();
        uint16_t *serve = x->packed[f->set].serve + i;
        struct packed_update update = { .rule = UPDATE_ADAMW,
                                        .scalars = &s,
                                        .n = n,
                                        .served = serve,
                                        .grad = x->grad + i,
                                        .element = i };
        uint8_t *kept = u->packed;

        s.adam.sqrt_bias2 = 1; /* rules.h */
        __atomic_store_n(&u->held, 1, __ATOMIC_RELEASE);
        for (int k = 0; k < PACKED; kept += format_bytes(f->of[k], n), k++) {
                update.formats[k] = f->of[k];
                update.planes[k] = packed_at(x, f, k, i);
                memcpy(kept, update.planes[k], format_bytes(f->of[k], n));
        }
        if (f->of[0] != FORMAT_FP32)
                memcpy(kept, serve, n * sizeof *serve);
        u->kept = undo_mark((uint32_t)n);
        __atomic_store_n(&u->held, 2, __ATOMIC_RELEASE);
        w->ops->update_packed(&update);
        if (f->of[0] == FORMAT_FP32)
                w->ops->serve(ZERO_BF16, serve, update.planes[0], n);
        __atomic_store_n(&u->version, i, __ATOMIC_RELEASE);
        __atomic_store_n(&u->held, 0, __ATOMIC_RELEASE);
}

static void packed(const struct work *w, const struct formats *f, size_t first, size_t count)
{
        for (size_t i = first, end = first + count, n; i < end; i += n) {
                n = end - i < w->chunk ? end - i : w->chunk;
                packed_chunk(w, f, i, n);
        }
}

static void packed_limit(const struct work *w, const struct formats *f, size_t first, size_t count)
{
        const struct planes *x = w->planes;

        for (size_t i = first, end = first + count, n; i < end; i += n) {
                n = end - i < w->chunk ? end - i : w->chunk;
                w->limit->read(x->grad + i, n);
                w->limit->touch(x->packed[f->set].serve + i, n * sizeof *x->serve);
                for (int k = 0; k < PACKED; k++)
                        w->limit->touch(packed_at(x, f, k, i), format_bytes(f->of[k], n));
        }
}

#define PACKED_CASE(formats)                                                      \
        static void adamw_##formats(const struct work *w, size_t first, size_t n) \
        {                                                                         \
                packed(w, &formats, first, n);                                    \
        }                                                                         \
        static void limit_##formats(const struct work *w, size_t first, size_t n) \
        {                                                                         \
                packed_limit(w, &formats, first, n);                              \
        }
PACKED_CASE(bf16_moments)
PACKED_CASE(codes_16)
PACKED_CASE(codes_8)
#undef PACKED_CASE

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

/* Ranks push into slots, and those begin with a page, unlike planes. */
static const float *slot(const float *plane)
{
        return (const float *)(((uintptr_t)plane + FILE_ALIGN - 1) / FILE_ALIGN * FILE_ALIGN);
}

static void sum_of_4(const struct work *w, size_t first, size_t n)
{
        const struct planes *x = w->planes;
        const void *src[] = { slot(x->p) + first, slot(x->m) + first, slot(x->v) + first,
                              slot(x->grad) + first };

        w->ops->sum(ZERO_BF16, x->serve + first, ZERO_FP32, src, 4, n);
}

static void reading(const struct work *w, size_t first, size_t n)
{
        w->limit->read(w->planes->grad + first, n);
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
        BF16_MOMENTS,
        BF16_MOMENTS_LIMIT,
        CODES_16,
        CODES_16_LIMIT,
        CODES_8,
        CODES_8_LIMIT,
        TRIAD,
        COPY,
        TO_BF16,
        FROM_BF16,
        TO_FP16,
        FROM_FP16,
        SUM4,
        READING,
        NORM
};

const struct bench_case bench_cases[] = {
        [ADAMW_UNDO] = { "adamw, undo slot", 30, adamw_undo },
        [ADAMW_IN_PLACE] = { "adamw, in place", 30, adamw_in_place },
        [ADAMW_LIMIT] = { "adamw, loads and stores only", 30, adamw_limit },
        [BF16_MOMENTS] = { "adamw, bf16 moments", 22, adamw_bf16_moments },
        [BF16_MOMENTS_LIMIT] = { "  loads and stores only", 22, limit_bf16_moments },
        [CODES_16] = { "adamw, 8bit moments, bf16+16", 16.25, adamw_codes_16 },
        [CODES_16_LIMIT] = { "  loads and stores only", 16.25, limit_codes_16 },
        [CODES_8] = { "adamw, 8bit moments, bf16+8", 14.25, adamw_codes_8 },
        [CODES_8_LIMIT] = { "  loads and stores only", 14.25, limit_codes_8 },
        [TRIAD] = { "triad", 12, triad },
        [COPY] = { "copy", 8, copy },
        [TO_BF16] = { "cast fp32 to bf16", 6, cast_to_bf16 },
        [FROM_BF16] = { "cast bf16 to fp32", 6, cast_from_bf16 },
        [TO_FP16] = { "cast fp32 to fp16", 6, cast_to_fp16 },
        [FROM_FP16] = { "cast fp16 to fp32", 6, cast_from_fp16 },
        [SUM4] = { "sum of 4 fp32 to bf16", 18, sum_of_4 },
        [READING] = { "reading", 4, reading },
        [NORM] = { "norm", 4, norm },
};
const unsigned n_bench_cases = sizeof(bench_cases) / sizeof(bench_cases[0]);

const struct bench_row bench_rows[] = {
        { "adamw_undo/loads_and_stores", ADAMW_UNDO, ADAMW_LIMIT, 0.95 },
        { "adamw_undo/triad", ADAMW_UNDO, TRIAD },
        { "adamw_in_place/loads_and_stores", ADAMW_IN_PLACE, ADAMW_LIMIT, 0.95 },
        { "bf16_moments/loads_and_stores", BF16_MOMENTS, BF16_MOMENTS_LIMIT, 0.95 },
        { "8bit_bf16+16/loads_and_stores", CODES_16, CODES_16_LIMIT, 0.95 },
        { "8bit_bf16+8/loads_and_stores", CODES_8, CODES_8_LIMIT, 0.95 },
        { "elements: bf16_moments/fp32", BF16_MOMENTS, ADAMW_UNDO, 0, true },
        { "elements: 8bit_bf16+16/fp32", CODES_16, ADAMW_UNDO, 0, true },
        { "elements: 8bit_bf16+8/fp32", CODES_8, ADAMW_UNDO, 0, true },
        { "cast_fp32_bf16/copy", TO_BF16, COPY, 0.9 },
        { "cast_bf16_fp32/copy", FROM_BF16, COPY, 0.9 },
        { "cast_fp32_fp16/copy", TO_FP16, COPY, 0.9 },
        { "cast_fp16_fp32/copy", FROM_FP16, COPY, 0.9 },
        { "sum_of_4/copy", SUM4, COPY, 0.9 },
        { "norm/copy", NORM, COPY, 0.9 },
        { "norm/reading", NORM, READING, 0.9 },
};
const unsigned n_bench_rows = sizeof(bench_rows) / sizeof(bench_rows[0]);
