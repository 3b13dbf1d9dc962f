/*
 * Memory for the sums of node gradients, within a budget.
 *
 * Sums are in host memory.  If gradients lie on GPUs, and an owner of this node does, too, sums are
 * on these GPUs instead, so that they need no detour through the host: each owner's part is on the
 * owner's GPU (parts.h).  A piece of a GPU's memory is large enough for any group, so that any
 * piece fits.  Pieces are kept until the last local rank has left.
 *
 * The driver may need time, so another thread asks the GPU for a piece.  What needs the piece waits
 * as if for one that is given back.  If the GPU has no memory, requests fail until a piece is given
 * back.
 */
#include "daemon/reduce/node_gradient.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>

#include "daemon/base/log.h"
#include "daemon/core/blocking.h"
#include "daemon/reduce/buffer.h"
#include "proto/cleanup.h"

bool node_gradient_pushed_on_gpu(const struct node_gradient *p)
{
        for (uint32_t i = 0; i < p->n_sources; i++)
                if (contribution_on_gpu(p->sources[i]))
                        return true;
        return false;
}

bool node_gradient_stays_on_gpu(const struct node_gradient *p)
{
        for_replicas (p->job, h)
                if (h->state && state_on_gpu(h->state))
                        return node_gradient_pushed_on_gpu(p);
        return false;
}

static uint64_t group_bytes(const struct job *job, uint32_t group)
{
        return job->layout->groups[group].elements * dtype_size(job->reduce_dtype);
}

static uint64_t largest_bytes(const struct job *job)
{
        uint64_t largest = 0;

        for (uint32_t g = 0; g < job->layout->n_groups; g++)
                if (group_bytes(job, g) > largest)
                        largest = group_bytes(job, g);
        return largest;
}

/* One sum is always allowed, so that the oldest node gradient goes on. */
static bool budget_has(const struct job *job, uint64_t bytes)
{
        uint64_t used = job->reduce->buffer_bytes, budget = job->x->conf->reduce_buffers;

        return !used || used + bytes <= (budget ? budget : SUMS_KEPT * largest_bytes(job));
}

/* ---- on GPUs ---------------------------------------------------------------- */

/* [owner]; NULL: out of memory. */
static int *gpus_of_owners(const struct job *job)
{
        int *gpus = calloc(job->place.n_owners, sizeof *gpus);

        for (uint32_t o = 0; gpus && o < job->place.n_owners; o++) {
                const struct replica *h = replica_of_copy(job, o, 0);
                bool here = h && h->state && state_on_gpu(h->state);

                gpus[o] = here ? (int)h->state->id.place - 1 : PART_NO_GPU;
        }
        return gpus;
}

static uint64_t gpus_of_sources(const struct node_gradient *p)
{
        uint64_t set = 0;

        for (uint32_t i = 0; i < p->n_sources; i++)
                if (contribution_on_gpu(p->sources[i]))
                        set |= UINT64_C(1) << p->sources[i]->window->gpu_slots.gpu;
        return set;
}

/* Bytes of the largest piece that any group needs on that GPU; 0: out of memory. */
static uint64_t piece_bytes_most(const struct job *job, const struct parts_rule *rule, uint32_t gpu)
{
        uint64_t most = 0;

        for (uint32_t g = 0; g < job->layout->n_groups; g++) {
                uint32_t n = job->partition->slices[g];
                CLEANUP(cleanup_free) struct part *parts = calloc(n + 1, sizeof *parts);
                uint64_t bytes;

                if (!parts)
                        return 0;
                parts_plan(rule, g, parts);
                bytes = parts_bytes(parts, n, gpu, rule->size);
                most = bytes > most ? bytes : most;
        }
        return most;
}

static void piece_free(struct piece *piece)
{
        list_remove(&piece->link);
        gpu_free(piece->memory);
        free(piece);
}

/* Takes a kept piece; frees those that are too small. */
static struct piece *piece_kept(struct reduce *r, uint32_t gpu, uint64_t bytes)
{
        list_for_each (&r->kept, item) {
                struct piece *piece = CONTAINER_OF(item, struct piece, link);

                if (piece->gpu != gpu)
                        continue;
                if (piece->bytes >= bytes)
                        return piece;
                piece_free(piece);
        }
        return NULL;
}

/* Another thread allocates a piece. */
struct asking {
        struct blocking_work work;
        struct job *job;
        struct piece *piece;
        int status;
        struct fault fault;
};

static void asking_run(struct blocking_work *work)
{
        struct asking *a = CONTAINER_OF(work, struct asking, work);
        char what[ZERO_NAME_MAX + 40];

        snprintf(what, sizeof what, "sums of gradients of job %s", a->job->name);
        a->status = gpu_alloc(a->piece->gpu, a->piece->bytes, what, &a->piece->memory, &a->fault);
}

static void asking_done(struct blocking_work *work)
{
        struct asking *a = CONTAINER_OF(work, struct asking, work);
        struct job *job = a->job;
        struct reduce *r = job->reduce;
        uint64_t gpu = UINT64_C(1) << a->piece->gpu;

        r->asked &= ~gpu;
        if (a->status) {
                log_debug("job %s: summed in host memory: %s", job->name, a->fault.text);
                r->full |= gpu;
                free(a->piece);
        } else {
                list_insert(&r->kept, &a->piece->link);
        }
        free(a);
        reduce_feed(r);
        if (job->n_attached == 0 && !r->asked) /* otherwise nothing is complete yet */
                reduce_vacate(r);
        job_unref(job);
}

enum piece_found { PIECE_TAKEN, PIECE_ASKED, PIECE_NONE };

/* NONE: the GPU has no memory. */
static enum piece_found piece_ask(struct job *job, uint32_t gpu, uint64_t bytes)
{
        struct reduce *r = job->reduce;
        struct asking *a;

        if (!bytes || r->full >> gpu & 1)
                return PIECE_NONE;
        if (r->asked >> gpu & 1)
                return PIECE_ASKED;
        a = calloc(1, sizeof *a);
        if (a)
                a->piece = calloc(1, sizeof *a->piece);
        if (!a || !a->piece) {
                free(a);
                return PIECE_NONE;
        }
        list_init(&a->piece->link);
        a->piece->gpu = gpu;
        a->piece->bytes = bytes;
        a->job = job;
        job_ref(job);
        a->work.run = asking_run;
        a->work.done = asking_done;
        r->asked |= UINT64_C(1) << gpu;
        blocking_submit(job->x->loop, &a->work);
        return PIECE_ASKED;
}

static enum piece_found piece_take(struct node_gradient *p, const struct parts_rule *rule,
                                   uint32_t gpu)
{
        uint32_t n = p->job->partition->slices[p->group];
        struct piece *piece =
                piece_kept(p->job->reduce, gpu, parts_bytes(p->parts, n, gpu, rule->size));

        if (!piece)
                return piece_ask(p->job, gpu, piece_bytes_most(p->job, rule, gpu));
        list_remove(&piece->link);
        list_insert(&p->pieces, &piece->link);
        return PIECE_TAKEN;
}

/* keep: they are about to be taken again. */
static void pieces_give(struct node_gradient *p, bool keep)
{
        struct reduce *r = p->job->reduce;

        while (!list_empty(&p->pieces)) {
                struct piece *piece = CONTAINER_OF(p->pieces.next, struct piece, link);
                uint32_t n = 0;

                list_for_each (&r->kept, item) {
                        n += CONTAINER_OF(item, struct piece, link)->gpu == piece->gpu;
                }
                if (keep || (p->job->n_attached && n < SUMS_KEPT)) {
                        list_remove(&piece->link);
                        list_insert(&r->kept, &piece->link);
                } else {
                        piece_free(piece);
                }
        }
        free(STEAL(p->parts));
}

/* Takes all pieces, or none; returns the worst result. */
static enum piece_found pieces_take(struct node_gradient *p)
{
        const struct job *job = p->job;
        uint32_t n = job->partition->slices[p->group];
        CLEANUP(cleanup_free) int *owners = gpus_of_owners(job);
        struct parts_rule rule = { .partition = job->partition,
                                   .gpu_of_owner = owners,
                                   .sources = gpus_of_sources(p),
                                   .size = dtype_size(job->reduce_dtype) };
        enum piece_found found = PIECE_TAKEN;

        p->parts = calloc(n + 1, sizeof *p->parts);
        if (!owners || !p->parts) {
                pieces_give(p, false);
                return PIECE_NONE;
        }
        parts_plan(&rule, p->group, p->parts);
        for (uint64_t left = parts_gpus(p->parts, n); left; left &= left - 1) {
                enum piece_found f = piece_take(p, &rule, (uint32_t)__builtin_ctzll(left));

                found = f > found ? f : found;
        }
        if (found != PIECE_TAKEN)
                pieces_give(p, found == PIECE_ASKED);
        return found;
}

void *sum_at(const struct node_gradient *p, const struct part *part, uint64_t element)
{
        size_t size = dtype_size(p->job->reduce_dtype);

        list_for_each ((struct list *)&p->pieces, item) {
                struct piece *piece = CONTAINER_OF(item, struct piece, link);

                if (piece->gpu == part->gpu)
                        return (char *)piece->memory + part->at +
                               (element - part->range.first) * size;
        }
        assert(!"a part has its piece");
        return NULL;
}

/* ---- of a node gradient --------------------------------------------------------------- */

static bool sum_charge(struct node_gradient *p, uint64_t bytes)
{
        p->sum_bytes = bytes;
        p->job->reduce->buffer_bytes += bytes;
        return true;
}

bool sum_take(struct node_gradient *p)
{
        struct job *job = p->job;
        uint64_t bytes = largest_bytes(job);
        enum piece_found found;

        if (node_gradient_stays_on_gpu(p)) {
                if (!budget_has(job, bytes))
                        return false;
                found = pieces_take(p);
                p->on_gpu = found == PIECE_TAKEN;
                if (p->on_gpu)
                        return sum_charge(p, bytes);
                if (found == PIECE_ASKED || job->reduce->buffer_bytes) /* memory will become free */
                        return false;
        }
        bytes = group_bytes(job, p->group);
        if (!budget_has(job, bytes))
                return false;
        p->data = p->buffer = buffer_new(bytes);
        return p->buffer && sum_charge(p, bytes);
}

void sum_give(struct node_gradient *p)
{
        p->job->reduce->buffer_bytes -= p->sum_bytes;
        p->sum_bytes = 0;
        p->job->reduce->full = 0; /* the GPU may be asked again */
        buffer_free(STEAL(p->buffer));
        pieces_give(p, false);
}

void reduce_vacate(struct reduce *r)
{
        buffers_vacate();
        list_for_each (&r->kept, item) {
                piece_free(CONTAINER_OF(item, struct piece, link));
        }
}
