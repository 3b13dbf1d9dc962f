/* bf16 and fp16 widened to fp32.  Pure. */
#pragma once

#include <stddef.h>
#include <stdint.h>

void fp32_from_bf16(float *to, const uint16_t *from, size_t n);
/* NaN stays NaN; subnormals are kept. */
void fp32_from_fp16(float *to, const uint16_t *from, size_t n);
