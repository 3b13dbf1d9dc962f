/*
 * bench-kernels: the host device's kernels against memory traffic alone.
 *
 * cases.c has what is measured, measure.c runs all of it turn by turn (A B A B, so that
 * a noisy neighbour meets every case alike), main.c reports.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "daemon/compute/device/device.h"
#include "tests/bench/kernels/limit.h"

enum {
        BENCH_CHUNK_MAX = 65536,
        BENCH_THREADS_MAX = 64,
};

/* The planes that all cases share. */
struct planes {
        size_t elements;
        float *p, *m, *v, *grad, *scratch;
        uint16_t *serve;
};

/* Where one thread keeps old values: it should stay in L1. */
struct undo_buffer {
        _Alignas(64) uint64_t held;
        uint64_t version, kept;
        _Alignas(64) float values[3 * BENCH_CHUNK_MAX]; /* [3][chunk] */
};

struct work {
        const struct device_ops *ops;
        const struct limit_ops *limit;
        const struct planes *planes;
        size_t chunk;             /* elements, a multiple of 32 */
        struct undo_buffer *undo; /* the thread's own */
};

struct bench_case {
        const char *name;
        unsigned bytes; /* moved per element */
        void (*run)(const struct work *w, size_t first, size_t n);
};

/* One row of the report: a case against another. */
struct bench_row {
        const char *name;
        unsigned of, against; /* indices of cases */
};

extern const struct bench_case bench_cases[];
extern const unsigned n_bench_cases;
extern const struct bench_row bench_rows[];
extern const unsigned n_bench_rows;

struct sample {
        double wall, cpu; /* seconds; cpu: of all threads together */
};

/* samples[round * n_bench_cases + case]; 0 or -errno. */
int measure(const struct work *w, unsigned threads, unsigned rounds, struct sample *samples);
