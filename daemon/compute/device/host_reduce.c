/*
 * Reduces a gradient on the host, part by part: the next operation finds in L1 what the last one
 * has written, so memory sees sources and accumulator once.
 */
#include "daemon/compute/device/host.h"

/* Elements: the sum, its rounding and the accumulator of a part take 20 KiB, without the sources.
 */
enum { PART = 16 * NORM_BLOCK };

/* Sources that one loop adds up; each one more takes another pass through L1. */
enum { TOGETHER = 8 };

static const void *element(const void *array, enum zero_dtype dtype, size_t i)
{
        return (const char *)array + dtype_bytes(dtype, i);
}

/* Adds n elements from `first` on, of acc and of the sources. */
static void part_add(const struct device_ops *ops, const struct reduce_piece *p, size_t first,
                     size_t n, enum zero_dtype wire, enum zero_dtype from)
{
        size_t together = p->k < TOGETHER ? p->k : TOGETHER;
        enum zero_dtype sum_dtype = together == p->k ? wire : ZERO_FP32;
        bool direct = p->first && wire == ZERO_FP32;
        float sum[PART], *to = direct ? p->acc + first : sum;
        const void *src[TOGETHER], *rounded = sum;
        uint16_t half[PART];

        for (size_t j = 0; j < together; j++)
                src[j] = element(p->src[j], from, first);
        if (p->k == 1 && (wire == from || wire == ZERO_FP32)) {
                ops->accumulate(p->acc + first, from, src[0], n, p->first);
                return;
        }
        ops->sum(sum_dtype, to, from, src, together, n);
        for (size_t j = together; j < p->k; j++)
                ops->accumulate(to, from, element(p->src[j], from, first), n, false);
        if (sum_dtype != wire) {
                ops->cast(wire, half, ZERO_FP32, sum, n);
                rounded = half;
        }
        if (!direct)
                ops->accumulate(p->acc + first, wire, rounded, n, p->first);
}

void host_reduce(const struct device_ops *ops, const struct reduce_piece *p, enum zero_dtype wire,
                 enum zero_dtype from, double scale, struct exact_sum *norm, bool *finite)
{
        for (size_t first = 0, n; first < p->n; first += n) {
                n = p->n - first < PART ? p->n - first : PART;
                if (p->k)
                        part_add(ops, p, first, n, wire, from);
                if (norm)
                        ops->norm(p->acc + first, n, scale, norm, finite);
        }
}
