/* See float16.h. */
#include "float16.h"

#include <math.h>
#include <string.h>

void fp32_from_bf16(float *to, const uint16_t *from, size_t n)
{
        for (size_t i = 0; i < n; i++) {
                uint32_t bits = (uint32_t)from[i] << 16;

                memcpy(&to[i], &bits, sizeof(bits));
        }
}

static float widen(uint16_t x)
{
        uint32_t sign = (uint32_t)(x & 0x8000) << 16, exponent = x >> 10 & 31, fraction = x & 0x3ff;
        uint32_t bits = sign | (exponent + 112) << 23 | fraction << 13;
        float value;

        if (exponent == 0) { /* subnormal: exact as a multiple of 2^-24 */
                value = ldexpf((float)fraction, -24);
                return sign ? -value : value;
        }
        if (exponent == 31)
                bits = sign | 0x7f800000 | fraction << 13;
        memcpy(&value, &bits, sizeof(value));
        return value;
}

void fp32_from_fp16(float *to, const uint16_t *from, size_t n)
{
        for (size_t i = 0; i < n; i++)
                to[i] = widen(from[i]);
}
