/* The table of formats, and the scalar truth of pack() and unpack(). */
#include "daemon/compute/device/formats.h"

#include <assert.h>

#include "daemon/compute/device/formats_single.h"
#include "daemon/compute/device/host.h"

_Static_assert(sizeof(struct codes) == 136, "a record has no padding");

static const struct {
        const char *name;
        uint32_t bytes, kinds;
} rows[FORMATS] = {
#define X(format, name, bytes, kinds) { name, bytes, kinds },
        FORMAT_MAP(X)
#undef X
};

size_t format_bytes(enum format format, size_t n)
{
        return n / FORMAT_STEP * rows[format].bytes;
}

enum format format_named(uint32_t kind, const char *name)
{
        enum format f = 0;

        while (f < FORMATS && !(rows[f].kinds & kind && !strcmp(rows[f].name, name)))
                f++;
        return f;
}

/* ---- parts of records ---- */

/* A part of one record, or whole records. */
struct part {
        size_t at, skip, n; /* at: bytes; skip, n: elements */
        bool whole;
};

/* The next part of n elements from `first` on. */
static struct part part_at(enum format format, uint64_t first, uint64_t n)
{
        struct part p = { .skip = first % FORMAT_STEP };

        p.at = format_bytes(format, first - p.skip);
        p.whole = p.skip == 0 && n >= FORMAT_STEP;
        p.n = p.whole ? n - n % FORMAT_STEP : n < FORMAT_STEP - p.skip ? n : FORMAT_STEP - p.skip;
        return p;
}

void format_read(const struct device_ops *ops, enum format format, const void *at,
                 const uint16_t *served, uint64_t first, uint64_t n, float *to)
{
        float values[FORMAT_STEP];

        if (format == FORMAT_FP32) {
                ops->copy(to, (const float *)at + first, n * sizeof *to);
                return;
        }
        for (struct part p; n > 0; first += p.n, n -= p.n, to += p.n) {
                p = part_at(format, first, n);
                ops->unpack(format, p.whole ? to : values,
                            served ? served + (first - p.skip) : NULL, (const uint8_t *)at + p.at,
                            p.whole ? p.n : FORMAT_STEP);
                if (!p.whole)
                        ops->copy(to, values + p.skip, p.n * sizeof *to);
        }
}

void format_write(const struct device_ops *ops, enum format format, void *at, uint16_t *served,
                  uint64_t first, uint64_t n, const float *from, uint32_t seed, uint64_t origin)
{
        float values[FORMAT_STEP];

        if (format == FORMAT_FP32) {
                ops->copy((float *)at + first, from, n * sizeof *from);
                return;
        }
        for (struct part p; n > 0; first += p.n, n -= p.n, from += p.n) {
                p = part_at(format, first, n);
                uint8_t *records = (uint8_t *)at + p.at;
                uint16_t *high = served ? served + (first - p.skip) : NULL;

                if (!p.whole) {
                        ops->unpack(format, values, high, records, FORMAT_STEP);
                        ops->copy(values + p.skip, from, p.n * sizeof *from);
                }
                ops->pack(format, records, high, p.whole ? from : values,
                          p.whole ? p.n : FORMAT_STEP, dither_at(seed, 0, origin + first - p.skip));
        }
}

/* ---- codes ---- */

static float scale_of(const float *x)
{
        uint32_t greatest = 0;

        for (uint32_t i = 0; i < CODE_BLOCK; i++) {
                uint32_t bits = format_magnitude(x[i]);

                greatest = bits > greatest ? bits : greatest;
        }
        return code_scale(greatest);
}

static void pack_codes(enum format format, struct codes *dst, const float *src, size_t n,
                       uint32_t dither)
{
        for (size_t i = 0; i < n; i++) {
                struct codes *c = &dst[i / FORMAT_STEP];
                float *scale = &c->scale[i % FORMAT_STEP / CODE_BLOCK];
                uint32_t code = 0;

                if (i % CODE_BLOCK == 0)
                        *scale = scale_of(src + i);
                if (*scale > 0)
                        code = code_of(code_form_of(format), src[i], 1 / *scale,
                                       dither_of(dither, i));
                c->code[i % FORMAT_STEP] = (uint8_t)code;
        }
}

static void unpack_codes(enum format format, float *dst, const struct codes *src, size_t n)
{
        for (size_t i = 0; i < n; i++) {
                const struct codes *c = &src[i / FORMAT_STEP];

                dst[i] = code_value(code_form_of(format), c->code[i % FORMAT_STEP],
                                    c->scale[i % FORMAT_STEP / CODE_BLOCK]);
        }
}

/* ---- upper and lower bits ---- */

static void pack_bits(enum format format, void *dst, uint16_t *served, const float *src, size_t n,
                      uint32_t dither)
{
        uint16_t *halves = dst;
        uint8_t *bytes = dst;

        for (size_t i = 0; i < n; i++) {
                uint32_t bits = dithered(src[i], format_cuts(format), dither_of(dither, i));

                if (format == FORMAT_BF16)
                        halves[i] = (uint16_t)(bits >> 16);
                else
                        served[i] = upper_bits(bits);
                if (format == FORMAT_BF16_16)
                        halves[i] = (uint16_t)bits;
                if (format == FORMAT_BF16_8)
                        bytes[i] = (uint8_t)(bits >> 8);
        }
}

static void unpack_bits(enum format format, float *dst, const uint16_t *served, const void *src,
                        size_t n)
{
        const int16_t *halves = src;
        const int8_t *bytes = src;

        for (size_t i = 0; i < n; i++)
                dst[i] = joined(served[i], format == FORMAT_BF16_16  ? halves[i]
                                           : format == FORMAT_BF16_8 ? bytes[i] * 256
                                                                     : 0);
}

/* ---- both ---- */

void host_scalar_pack(enum format format, void *dst, uint16_t *served, const float *src, size_t n,
                      uint32_t dither)
{
        assert(n % FORMAT_STEP == 0);
        if (format == FORMAT_FP32)
                memcpy(dst, src, n * sizeof *src);
        else if (format == FORMAT_8BIT || format == FORMAT_8BIT_SQUARE)
                pack_codes(format, dst, src, n, dither);
        else
                pack_bits(format, dst, served, src, n, dither);
}

void host_scalar_unpack(enum format format, float *dst, const uint16_t *served, const void *src,
                        size_t n)
{
        assert(n % FORMAT_STEP == 0);
        if (format == FORMAT_FP32)
                memcpy(dst, src, n * sizeof *dst);
        else if (format == FORMAT_8BIT || format == FORMAT_8BIT_SQUARE)
                unpack_codes(format, dst, src, n);
        else
                unpack_bits(format, dst, format == FORMAT_BF16 ? src : served, src, n);
}
