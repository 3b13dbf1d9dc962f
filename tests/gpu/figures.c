/*
 * How fast the kernels are: bytes moved a second, as a ratio to a copy within the GPU that is
 * measured in turn with them.  A line of JSON a figure, in the form of tests/bench.
 *
 * A round enqueues as much of the one and of the other as keeps the GPU busy for some
 * milliseconds, and waits once for each, so that what a launch and a wait cost is not seen.
 * Arrays are larger than a GPU's caches, with --quick too.
 */
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "tests/gpu/gpu.h"
#include "tests/support/adamw.h"

enum { ROUNDS = 11, MAX_SOURCES = 8 };

#define ELEMENTS ((size_t)128 << 20) /* a gigabyte moves in some tenths of a millisecond */
#define SMALL_ELEMENTS ((size_t)64 << 10)
/* Half of the blocks of numbers() have a sum of squares below 2^-30 then, a bound of a bin, as
 * gradients with a root mean square of 2.7e-6 do. */
#define BETWEEN_BINS (0x1p-30 / 74.5)

struct bench {
        struct gpu gpu;
        size_t n; /* elements of every array */
        float *p, *m, *v, *grad;
        float *zeroes;           /* four arrays */
        float *unchanged;        /* numbers() that no subject writes */
        void *half[MAX_SOURCES]; /* bf16; only the first one is written */
        struct zero_cuda_norm *norm;
};

struct subject {
        const char *name;
        int (*enqueue)(const struct bench *b);
        double bytes; /* read and written, an element */
};

static int copy(const struct bench *b)
{
        return b->gpu.ops->copy(b->p, b->m, b->n * sizeof(float), b->gpu.stream);
}

/* k contributions in bf16; 0: an accumulator. */
static int update(const struct bench *b, void *serve, uint32_t k)
{
        struct update_piece u = {
                .scalars = adamw_scalars(1e-3, 0.9, 0.999, 1e-8, 0.1, 3, 0.7),
                .n = b->n,
                .in = { b->p, b->m, b->v },
                .grad = { b->grad },
                .k = k ? k : 1,
                .from = k ? ZERO_BF16 : ZERO_FP32,
                .wire = k ? ZERO_BF16 : ZERO_FP32,
                .out = { b->p, b->m, b->v },
                .serve = serve,
                .serve_dtype = ZERO_BF16,
        };

        for (uint32_t i = 0; i < k; i++)
                u.grad[i] = b->half[1 + i];
        return b->gpu.ops->update(&u, 1, b->gpu.stream);
}

static int adamw(const struct bench *b)
{
        return update(b, NULL, 0);
}

static int adamw_serve(const struct bench *b)
{
        return update(b, b->half[0], 0);
}

static int adamw_of_1(const struct bench *b)
{
        return update(b, b->half[0], 1);
}

static int adamw_of_3(const struct bench *b)
{
        return update(b, b->half[0], 3);
}

/* The root and the quotients of zeroes are not computed as those of other numbers. */
static int adamw_zeroes(const struct bench *b)
{
        struct bench other = *b;

        other.p = b->zeroes;
        other.m = b->zeroes + b->n;
        other.v = b->zeroes + 2 * b->n;
        other.grad = b->zeroes + 3 * b->n;
        return update(&other, NULL, 0);
}

/* Of one contribution, with moments in 8 bits.  Arrays have more bytes than the formats take, and
 * any bytes are values. */
static int adamw_packed(const struct bench *b, enum format master)
{
        struct update_piece u = {
                .scalars = adamw_scalars(1e-3, 0.9, 0.999, 1e-8, 0.1, 3, 0.7),
                .n = b->n,
                .in = { b->p, b->m, b->v },
                .grad = { b->half[1] },
                .k = 1,
                .from = ZERO_BF16,
                .wire = ZERO_BF16,
                .out = { b->p, b->m, b->v },
                .serve = b->half[0],
                .serve_dtype = ZERO_BF16,
                .format = { master, FORMAT_8BIT, FORMAT_8BIT_SQUARE },
        };

        return b->gpu.ops->update(&u, 1, b->gpu.stream);
}

static int adamw_8bit(const struct bench *b)
{
        return adamw_packed(b, FORMAT_FP32);
}

static int adamw_8bit_split(const struct bench *b)
{
        return adamw_packed(b, FORMAT_BF16_8);
}

static int cast_down(const struct bench *b)
{
        return b->gpu.ops->cast(ZERO_BF16, b->half[0], ZERO_FP32, b->p, b->n, b->gpu.stream);
}

static int cast_up(const struct bench *b)
{
        return b->gpu.ops->cast(ZERO_FP32, b->p, ZERO_BF16, b->half[0], b->n, b->gpu.stream);
}

static int sum_of(const struct bench *b, size_t k)
{
        const void *sources[MAX_SOURCES];

        for (size_t i = 0; i < k; i++)
                sources[i] = b->half[i];
        return b->gpu.ops->sum(ZERO_FP32, b->grad, ZERO_BF16, sources, k, b->n, b->gpu.stream);
}

static int sum_2(const struct bench *b)
{
        return sum_of(b, 2);
}

static int sum_8(const struct bench *b)
{
        return sum_of(b, 8);
}

/* k sources in bf16; with k == 0 the norm of what is there.  scale 0: no norm. */
static int reduce_into(const struct bench *b, float *acc, size_t k, bool first, double scale)
{
        const void *sources[MAX_SOURCES];
        const struct reduce_piece piece = {
                .acc = acc, .n = b->n, .k = k, .src = sources, .first = first
        };
        const struct zero_cuda_reduce r = {
                .pieces = &piece,
                .n_pieces = 1,
                .wire = ZERO_BF16,
                .from = ZERO_BF16,
                .scale = scale,
                .norm = scale > 0 ? b->norm : NULL,
        };

        for (size_t i = 0; i < k; i++)
                sources[i] = b->half[i];
        return b->gpu.ops->reduce(&r, b->gpu.stream);
}

static int measure_1(const struct bench *b)
{
        return reduce_into(b, NULL, 1, true, 1);
}

static int measure_3(const struct bench *b)
{
        return reduce_into(b, NULL, 3, true, 1);
}

/* What a step does of a contribution: the sum is written, or it is deferred. */
static int step_written(const struct bench *b)
{
        int r = reduce_into(b, b->grad, 1, true, 1);

        return r ? r : adamw_serve(b);
}

static int step_deferred(const struct bench *b)
{
        int r = measure_1(b);

        return r ? r : adamw_of_1(b);
}

static int norm(const struct bench *b)
{
        return reduce_into(b, b->grad, 0, false, 1);
}

static int norm_between(const struct bench *b)
{
        return reduce_into(b, b->unchanged, 0, false, BETWEEN_BINS);
}

static int accumulate(const struct bench *b)
{
        return reduce_into(b, b->grad, 1, false, 0);
}

static int accumulate_norm(const struct bench *b)
{
        return reduce_into(b, b->grad, 1, false, 1);
}

static int reduce_1(const struct bench *b)
{
        return reduce_into(b, b->grad, 1, true, 1);
}

static int reduce_1_between(const struct bench *b)
{
        struct bench other = *b;

        other.half[0] = b->half[1];
        return reduce_into(&other, b->grad, 1, true, BETWEEN_BINS);
}

static int reduce_2(const struct bench *b)
{
        return reduce_into(b, b->grad, 2, true, 1);
}

static int reduce_8(const struct bench *b)
{
        return reduce_into(b, b->grad, 8, true, 1);
}

static int zero(const struct bench *b)
{
        return b->gpu.ops->zero(b->grad, b->n * sizeof(float), b->gpu.stream);
}

static const struct subject reference = { "copy", copy, 8 };
static const struct subject subjects[] = {
        { "adamw", adamw, 28 },
        { "adamw and serve in bf16", adamw_serve, 30 },
        { "adamw where all is 0", adamw_zeroes, 28 },
        { "adamw of 1 in bf16, and serve", adamw_of_1, 28 },
        { "adamw of 3 in bf16, and serve", adamw_of_3, 32 },
        { "measure 1 in bf16", measure_1, 2 },
        { "measure 3 in bf16", measure_3, 6 },
        { "reduce 1 in bf16, then adamw and serve", step_written, 36 },
        { "measure 1 in bf16, then adamw of it and serve", step_deferred, 30 },
        { "sum of 2 in bf16 to fp32", sum_2, 8 },
        { "sum of 8 in bf16 to fp32", sum_8, 20 },
        { "reduce 1 in bf16, and norm", reduce_1, 6 },
        { "reduce 1 in bf16, and norm at an RMS of 2.7e-6", reduce_1_between, 6 },
        { "reduce 2 in bf16, and norm", reduce_2, 8 },
        { "reduce 8 in bf16, and norm", reduce_8, 20 },
        { "accumulate bf16 in fp32", accumulate, 10 },
        { "accumulate bf16 in fp32, and norm", accumulate_norm, 10 },
        { "cast fp32 to bf16", cast_down, 6 },
        { "cast bf16 to fp32", cast_up, 6 },
        { "norm of fp32", norm, 4 },
        { "norm of fp32 at an RMS of 2.7e-6", norm_between, 4 },
        { "zero", zero, 4 },
        { "adamw of 1 in bf16, and serve, moments in 8 bits", adamw_8bit, 16.25 },
        { "adamw of 1 in bf16, moments in 8 bits, master in bf16+8", adamw_8bit_split, 12.25 },
};

static double now(void)
{
        struct timespec t;

        clock_gettime(CLOCK_MONOTONIC, &t);
        return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

/* Gigabytes a second.  Each round moves as many bytes, whatever the subject. */
static double speed(const struct bench *b, const struct subject *s)
{
        int times = b->gpu.small ? 2 : (int)(800 / s->bytes);
        double start;

        must(s->enqueue(b), s->name);
        gpu_wait(&b->gpu);
        start = now();
        for (int i = 0; i < times; i++)
                must(s->enqueue(b), s->name);
        gpu_wait(&b->gpu);
        return times * s->bytes * (double)b->n / (now() - start) * 1e-9;
}

static int compare(const void *a, const void *b)
{
        double x = *(const double *)a, y = *(const double *)b;

        return (x > y) - (x < y);
}

static void measure(const struct bench *b, const struct subject *s)
{
        int rounds = b->gpu.small ? 3 : ROUNDS;
        double ratio[ROUNDS], own[ROUNDS], copies[ROUNDS];

        for (int i = 0; i < rounds; i++) {
                copies[i] = speed(b, &reference);
                own[i] = speed(b, s);
                ratio[i] = own[i] / copies[i];
        }
        qsort(ratio, (size_t)rounds, sizeof ratio[0], compare);
        qsort(own, (size_t)rounds, sizeof own[0], compare);
        qsort(copies, (size_t)rounds, sizeof copies[0], compare);
        printf("{\"name\": \"%s\", \"repeat\": %d, \"median_ratio\": %.4f, \"spread\": [%.4f, "
               "%.4f], \"gb_s\": %.1f, \"copy_gb_s\": %.1f, \"elements\": %zu}\n",
               s->name, rounds, ratio[rounds / 2], ratio[rounds / 4],
               ratio[rounds - 1 - rounds / 4], own[rounds / 2], copies[rounds / 2], b->n);
        fflush(stdout);
}

static void *zeroed(const struct bench *b, size_t bytes)
{
        void *memory = gpu_new(&b->gpu, bytes);

        must(b->gpu.ops->zero(memory, bytes, b->gpu.stream), "zero");
        gpu_wait(&b->gpu);
        return memory;
}

/* Numbers of [1/2, 1), again and again; as fp32, or as two of bf16 in a word. */
static void *numbers(const struct bench *b, size_t bytes)
{
        enum { WORDS = 1 << 16 };
        uint32_t *words = malloc(WORDS * sizeof *words);
        uint8_t *memory = zeroed(b, bytes);
        uint64_t state = bytes;

        for (size_t i = 0; i < WORDS; i++)
                words[i] = 0x3f003f00 | (dice(&state) & 0x007f007f);
        for (size_t at = 0; at < bytes; at += WORDS * sizeof *words)
                gpu_move(&b->gpu, memory + at, words,
                         bytes - at < WORDS * sizeof *words ? bytes - at : WORDS * sizeof *words);
        free(words);
        return memory;
}

/* All arrays together take no more than half of what is free. */
static size_t elements(const struct gpu *gpu)
{
        const size_t each = 9 * sizeof(float) + MAX_SOURCES * sizeof(uint16_t);
        uint64_t left, total;
        size_t n = gpu->small ? SMALL_ELEMENTS : ELEMENTS;

        must(gpu->ops->memory(&left, &total), "memory");
        return left / 2 / each < n ? left / 2 / each / 64 * 64 : n; /* all arrays are aligned */
}

int main(int argc, char *argv[])
{
        struct bench b = { .n = 0 };

        gpu_load(argc, argv, &b.gpu);
        gpu_start(&b.gpu);
        b.n = elements(&b.gpu);
        b.p = numbers(&b, b.n * sizeof(float));
        b.m = numbers(&b, b.n * sizeof(float));
        b.v = numbers(&b, b.n * sizeof(float));
        b.grad = numbers(&b, b.n * sizeof(float));
        for (int i = 0; i < MAX_SOURCES; i++)
                b.half[i] = numbers(&b, b.n * sizeof(uint16_t));
        b.unchanged = numbers(&b, b.n * sizeof(float));
        b.zeroes = zeroed(&b, 4 * b.n * sizeof(float));
        b.norm = zeroed(&b, sizeof *b.norm);
        for (size_t i = 0; i < sizeof subjects / sizeof subjects[0]; i++)
                measure(&b, &subjects[i]);
        return 0;
}
