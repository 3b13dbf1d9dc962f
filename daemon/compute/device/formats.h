/*
 * formats.h - how the elements of a plane lie in memory, in fewer bytes than fp32.
 *
 * Rule: 128 elements (LAYOUT_ALIGN) take a fixed number of bytes, so a plane's bytes follow from
 * its elements, and no record of 128 depends on another.  Where pack() loses bits it dithers; what
 * was unpacked is packed to the same bits whatever the dither (daemon/compute/README.md, Formats).
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdbool.h>
#include <string.h>

#ifdef __CUDACC__
#define FORMAT_FUNCTION static __host__ __device__ inline
#else
#define FORMAT_FUNCTION static inline
#endif

/* Kinds of planes.  A square is a second moment, whose sign is dropped. */
enum { FORMAT_MOMENT = 1, FORMAT_SQUARE = 2, FORMAT_MASTER = 4 };

/*
 * X(format, name, bytes of 128 elements, kinds of planes that may have it)
 *
 * BF16_16 and BF16_8 are what a master has besides its served plane, which is in bf16.
 */
#define FORMAT_MAP(X)                                                       \
        X(FP32, "fp32", 512, FORMAT_MOMENT | FORMAT_SQUARE | FORMAT_MASTER) \
        X(BF16, "bf16", 256, FORMAT_MOMENT | FORMAT_SQUARE)                 \
        X(8BIT, "8bit", 136, FORMAT_MOMENT)                                 \
        X(8BIT_SQUARE, "8bit", 136, FORMAT_SQUARE)                          \
        X(BF16_16, "bf16+16", 256, FORMAT_MASTER)                           \
        X(BF16_8, "bf16+8", 128, FORMAT_MASTER)

enum format {
#define X(format, name, bytes, kinds) FORMAT_##format,
        FORMAT_MAP(X)
#undef X
                FORMATS,
};

enum {
        FORMAT_STEP = 128, /* elements of a record */
        CODE_BLOCK = 64,   /* elements that share a scale */
        FORMAT_NAN = 0x7fc00000,
};

/* A record of the 8-bit formats. */
struct codes {
        uint8_t code[FORMAT_STEP];
        float scale[FORMAT_STEP / CODE_BLOCK]; /* a block's greatest magnitude; it is exact */
};

/*
 * How a code stands for t, a magnitude through its scale: t + base is a float, and the code counts
 * its upper bits from those of `first`.  So steps are equal up to the base, and double with each
 * power of two from there.  With these numbers the last code is t = 1.
 *
 * The first code of a square is not 0 but half a step, because an update divides by the root.
 */
enum {
        CODE_SHIFT = 17,        /* bits of the float below the code */
        CODE_BASE = 0x3eb00000, /* 11/32: steps of 1/256, 1/128 and 1/64; 126 codes and a sign */
        CODE_FIRST = CODE_BASE,
        CODE_SIGN = 0x80,
        SQUARE_SHIFT = 19,
        SQUARE_BASE = 0x37840084, /* 1.6e-5: steps of 2^-20 to 1/32; 255 codes */
        SQUARE_FIRST = SQUARE_BASE + (1 << (SQUARE_SHIFT - 1)),
};

enum { CODE_LEAST = (127 - 100) << 23, CODE_INFINITY = 0x7f800000 };

/* One comparison, as this is in the loop of every update. */
FORMAT_FUNCTION bool code_scaled(uint32_t greatest)
{
        return greatest - CODE_LEAST < CODE_INFINITY - CODE_LEAST;
}

/* The scale for a block whose greatest magnitude has these bits.  A block with a NaN or an infinity
 * is NaN.  One below 2^-100 is 0: its small codes would be subnormal numbers, which are inexact. */
FORMAT_FUNCTION float code_scale(uint32_t greatest)
{
        uint32_t bits = code_scaled(greatest) ? greatest : greatest < CODE_LEAST ? 0 : FORMAT_NAN;
        float scale;

        memcpy(&scale, &bits, sizeof scale);
        return scale;
}

/*
 * Before lower bits are cut, pack() adds a part of them: dither, in 1/2048 and a half of that, so
 * that errors of arithmetic change no code that stands for a value exactly.  From step to step an
 * element's dither turns by the golden ratio: a change of a tenth of a code is rounded up in every
 * tenth step, nearly evenly.  Random numbers would leave a greater error.
 */
enum {
        DITHER_UNIT = 1 << 21,
        DITHER_STEP = 1265, /* of 2048; odd, so that 2048 steps have all numbers */
        DITHER_BLOCK = 1167,
        DITHER_LANE = 1545,
        DITHER_LANES = 16, /* element i of a block has the dither of i % 16 */
};

/* pack()'s dither, for a call whose first element this is, a multiple of CODE_BLOCK; seed: of the
 * plane. */
static inline uint32_t dither_at(uint32_t seed, uint64_t step, uint64_t element)
{
        return (seed + (uint32_t)step * DITHER_STEP +
                (uint32_t)(element / CODE_BLOCK) * DITHER_BLOCK) *
                       DITHER_UNIT +
               DITHER_UNIT / 2;
}

/* True for a master's formats, which have upper bits in the served plane. */
FORMAT_FUNCTION bool format_is_split(enum format format)
{
        return format == FORMAT_BF16_16 || format == FORMAT_BF16_8;
}

/* Bytes of n elements; n is a multiple of FORMAT_STEP. */
size_t format_bytes(enum format format, size_t n);

struct device_ops;
/* Elements first to first + n of a plane, whose first record is at `at`, as fp32.  served: of a
 * master's formats, from the first record on. */
void format_read(const struct device_ops *ops, enum format format, const void *at,
                 const uint16_t *served, uint64_t first, uint64_t n, float *to);
/* Changes these elements, and keeps the others of a record.  `seed` and `origin`, the element that
 * is the plane's first one, are for the dither. */
void format_write(const struct device_ops *ops, enum format format, void *at, uint16_t *served,
                  uint64_t first, uint64_t n, const float *from, uint32_t seed, uint64_t origin);

/* The format that users call `name`, for planes of one kind; FORMATS: they have none of that name.
 */
enum format format_named(uint32_t kind, const char *name);
