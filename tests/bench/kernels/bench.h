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
        PACKED = 3, /* what a master has beside serve, and two moments */
        PACKED_SETS = 3,
};

/* The planes that all cases share. */
struct planes {
        size_t elements;
        float *p, *m, *v, *grad, *scratch;
        uint16_t *serve;
        /* Each set of formats has planes of its own: the bytes of another format would be NaN and
         * subnormal numbers, which take a CPU ten times as long. */
        struct packed_planes {
                void *plane[PACKED]; /* room for 4 bytes an element each */
                uint16_t *serve;
        } packed[PACKED_SETS];
};

/* Where one thread keeps old values: it should stay in L1. */
struct undo_buffer {
        _Alignas(64) uint64_t held;
        uint64_t version, kept;
        _Alignas(64) float values[3 * BENCH_CHUNK_MAX]; /* [3][chunk] */
        _Alignas(64) uint8_t packed[14 * BENCH_CHUNK_MAX];
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
        double bytes; /* moved per element */
        void (*run)(const struct work *w, size_t first, size_t n);
};

/* One row of the report: a case against another. */
struct bench_row {
        const char *name;
        unsigned of, against; /* indices of cases */
        double aim;           /* at least; 0: none */
        bool elements;        /* compares elements a second, not bytes */
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
