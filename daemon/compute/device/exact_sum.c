/*
 * The exact sum: every finite double is a 53-bit integer times a power of two no
 * lower than 2^-1074, so it is added to three neighbouring bins without rounding.
 *
 * A bin grows by less than 2^32 an addition; carries are propagated before 2^30
 * additions could overflow it.  Normalized, every bin but the last lies in
 * [0, 2^32) and the last carries the sign: one representation a value.
 *
 * Bins may come from another node.  Sums wrap (unsigned arithmetic), so that no
 * bins, however wrong, lead to undefined behaviour.
 */
#include "daemon/compute/device/exact_sum.h"

#include <assert.h>
#include <math.h>
#include <stdbool.h>
#include <string.h>

enum { LAST = EXACT_SUM_BINS - 1, UNIT = -1074, MANTISSA_BITS = 53 };

#define PENDING_MAX (UINT32_C(1) << 30)
#define LOW32 UINT64_C(0xffffffff)

void exact_sum_init(struct exact_sum *s)
{
        memset(s, 0, sizeof(*s));
}

static int64_t wrapping_add(int64_t a, int64_t b)
{
        return (int64_t)((uint64_t)a + (uint64_t)b);
}

void exact_sum_normalize(struct exact_sum *s)
{
        int64_t carry = 0;

        for (int i = 0; i < LAST; i++) {
                int64_t sum = wrapping_add(s->bin[i], carry);

                s->bin[i] = (int64_t)((uint64_t)sum & LOW32);
                carry = sum >> 32;
        }
        s->bin[LAST] = wrapping_add(s->bin[LAST], carry);
        s->pending = 0;
}

void exact_sum_add(struct exact_sum *s, double x)
{
        uint64_t bits, mantissa;
        unsigned exponent, shift;
        unsigned __int128 value;
        int64_t sign, *bin;

        memcpy(&bits, &x, sizeof(bits));
        exponent = (bits >> 52) & 0x7ff;
        assert(exponent != 0x7ff);
        mantissa = (bits & ((UINT64_C(1) << 52) - 1)) | ((uint64_t)(exponent > 0) << 52);
        shift = exponent > 0 ? exponent - 1 : 0;
        value = (unsigned __int128)mantissa << (shift % 32);
        sign = bits >> 63 ? -1 : 1;

        if (s->pending >= PENDING_MAX)
                exact_sum_normalize(s);
        s->pending++;
        bin = &s->bin[shift / 32];
        bin[0] = wrapping_add(bin[0], sign * (int64_t)((uint64_t)value & LOW32));
        bin[1] = wrapping_add(bin[1], sign * (int64_t)((uint64_t)(value >> 32) & LOW32));
        bin[2] = wrapping_add(bin[2], sign * (int64_t)(uint64_t)(value >> 64));
}

void exact_sum_merge(struct exact_sum *s, const struct exact_sum *other)
{
        struct exact_sum term = *other;

        exact_sum_normalize(&term);
        if (s->pending >= PENDING_MAX)
                exact_sum_normalize(s);
        s->pending++;
        for (int i = 0; i < EXACT_SUM_BINS; i++)
                s->bin[i] = wrapping_add(s->bin[i], term.bin[i]);
}

static void negate(struct exact_sum *s)
{
        for (int i = 0; i < EXACT_SUM_BINS; i++)
                s->bin[i] = (int64_t)(0 - (uint64_t)s->bin[i]);
        exact_sum_normalize(s);
}

static int highest_bit(unsigned __int128 value)
{
        uint64_t high = (uint64_t)(value >> 64);

        return high ? 127 - __builtin_clzll(high) : 63 - __builtin_clzll((uint64_t)value);
}

/* The magnitude in normalized bins with the last one zero, rounded to nearest, ties to even. */
static double magnitude(const int64_t *bin)
{
        unsigned __int128 window = 0, rest, half;
        bool sticky = false;
        int top = LAST - 1, drop, lowest;
        uint64_t mantissa;

        while (top >= 0 && !bin[top])
                top--;
        if (top < 0)
                return 0.0;
        for (int i = top; i > top - 3; i--)
                window = window << 32 | (uint64_t)(i >= 0 ? bin[i] : 0);
        for (int i = top - 3; i >= 0; i--)
                sticky |= bin[i] != 0;

        /* there are no bits below 2^-1074: a subnormal loses none */
        lowest = top < 2 ? 32 * (2 - top) : 0;
        drop = highest_bit(window) - (MANTISSA_BITS - 1);
        drop = drop > lowest ? drop : lowest;
        mantissa = (uint64_t)(window >> drop);
        rest = (window & (((unsigned __int128)1 << drop) - 1)) | sticky;
        half = (unsigned __int128)1 << (drop - 1);
        if (rest > half || (rest == half && mantissa & 1))
                mantissa++;
        return ldexp((double)mantissa, 32 * (top - 2) + UNIT + drop);
}

double exact_sum_value(const struct exact_sum *s)
{
        struct exact_sum t = *s;
        bool negative;
        double value;

        exact_sum_normalize(&t);
        negative = t.bin[LAST] < 0;
        if (negative)
                negate(&t);
        /* the last bin weighs 2^1070 */
        value = t.bin[LAST] ? (double)INFINITY : magnitude(t.bin);
        return negative ? -value : value;
}
