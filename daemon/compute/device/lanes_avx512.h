/*
 * Sixteen elements at a time with AVX-512 (F, BW, DQ, VL).
 *
 * v16: floats.  h16: 16-bit values.  d16: the double sums of norm().  Loads and stores
 * take any address, streams (past the cache) one aligned to 64 bytes.
 */
#pragma once

#include <immintrin.h>
#include <stdbool.h>
#include <stdint.h>

/* A block of a product whose sums are in registers: 24 of 32. */
enum { BLOCK_ROWS = 12, BLOCK_LANES = 2 };

/* Bytes by which loops fetch a source ahead: none, as a CPU of Intel read slower with 256. */
enum { SOURCE_AHEAD = 0 };

typedef __m512 v16;
typedef __m256i h16;
typedef struct {
        __m512d low, high; /* lanes 0-7, 8-15 */
} d16;

static inline v16 v16_load(const float *x)
{
        return _mm512_loadu_ps(x);
}

static inline void v16_store(float *to, v16 x)
{
        _mm512_storeu_ps(to, x);
}

static inline void v16_stream(float *to, v16 x)
{
        _mm512_stream_ps(to, x);
}

static inline v16 v16_set(float x)
{
        return _mm512_set1_ps(x);
}

static inline v16 v16_add(v16 a, v16 b)
{
        return _mm512_add_ps(a, b);
}

static inline v16 v16_sub(v16 a, v16 b)
{
        return _mm512_sub_ps(a, b);
}

static inline v16 v16_mul(v16 a, v16 b)
{
        return _mm512_mul_ps(a, b);
}

/* a * b + c, rounded once. */
static inline v16 v16_fma(v16 a, v16 b, v16 c)
{
        return _mm512_fmadd_ps(a, b, c);
}

static inline v16 v16_div(v16 a, v16 b)
{
        return _mm512_div_ps(a, b);
}

static inline v16 v16_sqrt(v16 x)
{
        return _mm512_sqrt_ps(x);
}

/* x >= 0 with the sign of c; c if that is 0 or NaN. */
static inline v16 v16_signed(v16 x, v16 c)
{
        __mmask16 has_sign = _mm512_cmp_ps_mask(c, _mm512_setzero_ps(), _CMP_NEQ_OQ);
        v16 sign = _mm512_and_ps(c, _mm512_set1_ps(-0.0f));

        return _mm512_mask_or_ps(c, has_sign, x, sign);
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
        _mm512_stream_si512((__m512i *)to,
                            _mm512_inserti64x4(_mm512_castsi256_si512(low), high, 1));
}

static inline v16 v16_from_bf16(h16 x)
{
        return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(x), 16));
}

/* Of sixteen pairs of bf16: the first, and the second of each. */
static inline v16 v16_first_bf16(v16 x)
{
        return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_castps_si512(x), 16));
}

static inline v16 v16_second_bf16(v16 x)
{
        return _mm512_and_ps(x, _mm512_castsi512_ps(_mm512_set1_epi32((int)0xffff0000)));
}

static inline v16 pair_of(v16 a, v16 b, bool high)
{
        __m512d x = _mm512_castps_pd(a), y = _mm512_castps_pd(b);

        return _mm512_castpd_ps(high ? _mm512_unpackhi_pd(x, y) : _mm512_unpacklo_pd(x, y));
}

/* Lane j of x[i] becomes lane i of x[j]. */
static inline void v16_transpose(v16 *x)
{
        v16 t[16];

        for (int i = 0; i < 16; i += 2) {
                t[i] = _mm512_unpacklo_ps(x[i], x[i + 1]);
                t[i + 1] = _mm512_unpackhi_ps(x[i], x[i + 1]);
        }
        for (int c = 0; c < 4; c++) {
                v16 of_rows[4], even[2], odd[2];

                for (int i = 0; i < 4; i++)
                        of_rows[i] = pair_of(t[4 * i + c / 2], t[4 * i + c / 2 + 2], c % 2);
                for (int i = 0; i < 2; i++) {
                        even[i] = _mm512_shuffle_f32x4(of_rows[2 * i], of_rows[2 * i + 1], 0x88);
                        odd[i] = _mm512_shuffle_f32x4(of_rows[2 * i], of_rows[2 * i + 1], 0xdd);
                }
                x[c] = _mm512_shuffle_f32x4(even[0], even[1], 0x88);
                x[c + 4] = _mm512_shuffle_f32x4(odd[0], odd[1], 0x88);
                x[c + 8] = _mm512_shuffle_f32x4(even[0], even[1], 0xdd);
                x[c + 12] = _mm512_shuffle_f32x4(odd[0], odd[1], 0xdd);
        }
}

static inline v16 v16_from_fp16(h16 x)
{
        return _mm512_cvtph_ps(x);
}

/* To nearest, ties to even; a NaN keeps its upper half and becomes quiet. */
static inline h16 v16_to_bf16(v16 x)
{
        __m512i bits = _mm512_castps_si512(x), high = _mm512_srli_epi32(bits, 16);
        __m512i odd = _mm512_and_si512(high, _mm512_set1_epi32(1));
        __m512i bias = _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff));
        __m512i rounded = _mm512_srli_epi32(_mm512_add_epi32(bits, bias), 16);
        __mmask16 nan = _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q);

        return _mm512_cvtepi32_epi16(
                _mm512_mask_or_epi32(rounded, nan, high, _mm512_set1_epi32(0x40)));
}

static inline h16 v16_to_fp16(v16 x)
{
        return _mm512_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}

static inline d16 d16_zero(void)
{
        return (d16){ _mm512_setzero_pd(), _mm512_setzero_pd() };
}

/* A square of a float is exact in double, so one rounding gives the bits of two. */
static inline d16 d16_add_squares(d16 sum, const float *x)
{
        __m512d low = _mm512_cvtps_pd(_mm256_loadu_ps(x));
        __m512d high = _mm512_cvtps_pd(_mm256_loadu_ps(x + 8));

        return (d16){ _mm512_fmadd_pd(low, low, sum.low), _mm512_fmadd_pd(high, high, sum.high) };
}

/* Lane i takes lane i + 8, then i + 4, i + 2, i + 1. */
static inline double d16_total(d16 sum)
{
        __m512d eight = _mm512_add_pd(sum.low, sum.high);
        __m256d four =
                _mm256_add_pd(_mm512_castpd512_pd256(eight), _mm512_extractf64x4_pd(eight, 1));
        __m128d two = _mm_add_pd(_mm256_castpd256_pd128(four), _mm256_extractf128_pd(four, 1));

        return _mm_cvtsd_f64(_mm_add_sd(two, _mm_unpackhi_pd(two, two)));
}
