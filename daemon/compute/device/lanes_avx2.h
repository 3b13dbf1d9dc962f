/*
 * Sixteen elements at a time with AVX2, F16C and FMA: lanes_avx512.h in two halves.
 *
 * v16: floats.  h16: 16-bit values.  d16: the double sums of norm().  Loads and stores
 * take any address, streams (past the cache) one aligned to 64 bytes.
 */
#pragma once

#include <immintrin.h>
#include <stdbool.h>
#include <stdint.h>

/* A block of a product whose sums are in registers: twelve of sixteen. */
enum { BLOCK_ROWS = 6, BLOCK_LANES = 1 };

/* Bytes by which loops fetch a source ahead.  AMD's family 25 then reads a third faster. */
enum { SOURCE_AHEAD = 1024 };

typedef struct {
        __m256 low, high;
} v16;
typedef __m256i h16;
typedef struct {
        __m256d quarter[4]; /* lanes 0-3, 4-7, 8-11, 12-15 */
} d16;

static inline v16 v16_load(const float *x)
{
        return (v16){ _mm256_loadu_ps(x), _mm256_loadu_ps(x + 8) };
}

static inline void v16_store(float *to, v16 x)
{
        _mm256_storeu_ps(to, x.low);
        _mm256_storeu_ps(to + 8, x.high);
}

static inline void v16_stream(float *to, v16 x)
{
        _mm256_stream_ps(to, x.low);
        _mm256_stream_ps(to + 8, x.high);
}

static inline v16 v16_set(float x)
{
        return (v16){ _mm256_set1_ps(x), _mm256_set1_ps(x) };
}

static inline v16 v16_add(v16 a, v16 b)
{
        return (v16){ _mm256_add_ps(a.low, b.low), _mm256_add_ps(a.high, b.high) };
}

static inline v16 v16_sub(v16 a, v16 b)
{
        return (v16){ _mm256_sub_ps(a.low, b.low), _mm256_sub_ps(a.high, b.high) };
}

static inline v16 v16_mul(v16 a, v16 b)
{
        return (v16){ _mm256_mul_ps(a.low, b.low), _mm256_mul_ps(a.high, b.high) };
}

/* a * b + c, rounded once. */
static inline v16 v16_fma(v16 a, v16 b, v16 c)
{
        return (v16){ _mm256_fmadd_ps(a.low, b.low, c.low),
                      _mm256_fmadd_ps(a.high, b.high, c.high) };
}

static inline v16 v16_div(v16 a, v16 b)
{
        return (v16){ _mm256_div_ps(a.low, b.low), _mm256_div_ps(a.high, b.high) };
}

static inline v16 v16_sqrt(v16 x)
{
        return (v16){ _mm256_sqrt_ps(x.low), _mm256_sqrt_ps(x.high) };
}

static inline __m256 m256_signed(__m256 x, __m256 c)
{
        __m256 has_sign = _mm256_cmp_ps(c, _mm256_setzero_ps(), _CMP_NEQ_OQ);
        __m256 sign = _mm256_and_ps(c, _mm256_set1_ps(-0.0f));

        return _mm256_blendv_ps(c, _mm256_or_ps(x, sign), has_sign);
}

/* x >= 0 with the sign of c; c if that is 0 or NaN. */
static inline v16 v16_signed(v16 x, v16 c)
{
        return (v16){ m256_signed(x.low, c.low), m256_signed(x.high, c.high) };
}

static inline h16 h16_load(const uint16_t *x)
{
        return _mm256_loadu_si256((const __m256i *)x);
}

static inline void h16_store(uint16_t *to, h16 x)
{
        _mm256_storeu_si256((__m256i *)to, x);
}

static inline void h32_stream(uint16_t *to, h16 low, h16 high)
{
        _mm256_stream_si256((__m256i *)to, low);
        _mm256_stream_si256((__m256i *)(to + 16), high);
}

static inline __m256 floats_from_bf16(__m128i x)
{
        return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(x), 16));
}

static inline v16 v16_from_bf16(h16 x)
{
        return (v16){ floats_from_bf16(_mm256_castsi256_si128(x)),
                      floats_from_bf16(_mm256_extracti128_si256(x, 1)) };
}

/* Of sixteen pairs of bf16: the first, and the second of each. */
static inline __m256 first_of_pairs(__m256 x)
{
        return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_castps_si256(x), 16));
}

static inline __m256 second_of_pairs(__m256 x)
{
        return _mm256_and_ps(x, _mm256_castsi256_ps(_mm256_set1_epi32((int)0xffff0000)));
}

static inline v16 v16_first_bf16(v16 x)
{
        return (v16){ first_of_pairs(x.low), first_of_pairs(x.high) };
}

static inline v16 v16_second_bf16(v16 x)
{
        return (v16){ second_of_pairs(x.low), second_of_pairs(x.high) };
}

static inline __m256 pair_of(__m256 a, __m256 b, bool high)
{
        __m256d x = _mm256_castps_pd(a), y = _mm256_castps_pd(b);

        return _mm256_castpd_ps(high ? _mm256_unpackhi_pd(x, y) : _mm256_unpacklo_pd(x, y));
}

static inline void transpose_8x8(__m256 *x)
{
        __m256 t[8];

        for (int i = 0; i < 8; i += 2) {
                t[i] = _mm256_unpacklo_ps(x[i], x[i + 1]);
                t[i + 1] = _mm256_unpackhi_ps(x[i], x[i + 1]);
        }
        for (int c = 0; c < 4; c++) {
                __m256 top = pair_of(t[c / 2], t[c / 2 + 2], c % 2);
                __m256 bottom = pair_of(t[c / 2 + 4], t[c / 2 + 6], c % 2);

                x[c] = _mm256_permute2f128_ps(top, bottom, 0x20);
                x[c + 4] = _mm256_permute2f128_ps(top, bottom, 0x31);
        }
}

/* Lane j of x[i] becomes lane i of x[j]. */
static inline void v16_transpose(v16 *x)
{
        __m256 quarter[4][8];

        for (int i = 0; i < 8; i++) {
                quarter[0][i] = x[i].low;
                quarter[1][i] = x[i].high;
                quarter[2][i] = x[i + 8].low;
                quarter[3][i] = x[i + 8].high;
        }
        for (int q = 0; q < 4; q++)
                transpose_8x8(quarter[q]);
        for (int i = 0; i < 8; i++) {
                x[i] = (v16){ quarter[0][i], quarter[2][i] };
                x[i + 8] = (v16){ quarter[1][i], quarter[3][i] };
        }
}

static inline v16 v16_from_fp16(h16 x)
{
        return (v16){ _mm256_cvtph_ps(_mm256_castsi256_si128(x)),
                      _mm256_cvtph_ps(_mm256_extracti128_si256(x, 1)) };
}

/* To nearest, ties to even, in the lower half of each 32 bits; a NaN keeps its upper half and
 * becomes quiet. */
static inline __m256i bf16_from_floats(__m256 x)
{
        __m256i bits = _mm256_castps_si256(x), high = _mm256_srli_epi32(bits, 16);
        __m256i odd = _mm256_and_si256(high, _mm256_set1_epi32(1));
        __m256i bias = _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff));
        __m256i rounded = _mm256_srli_epi32(_mm256_add_epi32(bits, bias), 16);
        __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(x, x, _CMP_UNORD_Q));

        return _mm256_blendv_epi8(rounded, _mm256_or_si256(high, _mm256_set1_epi32(0x40)), nan);
}

static inline h16 v16_to_bf16(v16 x)
{
        __m256i packed = _mm256_packus_epi32(bf16_from_floats(x.low), bf16_from_floats(x.high));

        /* packing interleaves the halves of both */
        return _mm256_permute4x64_epi64(packed, _MM_SHUFFLE(3, 1, 2, 0));
}

static inline h16 v16_to_fp16(v16 x)
{
        return _mm256_set_m128i(
                _mm256_cvtps_ph(x.high, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC),
                _mm256_cvtps_ph(x.low, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}

static inline d16 d16_zero(void)
{
        __m256d zero = _mm256_setzero_pd();

        return (d16){ { zero, zero, zero, zero } };
}

/* A square of a float is exact in double, so one rounding gives the bits of two. */
static inline __m256d add_squares(__m256d sum, const float *x)
{
        __m256d wide = _mm256_cvtps_pd(_mm_loadu_ps(x));

        return _mm256_fmadd_pd(wide, wide, sum);
}

static inline d16 d16_add_squares(d16 sum, const float *x)
{
        for (int i = 0; i < 4; i++)
                sum.quarter[i] = add_squares(sum.quarter[i], x + i * 4);
        return sum;
}

/* Lane i takes lane i + 8, then i + 4, i + 2, i + 1. */
static inline double d16_total(d16 sum)
{
        __m256d four = _mm256_add_pd(_mm256_add_pd(sum.quarter[0], sum.quarter[2]),
                                     _mm256_add_pd(sum.quarter[1], sum.quarter[3]));
        __m128d two = _mm_add_pd(_mm256_castpd256_pd128(four), _mm256_extractf128_pd(four, 1));

        return _mm_cvtsd_f64(_mm_add_sd(two, _mm_unpackhi_pd(two, two)));
}
