/* The limits, over the lanes that the including file brings.  n is a multiple of 32, and the
 * planes lie on lines. */
#include "tests/bench/kernels/limit.h"

/* Moves 16 elements of a plane through a register. */
static inline void touch(float *x)
{
        v16_store(x, keep(v16_load(x)));
}

static void limit_adamw(size_t n, float *p, float *m, float *v, const float *grad, uint16_t *serve)
{
        for (size_t i = 0; i < n; i += 32) {
                h16 low = h16_of(v16_load(grad + i)), high = h16_of(v16_load(grad + i + 16));

                for (size_t j = i; j < i + 32; j += 16) {
                        touch(p + j);
                        touch(m + j);
                        touch(v + j);
                }
                h32_stream(serve + i, low, high);
        }
}

static void limit_touch(void *x, size_t n)
{
        float *floats = x;

        for (size_t i = 0; i + 16 <= n / sizeof(float); i += 16)
                touch(floats + i);
}

static void limit_read(const float *x, size_t n)
{
        for (size_t i = 0; i < n; i += 16)
                keep(v16_load(x + i));
}

static void limit_triad(size_t n, float *a, const float *b, const float *c, float scale)
{
        v16 s = v16_set(scale);

        for (size_t i = 0; i < n; i += 16)
                v16_store(a + i, v16_add(v16_load(b + i), v16_mul(v16_load(c + i), s)));
}

const struct limit_ops LIMITS_OPS = { LIMITS_ISA, limit_adamw, limit_touch, limit_read,
                                      limit_triad };
