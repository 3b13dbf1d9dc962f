/*
 * Operations whose operands lie in different places.
 *
 * All on one GPU: one launch.  Else the operation is done where less has to be carried between
 * host and GPU, in chunks: operands that lie elsewhere ("staged") pass through the pinned
 * memory of a lane, which both host and GPU read and write.  While one lane's chunk is on its way
 * or computed by the GPU, the host fills or empties the other's.
 *
 * Elements are computed one by one, so that where a range is cut changes no bit.
 */
#include "daemon/device/gpu/core.h"

#include <assert.h>
#include <string.h>

enum { ALIGN = 64, CHUNK_UNIT = 128 }; /* bytes; elements */

struct chunk {
        size_t first, n;
};

struct plan {
        struct staged *s;
        uint32_t gpu;
        bool on_gpu;  /* where it is computed */
        size_t chunk; /* elements */
        struct lane *lanes;
};

void staged_add(struct staged *s, const void *memory, uint32_t width, bool in, bool out)
{
        assert(s->n_operands < OPERANDS_MAX);
        s->operands[s->n_operands++] = (struct operand){ .memory = (uint8_t *)memory,
                                                         .width = width,
                                                         .in = in,
                                                         .out = out,
                                                         .gpu = gpu_of(memory) };
}

/* Bytes an element that cross between host and GPU if the operands on that side are staged. */
static uint32_t carried(const struct staged *s, bool of_gpus)
{
        uint32_t bytes = 0;

        for (uint32_t i = 0; i < s->n_operands; i++) {
                const struct operand *o = &s->operands[i];

                if ((o->gpu != GPU_NONE) == of_gpus)
                        bytes += o->width * (uint32_t)(o->in + o->out);
        }
        return bytes;
}

static int some_gpu(const struct staged *s)
{
        for (uint32_t i = 0; i < s->n_operands; i++)
                if (s->operands[i].gpu != GPU_NONE)
                        return s->operands[i].gpu;
        return GPU_NONE;
}

/* Lays the staged operands out in a lane; their number. */
static uint32_t lay_out(struct plan *p)
{
        struct staged *s = p->s;
        uint32_t n = 0;
        size_t width = 0, at = 0;

        for (uint32_t i = 0; i < s->n_operands; i++) {
                struct operand *o = &s->operands[i];

                o->staged = p->on_gpu ? o->gpu != (int)p->gpu : o->gpu != GPU_NONE;
                n += o->staged;
                width += o->staged ? o->width : 0;
        }
        if (n == 0)
                return 0;
        p->chunk = (LANE_BYTES - (size_t)n * ALIGN) / width / CHUNK_UNIT * CHUNK_UNIT;
        assert(p->chunk > 0);
        for (uint32_t i = 0; i < s->n_operands; i++) {
                struct operand *o = &s->operands[i];

                if (!o->staged)
                        continue;
                o->at = at;
                at += (p->chunk * o->width + ALIGN - 1) / ALIGN * ALIGN;
        }
        assert(at <= LANE_BYTES);
        return n;
}

static void operands_at(const struct plan *p, const struct lane *lane, struct chunk c,
                        void *at[OPERANDS_MAX])
{
        for (uint32_t i = 0; i < p->s->n_operands; i++) {
                const struct operand *o = &p->s->operands[i];

                at[i] = o->staged ? lane->pinned + o->at : o->memory + c.first * o->width;
        }
}

static void enqueue_copy(const struct plan *p, struct lane *lane, void *dst, const void *src,
                         size_t n)
{
        lane->busy = true;
        gpu_must(p->gpu, "a copy was refused", gpu_plugin->copy(dst, src, n, lane->stream));
}

/* Between memory and lane: what lies on a GPU by its stream, what lies on the host at once. */
static void carry_in(const struct plan *p, struct lane *lane, struct chunk c)
{
        for (uint32_t i = 0; i < p->s->n_operands; i++) {
                const struct operand *o = &p->s->operands[i];
                const uint8_t *from = o->memory + c.first * o->width;

                if (!o->staged || !o->in)
                        continue;
                if (o->gpu == GPU_NONE)
                        memcpy(lane->pinned + o->at, from, c.n * o->width);
                else
                        enqueue_copy(p, lane, lane->pinned + o->at, from, c.n * o->width);
        }
}

static void carry_out(const struct plan *p, struct lane *lane, struct chunk c, bool of_gpus)
{
        for (uint32_t i = 0; i < p->s->n_operands; i++) {
                const struct operand *o = &p->s->operands[i];
                uint8_t *to = o->memory + c.first * o->width;

                if (!o->staged || !o->out || (o->gpu != GPU_NONE) != of_gpus)
                        continue;
                if (of_gpus)
                        enqueue_copy(p, lane, to, lane->pinned + o->at, c.n * o->width);
                else
                        memcpy(to, lane->pinned + o->at, c.n * o->width);
        }
}

/*
 * All of a chunk that the GPU does by itself, or its first half.  The chunk before in this lane may
 * be on its way out to a GPU still: what follows on the stream comes after that.
 */
static void chunk_begin(const struct plan *p, struct lane *lane, struct chunk c)
{
        void *at[OPERANDS_MAX];

        lane_pin(p->gpu, lane);
        carry_in(p, lane, c);
        if (!p->on_gpu)
                return;
        operands_at(p, lane, c, at);
        lane->busy = true;
        gpu_must(p->gpu, "an operation was refused", p->s->device(p->s, at, c.n, lane->stream));
        carry_out(p, lane, c, true);
}

static void chunk_end(const struct plan *p, struct lane *lane, struct chunk c)
{
        void *at[OPERANDS_MAX];

        lane_wait(p->gpu, lane);
        if (p->on_gpu) {
                carry_out(p, lane, c, false);
                return;
        }
        operands_at(p, lane, c, at);
        p->s->host(p->s, at, c.n);
        carry_out(p, lane, c, true);
}

static struct chunk chunk_at(const struct plan *p, size_t i)
{
        size_t first = i * p->chunk, left = p->s->n - first;

        return (struct chunk){ first, left < p->chunk ? left : p->chunk };
}

static void run_in_chunks(const struct plan *p)
{
        size_t n = (p->s->n + p->chunk - 1) / p->chunk;

        chunk_begin(p, &p->lanes[0], chunk_at(p, 0));
        for (size_t i = 0; i < n; i++) {
                if (i + 1 < n)
                        chunk_begin(p, &p->lanes[(i + 1) % LANES], chunk_at(p, i + 1));
                chunk_end(p, &p->lanes[i % LANES], chunk_at(p, i));
        }
        for (uint32_t i = 0; i < LANES; i++)
                lane_wait(p->gpu, &p->lanes[i]);
}

static void run_whole(const struct plan *p)
{
        void *at[OPERANDS_MAX];

        operands_at(p, p->lanes, (struct chunk){ 0, p->s->n }, at);
        gpu_must(p->gpu, "an operation was refused",
                 p->s->device(p->s, at, p->s->n, p->lanes->stream));
        p->lanes->busy = true;
        lane_wait(p->gpu, p->lanes);
}

static void run_on_host(const struct staged *s)
{
        void *at[OPERANDS_MAX];

        for (uint32_t i = 0; i < s->n_operands; i++)
                at[i] = s->operands[i].memory;
        s->host(s, at, s->n);
}

void staged_run(struct staged *s)
{
        int gpu = some_gpu(s);
        struct plan p = { .s = s, .gpu = (uint32_t)gpu };

        if (gpu == GPU_NONE) {
                run_on_host(s);
                return;
        }
        if (s->n == 0)
                return;
        p.lanes = lanes_of(p.gpu);
        p.on_gpu = carried(s, false) <= carried(s, true);
        if (lay_out(&p))
                run_in_chunks(&p);
        else
                run_whole(&p);
}
