/* product: every element is the chain of product.h, in slices too, and nothing beside the result is
 * written. */
#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "proto/dtype.h"
#include "tests/conformance/device/material.h"

/* Sides around a block, a tile and the most; depths around a tile and a cut of the depth. */
static const size_t sides[] = { 1, 5, 6, 7, 12, 13, 16, 31, 32, 33, 95, 191, 192 };
static const size_t depths[] = { 1, 2, 15, 17, 31, 33, 191, 193, 200 };
enum { N_SIDES = sizeof sides / sizeof sides[0], N_DEPTHS = sizeof depths / sizeof depths[0] };

/* A matrix with a margin; each row is followed by `gap` elements. */
struct sample {
        struct plate plate;
        struct matrix_view view;
};

static struct sample sample_new(size_t rows, size_t cols, bool transposed, bool awkward,
                                struct dice *d)
{
        size_t lines = transposed ? cols : rows, gap = dice_bits(d) % 3;
        size_t stride = (transposed ? rows : cols) + gap;
        struct sample s = { .plate = plate_new(ZERO_BF16, lines * stride, dice_bits(d) % 32),
                            .view = { NULL, stride, transposed } };
        uint16_t *x = s.plate.data;

        s.view.x = x;
        plate_fill(&s.plate, ZERO_BF16, lines * stride, d);
        for (size_t i = 0; !awkward && i < lines * stride; i++)
                x[i] = dtype_bf16_from_fp32((float)(2 * dice_unit(d) - 1));
        return s;
}

/* Behind the depth a GPU goes on with zeros, which makes a sum of -0 one of 0. */
static void one_zero(struct plate *p, size_t n)
{
        uint16_t *x = p->data;

        for (size_t i = 0; gpus_tested() && i < n; i++)
                x[i] = x[i] == 0x8000 ? 0 : x[i];
}

/* The product in two slices of its depth, with the sums between in memory. */
static void in_slices(const struct device_ops *ops, const struct product *whole, struct plate *sums)
{
        struct product p = *whole;

        p.depth = whole->depth / 3;
        ops->product(&p, NULL, sums->data);
        p.a.x += p.depth * (p.a.transposed ? p.a.stride : 1);
        p.b.x += p.depth * (p.b.transposed ? 1 : p.b.stride);
        p.depth = whole->depth - p.depth;
        ops->product(&p, sums->data, NULL);
}

static void check_slices(const struct product *whole, const struct plate *truth, size_t n)
{
        struct product p = *whole;
        struct plate out = plate_new(ZERO_BF16, n, 3);
        struct plate sums = plate_new(ZERO_FP32, n, 3), true_sums = plate_new(ZERO_FP32, n, 3);

        p.out = out.data;
        in_slices(truth_ops(), &p, &true_sums);
        in_slices(tested_ops(), &p, &sums);
        one_zero(&out, n);
        cr_assert(plate_same(&out, truth, ZERO_BF16, n) &&
                          plate_same(&sums, &true_sums, ZERO_FP32, n),
                  "%zux%zu, depth %zu in slices", p.rows, p.cols, p.depth);
        plate_free(&out);
        plate_free(&sums);
        plate_free(&true_sums);
}

static void check(size_t rows, size_t cols, size_t depth, unsigned form, struct dice *d)
{
        bool awkward = form & 8;
        struct sample a = sample_new(rows, depth, form & 1, awkward, d);
        struct sample b = sample_new(depth, cols, form & 2, awkward, d);
        struct sample add = sample_new(rows, cols, false, awkward, d);
        size_t stride = add.view.stride, n = rows * stride;
        struct plate out = plate_new(ZERO_BF16, n, 3), truth = plate_new(ZERO_BF16, n, 3);
        struct product p = { rows,    cols,    depth,
                             a.view,  b.view,  form & 4 ? add.view.x : NULL,
                             2.0315f, -4.775f, out.data,
                             stride };

        tested_ops()->product(&p, NULL, NULL);
        p.out = truth.data;
        truth_ops()->product(&p, NULL, NULL);
        one_zero(&out, n);
        one_zero(&truth, n);
        cr_assert(plate_same(&out, &truth, ZERO_BF16, n), "%zux%zu, depth %zu, form %u", rows, cols,
                  depth, form);
        if (depth >= 3)
                check_slices(&p, &truth, n);
        plate_free(&a.plate);
        plate_free(&b.plate);
        plate_free(&add.plate);
        plate_free(&out);
        plate_free(&truth);
}

Test(product, equals_the_scalar_truth)
{
        struct dice d = { 1 };
        unsigned form = 0;

        if (!tested_ops()->product)
                cr_skip_test("this GPU adds up in another order");
        for (size_t i = 0; i < N_SIDES; i++)
                for (size_t j = 0; j < N_SIDES; j++)
                        for (int turn = 0; turn < 2; turn++, form++)
                                check(sides[i], sides[j], depths[form % N_DEPTHS], form % 16, &d);
}

/* The order of a chain shows: 1 is lost beside 2^25, unless that has gone before. */
Test(product, of_an_element_goes_on_from_the_last)
{
        enum { DEPTH = 400 };
        uint16_t a[DEPTH] = { 0 }, b[DEPTH], out;
        struct product p = {
                1, 1, DEPTH, { a, DEPTH, false }, { b, 1, false }, NULL, 0, 0, &out, 1
        };

        if (!tested_ops()->product)
                cr_skip_test("this GPU adds up in another order");
        for (int k = 0; k < DEPTH; k++)
                b[k] = dtype_bf16_from_fp32(1);
        a[10] = dtype_bf16_from_fp32(0x1p25f);
        a[11] = a[390] = dtype_bf16_from_fp32(1);
        a[200] = dtype_bf16_from_fp32(-0x1p25f);
        tested_ops()->product(&p, NULL, NULL);
        cr_assert_eq(dtype_fp32_from_bf16(out), 1);
}
