/*
 * The scalar conversions, in integer arithmetic: the truth for all kernels, and
 * independent of rounding mode and flush-to-zero.
 */
#include "proto/dtype.h"

#include <assert.h>
#include <string.h>

bool dtype_valid(uint32_t dtype)
{
        switch (dtype) {
#define X(name, code, bytes, text) case code:
                ZERO_DTYPE_MAP(X)
#undef X
                return true;
        default:
                return false;
        }
}

bool dtype_is_bytes(uint32_t dtype)
{
        switch (dtype) {
#define X(name, code, text) case code:
                ZERO_BYTES_MAP(X)
#undef X
                return true;
        default:
                return false;
        }
}

bool dtype_converts(uint32_t from, uint32_t to)
{
        return from == to ||
               (dtype_valid(from) && dtype_valid(to) && (from == ZERO_FP32 || to == ZERO_FP32));
}

size_t dtype_bytes(enum zero_dtype dtype, size_t n)
{
        static const uint8_t sizes[] = {
#define X(name, code, bytes, text) [code] = bytes,
                ZERO_DTYPE_MAP(X)
#undef X
        };
        if (dtype_is_bytes(dtype))
                return n * sizeof(uint32_t);
        assert(dtype_valid(dtype));
        return n * sizes[dtype];
}

const char *dtype_name(enum zero_dtype dtype)
{
        switch (dtype) {
#define X(name, code, bytes, text) \
        case ZERO_##name:          \
                return text;
                ZERO_DTYPE_MAP(X)
#undef X
#define X(name, code, text) \
        case ZERO_##name:   \
                return text;
                ZERO_BYTES_MAP(X)
#undef X
        default:
                return "unknown";
        }
}

const char *plane_name(uint32_t plane)
{
        static const char *const names[] = {
#define X(plane, code, name) [code] = name,
                ZERO_PLANE_MAP(X)
#undef X
        };

        return plane < sizeof(names) / sizeof(names[0]) ? names[plane] : NULL;
}

static uint32_t bits_of(float x)
{
        uint32_t bits;
        memcpy(&bits, &x, sizeof(bits));
        return bits;
}

static float float_of(uint32_t bits)
{
        float x;
        memcpy(&x, &bits, sizeof(x));
        return x;
}

/* bits / 2^shift, to nearest, ties to even. */
static uint32_t shift_rounded(uint32_t bits, uint32_t shift)
{
        uint32_t odd = bits >> shift & 1;
        return (bits + (UINT32_C(1) << (shift - 1)) - 1 + odd) >> shift;
}

uint16_t dtype_bf16_from_fp32(float x)
{
        uint32_t bits = bits_of(x);

        if ((bits & 0x7fffffff) > 0x7f800000)
                return (uint16_t)(bits >> 16 | 0x0040);
        return (uint16_t)shift_rounded(bits, 16);
}

float dtype_fp32_from_bf16(uint16_t x)
{
        return float_of((uint32_t)x << 16);
}

uint16_t dtype_fp16_from_fp32(float x)
{
        uint32_t bits = bits_of(x);
        uint32_t sign = bits >> 16 & 0x8000;
        uint32_t magnitude = bits & 0x7fffffff;
        uint32_t exponent = magnitude >> 23;
        uint32_t half;

        if (magnitude > 0x7f800000) /* as F16C: the payload's upper bits, quiet */
                half = 0x7e00 | (magnitude >> 13 & 0x03ff);
        else if (exponent >= 127 + 16)
                half = 0x7c00;
        else if (exponent >= 127 - 14) /* rounding may carry up to infinity */
                half = shift_rounded(magnitude - (UINT32_C(112) << 23), 13);
        else if (exponent >= 127 - 25) /* subnormal: in units of 2^-24 */
                half = shift_rounded((magnitude & 0x007fffff) | 0x00800000, 126 - exponent);
        else
                half = 0;
        return (uint16_t)(sign | half);
}

float dtype_fp32_from_fp16(uint16_t x)
{
        uint32_t sign = (uint32_t)(x & 0x8000) << 16;
        uint32_t exponent = x >> 10 & 0x1f;
        uint32_t fraction = x & 0x03ff;

        if (exponent == 0x1f)
                return float_of(sign | 0x7f800000 | fraction << 13 | (fraction ? 0x00400000 : 0));
        if (exponent > 0)
                return float_of(sign | (exponent + 112) << 23 | fraction << 13);
        return float_of(sign | bits_of((float)fraction * 0x1p-24f));
}
