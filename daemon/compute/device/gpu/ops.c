/*
 * gpu_ops(): struct device_ops over memory of either kind.  Each operation lists its operands, and
 * how plugin and host do it; staging.c does the rest.
 */
#include "daemon/compute/device/gpu/core.h"

#include <assert.h>
#include <stdio.h>

#include "daemon/compute/device/host.h"

/* ---- updates ---------------------------------------------------------------- */

static int update_device(const struct staged *s, void *const *at, size_t n, void *stream)
{
        uint32_t planes = update_planes(s->rule, s->scalars);
        struct update_piece update = { .rule = s->rule,
                                       .scalars = *s->scalars,
                                       .n = n,
                                       .grad = { at[planes] },
                                       .k = 1,
                                       .from = ZERO_FP32,
                                       .wire = ZERO_FP32 };

        for (uint32_t k = 0; k < planes; k++)
                update.in[k] = update.out[k] = at[k];
        return gpu_plugin->update(&update, 1, stream);
}

static void update_host(const struct staged *s, void *const *at, size_t n)
{
        float *planes[UPDATE_PLANES] = { NULL };
        uint32_t n_planes = update_planes(s->rule, s->scalars);

        for (uint32_t k = 0; k < n_planes; k++)
                planes[k] = at[k];
        gpu_host->update(s->rule, s->scalars, n, planes, at[n_planes], NULL);
}

static void update(enum update_rule rule, const struct update_scalars *scalars, size_t n,
                   float *const *planes, const float *grad, const struct update_undo *undo)
{
        struct staged s;

        if (undo) {
                gpu_host->update(rule, scalars, n, planes, grad, undo);
                return;
        }
        s.n_operands = 0;
        s.n = n;
        s.device = update_device;
        s.host = update_host;
        s.rule = rule;
        s.scalars = scalars;
        for (uint32_t k = 0; k < update_planes(rule, scalars); k++)
                staged_add(&s, planes[k], sizeof(float), true, true);
        staged_add(&s, grad, sizeof(float), true, false);
        staged_run(&s);
}

/* The stream on the GPU that has the memory, where something is enqueued. */
static void *stream_at(const void *memory)
{
        struct lane *lane = lanes_of((uint32_t)gpu_of(memory));

        lane->busy = true;
        return lane->stream;
}

static void must_at(const void *memory, int r)
{
        gpu_must((uint32_t)gpu_of(memory), "an update was refused", r);
}

void gpu_update(const struct update_piece *pieces, size_t n)
{
        if (n > 0)
                must_at(pieces->in[0], gpu_plugin->update(pieces, n, stream_at(pieces->in[0])));
}

void gpu_product(const struct product *p)
{
        must_at(p->out, gpu_plugin->product(p, stream_at(p->out)));
}

void gpu_divide(uint16_t *to, const uint16_t *from, float by, size_t n)
{
        must_at(to, gpu_plugin->divide(to, from, by, n, stream_at(to)));
}

void gpu_unpack(enum format format, enum zero_dtype to, void *dst, const void *src, size_t skip,
                size_t n)
{
        must_at(dst, gpu_plugin->unpack(format, to, dst, NULL, src, skip, n, stream_at(dst)));
}

void gpu_updated(uint32_t gpu)
{
        lane_wait(gpu, lanes_of(gpu));
}

/* ---- casts -------------------------------------------------------- */

static int cast_device(const struct staged *s, void *const *at, size_t n, void *stream)
{
        return gpu_plugin->cast(s->to, at[0], s->from, at[1], n, stream);
}

static void cast_host(const struct staged *s, void *const *at, size_t n)
{
        gpu_host->cast(s->to, at[0], s->from, at[1], n);
}

static void serve_host(const struct staged *s, void *const *at, size_t n)
{
        gpu_host->serve(s->to, at[0], at[1], n);
}

static void convert(enum zero_dtype to, void *dst, enum zero_dtype from, const void *src, size_t n,
                    void (*host)(const struct staged *s, void *const *at, size_t n))
{
        struct staged s;

        s.n_operands = 0;
        s.n = n;
        s.device = cast_device;
        s.host = host;
        s.to = to;
        s.from = from;
        staged_add(&s, dst, (uint32_t)dtype_bytes(to, 1), false, true);
        staged_add(&s, src, (uint32_t)dtype_bytes(from, 1), true, false);
        staged_run(&s);
}

static void gpu_cast(enum zero_dtype to, void *dst, enum zero_dtype from, const void *src, size_t n)
{
        if (to == from)
                gpu_copy(dst, src, dtype_bytes(to, n));
        else
                convert(to, dst, from, src, n, cast_host);
}

static void gpu_serve(enum zero_dtype to, void *dst, const float *src, size_t n)
{
        convert(to, dst, ZERO_FP32, src, n, serve_host);
}

/* ---- formats ------------------------------------------------------- */

/* Elements are records here: at[0] has them packed, at[1] in fp32, at[2] what is served of them. */

static uint16_t *served_of(const struct staged *s, void *const *at)
{
        return s->n_operands > 2 ? at[2] : NULL;
}

static uint32_t dither_of_records(const struct staged *s)
{
        return s->dither + dither_at(0, 0, s->begun * FORMAT_STEP) - dither_at(0, 0, 0);
}

static int pack_device(const struct staged *s, void *const *at, size_t n, void *stream)
{
        return gpu_plugin->pack(s->format, at[0], served_of(s, at), at[1], n * FORMAT_STEP,
                                dither_of_records(s), stream);
}

static void pack_host(const struct staged *s, void *const *at, size_t n)
{
        gpu_host->pack(s->format, at[0], served_of(s, at), at[1], n * FORMAT_STEP,
                       dither_of_records(s));
}

static int unpack_device(const struct staged *s, void *const *at, size_t n, void *stream)
{
        return gpu_plugin->unpack(s->format, ZERO_FP32, at[1], served_of(s, at), at[0], 0,
                                  n * FORMAT_STEP, stream);
}

static void unpack_host(const struct staged *s, void *const *at, size_t n)
{
        gpu_host->unpack(s->format, at[1], served_of(s, at), at[0], n * FORMAT_STEP);
}

static void run_records(struct staged *s, const void *records, const float *values,
                        const uint16_t *served, size_t n)
{
        bool in = s->device == unpack_device;

        assert(n % FORMAT_STEP == 0);
        s->n_operands = 0;
        s->n = n / FORMAT_STEP;
        s->begun = 0;
        staged_add(s, records, (uint32_t)format_bytes(s->format, FORMAT_STEP), in, !in);
        staged_add(s, values, FORMAT_STEP * sizeof *values, !in, in);
        if (format_is_split(s->format))
                staged_add(s, served, FORMAT_STEP * sizeof *served, in, !in);
        staged_run(s);
}

static void pack(enum format format, void *dst, uint16_t *served, const float *src, size_t n,
                 uint32_t dither)
{
        struct staged s;

        s.device = pack_device;
        s.host = pack_host;
        s.format = format;
        s.dither = dither;
        run_records(&s, dst, src, served, n);
}

static void unpack(enum format format, float *dst, const uint16_t *served, const void *src,
                   size_t n)
{
        struct staged s;

        s.device = unpack_device;
        s.host = unpack_host;
        s.format = format;
        run_records(&s, src, dst, served, n);
}

static void gpu_zero(void *dst, size_t n)
{
        int gpu = gpu_of(dst);
        struct lane *lane;

        if (gpu == GPU_NONE) {
                gpu_host->zero(dst, n);
                return;
        }
        lane = lanes_of((uint32_t)gpu);
        lane->busy = true;
        gpu_must((uint32_t)gpu, "an operation was refused", gpu_plugin->zero(dst, n, lane->stream));
        lane_wait((uint32_t)gpu, lane);
}

/* ---- sums ---------------------------------------------------------------------- */

static int sum_device(const struct staged *s, void *const *at, size_t n, void *stream)
{
        return gpu_plugin->sum(s->to, at[0], s->from, (const void *const *)at + 1,
                               s->n_operands - 1, n, stream);
}

static void sum_host(const struct staged *s, void *const *at, size_t n)
{
        gpu_host->sum(s->to, at[0], s->from, (const void *const *)at + 1, s->n_operands - 1, n);
}

static bool all_on_host(const void *dst, const void *const *src, size_t k)
{
        bool host = gpu_of(dst) == GPU_NONE;

        for (size_t i = 0; host && i < k; i++)
                host = gpu_of(src[i]) == GPU_NONE;
        return host;
}

/* More sources than the plugin takes at once: the same order, and one rounding. */
static void sum_of_many(enum zero_dtype to, uint8_t *dst, enum zero_dtype from,
                        const void *const *src, size_t k, size_t n)
{
        float sum[SUM_PART];

        for (size_t first = 0; first < n; first += SUM_PART) {
                size_t part = n - first < SUM_PART ? n - first : SUM_PART;

                for (size_t i = 0; i < k; i++)
                        gpu_accumulate(sum, from,
                                       (const uint8_t *)src[i] + dtype_bytes(from, first), part,
                                       i == 0);
                gpu_cast(to, dst + dtype_bytes(to, first), ZERO_FP32, sum, part);
        }
}

static void gpu_sum(enum zero_dtype to, void *dst, enum zero_dtype from, const void *const *src,
                    size_t k, size_t n)
{
        struct staged s;

        if (all_on_host(dst, src, k)) {
                gpu_host->sum(to, dst, from, src, k, n);
                return;
        }
        if (k > ZERO_CUDA_SUM_MAX) {
                sum_of_many(to, dst, from, src, k, n);
                return;
        }
        s.n_operands = 0;
        s.n = n;
        s.device = sum_device;
        s.host = sum_host;
        s.to = to;
        s.from = from;
        staged_add(&s, dst, (uint32_t)dtype_bytes(to, 1), false, true);
        for (size_t i = 0; i < k; i++)
                staged_add(&s, src[i], (uint32_t)dtype_bytes(from, 1), true, false);
        staged_run(&s);
}

static void update_packed(const struct packed_update *u)
{
        gpu_host->update_packed(u);
}

static void product(const struct product *p, const float *from, float *to)
{
        gpu_host->product(p, from, to);
}

/* ---- the table --------------------------------------------------------------------- */

static char name[64]; /* set by gpu_ops_open() */
static const struct device_ops ops = {
        .name = name,
        .update = update,
        .update_packed = update_packed,
        .cast = gpu_cast,
        .serve = gpu_serve,
        .accumulate = gpu_accumulate,
        .sum = gpu_sum,
        .norm = gpu_norm,
        .reduce = gpu_reduce,
        .pack = pack,
        .unpack = unpack,
        .zero = gpu_zero,
        .copy = gpu_copy,
        .product = product,
};

void gpu_ops_open(void)
{
        snprintf(name, sizeof name, "%s and CUDA", gpu_host->name);
}

const struct device_ops *gpu_ops(void)
{
        return gpu_plugin ? &ops : NULL;
}
