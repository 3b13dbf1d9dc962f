/*
 * Reduces gradients: adds them up and takes their norm in the same pass over memory.
 *
 * All pieces on one GPU are enqueued together and waited for once.  A piece whose operands lie in
 * different places is first added up element by element (staging.c); its norm is taken where its
 * accumulator lies.
 */
#include "daemon/compute/device/gpu/core.h"

#include <assert.h>
#include <stddef.h>
#include <string.h>

#include "daemon/compute/device/host.h"

_Static_assert((int)ZERO_CUDA_NORM_BLOCK == (int)NORM_BLOCK, "GPU and host add up the same blocks");
_Static_assert(sizeof(struct zero_cuda_norm) <= LANE_SCRATCH, "a lane has room for a norm");

static const char refused[] = "a reduction was refused";

/* What all pieces share, and the GPU on which pieces are enqueued. */
struct reduction {
        enum zero_dtype wire, from;
        double scale;
        struct exact_sum *norm; /* NULL: not wanted */
        bool *finite;
        int gpu; /* GPU_NONE: nothing is enqueued */
        struct reduce_piece pieces[ZERO_CUDA_PIECES];
        size_t n_pieces; /* not enqueued yet */
};

/* ---- on one GPU ------------------------------------------------------------------- */

static void enqueue(struct reduction *r, struct lane *lane)
{
        const struct zero_cuda_reduce reduce = { .pieces = r->pieces,
                                                 .n_pieces = r->n_pieces,
                                                 .wire = r->wire,
                                                 .from = r->from,
                                                 .scale = r->scale,
                                                 .norm = r->norm ? lane->scratch : NULL };

        r->n_pieces = 0;
        lane->busy = true; /* a staged piece may have waited in between */
        gpu_must((uint32_t)r->gpu, refused, gpu_plugin->reduce(&reduce, lane->stream));
}

/* Waits for the enqueued pieces, and adds their norm to the total. */
static void reduction_end(struct reduction *r)
{
        uint32_t gpu = (uint32_t)r->gpu;
        struct exact_sum sum = { .pending = 0 };
        struct zero_cuda_norm part;
        struct lane *lane;

        if (r->gpu == GPU_NONE)
                return;
        lane = lanes_of(gpu);
        enqueue(r, lane);
        r->gpu = GPU_NONE;
        if (r->norm) {
                lane_pin(gpu, lane);
                gpu_must(gpu, refused,
                         gpu_plugin->copy(lane->pinned, lane->scratch, sizeof part, lane->stream));
        }
        lane_wait(gpu, lane);
        if (!r->norm)
                return;
        memcpy(&part, lane->pinned, sizeof part);
        memcpy(sum.bin, part.bin, sizeof sum.bin);
        exact_sum_merge(r->norm, &sum);
        if (part.nonfinite)
                *r->finite = false;
}

static void reduction_begin(struct reduction *r, int gpu)
{
        struct lane *lane;

        reduction_end(r);
        r->gpu = gpu;
        if (!r->norm)
                return;
        lane = lanes_of((uint32_t)gpu);
        lane_scratch((uint32_t)gpu, lane);
        lane->busy = true;
        gpu_must((uint32_t)gpu, refused,
                 gpu_plugin->zero(lane->scratch, sizeof(struct zero_cuda_norm), lane->stream));
}

static void reduction_add(struct reduction *r, int gpu, const struct reduce_piece *p)
{
        /* a GPU holds less than that: half a terabyte */
        assert(p->n <= ZERO_CUDA_NORM_MAX);
        if (r->gpu != gpu)
                reduction_begin(r, gpu);
        if (r->n_pieces == ZERO_CUDA_PIECES)
                enqueue(r, lanes_of((uint32_t)gpu));
        r->pieces[r->n_pieces++] = *p;
}

/* ---- operands in different places ---------------------------------------------- */

static int add_device(const struct staged *s, void *const *at, size_t n, void *stream)
{
        const struct reduce_piece p = { at[0], n, s->n_operands - 1, (const void *const *)at + 1,
                                        s->first };
        const struct zero_cuda_reduce reduce = {
                .pieces = &p, .n_pieces = 1, .wire = s->to, .from = s->from
        };

        return gpu_plugin->reduce(&reduce, stream);
}

static void add_host(const struct staged *s, void *const *at, size_t n)
{
        const struct reduce_piece p = { at[0], n, s->n_operands - 1, (const void *const *)at + 1,
                                        s->first };

        gpu_host->reduce(&p, 1, s->to, s->from, 0, NULL, NULL);
}

static void add_staged(const struct reduce_piece *p, enum zero_dtype wire, enum zero_dtype from)
{
        struct staged s;

        s.n_operands = 0;
        s.n = p->n;
        s.device = add_device;
        s.host = add_host;
        s.to = wire;
        s.from = from;
        s.first = p->first;
        staged_add(&s, p->acc, sizeof(float), !p->first, true);
        for (size_t i = 0; i < p->k; i++)
                staged_add(&s, p->src[i], (uint32_t)dtype_bytes(from, 1), true, false);
        staged_run(&s);
}

void gpu_accumulate(float *acc, enum zero_dtype from, const void *src, size_t n, bool first)
{
        add_staged(&(struct reduce_piece){ acc, n, 1, &src, first }, ZERO_FP32, from);
}

/* More sources than the plugin takes at once: the same order, and one rounding. */
static void add_many(const struct reduce_piece *p, enum zero_dtype wire, enum zero_dtype from)
{
        float sum[SUM_PART];
        uint16_t half[SUM_PART];

        for (size_t first = 0, n; first < p->n; first += n) {
                n = p->n - first < SUM_PART ? p->n - first : SUM_PART;
                for (size_t i = 0; i < p->k; i++)
                        gpu_accumulate(sum, from,
                                       (const char *)p->src[i] + dtype_bytes(from, first), n,
                                       i == 0);
                if (wire != ZERO_FP32)
                        gpu_host->cast(wire, half, ZERO_FP32, sum, n);
                gpu_accumulate(p->acc + first, wire, wire == ZERO_FP32 ? (void *)sum : half, n,
                               p->first);
        }
}

/* ---- pieces ------------------------------------------------------------------------ */

/* True if one GPU has all of the piece and can compute it at once. */
static bool together(const struct reduce_piece *p, int gpu)
{
        if (gpu != GPU_NONE && p->k > ZERO_CUDA_SUM_MAX)
                return false;
        for (size_t i = 0; i < p->k; i++)
                if (gpu_of(p->src[i]) != gpu)
                        return false;
        return true;
}

static void reduce_one(struct reduction *r, struct reduce_piece p)
{
        int gpu = gpu_of(p.acc ? p.acc : p.src[0]);

        if (p.n == 0)
                return;
        if (!together(&p, gpu)) {
                (p.k > ZERO_CUDA_SUM_MAX ? add_many : add_staged)(&p, r->wire, r->from);
                p.k = 0;
        }
        if (gpu == GPU_NONE)
                gpu_host->reduce(&p, 1, r->wire, r->from, r->scale, r->norm, r->finite);
        else
                reduction_add(r, gpu, &p);
}

void gpu_reduce(const struct reduce_piece *pieces, size_t n_pieces, enum zero_dtype wire,
                enum zero_dtype from, double scale, struct exact_sum *norm, bool *finite)
{
        struct reduction r = { wire, from, scale, norm, finite, GPU_NONE, .n_pieces = 0 };

        for (size_t i = 0; i < n_pieces; i++)
                reduce_one(&r, pieces[i]);
        reduction_end(&r);
}

void gpu_norm(const float *x, size_t n, double scale, struct exact_sum *acc, bool *finite)
{
        gpu_reduce(&(struct reduce_piece){ .acc = (float *)x, .n = n }, 1, ZERO_FP32, ZERO_FP32,
                   scale, acc, finite);
}
