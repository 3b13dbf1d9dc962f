/* Sixteen words of 32 bits at a time with AVX2, for formats.inc.c. */
#pragma once

#include "daemon/compute/device/lanes_avx2.h"

typedef struct {
        __m256i low, high;
} w16;

static inline w16 w16_set(uint32_t x)
{
        return (w16){ _mm256_set1_epi32((int)x), _mm256_set1_epi32((int)x) };
}

static inline w16 w16_add(w16 a, w16 b)
{
        return (w16){ _mm256_add_epi32(a.low, b.low), _mm256_add_epi32(a.high, b.high) };
}

static inline w16 w16_sub(w16 a, w16 b)
{
        return (w16){ _mm256_sub_epi32(a.low, b.low), _mm256_sub_epi32(a.high, b.high) };
}

/* x, x + step, x + 2 step... */
static inline w16 w16_ramp(uint32_t x, uint32_t step)
{
        const __m256i lane = _mm256_set_epi32(7, 6, 5, 4, 3, 2, 1, 0);
        __m256i low = _mm256_add_epi32(_mm256_set1_epi32((int)x),
                                       _mm256_mullo_epi32(lane, _mm256_set1_epi32((int)step)));

        return (w16){ low, _mm256_add_epi32(low, _mm256_set1_epi32((int)(8 * step))) };
}

static inline w16 w16_of(v16 x)
{
        return (w16){ _mm256_castps_si256(x.low), _mm256_castps_si256(x.high) };
}

static inline v16 w16_float(w16 x)
{
        return (v16){ _mm256_castsi256_ps(x.low), _mm256_castsi256_ps(x.high) };
}

static inline w16 w16_and(w16 a, w16 b)
{
        return (w16){ _mm256_and_si256(a.low, b.low), _mm256_and_si256(a.high, b.high) };
}

/* x | (y & mask) */
static inline w16 w16_or_part(w16 x, w16 y, w16 mask)
{
        return (w16){ _mm256_or_si256(x.low, _mm256_and_si256(y.low, mask.low)),
                      _mm256_or_si256(x.high, _mm256_and_si256(y.high, mask.high)) };
}

/* Unsigned. */
static inline w16 w16_max(w16 a, w16 b)
{
        return (w16){ _mm256_max_epu32(a.low, b.low), _mm256_max_epu32(a.high, b.high) };
}

static inline w16 w16_right(w16 x, int bits)
{
        return (w16){ _mm256_srli_epi32(x.low, bits), _mm256_srli_epi32(x.high, bits) };
}

static inline w16 w16_left(w16 x, int bits)
{
        return (w16){ _mm256_slli_epi32(x.low, bits), _mm256_slli_epi32(x.high, bits) };
}

static inline uint32_t w16_greatest(w16 x)
{
        __m256i eight = _mm256_max_epu32(x.low, x.high);
        __m128i four =
                _mm_max_epu32(_mm256_castsi256_si128(eight), _mm256_extracti128_si256(eight, 1));
        __m128i two = _mm_max_epu32(four, _mm_shuffle_epi32(four, _MM_SHUFFLE(1, 0, 3, 2)));

        return (uint32_t)_mm_cvtsi128_si32(
                _mm_max_epu32(two, _mm_shuffle_epi32(two, _MM_SHUFFLE(2, 3, 0, 1))));
}

static inline __m256i unless_nan(__m256 x, __m256i otherwise, __m256i nan)
{
        return _mm256_blendv_epi8(otherwise, nan,
                                  _mm256_castps_si256(_mm256_cmp_ps(x, x, _CMP_UNORD_Q)));
}

/* otherwise, but `nan` where x is a NaN */
static inline w16 w16_unless_nan(v16 x, w16 otherwise, w16 nan)
{
        return (w16){ unless_nan(x.low, otherwise.low, nan.low),
                      unless_nan(x.high, otherwise.high, nan.high) };
}

static inline bool v16_has_nan(v16 a, v16 b)
{
        return _mm256_movemask_ps(_mm256_or_ps(_mm256_cmp_ps(a.low, b.low, _CMP_UNORD_Q),
                                               _mm256_cmp_ps(a.high, b.high, _CMP_UNORD_Q))) != 0;
}

static inline w16 w16_load_u8(const uint8_t *x)
{
        return (w16){ _mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)x)),
                      _mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)(x + 8))) };
}

static inline w16 w16_load_i8(const uint8_t *x)
{
        return (w16){ _mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)x)),
                      _mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)(x + 8))) };
}

static inline w16 w16_load_u16(const uint16_t *x)
{
        return (w16){ _mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)x)),
                      _mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)(x + 8))) };
}

static inline w16 w16_load_i16(const uint16_t *x)
{
        return (w16){ _mm256_cvtepi16_epi32(_mm_loadu_si128((const __m128i *)x)),
                      _mm256_cvtepi16_epi32(_mm_loadu_si128((const __m128i *)(x + 8))) };
}

/* packing interleaves the halves of both */
static inline __m256i packed_u16(w16 x)
{
        return _mm256_packus_epi32(x.low, x.high);
}

/* The words are less than 1 << 16. */
static inline void w32_store_u16(uint16_t *to, w16 a, w16 b)
{
        enum { ORDER = _MM_SHUFFLE(3, 1, 2, 0) };

        _mm256_storeu_si256((__m256i *)to, _mm256_permute4x64_epi64(packed_u16(a), ORDER));
        _mm256_storeu_si256((__m256i *)(to + 16), _mm256_permute4x64_epi64(packed_u16(b), ORDER));
}

static inline void w32_store_u8(uint8_t *to, w16 a, w16 b)
{
        const __m256i order = _mm256_set_epi32(7, 3, 6, 2, 5, 1, 4, 0);
        __m256i packed = _mm256_packus_epi16(packed_u16(a), packed_u16(b));

        _mm256_storeu_si256((__m256i *)to, _mm256_permutevar8x32_epi32(packed, order));
}

/* The words are less than 1 << 8. */
static inline void w64_store_u8(uint8_t *to, w16 a, w16 b, w16 c, w16 d)
{
        w32_store_u8(to, a, b);
        w32_store_u8(to + 32, c, d);
}

static inline void w32_store_second_u8(uint8_t *to, w16 a, w16 b)
{
        const __m256i order = _mm256_set_epi32(7, 3, 6, 2, 5, 1, 4, 0);
        const __m256i second = _mm256_set1_epi32(0x0d090501);
        __m256i low = _mm256_blend_epi32(_mm256_shuffle_epi8(a.low, second),
                                         _mm256_shuffle_epi8(a.high, second), 0x22);
        __m256i high = _mm256_blend_epi32(_mm256_shuffle_epi8(b.low, second),
                                          _mm256_shuffle_epi8(b.high, second), 0x88);

        _mm256_storeu_si256((__m256i *)to, _mm256_permutevar8x32_epi32(
                                                   _mm256_blend_epi32(low, high, 0xcc), order));
}

/* The second byte of each word. */
static inline void w64_store_second_u8(uint8_t *to, w16 a, w16 b, w16 c, w16 d)
{
        w32_store_second_u8(to, a, b);
        w32_store_second_u8(to + 32, c, d);
}
