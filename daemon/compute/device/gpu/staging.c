/*
 * Operations whose operands lie in different places.
 *
 * If everything is on one GPU or in pinned memory, that takes one launch.  Otherwise the operation
 * runs, in chunks, on the side that needs fewer bytes carried between host and GPU.  Operands of
 * the other side ("staged") pass through the pinned memory of a lane, which host and GPU both read
 * and write.  While one lane's chunk is in transit or being computed by the GPU, the host fills or
 * empties the other's.
 *
 * With several GPUs, the GPU of the first operand on one computes.  Operands on other GPUs pass
 * through the lane's memory on that GPU.  A chunk of all of them arrives there at once, from GPU to
 * GPU.
 *
 * Elements are computed one by one, so the cuts change no bit.
 */
#include "daemon/compute/device/gpu/core.h"

#include <assert.h>
#include <string.h>

struct chunk {
        size_t first, n;
};

struct plan {
        struct staged *s;
        uint32_t gpu;
        bool on_gpu;        /* it is computed there */
        bool pinned, peers; /* which memory of the lanes it uses */
        size_t chunk;       /* elements */
        struct lane *lanes;
};

void staged_add(struct staged *s, const void *memory, uint32_t width, bool in, bool out)
{
        assert(s->n_operands < OPERANDS_MAX);
        s->operands[s->n_operands++] = (struct operand){ .memory = (uint8_t *)memory,
                                                         .width = width,
                                                         .in = in,
                                                         .out = out,
                                                         .gpu = gpu_of(memory),
                                                         .pinned = gpu_is_pinned(memory) };
}

/* Bytes per element between host and GPU if that side's operands are staged. */
static uint32_t carried(const struct staged *s, bool of_gpus)
{
        uint32_t bytes = 0;

        for (uint32_t i = 0; i < s->n_operands; i++) {
                const struct operand *o = &s->operands[i];

                if ((o->gpu != GPU_NONE) == of_gpus && !o->pinned)
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

static bool several_gpus(const struct staged *s, int gpu)
{
        for (uint32_t i = 0; i < s->n_operands; i++)
                if (s->operands[i].gpu != GPU_NONE && s->operands[i].gpu != gpu)
                        return true;
        return false;
}

static enum staged_in staged_in(const struct plan *p, const struct operand *o)
{
        if (!p->on_gpu)
                return o->gpu == GPU_NONE ? STAGED_NOT : STAGED_PINNED;
        if (o->gpu == GPU_NONE)
                return o->pinned ? STAGED_NOT : STAGED_PINNED;
        return o->gpu == (int)p->gpu ? STAGED_NOT : STAGED_PEERS;
}

/* Lays the staged operands out in a lane; false if there are none. */
static bool lay_out(struct plan *p)
{
        struct staged *s = p->s;
        uint32_t n = s->n_operands;
        size_t pinned, peers;

        for (uint32_t i = 0; i < s->n_operands; i++)
                s->operands[i].staged = staged_in(p, &s->operands[i]);
        pinned = operands_fit(s->operands, n, STAGED_PINNED, LANE_BYTES);
        peers = operands_fit(s->operands, n, STAGED_PEERS, LANE_PEERS);
        if (pinned == SIZE_MAX && peers == SIZE_MAX)
                return false;
        p->pinned = pinned != SIZE_MAX;
        p->peers = peers != SIZE_MAX;
        p->chunk = pinned < peers ? pinned : peers;
        assert(p->chunk > 0);
        pinned = operands_lay_out(s->operands, n, STAGED_PINNED, p->chunk);
        peers = operands_lay_out(s->operands, n, STAGED_PEERS, p->chunk);
        assert(pinned <= LANE_BYTES && peers <= LANE_PEERS);
        return true;
}

static uint8_t *staged_at(const struct lane *lane, const struct operand *o)
{
        return (o->staged == STAGED_PEERS ? lane->peers : lane->pinned) + o->at;
}

static void operands_at(const struct plan *p, const struct lane *lane, struct chunk c,
                        void *at[OPERANDS_MAX])
{
        p->s->begun = c.first;
        for (uint32_t i = 0; i < p->s->n_operands; i++) {
                const struct operand *o = &p->s->operands[i];

                at[i] = o->staged ? staged_at(lane, o) : o->memory + c.first * o->width;
        }
}

static void enqueue_copy(const struct plan *p, struct lane *lane, void *dst, const void *src,
                         size_t n)
{
        lane->busy = true;
        gpu_must(p->gpu, "a copy was refused", gpu_plugin->copy(dst, src, n, lane->stream));
}

/* The lane's last chunk has been waited for: nothing uses that memory. */
static void carry_in_peers(const struct plan *p, struct lane *lane, struct chunk c)
{
        struct move moves[OPERANDS_MAX];
        uint32_t n = operands_moves(p->s->operands, p->s->n_operands, lane->peers, p->gpu, c.first,
                                    c.n, moves);
        bool done = collective_exchange(moves, n);

        gpu_must(p->gpu, "it cannot be used", gpu_use(p->gpu));
        for (uint32_t i = 0; !done && i < n; i++)
                lane_copy_peer(lane, &moves[i]);
}

/* Carries operands from memory to the lane: from a GPU on its stream, from the host at once. */
static void carry_in(const struct plan *p, struct lane *lane, struct chunk c)
{
        if (p->peers)
                carry_in_peers(p, lane, c);
        for (uint32_t i = 0; i < p->s->n_operands; i++) {
                const struct operand *o = &p->s->operands[i];
                const uint8_t *from = o->memory + c.first * o->width;
                size_t n = c.n * o->width;
                uint8_t *to;

                if (o->staged != STAGED_PINNED || !o->in)
                        continue;
                to = staged_at(lane, o);
                if (o->gpu == GPU_NONE)
                        memcpy(to, from, n);
                else
                        enqueue_copy(p, lane, to, from, n);
        }
}

static void carry_out(const struct plan *p, struct lane *lane, struct chunk c, bool of_gpus)
{
        for (uint32_t i = 0; i < p->s->n_operands; i++) {
                const struct operand *o = &p->s->operands[i];
                uint8_t *to = o->memory + c.first * o->width;
                const uint8_t *from;
                size_t n = c.n * o->width;

                if (!o->staged || !o->out || (o->gpu != GPU_NONE) != of_gpus)
                        continue;
                from = staged_at(lane, o);
                if (o->staged == STAGED_PEERS)
                        lane_copy_peer(lane,
                                       &(struct move){ to, from, n, (uint32_t)o->gpu, p->gpu });
                else if (of_gpus)
                        enqueue_copy(p, lane, to, from, n);
                else
                        memcpy(to, from, n);
        }
}

/*
 * The GPU's whole part of a chunk, or its first half.  The lane's last chunk may still be on its
 * way to a GPU: the stream keeps the order.
 */
static void chunk_begin(const struct plan *p, struct lane *lane, struct chunk c)
{
        void *at[OPERANDS_MAX];

        if (p->pinned)
                lane_pin(p->gpu, lane);
        if (p->peers)
                lane_peers(p->gpu, lane);
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
        p.on_gpu = several_gpus(s, gpu) || carried(s, false) <= carried(s, true);
        if (lay_out(&p))
                run_in_chunks(&p);
        else
                run_whole(&p);
}
