/*
 * formats_single.h - what pack() and unpack() compute for each element: the contract of the
 * kernels.
 *
 * The scalar kernel and CUDA's read this; vector kernels have the same in their own words.
 */
#pragma once

#include "daemon/compute/device/formats.h"

FORMAT_FUNCTION uint32_t format_bits(float x)
{
        uint32_t bits;

        memcpy(&bits, &x, sizeof bits);
        return bits;
}

FORMAT_FUNCTION float format_float(uint32_t bits)
{
        float x;

        memcpy(&x, &bits, sizeof x);
        return x;
}

FORMAT_FUNCTION uint32_t format_magnitude(float x)
{
        return format_bits(x) & 0x7fffffff;
}

/* The dither of element i behind the one for which dither_at() was called. */
FORMAT_FUNCTION uint32_t dither_of(uint32_t first, size_t i)
{
        uint32_t units = (uint32_t)(i / CODE_BLOCK * DITHER_BLOCK + i % DITHER_LANES * DITHER_LANE);

        return first + units * DITHER_UNIT;
}

/* ---- codes ---- */

struct code_form {
        uint32_t shift, base, first, sign;
};

FORMAT_FUNCTION struct code_form code_form_of(enum format format)
{
        struct code_form moment = { CODE_SHIFT, CODE_BASE, CODE_FIRST, CODE_SIGN };
        struct code_form square = { SQUARE_SHIFT, SQUARE_BASE, SQUARE_FIRST, 0 };

        return format == FORMAT_8BIT ? moment : square;
}

/* inverse: 1 / scale, which is greater than 0. */
FORMAT_FUNCTION uint32_t code_of(struct code_form f, float x, float inverse, uint32_t dither)
{
        uint32_t y =
                format_bits(format_float(format_magnitude(x)) * inverse + format_float(f.base));

        y = y > f.first ? y : f.first;
        return (y - f.first + (dither >> (32 - f.shift))) >> f.shift |
               (format_bits(x) >> 24 & f.sign);
}

FORMAT_FUNCTION float code_value(struct code_form f, uint32_t code, float scale)
{
        uint32_t y = f.first + ((code & ~f.sign) << f.shift);
        float magnitude = (format_float(y) - format_float(f.base)) * scale;

        return format_float(format_bits(magnitude) | (code & f.sign) << 24);
}

/* ---- upper and lower bits ---- */

/* Bits that the format cuts; dither fills them. */
FORMAT_FUNCTION uint32_t format_cuts(enum format format)
{
        return format == FORMAT_BF16 ? 16 : format == FORMAT_BF16_8 ? 8 : 0;
}

/* The bits of x and of the dither, which rounds where lower bits are cut.  All NaN become one,
 * because a sum of other bits may be no NaN. */
FORMAT_FUNCTION uint32_t dithered(float x, uint32_t cuts, uint32_t dither)
{
        uint32_t add = cuts ? dither >> (32 - cuts) : 0;

        return format_magnitude(x) > 0x7f800000 ? (uint32_t)FORMAT_NAN : format_bits(x) + add;
}

FORMAT_FUNCTION uint16_t upper_bits(uint32_t bits)
{
        return (uint16_t)((bits + 0x8000) >> 16);
}

/* The lower bits have a sign, because the served value may lie above. */
FORMAT_FUNCTION float joined(uint16_t served, int32_t lower)
{
        return format_float(((uint32_t)served << 16) + (uint32_t)lower);
}
