/* Updates of planes in formats: equal to the scalar truth, for every rule and formats. */
#include <criterion/criterion.h>
#include <math.h>
#include <string.h>

#include "daemon/compute/optimizer/optimizer.h"
#include "tests/conformance/device/material.h"

enum { MOST = 1280, KINDS = 3 };

static const size_t sizes[] = { 1, 64, 127, 128, 384, 1000, MOST };
static const enum format masters[] = { FORMAT_FP32, FORMAT_BF16_16, FORMAT_BF16_8 };
/* of a first and a second moment */
static const enum format moments[][2] = { { FORMAT_FP32, FORMAT_FP32 },
                                          { FORMAT_BF16, FORMAT_BF16 },
                                          { FORMAT_8BIT, FORMAT_8BIT_SQUARE } };
static const struct sample {
        const struct optimizer *optimizer;
        double values[OPTIMIZER_VALUES];
} samples[] = {
        { &optimizer_adamw, { 1e-3, 0.9, 0.999, 1e-8, 0.01 } },
        { &optimizer_adam, { 1e-3, 0.9, 0.999, 1e-8, 0.1, 1 } },
        { &optimizer_lion, { 1e-3, 0.9, 0.99, 0.01 } },
        { &optimizer_sgd, { 0.1, 0, 0, 0.01 } },
        { &optimizer_sgd_momentum, { 0.1, 0.9, 0.1, 0.01 } },
};
enum { N_SAMPLES = sizeof(samples) / sizeof(samples[0]) };

/* What of an update varies. */
struct way {
        const struct sample *sample;
        enum format master;
        const enum format *moments;
        bool biased, averaged, any_bytes;
        size_t n;
};

/* Over six decades; a NaN or an infinity in some blocks. */
static float ordinary(bool square, struct dice *d)
{
        double x = pow(10, 6 * dice_unit(d) - 5);

        if (dice_bits(d) % 500 == 0)
                x = dice_bits(d) % 2 ? (double)NAN : (double)INFINITY;
        return (float)(!square && dice_bits(d) % 2 ? -x : x);
}

static enum format format_of(const struct way *w, uint32_t plane)
{
        if (plane == 0)
                return w->master;
        return plane < rule_planes(w->sample->optimizer->rule) ? w->moments[plane - 1]
                                                               : FORMAT_FP32;
}

static void fill(struct plate *plane, struct plate *served, enum format f, const struct way *w,
                 struct dice *d)
{
        float values[MOST];

        plate_fill(plane, ZERO_FP32, MOST, d);
        for (size_t i = 0; i < MOST; i++)
                values[i] = ordinary(f == FORMAT_8BIT_SQUARE, d);
        if (!w->any_bytes)
                truth_ops()->pack(f, plane->data, served->data, values, MOST, 1);
}

static void run(const struct device_ops *ops, const struct way *w, const struct plate *planes,
                struct plate *served, const float *grad)
{
        const struct optimizer *o = w->sample->optimizer;
        struct update_scalars s = o->scalars(w->sample->values, 7, 0.37);
        struct packed_update u = { .rule = o->rule,
                                   .scalars = &s,
                                   .n = w->n,
                                   .served = served->data,
                                   .grad = grad,
                                   .step = 11,
                                   .element = 256 };

        s.ema_rate = w->averaged ? 0.1f : 0;
        if (!w->biased && rule_planes(o->rule) > 2)
                s.adam.sqrt_bias2 = 1;
        for (uint32_t k = 0; k < update_planes(o->rule, &s); k++) {
                u.formats[k] = format_of(w, k);
                u.planes[k] = planes[k].data;
        }
        ops->update_packed(&u);
}

static void check(const struct way *w, struct dice *d)
{
        struct plate a[UPDATE_PLANES], b[UPDATE_PLANES];
        struct plate served[] = { plate_new(ZERO_BF16, MOST, 0), plate_new(ZERO_BF16, MOST, 0) };
        struct plate grad = plate_new(ZERO_FP32, MOST, 3);
        struct dice again;

        plate_fill(&grad, ZERO_FP32, MOST, d);
        for (size_t i = 0; i < MOST && !w->any_bytes; i++)
                ((float *)grad.data)[i] = ordinary(false, d);
        plate_fill(&served[0], ZERO_BF16, MOST, d);
        memcpy(served[1].data, served[0].data, MOST * sizeof(uint16_t));
        for (uint32_t k = 0; k < UPDATE_PLANES; k++) {
                a[k] = plate_new(ZERO_FP32, MOST, 0);
                b[k] = plate_new(ZERO_FP32, MOST, 0);
                again = *d;
                fill(&a[k], &served[0], format_of(w, k), w, d);
                fill(&b[k], &served[1], format_of(w, k), w, &again);
        }
        run(tested_ops(), w, a, &served[0], grad.data);
        run(truth_ops(), w, b, &served[1], grad.data);
        for (uint32_t k = 0; k < UPDATE_PLANES; k++)
                cr_assert(format_of(w, k) == FORMAT_FP32 ? plate_same(&a[k], &b[k], ZERO_FP32, MOST)
                                                         : plate_identical(&a[k], &b[k]),
                          "%s, plane %u, master %d, moments %d, n %zu%s%s%s",
                          w->sample->optimizer->name, k, w->master, w->moments[0], w->n,
                          w->biased ? ", biased" : "", w->averaged ? ", averaged" : "",
                          w->any_bytes ? ", any bytes" : "");
        cr_assert(plate_identical(&served[0], &served[1]));
        for (uint32_t k = 0; k < UPDATE_PLANES; k++) {
                plate_free(&a[k]);
                plate_free(&b[k]);
        }
        plate_free(&served[0]);
        plate_free(&served[1]);
        plate_free(&grad);
}

Test(packed, updates_equal_the_scalar_truth)
{
        struct dice d = { 1 };

        if (gpus_tested()) /* for host memory */
                return;
        for (size_t s = 0; s < N_SAMPLES; s++)
                for (size_t i = 0; i < KINDS * KINDS; i++)
                        for (size_t n = 0; n < sizeof(sizes) / sizeof(sizes[0]); n++)
                                for (int how = 0; how < 8; how++) {
                                        struct way w = { .sample = &samples[s],
                                                         .master = masters[i % KINDS],
                                                         .moments = moments[i / KINDS],
                                                         .biased = how & 1,
                                                         .averaged = how & 2,
                                                         .any_bytes = how & 4,
                                                         .n = sizes[n] };

                                        check(&w, &d);
                                }
}

/* Beyond n, the elements of the last record stay as they are. */
Test(packed, elements_behind_an_update_stay)
{
        if (gpus_tested())
                return;
        struct dice d = { 2 };
        struct way w = {
                .sample = &samples[0], .master = FORMAT_BF16_8, .moments = moments[2], .n = 200
        };
        struct plate planes[UPDATE_PLANES], served = plate_new(ZERO_BF16, MOST, 0);
        struct plate grad = plate_new(ZERO_FP32, MOST, 0);
        float before[MOST], after[MOST];

        plate_fill(&grad, ZERO_FP32, MOST, &d);
        for (uint32_t k = 0; k < UPDATE_PLANES; k++) {
                planes[k] = plate_new(ZERO_FP32, MOST, 0);
                fill(&planes[k], &served, format_of(&w, k), &w, &d);
        }
        tested_ops()->unpack(w.master, before, served.data, planes[0].data, MOST);
        run(tested_ops(), &w, planes, &served, grad.data);
        tested_ops()->unpack(w.master, after, served.data, planes[0].data, MOST);
        for (size_t i = w.n; i < MOST; i++)
                cr_assert(before[i] == after[i] || isnan(before[i]));
        for (uint32_t k = 0; k < UPDATE_PLANES; k++)
                plate_free(&planes[k]);
        plate_free(&served);
        plate_free(&grad);
}
