/* Data types on the wire and in memory: sizes, names, and the scalar conversions
 * that every kernel must agree with to the bit (round to nearest, ties to even). */
#pragma once

#include "proto/zero_types.h"

/* Whether the service computes with values of the type. */
bool dtype_valid(uint32_t dtype);
/* Whether the service keeps values of the type as bytes, in words of four. */
bool dtype_is_bytes(uint32_t dtype);
/* Bytes of n elements, or of n words; dtype must be one of either kind. */
size_t dtype_bytes(enum zero_dtype dtype, size_t n);
/* Whether values of one type are given in the other: the same one, or one of both is fp32. */
bool dtype_converts(uint32_t from, uint32_t to);
const char *dtype_name(enum zero_dtype dtype);
/* As ZERO_PLANE_MAP has it; NULL: there is no such plane. */
const char *plane_name(uint32_t plane);

/*
 * NaN stays NaN (quiet, but for fp32 from bf16, which is a plain shift) and keeps the
 * upper bits of its payload, as F16C does it; bf16 and fp16 overflow to infinity;
 * subnormals are kept.
 */
uint16_t dtype_bf16_from_fp32(float x);
float dtype_fp32_from_bf16(uint16_t x);
uint16_t dtype_fp16_from_fp32(float x);
float dtype_fp32_from_fp16(uint16_t x);

/* Element i of an array, of a type that the service computes with.  Inline, for the scalar kernels.
 */
static inline float dtype_load(enum zero_dtype from, const void *src, size_t i)
{
        switch (from) {
        case ZERO_BF16:
                return dtype_fp32_from_bf16(((const uint16_t *)src)[i]);
        case ZERO_FP16:
                return dtype_fp32_from_fp16(((const uint16_t *)src)[i]);
        default: /* ZERO_FP32: nobody computes with bytes */
                return ((const float *)src)[i];
        }
}

static inline void dtype_store(enum zero_dtype to, void *dst, size_t i, float x)
{
        switch (to) {
        case ZERO_BF16:
                ((uint16_t *)dst)[i] = dtype_bf16_from_fp32(x);
                break;
        case ZERO_FP16:
                ((uint16_t *)dst)[i] = dtype_fp16_from_fp32(x);
                break;
        default: /* ZERO_FP32: nobody computes with bytes */
                ((float *)dst)[i] = x;
        }
}
