/*
 * Planes in fewer bytes than fp32, by the plugin's table against the scalar truth, to the bit:
 * packed, unpacked, and updated in all mixtures of formats that a rule may have.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/compute/device/host.h"
#include "proto/dtype.h"
#include "tests/gpu/gpu.h"
#include "tests/support/adamw.h"

/* Around a record, a tile of a thread block, more than a wave of blocks of the emulated GPU. */
static const size_t sizes[] = {
        1, 5, 127, 128, 129, 1000, 2048, 2049, 4096 * 2 + 77, 60011, 6000011
};
static const size_t skips[] = { 0, 1, 64, 126 };
static const size_t offsets[] = { 0, 2, 3 };
enum { SIZES = 11, QUICK = 8, SKIPS = 4, OFFSETS = 3 };

struct run {
        const struct gpu *gpu;
        size_t n, skip, all, offset; /* all: of the records in which n behind `skip` lie */
        uint64_t state;
};

/* Numbers of some decades; in one of the blocks a NaN or an infinity. */
static void fill(struct run *r, enum format f, float *x, size_t n)
{
        for (size_t i = 0; i < n; i++) {
                uint64_t bits = dice(&r->state);

                x[i] = ldexpf((float)(bits % 4096), (int)(bits >> 16) % 24 - 30);
                x[i] = f != FORMAT_8BIT_SQUARE && bits >> 63 ? -x[i] : x[i];
                if (bits >> 50 == 77)
                        x[i] = bits & 1 ? NAN : INFINITY;
        }
        if (n > 3 * CODE_BLOCK)
                memset(x + CODE_BLOCK, 0, CODE_BLOCK * sizeof *x);
}

/* So many bytes on both sides. */
static struct twin bytes_new(struct run *r, size_t bytes)
{
        return twin_new(r->gpu, ZERO_FP32, bytes / sizeof(float), r->offset, &r->state);
}

static void send(struct run *r, struct twin *t)
{
        gpu_move(r->gpu, t->gpu_memory, t->host_memory, t->bytes);
}

/* Every byte is the same; of fp32 a NaN may have other bits. */
static void finish(struct run *r, struct twin *t, enum format f, const char *what)
{
        uint8_t *came = malloc(t->bytes);

        if (!came)
                die("out of memory");
        gpu_move(r->gpu, came, t->gpu_memory, t->bytes);
        if (f == FORMAT_FP32 ? !twin_same(r->gpu, t) : memcmp(came, t->host_memory, t->bytes) != 0)
                die("%s, format %d: %zu elements behind %zu, offset %zu", what, (int)f, r->n,
                    r->skip, r->offset);
        free(came);
        twin_free(r->gpu, t);
}

static void check_pack(struct run *r, enum format f)
{
        struct twin packed = bytes_new(r, format_bytes(f, r->all));
        struct twin served = twin_new(r->gpu, ZERO_BF16, r->all, 2 * r->offset, &r->state);
        struct twin x = bytes_new(r, r->all * sizeof(float));
        uint32_t dither = dither_at(1, r->state % 2048, 640);

        fill(r, f, x.host, r->all);
        send(r, &x);
        host_scalar_pack(f, packed.host, served.host, x.host, r->all, dither);
        must(r->gpu->ops->pack(f, packed.gpu, served.gpu, x.gpu, r->all, dither, r->gpu->stream),
             "pack");
        finish(r, &packed, f, "pack");
        finish(r, &served, FORMAT_BF16, "pack's served plane");
        finish(r, &x, f, "what was packed");
}

/* Of any bytes. */
static void check_unpack(struct run *r, enum format f, enum zero_dtype to)
{
        struct twin packed = bytes_new(r, format_bytes(f, r->all));
        struct twin served = twin_new(r->gpu, ZERO_BF16, r->all, 2 * r->offset, &r->state);
        struct twin x = twin_new(r->gpu, to, r->n, r->offset, &r->state);
        float *values = malloc(r->all * sizeof *values);

        if (!values)
                die("out of memory");
        host_scalar_unpack(f, values, served.host, packed.host, r->all);
        host_scalar_ops.cast(to, x.host, ZERO_FP32, values + r->skip, r->n);
        must(r->gpu->ops->unpack(f, to, x.gpu, served.gpu, packed.gpu, r->skip, r->n,
                                 r->gpu->stream),
             "unpack");
        finish(r, &x, FORMAT_FP32, "unpack");
        finish(r, &served, f, "what was served");
        finish(r, &packed, f, "what was unpacked");
        free(values);
}

/* ---- updates ---------------------------------------------------------------------------- */

struct sample {
        enum update_rule rule;
        bool ema, elsewhere; /* elsewhere: what comes out is in fp32 */
        enum format format[UPDATE_PLANES];
};

static const struct sample samples[] = {
        { UPDATE_ADAMW, .format = { FORMAT_BF16_8, FORMAT_8BIT, FORMAT_8BIT_SQUARE } },
        { UPDATE_ADAMW, true, .format = { FORMAT_BF16_16, FORMAT_BF16, FORMAT_BF16 } },
        { UPDATE_ADAMW, .format = { FORMAT_FP32, FORMAT_8BIT, FORMAT_8BIT_SQUARE } },
        { UPDATE_ADAM, .format = { FORMAT_BF16_8 } },
        { UPDATE_LION, true, .format = { FORMAT_BF16_8, FORMAT_8BIT } },
        { UPDATE_SGD_MOMENTUM, .format = { FORMAT_FP32, FORMAT_BF16 } },
        { UPDATE_SGD, true, .format = { FORMAT_BF16_16 } },
        { UPDATE_MOMENTUM, .format = { FORMAT_8BIT } },
        { UPDATE_MOMENTUM, .elsewhere = true, .format = { FORMAT_8BIT } },
        { UPDATE_MOMENTUM, .elsewhere = true, .format = { FORMAT_BF16 } },
        { UPDATE_DIRECTION, .format = { FORMAT_BF16_8 } },
        { UPDATE_DIRECTION, true, .format = { FORMAT_BF16_16 } },
};
enum { SAMPLES = sizeof samples / sizeof *samples };

/* A plane of an update, and what the truth makes of it. */
struct values {
        struct twin in, out; /* out: of one that goes elsewhere */
        float *values;       /* [all] */
};

static struct values values_new(struct run *r, enum format f, uint16_t *served)
{
        struct values p = { .values = malloc(r->all * sizeof(float)) };

        if (!p.values)
                die("out of memory");
        p.in = bytes_new(r, f == FORMAT_FP32 ? r->n * sizeof(float) : format_bytes(f, r->all));
        fill(r, f, p.values, r->all);
        if (f == FORMAT_FP32)
                memcpy(p.in.host, p.values + r->skip, r->n * sizeof(float));
        else
                host_scalar_pack(f, p.in.host, served, p.values, r->all, 0);
        if (f != FORMAT_FP32)
                host_scalar_unpack(f, p.values, served, p.in.host, r->all);
        send(r, &p.in);
        return p;
}

static void plane_truth(struct run *r, const struct update_piece *u, uint32_t k, struct values *p,
                        uint16_t *served)
{
        if (u->format[k] == FORMAT_FP32)
                memcpy(p->in.host, p->values + r->skip, r->n * sizeof(float));
        else if (p->out.host)
                memcpy(p->out.host, p->values + r->skip, r->n * sizeof(float));
        else
                host_scalar_pack(u->format[k], p->in.host, served, p->values, r->all, u->dither[k]);
}

static void check_update(struct run *r, const struct sample *sample)
{
        struct update_scalars s = adamw_scalars(1e-3, 0.9, 0.999, 1e-8, 0.1, 3, 0.7);
        struct twin grad = twin_new(r->gpu, ZERO_BF16, r->n, r->offset, &r->state);
        struct twin serve = twin_new(r->gpu, ZERO_BF16, r->all, 2 * r->offset, &r->state);
        struct update_piece u = { .rule = sample->rule,
                                  .n = r->n,
                                  .grad = { grad.gpu },
                                  .k = 1,
                                  .from = ZERO_BF16,
                                  .wire = ZERO_BF16,
                                  .serve = serve.gpu,
                                  .serve_dtype = ZERO_BF16,
                                  .skip = (uint32_t)r->skip };
        struct values planes[UPDATE_PLANES];
        float *at[UPDATE_PLANES] = { NULL }, *wide = malloc((r->n + 1) * sizeof *wide);

        s.ema_rate = sample->ema ? 0.1f : 0;
        u.scalars = s;
        memcpy(u.format, sample->format, sizeof u.format);
        for (uint32_t k = 0; k < update_planes(u.rule, &s); k++) {
                planes[k] = values_new(r, u.format[k], serve.host);
                at[k] = planes[k].values + r->skip;
                u.in[k] = u.out[k] = planes[k].in.gpu;
                u.dither[k] = dither_at(k, r->state % 999, 128);
        }
        if (sample->elsewhere) {
                planes[0].out = twin_new(r->gpu, ZERO_FP32, r->n, r->offset, &r->state);
                u.out[0] = planes[0].out.gpu;
        }
        send(r, &serve);
        host_scalar_ops.cast(ZERO_FP32, wide, ZERO_BF16, grad.host, r->n);
        host_scalar_ops.update(u.rule, &s, r->n, at, wide, NULL);
        for (uint32_t k = 0; k < update_planes(u.rule, &s); k++)
                plane_truth(r, &u, k, &planes[k], serve.host);
        if (!format_is_split(u.format[0]))
                host_scalar_ops.serve(ZERO_BF16, serve.host, at[0], r->n);
        must(r->gpu->ops->update(&u, 1, r->gpu->stream), "update");
        for (uint32_t k = 0; k < update_planes(u.rule, &s); k++) {
                finish(r, &planes[k].in, u.format[k], "a plane of an update");
                if (k == 0 && sample->elsewhere)
                        finish(r, &planes[k].out, FORMAT_FP32, "what an update leaves elsewhere");
                free(planes[k].values);
        }
        finish(r, &serve, format_is_split(u.format[0]) ? FORMAT_BF16 : FORMAT_FP32, "serve");
        finish(r, &grad, FORMAT_FP32, "a gradient");
        free(wide);
}

/* Only whole records are packed in 8 bits. */
static bool goes_behind(const struct sample *s)
{
        for (int k = 0; k < UPDATE_PLANES; k++)
                if (!s->elsewhere &&
                    (s->format[k] == FORMAT_8BIT || s->format[k] == FORMAT_8BIT_SQUARE))
                        return false;
        return true;
}

static void check(struct run *r)
{
        r->all = (r->skip + r->n + FORMAT_STEP - 1) / FORMAT_STEP * FORMAT_STEP;
        for (int f = 0; f < FORMATS; f++) {
                check_pack(r, f);
                check_unpack(r, f, f % 2 ? ZERO_FP32 : ZERO_BF16);
        }
        for (int i = 0; i < SAMPLES; i++)
                if (r->skip == 0 || goes_behind(&samples[i]))
                        check_update(r, &samples[i]);
}

int main(int argc, char *argv[])
{
        struct gpu gpu;
        size_t done = 0;

        gpu_load(argc, argv, &gpu);
        gpu_start(&gpu);
        for (size_t i = 0; i < (gpu.quick ? QUICK : SIZES); i++)
                for (size_t j = 0; j < SKIPS; j++)
                        for (size_t k = 0; k < OFFSETS; k++) {
                                struct run r = { .gpu = &gpu,
                                                 .n = sizes[i],
                                                 .skip = skips[j],
                                                 .offset = offsets[k],
                                                 .state = ++done };

                                check(&r);
                        }
        printf("%zu checks of formats, all bits the same\n", done);
        return 0;
}
