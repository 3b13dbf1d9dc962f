/*
 * Memory for the sums of node gradients, within a budget.
 *
 * Sums are in host memory.  If both gradients and an owner of this node lie in other places, the
 * sums lie there, too, and need no detour through the host: each owner's part is in the owner's
 * place (parts.h).  A piece of such memory is large enough for any group, so that any piece fits.
 * Pieces are kept until the last local rank has left.
 *
 * It may take time to allocate a piece, so another thread does that.  The node gradient that needs
 * the piece waits, as it does while all pieces are in use.  If a place has no memory, requests fail
 * until a piece is given back.
 */
#include "daemon/step/reduce/node_gradient.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>

#include "daemon/floor/base/log.h"
#include "daemon/step/reduce/buffer.h"
#include "proto/cleanup.h"

/* Bits of the places away from the host that hold its sources. */
static uint64_t places_of_sources(const struct node_gradient *p)
{
        uint64_t set = 0;

        for (uint32_t i = 0; i < p->n_sources; i++) {
                uint32_t place = place_of(p->sources[i]->data);

                set |= place_is_host(place) ? 0 : UINT64_C(1) << place;
        }
        return set;
}

bool node_gradient_is_away(const struct node_gradient *p)
{
        return places_of_sources(p);
}

bool node_gradient_stays_away(const struct node_gradient *p)
{
        for_replicas (p->job, h)
                if (h->state && !state_in_file(h->state))
                        return node_gradient_is_away(p);
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

/* ---- away from the host ------------------------------------------------------ */

/* [owner]: as in parts_rule; NULL: out of memory. */
static uint32_t *places_of_owners(const struct job *job)
{
        uint32_t *places = calloc(job->placement.n_owners, sizeof *places);

        for (uint32_t o = 0; places && o < job->placement.n_owners; o++) {
                const struct replica *h = replica_of_copy(job, o, 0);

                places[o] = h && h->state ? h->state->id.place : 0;
        }
        return places;
}

/* Bytes of the largest piece that any group needs in that place; 0: out of memory. */
static uint64_t piece_bytes_most(const struct job *job, const struct parts_rule *rule,
                                 uint32_t place)
{
        uint64_t most = 0;

        for (uint32_t g = 0; g < job->layout->n_groups; g++) {
                uint32_t n = job->partition->slices[g];
                CLEANUP(cleanup_free) struct part *parts = calloc(n + 1, sizeof *parts);
                uint64_t bytes;

                if (!parts)
                        return 0;
                parts_plan(rule, g, parts);
                bytes = parts_bytes(parts, n, place, rule->size);
                most = bytes > most ? bytes : most;
        }
        return most;
}

static void piece_free(struct piece *piece)
{
        list_remove(&piece->link);
        place_free(piece->memory);
        free(piece);
}

/* Takes a kept piece; frees those that are too small. */
static struct piece *piece_kept(struct reduce *r, uint32_t place, uint64_t bytes)
{
        list_for_each (&r->kept, item) {
                struct piece *piece = CONTAINER_OF(item, struct piece, link);

                if (piece->place != place)
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
        a->status =
                place_alloc(a->piece->place, a->piece->bytes, what, &a->piece->memory, &a->fault);
}

static void asking_done(struct blocking_work *work)
{
        struct asking *a = CONTAINER_OF(work, struct asking, work);
        struct job *job = a->job;
        struct reduce *r = job->reduce;
        uint64_t place = UINT64_C(1) << a->piece->place;

        r->asked &= ~place;
        if (a->status) {
                log_debug("job %s: gradients are summed in host memory: %s", job->name,
                          a->fault.text);
                r->full |= place;
                free(a->piece);
        } else {
                list_insert(&r->kept, &a->piece->link);
        }
        free(a);
        reduce_feed(r);
        if (job->n_attached == 0 && !r->asked) /* the last rank left meanwhile */
                reduce_vacate(r);
        job_unref(job);
}

enum piece_found { PIECE_TAKEN, PIECE_ASKED, PIECE_NONE };

/* PIECE_NONE: the place has no memory. */
static enum piece_found piece_ask(struct job *job, uint32_t place, uint64_t bytes)
{
        struct reduce *r = job->reduce;
        struct asking *a;

        if (!bytes || r->full >> place & 1)
                return PIECE_NONE;
        if (r->asked >> place & 1)
                return PIECE_ASKED;
        a = calloc(1, sizeof *a);
        if (a)
                a->piece = calloc(1, sizeof *a->piece);
        if (!a || !a->piece) {
                free(a);
                return PIECE_NONE;
        }
        list_init(&a->piece->link);
        a->piece->place = place;
        a->piece->bytes = bytes;
        a->job = job;
        job_ref(job);
        a->work = (struct blocking_work){ .run = asking_run,
                                          .done = asking_done,
                                          .what = "to take memory for gradients of job",
                                          .of = a->job->name,
                                          .uid = a->job->uid };
        r->asked |= UINT64_C(1) << place;
        blocking_submit(job->x->blocking, LANE_DRIVERS, &a->work);
        return PIECE_ASKED;
}

static enum piece_found piece_take(struct node_gradient *p, const struct parts_rule *rule,
                                   uint32_t place)
{
        uint32_t n = p->job->partition->slices[p->group];
        struct piece *piece =
                piece_kept(p->job->reduce, place, parts_bytes(p->parts, n, place, rule->size));

        if (!piece)
                return piece_ask(p->job, place, piece_bytes_most(p->job, rule, place));
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
                        n += CONTAINER_OF(item, struct piece, link)->place == piece->place;
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
        CLEANUP(cleanup_free) uint32_t *owners = places_of_owners(job);
        struct parts_rule rule = { .partition = job->partition,
                                   .place_of_owner = owners,
                                   .sources = places_of_sources(p),
                                   .size = dtype_size(job->reduce_dtype) };
        enum piece_found found = PIECE_TAKEN;

        p->parts = calloc(n + 1, sizeof *p->parts);
        if (!owners || !p->parts) {
                pieces_give(p, false);
                return PIECE_NONE;
        }
        parts_plan(&rule, p->group, p->parts);
        for (uint64_t left = parts_places(p->parts, n); left; left &= left - 1) {
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

                if (piece->place == part->place)
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

        if (node_gradient_stays_away(p)) {
                if (!budget_has(job, bytes))
                        return false;
                found = pieces_take(p);
                if (found == PIECE_TAKEN)
                        return sum_charge(p, bytes);
                if (found == PIECE_ASKED || job->reduce->buffer_bytes) /* memory will become free */
                        return false;
        }
        bytes = group_bytes(job, p->group);
        if (!budget_has(job, bytes))
                return false;
        p->data = p->buffer = buffer_new(bytes);
        job->reduce->lacking = job->reduce->lacking || !p->buffer;
        return p->buffer && sum_charge(p, bytes);
}

void sum_give(struct node_gradient *p)
{
        p->job->reduce->buffer_bytes -= p->sum_bytes;
        p->sum_bytes = 0;
        p->job->reduce->full = 0; /* each place may be asked again */
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
