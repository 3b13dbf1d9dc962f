/* Formats of planes: equal to the scalar truth, exact where promised, within bounds elsewhere. */
#include <criterion/criterion.h>
#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/compute/device/formats_single.h"
#include "proto/dtype.h"
#include "proto/layout.h"
#include "tests/conformance/device/material.h"

_Static_assert((int)FORMAT_STEP == (int)LAYOUT_ALIGN, "a shard has whole records");

static const size_t sizes[] = { 0, 128, 256, 384, 1280, 12800 };
enum { N_SIZES = sizeof(sizes) / sizeof(sizes[0]), MOST = 12800, HALF = 1 << 16 };

/* A plane of packed bytes, and the served plane beside it. */
struct packed {
        struct plate rest, served;
};

static struct packed packed_new(size_t n, size_t offset)
{
        return (struct packed){ plate_new(ZERO_FP32, n, offset), plate_new(ZERO_BF16, n, offset) };
}

static void packed_free(struct packed *p)
{
        plate_free(&p->rest);
        plate_free(&p->served);
}

static bool packed_same(const struct packed *a, const struct packed *b)
{
        return plate_identical(&a->rest, &b->rest) && plate_identical(&a->served, &b->served);
}

static void pack(const struct device_ops *ops, enum format f, struct packed *to, const float *src,
                 size_t n, uint32_t step)
{
        ops->pack(f, to->rest.data, to->served.data, src, n, dither_at(5, step, 256));
}

static void unpack(const struct device_ops *ops, enum format f, float *dst,
                   const struct packed *from, size_t n)
{
        ops->unpack(f, dst, from->served.data, from->rest.data, n);
}

/* Over ten decades, a tenth of it 0, of both signs unless it is for squares. */
static float ordinary(enum format f, struct dice *d)
{
        double x = pow(10, 10 * dice_unit(d) - 12);

        if (dice_bits(d) % 10 == 0)
                x = 0;
        return (float)(f != FORMAT_8BIT_SQUARE && dice_bits(d) % 2 ? -x : x);
}

enum { ARBITRARY, FINITE, ORDINARY, TINY, GREAT, FILLS };

static void fill(struct plate *p, enum format f, size_t n, int how, struct dice *d)
{
        float *x = p->data;

        plate_fill(p, ZERO_FP32, n, d);
        for (size_t i = 0; i < n; i++) {
                if (how == FINITE && !isfinite(x[i]))
                        x[i] = -0.0f;
                if (how >= ORDINARY)
                        x[i] = ordinary(f, d);
                if (how == TINY)
                        x[i] *= 1e-31f;
                if (how == GREAT)
                        x[i] *= 3e38f * 100;
        }
        if (how == ORDINARY && n) /* one NaN, one infinity, one block of zeros */
                x[n / 2 + 3] = dice_bits(d) % 2 ? NAN : -INFINITY;
        if (how == ORDINARY && n > 200)
                memset(x, 0, CODE_BLOCK * sizeof *x);
}

static void check_truth(enum format f, size_t n, size_t offset, int how, struct dice *d)
{
        struct packed a = packed_new(n, offset), b = packed_new(n, offset);
        struct plate src = plate_new(ZERO_FP32, n, (offset + 3) % 16);
        struct plate x = plate_new(ZERO_FP32, n, offset), y = plate_new(ZERO_FP32, n, offset);
        uint32_t step = (uint32_t)dice_bits(d);

        fill(&src, f, n, how, d);
        pack(tested_ops(), f, &a, src.data, n, step);
        pack(truth_ops(), f, &b, src.data, n, step);
        cr_assert(packed_same(&a, &b), "format %d, n %zu, offset %zu, fill %d", f, n, offset, how);
        unpack(tested_ops(), f, x.data, &a, n);
        unpack(truth_ops(), f, y.data, &a, n);
        cr_assert(plate_same(&x, &y, ZERO_FP32, n), "format %d, n %zu, offset %zu, fill %d", f, n,
                  offset, how);
        packed_free(&a);
        packed_free(&b);
        plate_free(&src);
        plate_free(&x);
        plate_free(&y);
}

Test(formats, equal_the_scalar_truth)
{
        struct dice d = { 1 };

        for (int f = 0; f < FORMATS; f++)
                for (size_t i = 0; i < N_SIZES; i++)
                        for (size_t j = 0; j < n_awkward_offsets; j++)
                                for (int how = 0; how < FILLS; how++)
                                        check_truth(f, sizes[i], awkward_offsets[j], how, &d);
}

/* More than a GPU's lane has room for at once. */
Test(formats, of_many_records_equal_the_scalar_truth)
{
        struct dice d = { 7 };

        for (int f = 0; f < FORMATS; f++)
                for (int times = 0; times < 5; times++)
                        check_truth(f, 32 * MOST, 0, ORDINARY, &d);
}

Test(formats, of_any_bytes_unpack_as_the_truth)
{
        struct packed p = packed_new(MOST, 1);
        struct plate x = plate_new(ZERO_FP32, MOST, 0), y = plate_new(ZERO_FP32, MOST, 0);
        struct dice d = { 2 };

        plate_fill(&p.rest, ZERO_FP32, MOST, &d);
        plate_fill(&p.served, ZERO_BF16, MOST, &d);
        for (int f = 0; f < FORMATS; f++) {
                unpack(tested_ops(), f, x.data, &p, MOST);
                unpack(truth_ops(), f, y.data, &p, MOST);
                cr_assert(plate_same(&x, &y, ZERO_FP32, MOST), "format %d", f);
        }
        packed_free(&p);
        plate_free(&x);
        plate_free(&y);
}

static void check_keeps(enum format f, int how, struct dice *d)
{
        struct plate x = plate_new(ZERO_FP32, MOST, 0);
        struct packed once = packed_new(MOST, 0), again = packed_new(MOST, 0);

        fill(&x, f, MOST, how, d);
        pack(tested_ops(), f, &once, x.data, MOST, 0);
        for (uint32_t step = 1; step <= 2048; step += 89) {
                unpack(tested_ops(), f, x.data, &once, MOST);
                pack(tested_ops(), f, &again, x.data, MOST, step);
                cr_assert(packed_same(&once, &again), "format %d, fill %d, step %u", f, how, step);
        }
        packed_free(&once);
        packed_free(&again);
        plate_free(&x);
}

/* An update that does not change a value does not change its bytes. */
Test(formats, keep_what_was_unpacked_whatever_the_dither)
{
        struct dice d = { 3 };

        for (int f = 1; f < FORMATS; f++) /* fp32 keeps NaN's bits too */
                for (int how = 0; how < FILLS; how++)
                        check_keeps(f, how, &d);
}

/* ---- masters ---- */

/* All floats with these lower 16 bits. */
static void all_uppers(float *x, uint32_t low)
{
        for (uint32_t i = 0; i < HALF; i++)
                x[i] = format_float(i << 16 | low);
}

static bool nearest(uint16_t served, float x)
{
        uint16_t away = (uint16_t)((format_bits(x) + 0x8000) >> 16);

        return isnan(x) ? isnan(dtype_fp32_from_bf16(served)) : served == away;
}

static void check_master(enum format f, const float *x, uint32_t step)
{
        static float y[HALF];
        static uint8_t rest[2 * HALF];
        static uint16_t served[HALF];

        tested_ops()->pack(f, rest, served, x, HALF, dither_at(0, step, 0));
        tested_ops()->unpack(f, y, served, rest, HALF);
        for (uint32_t i = 0; i < HALF; i++) {
                cr_assert(isnan(x[i]) ? isnan(y[i]) : format_bits(x[i]) == format_bits(y[i]),
                          "%08x became %08x", format_bits(x[i]), format_bits(y[i]));
                cr_assert(nearest(served[i], x[i]), "%08x is served as %04x", format_bits(x[i]),
                          served[i]);
        }
}

Test(formats, masters_of_16_bits_more_are_exact)
{
        static const uint32_t low[] = { 0,      1,      2,      0x7f,   0x80,   0xff,   0x100,
                                        0x7ffe, 0x7fff, 0x8000, 0x8001, 0x8002, 0xff00, 0xffff };
        static float x[HALF];

        for (size_t k = 0; k < sizeof low / sizeof low[0]; k++) {
                all_uppers(x, low[k]);
                check_master(FORMAT_BF16_16, x, 0);
        }
}

/* All floats of 24 bits: the others become one of the two beside them. */
Test(formats, masters_of_8_bits_more_are_exact_in_24_bits)
{
        static float x[HALF];

        for (uint32_t low = 0; low < HALF; low += 256) {
                all_uppers(x, low);
                check_master(FORMAT_BF16_8, x, low);
        }
}

/* As a cast rounds, but where both neighbours are as near: half of these cases go up. */
Test(formats, served_masters_are_rounded_as_cast_but_for_ties)
{
        struct dice d = { 8 };

        for (int i = 0; i < 1000000; i++) {
                float x = format_float((uint32_t)dice_bits(&d));

                if (!isnan(x) && (format_bits(x) & 0xffff) != 0x8000)
                        cr_assert(nearest(dtype_bf16_from_fp32(x), x));
        }
}

/* ---- bounds ---- */

/* The greatest step of the format at x, where the block's greatest magnitude is s. */
static double step_at(enum format f, double x, double s)
{
        switch (f) {
        case FORMAT_BF16:
                return fabs(x) / 128;
        case FORMAT_8BIT:
                return (fabs(x) + 11 * s / 32) / 64;
        case FORMAT_8BIT_SQUARE:
                return (fabs(x) + 0x1.1p-16 * s) / 16;
        case FORMAT_BF16_8:
                return fabs(x) / 32768;
        default:
                return 0;
        }
}

static double greatest(const float *x)
{
        double s = 0;

        for (int i = 0; i < CODE_BLOCK; i++)
                s = fmax(s, fabs((double)x[i]));
        return s;
}

static void check_bounds(enum format f, struct dice *d)
{
        float x[FORMAT_STEP], y[FORMAT_STEP];
        double mean[FORMAT_STEP] = { 0 };
        struct packed p = packed_new(FORMAT_STEP, 0);

        for (int i = 0; i < FORMAT_STEP; i++)
                x[i] = ordinary(f, d);
        for (uint32_t step = 0; step < 2048; step++) {
                pack(tested_ops(), f, &p, x, FORMAT_STEP, step);
                unpack(tested_ops(), f, y, &p, FORMAT_STEP);
                for (int i = 0; i < FORMAT_STEP; i++) {
                        double s = greatest(x + i / CODE_BLOCK * CODE_BLOCK);
                        double error = fabs((double)y[i] - (double)x[i]);

                        mean[i] += (double)y[i] / 2048;
                        cr_assert_leq(error, step_at(f, (double)x[i], s), "format %d: %g is %g", f,
                                      (double)x[i], (double)y[i]);
                        cr_assert(f != FORMAT_8BIT_SQUARE || (double)y[i] >= s * 0x1p-21);
                }
        }
        for (int i = 0; i < FORMAT_STEP; i++) {
                double s = greatest(x + i / CODE_BLOCK * CODE_BLOCK);
                double least = f == FORMAT_8BIT_SQUARE ? s * 0x1p-21 : 0;
                double off = fabs(mean[i] - fmax((double)x[i], (double)x[i] < 0 ? -1 : least));

                cr_assert_leq(off, step_at(f, (double)x[i], s) / 100 + 1e-7 * s,
                              "format %d: %g is %g in the mean", f, (double)x[i], mean[i]);
        }
        packed_free(&p);
}

Test(formats, are_off_by_less_than_a_step_and_right_in_the_mean)
{
        struct dice d = { 4 };

        for (int f = FORMAT_BF16; f < FORMATS; f++)
                for (int k = 0; k < 3; k++)
                        check_bounds(f, &d);
}

/* To the nearest bf16, 0.999 of a value is the value: an average of squares would never fall. */
Test(formats, second_moments_follow_their_gradients)
{
        enum { N = 1280, STEPS = 2000 };
        static const enum format formats[] = { FORMAT_BF16, FORMAT_8BIT_SQUARE };
        static float v[N];
        static double exact[N];
        struct dice d = { 6 };

        for (int k = 0; k < 2; k++) {
                struct packed p = packed_new(N, 0);
                double ratio = 0;

                memset(v, 0, sizeof v);
                memset(exact, 0, sizeof exact);
                for (uint32_t step = 1; step <= STEPS; step++) {
                        for (int i = 0; i < N; i++) {
                                double g = (2 * dice_unit(&d) - 1) * pow(10, i % 7 * 0.3 - 6) *
                                           (step > STEPS / 2 ? 0.1 : 1);

                                exact[i] = exact[i] * 0.999 + g * g * 0.001;
                                v[i] = v[i] * 0.999f + (float)(g * g) * 0.001f;
                        }
                        pack(tested_ops(), formats[k], &p, v, N, step);
                        unpack(tested_ops(), formats[k], v, &p, N);
                }
                for (int i = 0; i < N; i++)
                        ratio += sqrt((double)v[i] / exact[i]) / N;
                cr_assert_float_eq(ratio, 1, 0.02, "format %d: %g", formats[k], ratio);
                packed_free(&p);
        }
}

/* ---- blocks ---- */

Test(formats, blocks_with_a_nan_or_an_infinity_are_nan)
{
        static const float bad[] = { NAN, -NAN, INFINITY, -INFINITY };
        struct dice d = { 9 };

        for (int f = FORMAT_8BIT; f <= FORMAT_8BIT_SQUARE; f++)
                for (int k = 0; k < 4; k++) {
                        struct packed p = packed_new(FORMAT_STEP, 0);
                        float x[FORMAT_STEP];

                        for (int i = 0; i < FORMAT_STEP; i++)
                                x[i] = ordinary(f, &d);
                        x[70] = bad[k];
                        pack(tested_ops(), f, &p, x, FORMAT_STEP, 1);
                        unpack(tested_ops(), f, x, &p, FORMAT_STEP);
                        for (int i = 0; i < FORMAT_STEP; i++)
                                cr_assert_eq((bool)isnan(x[i]), i >= CODE_BLOCK);
                        packed_free(&p);
                }
}

Test(formats, blocks_keep_their_greatest_magnitude_and_their_scale)
{
        static const float greatest_of[] = { 0x1p-100f, 1e-20f, 1, FLT_MAX, 0x1.fffffep-101f, 0 };

        for (int f = FORMAT_8BIT; f <= FORMAT_8BIT_SQUARE; f++)
                for (int k = 0; k < 6; k++) {
                        struct packed p = packed_new(FORMAT_STEP, 0);
                        float x[FORMAT_STEP] = { 0 }, expected = k < 4 ? greatest_of[k] : 0;

                        x[17] = greatest_of[k];
                        for (uint32_t step = 0; step < 2048; step += 7) {
                                pack(tested_ops(), f, &p, x, FORMAT_STEP, step);
                                unpack(tested_ops(), f, x, &p, FORMAT_STEP);
                                cr_assert_eq(x[17], expected);
                                cr_assert_eq(x[CODE_BLOCK], 0.0f);
                        }
                        packed_free(&p);
                }
}

/* ---- the table ---- */

Test(formats, have_names_for_kinds_of_planes)
{
        cr_assert_eq(format_named(FORMAT_MOMENT, "8bit"), FORMAT_8BIT);
        cr_assert_eq(format_named(FORMAT_SQUARE, "8bit"), FORMAT_8BIT_SQUARE);
        cr_assert_eq(format_named(FORMAT_MASTER, "8bit"), FORMATS);
        cr_assert_eq(format_named(FORMAT_MASTER, "bf16+8"), FORMAT_BF16_8);
        cr_assert_eq(format_named(FORMAT_MASTER, "fp32"), FORMAT_FP32);
        cr_assert_eq(format_named(FORMAT_MOMENT, "bf17"), FORMATS);
        cr_assert_eq(format_bytes(FORMAT_8BIT, 1280), 1360);
}
