/*
 * First values of tensors: zeros, a constant, or normal numbers.
 *
 * Normal numbers are counter-based.  Elements 2k and 2k + 1 share a pair of uniform numbers, hashed
 * from the seed and the index by SplitMix64's finalizer (Steele, Lea, Flood, OOPSLA 2014).  The
 * Box-Muller transform gives one element the cosine and the other the sine.
 *
 * Logarithm, sine and cosine are computed here from +, * and / alone.  A mathematics library's
 * results differ in the last bit between versions and processors, and owners on different machines
 * must agree.
 */
#include "daemon/store/init.h"

#include <math.h>
#include <string.h>

static uint64_t mix(uint64_t x)
{
        x = (x ^ (x >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
        x = (x ^ (x >> 27)) * UINT64_C(0x94d049bb133111eb);
        return x ^ (x >> 31);
}

/* 53 random bits from counter i. */
static uint64_t bits53(uint64_t key, uint64_t i)
{
        return mix(key + (i + 1) * UINT64_C(0x9e3779b97f4a7c15)) >> 11;
}

/* The natural logarithm of x in (0, 1], which is not denormal, by the series of atanh. */
static double log_unit(double x)
{
        uint64_t bits;
        memcpy(&bits, &x, sizeof(bits));
        int exponent = (int)(bits >> 52) - 1022;
        bits = (bits & UINT64_C(0x000fffffffffffff)) | UINT64_C(0x3fe0000000000000);
        memcpy(&x, &bits, sizeof(x)); /* in [0.5, 1) */
        if (x < 0.70710678118654752) {
                x *= 2;
                exponent--;
        }

        double s = (x - 1) / (x + 1), z = s * s, sum = 0;
        for (int k = 21; k >= 1; k -= 2)
                sum = sum * z + 1.0 / k;
        return exponent * 0.69314718055994531 + 2 * s * sum;
}

/* Taylor's series for |x| <= pi / 4. */
static void sine_cosine_small(double x, double *ret_sine, double *ret_cosine)
{
        double z = x * x, sine = 1, cosine = 1;

        for (int k = 18; k >= 2; k -= 2) {
                sine = 1 - sine * z / (double)(k * (k + 1));
                cosine = 1 - cosine * z / (double)((k - 1) * k);
        }
        *ret_sine = sine * x;
        *ret_cosine = cosine;
}

/* Sine and cosine of 2 pi u for u in [0, 1): reduces u to its distance from a quarter turn. */
static void sine_cosine_turn(double u, double *ret_sine, double *ret_cosine)
{
        int quarter = (int)(u * 4 + 0.5);
        double s, c;

        sine_cosine_small((u - quarter * 0.25) * 6.2831853071795865, &s, &c);
        const double turns[4][2] = { { s, c }, { c, -s }, { -s, -c }, { -c, s } };
        *ret_sine = turns[quarter & 3][0];
        *ret_cosine = turns[quarter & 3][1];
}

/* Elements 2 * pair and 2 * pair + 1. */
static void normal_pair(uint64_t key, uint64_t pair, double ret[static 2])
{
        double u = (double)(bits53(key, 2 * pair) + 1) * 0x1p-53;
        double radius = sqrt(-2 * log_unit(u)), sine, cosine;

        sine_cosine_turn((double)bits53(key, 2 * pair + 1) * 0x1p-53, &sine, &cosine);
        ret[0] = radius * cosine;
        ret[1] = radius * sine;
}

static void fill_normal(float *dst, const struct layout_tensor *t, uint64_t first, uint64_t count)
{
        /* without mixing, neighbouring seeds would give shifted copies of one stream */
        uint64_t key = mix(t->init_seed ^ UINT64_C(0x5851f42d4c957f2d));
        double pair[2];

        for (uint64_t i = first; i < first + count; i++) {
                if (i == first || i % 2 == 0)
                        normal_pair(key, i / 2, pair);
                dst[i - first] = (float)(pair[i % 2] * t->init_value);
        }
}

static void fill_constant(float *dst, float value, uint64_t count)
{
        for (uint64_t i = 0; i < count; i++)
                dst[i] = value;
}

void init_fill(float *dst, const struct layout_tensor *t, uint64_t first, uint64_t count)
{
        uint64_t left = first < t->elements ? t->elements - first : 0;
        uint64_t n = count < left ? count : left;

        switch (t->init) {
        case ZERO_INIT_CONSTANT:
                fill_constant(dst, (float)t->init_value, n);
                break;
        case ZERO_INIT_NORMAL:
                fill_normal(dst, t, first, n);
                break;
        case ZERO_INIT_ZEROS:
        case ZERO_INIT_PUT:
                fill_constant(dst, 0, n);
                break;
        }
        fill_constant(dst + n, 0, count - n);
}
