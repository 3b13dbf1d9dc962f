/*
 * The limits that the host kernels are measured against: memory traffic alone,
 * with the same instruction set.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

struct limit_ops {
        const char *isa;
        /* The loads and stores of an in-place AdamW and no arithmetic: reads p, m, v and
         * grad, writes p, m and v (as they were), and serve past the cache. */
        void (*adamw)(size_t n, float *p, float *m, float *v, const float *grad, uint16_t *serve);
        /* Reads n bytes of each plane, and writes them as they were. */
        void (*touch)(void *x, size_t n);
        /* Reads n floats. */
        void (*read)(const float *x, size_t n);
        /* a = b + scale * c, as in STREAM (J. D. McCalpin). */
        void (*triad)(size_t n, float *a, const float *b, const float *c, float scale);
};

extern const struct limit_ops limit_avx2_ops;
extern const struct limit_ops limit_avx512_ops;
