/* Sixteen words of 32 bits at a time with AVX-512, for formats.inc.c. */
#pragma once

#include "daemon/compute/device/lanes_avx512.h"

typedef __m512i w16;

static inline w16 w16_set(uint32_t x)
{
        return _mm512_set1_epi32((int)x);
}

/* x, x + step, x + 2 step... */
static inline w16 w16_ramp(uint32_t x, uint32_t step)
{
        const __m512i lane = _mm512_set_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0);

        return _mm512_add_epi32(w16_set(x), _mm512_mullo_epi32(lane, w16_set(step)));
}

static inline w16 w16_of(v16 x)
{
        return _mm512_castps_si512(x);
}

static inline v16 w16_float(w16 x)
{
        return _mm512_castsi512_ps(x);
}

static inline w16 w16_add(w16 a, w16 b)
{
        return _mm512_add_epi32(a, b);
}

static inline w16 w16_sub(w16 a, w16 b)
{
        return _mm512_sub_epi32(a, b);
}

static inline w16 w16_and(w16 a, w16 b)
{
        return _mm512_and_si512(a, b);
}

/* x | (y & mask) */
static inline w16 w16_or_part(w16 x, w16 y, w16 mask)
{
        return _mm512_ternarylogic_epi32(x, y, mask, 0xf8);
}

/* Unsigned. */
static inline w16 w16_max(w16 a, w16 b)
{
        return _mm512_max_epu32(a, b);
}

static inline w16 w16_right(w16 x, int bits)
{
        return _mm512_srli_epi32(x, (unsigned)bits);
}

static inline w16 w16_left(w16 x, int bits)
{
        return _mm512_slli_epi32(x, (unsigned)bits);
}

static inline uint32_t w16_greatest(w16 x)
{
        return _mm512_reduce_max_epu32(x);
}

/* otherwise, but `nan` where x is a NaN */
static inline w16 w16_unless_nan(v16 x, w16 otherwise, w16 nan)
{
        return _mm512_mask_mov_epi32(otherwise, _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q), nan);
}

static inline bool v16_has_nan(v16 a, v16 b)
{
        return _mm512_cmp_ps_mask(a, b, _CMP_UNORD_Q) != 0;
}

static inline w16 w16_load_u8(const uint8_t *x)
{
        return _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)x));
}

static inline w16 w16_load_i8(const uint8_t *x)
{
        return _mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)x));
}

static inline w16 w16_load_u16(const uint16_t *x)
{
        return _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)x));
}

static inline w16 w16_load_i16(const uint16_t *x)
{
        return _mm512_cvtepi16_epi32(_mm256_loadu_si256((const __m256i *)x));
}

/* The words are less than 1 << 16. */
static inline void w32_store_u16(uint16_t *to, w16 a, w16 b)
{
        const __m512i order = _mm512_set_epi64(7, 5, 3, 1, 6, 4, 2, 0);

        _mm512_storeu_si512(to, _mm512_permutexvar_epi64(order, _mm512_packus_epi32(a, b)));
}

/* The words are less than 1 << 8. */
static inline void w64_store_u8(uint8_t *to, w16 a, w16 b, w16 c, w16 d)
{
        const __m512i order =
                _mm512_set_epi32(15, 11, 7, 3, 14, 10, 6, 2, 13, 9, 5, 1, 12, 8, 4, 0);
        __m512i packed = _mm512_packus_epi16(_mm512_packus_epi32(a, b), _mm512_packus_epi32(c, d));

        _mm512_storeu_si512(to, _mm512_permutexvar_epi32(order, packed));
}

/* The second byte of each word. */
static inline void w64_store_second_u8(uint8_t *to, w16 a, w16 b, w16 c, w16 d)
{
        const __m512i order =
                _mm512_set_epi32(15, 11, 7, 3, 14, 10, 6, 2, 13, 9, 5, 1, 12, 8, 4, 0);
        const __m512i second = _mm512_set1_epi32(0x0d090501);
        __m512i bytes = _mm512_shuffle_epi8(a, second);

        bytes = _mm512_mask_shuffle_epi8(bytes, 0x00f000f000f000f0, b, second);
        bytes = _mm512_mask_shuffle_epi8(bytes, 0x0f000f000f000f00, c, second);
        bytes = _mm512_mask_shuffle_epi8(bytes, 0xf000f000f000f000, d, second);
        _mm512_storeu_si512(to, _mm512_permutexvar_epi32(order, bytes));
}
