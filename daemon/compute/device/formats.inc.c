/*
 * The vector kernels of formats, four times sixteen elements at once: a block of codes.  Included
 * by avx2.c and avx512.c before kernels.inc.c, behind their w16 (codes_*.h).
 */
#include "daemon/compute/device/host.h"

#include <assert.h>

#define INLINE static inline __attribute__((always_inline))

/* A block.  No array: what a compiler has not unrolled yet it leaves in memory. */
struct b64 {
        v16 a, b, c, d;
};

/* The dithers of a block, which its vectors share; the next block's are DITHER_BLOCK further. */
INLINE w16 block_dither(w16 *dither)
{
        w16 now = *dither;

        *dither = w16_add(now, w16_set((uint32_t)DITHER_BLOCK * DITHER_UNIT));
        return now;
}

INLINE w16 first_dither(uint32_t dither)
{
        return w16_ramp(dither, (uint32_t)DITHER_LANE * DITHER_UNIT);
}

/* ---- codes ---- */

/* `square` is constant here and below.  add: the dither less the first code's bits. */
INLINE w16 code_lanes(bool square, v16 x, v16 inverse, w16 add)
{
        w16 bits = w16_of(x), magnitude = w16_and(bits, w16_set(0x7fffffff));
        v16 base = w16_float(w16_set(square ? SQUARE_BASE : CODE_BASE));
        w16 y = w16_of(v16_add(v16_mul(w16_float(magnitude), inverse), base));

        if (square)
                return w16_right(w16_add(w16_max(y, w16_set(SQUARE_FIRST)), add), SQUARE_SHIFT);
        return w16_or_part(w16_right(w16_add(y, add), CODE_SHIFT), w16_right(bits, 24),
                           w16_set(CODE_SIGN));
}

INLINE w16 magnitude_of(v16 x)
{
        return w16_and(w16_of(x), w16_set(0x7fffffff));
}

INLINE uint32_t greatest_of(struct b64 x)
{
        w16 low = w16_max(magnitude_of(x.a), magnitude_of(x.b));
        w16 high = w16_max(magnitude_of(x.c), magnitude_of(x.d));

        return w16_greatest(w16_max(low, high));
}

/* Returns the scale. */
INLINE float store_codes(bool square, uint8_t *code, struct b64 x, w16 dither)
{
        uint32_t greatest = greatest_of(x);
        float scale = code_scale(greatest);
        v16 inverse = v16_set(1 / scale);
        w16 add = w16_add(w16_right(dither, 32 - (square ? SQUARE_SHIFT : CODE_SHIFT)),
                          w16_set(0u - (square ? SQUARE_FIRST : CODE_FIRST)));

        if (code_scaled(greatest))
                w64_store_u8(code, code_lanes(square, x.a, inverse, add),
                             code_lanes(square, x.b, inverse, add),
                             code_lanes(square, x.c, inverse, add),
                             code_lanes(square, x.d, inverse, add));
        else
                memset(code, 0, CODE_BLOCK);
        return scale;
}

/* A code has its sign in the scale that it is multiplied by. */
INLINE v16 value_lanes(bool square, const uint8_t *codes, float scale)
{
        w16 code = square ? w16_load_u8(codes) : w16_load_i8(codes);
        v16 base = w16_float(w16_set(square ? SQUARE_BASE : CODE_BASE));
        w16 magnitude = square ? code : w16_and(code, w16_set(CODE_SIGN - 1));
        w16 y = w16_add(w16_left(magnitude, square ? SQUARE_SHIFT : CODE_SHIFT),
                        w16_set(square ? SQUARE_FIRST : CODE_FIRST));
        w16 factor = w16_of(v16_set(scale));

        if (!square)
                factor = w16_or_part(factor, code, w16_set(1u << 31));
        return v16_mul(v16_sub(w16_float(y), base), w16_float(factor));
}

INLINE struct b64 load_codes(bool square, const uint8_t *code, float scale)
{
        return (struct b64){ value_lanes(square, code, scale),
                             value_lanes(square, code + 16, scale),
                             value_lanes(square, code + 32, scale),
                             value_lanes(square, code + 48, scale) };
}

/* ---- upper and lower bits ---- */

/* `lost` is constant here and below: the bits that the format cuts. */
INLINE w16 upper_lanes(int lost, w16 bits)
{
        return w16_right(lost < 16 ? w16_add(bits, w16_set(0x8000)) : bits, 16);
}

/* x, where `add` makes the one NaN of formats out of all */
INLINE v16 nan_lanes(v16 x, w16 nan)
{
        return w16_float(w16_unless_nan(x, w16_of(x), nan));
}

INLINE void store_bits(int lost, void *dst, uint16_t *high, struct b64 x, w16 dither)
{
        const w16 low = w16_set(0xffff);
        w16 add = lost ? w16_right(dither, 32 - lost) : w16_set(0);
        w16 a, b, c, d;

        if (v16_has_nan(x.a, x.b) || v16_has_nan(x.c, x.d)) {
                w16 nan = w16_sub(w16_set(FORMAT_NAN), add);

                x = (struct b64){ nan_lanes(x.a, nan), nan_lanes(x.b, nan), nan_lanes(x.c, nan),
                                  nan_lanes(x.d, nan) };
        }
        a = w16_add(w16_of(x.a), add);
        b = w16_add(w16_of(x.b), add);
        c = w16_add(w16_of(x.c), add);
        d = w16_add(w16_of(x.d), add);
        w32_store_u16(high, upper_lanes(lost, a), upper_lanes(lost, b));
        w32_store_u16(high + 32, upper_lanes(lost, c), upper_lanes(lost, d));
        if (lost == 0) {
                w32_store_u16((uint16_t *)dst, w16_and(a, low), w16_and(b, low));
                w32_store_u16((uint16_t *)dst + 32, w16_and(c, low), w16_and(d, low));
        } else if (lost == 8) {
                w64_store_second_u8((uint8_t *)dst, a, b, c, d);
        }
}

INLINE v16 join_lanes(int lost, const void *src, const uint16_t *high, int i)
{
        w16 bits = w16_left(w16_load_u16(high + i), 16);

        if (lost == 0)
                bits = w16_add(bits, w16_load_i16((const uint16_t *)src + i));
        else if (lost == 8)
                bits = w16_add(bits, w16_left(w16_load_i8((const uint8_t *)src + i), 8));
        return w16_float(bits);
}

INLINE struct b64 load_bits(int lost, const void *src, const uint16_t *high)
{
        return (struct b64){ join_lanes(lost, src, high, 0), join_lanes(lost, src, high, 16),
                             join_lanes(lost, src, high, 32), join_lanes(lost, src, high, 48) };
}

/* ---- blocks ---- */

/* The block of elements from i on, of a plane at `src`. */
INLINE struct b64 block_load(enum format format, const void *src, const uint16_t *served, size_t i)
{
        const struct codes *c = (const struct codes *)src + i / FORMAT_STEP;
        size_t half = i % FORMAT_STEP / CODE_BLOCK;
        const uint8_t *code = c->code + half * CODE_BLOCK;
        const float *x = (const float *)src + i;
        const uint16_t *halves = (const uint16_t *)src + i;

        switch (format) {
        case FORMAT_BF16:
                return load_bits(16, NULL, halves);
        case FORMAT_8BIT:
                return load_codes(false, code, c->scale[half]);
        case FORMAT_8BIT_SQUARE:
                return load_codes(true, code, c->scale[half]);
        case FORMAT_BF16_16:
                return load_bits(0, halves, served + i);
        case FORMAT_BF16_8:
                return load_bits(8, (const uint8_t *)src + i, served + i);
        default: /* FORMAT_FP32 */
                return (struct b64){ v16_load(x), v16_load(x + 16), v16_load(x + 32),
                                     v16_load(x + 48) };
        }
}

INLINE void block_store(enum format format, void *dst, uint16_t *served, size_t i, struct b64 x,
                        w16 dither)
{
        struct codes *c = (struct codes *)dst + i / FORMAT_STEP;
        size_t half = i % FORMAT_STEP / CODE_BLOCK;
        uint8_t *code = c->code + half * CODE_BLOCK;
        float *to = (float *)dst + i;
        uint16_t *halves = (uint16_t *)dst + i;

        switch (format) {
        case FORMAT_BF16:
                store_bits(16, NULL, halves, x, dither);
                break;
        case FORMAT_8BIT:
                c->scale[half] = store_codes(false, code, x, dither);
                break;
        case FORMAT_8BIT_SQUARE:
                c->scale[half] = store_codes(true, code, x, dither);
                break;
        case FORMAT_BF16_16:
                store_bits(0, halves, served + i, x, dither);
                break;
        case FORMAT_BF16_8:
                store_bits(8, (uint8_t *)dst + i, served + i, x, dither);
                break;
        default: /* FORMAT_FP32 */
                v16_store(to, x.a);
                v16_store(to + 16, x.b);
                v16_store(to + 32, x.c);
                v16_store(to + 48, x.d);
        }
}

INLINE void pack_as(enum format format, void *dst, uint16_t *served, const float *src, size_t n,
                    uint32_t dither)
{
        w16 lanes = first_dither(dither);

        for (size_t i = 0; i < n; i += CODE_BLOCK)
                block_store(format, dst, served, i, block_load(FORMAT_FP32, src, NULL, i),
                            block_dither(&lanes));
}

INLINE void unpack_as(enum format format, float *dst, const uint16_t *served, const void *src,
                      size_t n)
{
        for (size_t i = 0; i < n; i += CODE_BLOCK)
                block_store(FORMAT_FP32, dst, NULL, i, block_load(format, src, served, i),
                            w16_set(0));
}

static void vector_pack(enum format format, void *dst, uint16_t *served, const float *src, size_t n,
                        uint32_t dither)
{
        assert(n % FORMAT_STEP == 0);
        switch (format) {
#define X(format, name, bytes, kinds)                                  \
        case FORMAT_##format:                                          \
                pack_as(FORMAT_##format, dst, served, src, n, dither); \
                break;
                FORMAT_MAP(X)
#undef X
        case FORMATS:
                break;
        }
}

static void vector_unpack(enum format format, float *dst, const uint16_t *served, const void *src,
                          size_t n)
{
        assert(n % FORMAT_STEP == 0);
        switch (format) {
#define X(format, name, bytes, kinds)                            \
        case FORMAT_##format:                                    \
                unpack_as(FORMAT_##format, dst, served, src, n); \
                break;
                FORMAT_MAP(X)
#undef X
        case FORMATS:
                break;
        }
}
