/*
 * Planes in fewer bytes than fp32 (daemon/compute/device/formats.h), as kernels read and write
 * them.
 *
 * Sixteen threads have a block of codes, a quad each, and find its greatest magnitude together.  So
 * all threads of a warp store together, also those that have no elements there.
 */
#pragma once

#include "cuda/kernel.cuh"
#include "daemon/compute/device/formats_single.h"

constexpr unsigned TEAM = CODE_BLOCK / QUAD;

static __device__ inline bool is_there(whole, unsigned)
{
        return true;
}

static __device__ inline bool is_there(part span, unsigned k)
{
        return place(k) < span.left;
}

/* Quad k of the thread, from the addresses of its elements.  What is not there is 0. */
template <typename A> static __device__ inline auto load_quad(A address, unsigned, whole)
{
        return *reinterpret_cast<const quad<std::decay_t<decltype(*address(0))>> *>(address(0));
}

template <typename A> static __device__ inline auto load_quad(A address, unsigned k, part span)
{
        quad<std::decay_t<decltype(*address(0))>> q = {};

#pragma unroll
        for (unsigned j = 0; j < QUAD; j++)
                if (is_there(span, k + j))
                        q.element[j] = *address(j);
        return q;
}

template <typename T>
static __device__ inline void store_quad(T *to, const quad<T> &q, unsigned, whole)
{
        store_aligned(to, q);
}

template <typename T>
static __device__ inline void store_quad(T *to, const quad<T> &q, unsigned k, part span)
{
#pragma unroll
        for (unsigned j = 0; j < QUAD; j++)
                if (is_there(span, k + j))
                        to[j] = q.element[j];
}

/* ---- codes ---- */

template <format FORMAT, typename S>
static __device__ inline void load_codes(float (&x)[VEC], const codes *from, size_t i, S span)
{
        const code_form form = code_form_of(FORMAT);

#pragma unroll
        for (unsigned k = 0; k < VEC; k += QUAD) {
                size_t first = i + place(k);
                auto code = load_quad(
                        [&](unsigned j) {
                                return &from[(first + j) / FORMAT_STEP]
                                                .code[(first + j) % FORMAT_STEP];
                        },
                        k, span);
                auto scale = [&](size_t at) {
                        return from[at / FORMAT_STEP].scale[at % FORMAT_STEP / CODE_BLOCK];
                };
                float of_quad = std::is_same_v<S, whole> ? scale(first) : 0;

#pragma unroll
                for (unsigned j = 0; j < QUAD; j++) {
                        if (std::is_same_v<S, part>)
                                of_quad = is_there(span, k + j) ? scale(first + j) : 0;
                        x[k + j] = code_value(form, code.element[j], of_quad);
                }
        }
}

/* i and the number of elements are multiples of a quad. */
template <format FORMAT, typename S>
static __device__ inline void store_codes(codes *to, size_t i, const float (&x)[VEC],
                                          uint32_t dither, S span)
{
        const code_form form = code_form_of(FORMAT);

#pragma unroll
        for (unsigned k = 0; k < VEC; k += QUAD) {
                size_t first = i + place(k);
                uint32_t greatest = 0;
                quad<uint8_t> q = {};

#pragma unroll
                for (unsigned j = 0; j < QUAD; j++) {
                        uint32_t magnitude = format_magnitude(x[k + j]);

                        greatest = magnitude > greatest ? magnitude : greatest;
                }
                float scale = code_scale(greatest_of_team(greatest, TEAM));
                float inverse = 1 / scale;

#pragma unroll
                for (unsigned j = 0; j < QUAD; j++)
                        if (scale > 0)
                                q.element[j] = code_of(form, x[k + j], inverse,
                                                       dither_of(dither, first + j));
                if (!is_there(span, k))
                        continue;
                codes *record = &to[first / FORMAT_STEP];
                unsigned at = first % FORMAT_STEP;

                store_aligned(&record->code[at], q);
                if (at % CODE_BLOCK == 0)
                        record->scale[at / CODE_BLOCK] = scale;
        }
}

/* ---- upper and lower bits ---- */

/* L: the type of the lower bits, below which the format cuts others. */
template <typename L, unsigned BELOW, typename S>
static __device__ inline void load_split(float (&x)[VEC], const L *from, const uint16_t *served,
                                         size_t i, S span)
{
#pragma unroll
        for (unsigned k = 0; k < VEC; k += QUAD) {
                size_t first = i + place(k);
                auto lower = load_quad([&](unsigned j) { return from + first + j; }, k, span);
                auto upper = load_quad([&](unsigned j) { return served + first + j; }, k, span);

#pragma unroll
                for (unsigned j = 0; j < QUAD; j++)
                        x[k + j] = joined(upper.element[j], lower.element[j] * (1 << BELOW));
        }
}

template <format FORMAT, typename L, typename S>
static __device__ inline void store_split(L *to, uint16_t *served, size_t i, const float (&x)[VEC],
                                          uint32_t dither, S span)
{
#pragma unroll
        for (unsigned k = 0; k < VEC; k += QUAD) {
                size_t first = i + place(k);
                quad<uint16_t> upper;
                quad<L> lower;

#pragma unroll
                for (unsigned j = 0; j < QUAD; j++) {
                        uint32_t bits = dithered(x[k + j], format_cuts(FORMAT),
                                                 dither_of(dither, first + j));

                        upper.element[j] = FORMAT == FORMAT_BF16 ? bits >> 16 : upper_bits(bits);
                        lower.element[j] = static_cast<L>(bits >> format_cuts(FORMAT));
                }
                if (FORMAT != FORMAT_BF16)
                        store_quad(to + first, lower, k, span);
                store_quad(served + first, upper, k, span);
        }
}

/* ---- any ---- */

/* Elements from i on, counted from the beginning of a record. */
template <typename S>
static __device__ inline void load_format(format f, float (&x)[VEC], const void *from,
                                          const void *served, size_t i, S span)
{
        const uint16_t *upper = static_cast<const uint16_t *>(served);

        switch (f) {
        case FORMAT_BF16:
                load(x, static_cast<const bf16 *>(from) + i, span);
                return;
        case FORMAT_8BIT:
                load_codes<FORMAT_8BIT>(x, static_cast<const codes *>(from), i, span);
                return;
        case FORMAT_8BIT_SQUARE:
                load_codes<FORMAT_8BIT_SQUARE>(x, static_cast<const codes *>(from), i, span);
                return;
        case FORMAT_BF16_16:
                load_split<int16_t, 0>(x, static_cast<const int16_t *>(from), upper, i, span);
                return;
        case FORMAT_BF16_8:
                load_split<int8_t, 8>(x, static_cast<const int8_t *>(from), upper, i, span);
                return;
        default: /* FORMAT_FP32 */
                load(x, static_cast<const float *>(from) + i, span);
        }
}

/* All threads of a warp call it.  records: the span, in whole ones. */
template <typename S>
static __device__ inline void store_format(format f, void *to, void *served, size_t i,
                                           const float (&x)[VEC], uint32_t dither, S span,
                                           S records)
{
        uint16_t *upper = static_cast<uint16_t *>(served), *halves = static_cast<uint16_t *>(to);

        switch (f) {
        case FORMAT_BF16:
                store_split<FORMAT_BF16>(halves, halves, i, x, dither, span);
                return;
        case FORMAT_8BIT:
                store_codes<FORMAT_8BIT>(static_cast<codes *>(to), i, x, dither, records);
                return;
        case FORMAT_8BIT_SQUARE:
                store_codes<FORMAT_8BIT_SQUARE>(static_cast<codes *>(to), i, x, dither, records);
                return;
        case FORMAT_BF16_16:
                store_split<FORMAT_BF16_16>(halves, upper, i, x, dither, span);
                return;
        case FORMAT_BF16_8:
                store_split<FORMAT_BF16_8>(static_cast<uint8_t *>(to), upper, i, x, dither, span);
                return;
        default: /* FORMAT_FP32 */
                store(static_cast<float *>(to) + i, x, span);
        }
}

/* As with_tile(), by all threads of a block: calls f(span, the span in whole records, index). */
template <typename F>
static __device__ inline void with_records(size_t tile, size_t n, bool aligned, F f)
{
        size_t start = tile * TILE, own = threadIdx.x * QUAD, left = n - start;
        size_t up = (left + FORMAT_STEP - 1) / FORMAT_STEP * FORMAT_STEP;

        if (aligned && left >= TILE)
                f(whole{}, whole{}, start + own);
        else
                f(part{ left > own ? left - own : 0 }, part{ up > own ? up - own : 0 },
                  start + own);
}

/* ---- on the host -------------------------------------------------------------- */

static inline bool is_format(format f)
{
        return f >= FORMAT_FP32 && f < FORMATS;
}

/* Of a quad in the format: no format needs more, and the served plane no less. */
static inline bool format_aligned(format f, const void *address)
{
        return reinterpret_cast<uintptr_t>(address) % (f == FORMAT_FP32 ? 16 : 8) == 0;
}
