/*
 * Offers that an owner takes.
 *
 * The owner pulls an offer into a receive buffer ahead of its turn while the budget lasts.  It can
 * always pull the offer whose turn it is, so a full budget cannot stop the order.
 *
 * Offers come in parts of at most engine.part_bytes, a few at a time: one is sent while transfer
 * stages the next at its node, and the one before on this node.  What is staged takes less memory
 * than the receive buffers of the offers.  An offer with an announced payload has one part, and
 * needs no request.
 *
 * Offers of the next attempt wait if they come before this owner has heard of the decision, or
 * while the update still reads the group's old gradient.
 *
 * Invariant: an offer is OFFER_PULLING exactly while parts of it are in flight.  Parts that have
 * come stay when another part is refused, because a node sends nothing twice.  They go when the
 * link does: no offer is put together from two links.
 */
#include "daemon/step/reduce/accumulator.h"
#include "daemon/step/reduce/node_gradient.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/floor/base/crash.h"
#include "proto/cleanup.h"

enum { PARTS_IN_FLIGHT = 4 };
enum part_phase { PART_WAITING, PART_ASKED, PART_LANDED };

struct offer_part {
        struct ask ask;
        struct offer *offer;
        enum part_phase phase;
        struct range range;
        void *place; /* in the offer's buffer */
        size_t bytes;
};

/* ---- receive buffers ---- */

static uint64_t offer_bytes(const struct replica *h, uint32_t group)
{
        return accumulator_bytes(h, accumulator_range(h, group).count);
}

static uint64_t largest_bytes(const struct replica *h)
{
        uint64_t largest = 0;

        for (uint32_t g = 0; g < h->job->layout->n_groups; g++)
                if (offer_bytes(h, g) > largest)
                        largest = offer_bytes(h, g);
        return largest;
}

/*
 * The buffer lies where the owner's sum does, if there is free memory: what comes is added without
 * a detour.  The offer whose turn it is gets a buffer even beyond the budget: in host memory,
 * unless it is the only one.
 */
static bool offer_take_buffer(struct offer *o, bool its_turn)
{
        struct replica *h = o->replica;
        struct pool *pool = &h->accumulator->pool;
        uint64_t bytes = offer_bytes(h, o->group), largest = largest_bytes(h);
        uint64_t budget = BLOCKS_KEPT * largest * h->job->x->cluster->n_nodes;
        bool only = its_turn && pool->used == 0;

        if (!place_is_host(h->state->id.place) && (only || pool_affords(pool, largest, budget)))
                pool_take(pool, h->state->id.place, largest, largest, &o->buffer);
        if (!o->buffer && (its_turn || pool_affords(pool, bytes, budget)))
                o->buffer = pool_block_new(bytes);
        if (o->buffer)
                pool->used += o->buffer->bytes;
        return o->buffer;
}

static void offer_give_buffer(struct offer *o)
{
        struct pool *pool = &o->replica->accumulator->pool;
        struct pool_block *buffer = STEAL(o->buffer);

        if (!buffer)
                return;
        pool_discharge(pool, buffer->bytes);
        pool_give(pool, buffer);
}

/* ---- parts ---- */

static void offer_forget_parts(struct offer *o)
{
        offer_give_buffer(o);
        free(STEAL(o->parts));
        o->landed = 0;
}

/* None of its parts is in flight any more. */
static void offer_pulled(struct offer *o)
{
        o->phase = OFFER_WAITING;
        if (o->landed < o->n_parts) {
                /* memory was lacking here or there, unless the job says what follows */
                o->replica->job->reduce->lacking = true;
                if (o->landed == 0 || o->cut)
                        offer_forget_parts(o);
                return;
        }
        o->phase = OFFER_LANDED;
        crash_point(CRASH_ACCUMULATOR_LANDED);
        accumulator_advance(o->replica, o->group);
}

static void offer_ask(struct offer *o);

static void part_end(struct offer_part *part, bool ok)
{
        struct offer *o = part->offer;

        part->phase = ok ? PART_LANDED : PART_WAITING;
        o->in_flight--;
        o->landed += ok;
        o->failed = o->failed || !ok;
        if (ok)
                crash_point(CRASH_ACCUMULATOR_PART);
        if (!o->void_)
                offer_ask(o);
        if (o->in_flight)
                return;
        if (o->void_)
                offer_free(o);
        else
                offer_pulled(o);
}

static void part_landed(struct ask *ask, int status)
{
        struct offer_part *part = CONTAINER_OF(ask, struct offer_part, ask);

        part->offer->cut = part->offer->cut || (status && !ask->status);
        part_end(part, status == 0);
}

static int part_send(struct offer_part *part)
{
        const struct offer *o = part->offer;
        const struct replica *h = o->replica;
        Zero__Pull pull = ZERO__PULL__INIT;

        pull.kind = h->copy ? ZERO__PULL__KIND__SUM : ZERO__PULL__KIND__GRAD;
        pull.group = o->group;
        pull.owner = h->owner;
        pull.attempt = o->attempt;
        pull.micro_batch = o->micro_batch;
        pull.first = part->range.first;
        pull.count = part->range.count;
        part->ask.done = part_landed;
        if (o->announced) {
                int r = ask_announced(&part->ask, h->job, o->node, TRAFFIC_REDUCE, o->announced,
                                      part->place, part->bytes);

                part->ask.group = o->group;
                part->offer->announced = r ? o->announced : 0;
                return r;
        }
        return ask_send(&part->ask, h->job, o->node, TRAFFIC_REDUCE, &pull, part->place,
                        part->bytes);
}

static bool part_ask(struct offer_part *part)
{
        if (part_send(part))
                return false;
        part->phase = PART_ASKED;
        return true;
}

/* Asks for as many parts as may be in flight. */
static void offer_ask(struct offer *o)
{
        while (!o->failed && o->next_part < o->n_parts && o->in_flight < PARTS_IN_FLIGHT) {
                struct offer_part *part = &o->parts[o->next_part];

                if (part->phase == PART_WAITING) {
                        o->failed = !part_ask(part);
                        o->in_flight += !o->failed;
                }
                o->next_part++;
        }
}

static void offer_cut(struct offer *o)
{
        const struct replica *h = o->replica;
        struct range all = accumulator_range(h, o->group);

        for (uint32_t i = 0; i < o->n_parts; i++) {
                struct range range = range_part(all, i, o->n_parts);

                o->parts[i] =
                        (struct offer_part){ .offer = o,
                                             .range = range,
                                             .place = (char *)o->buffer->memory +
                                                      accumulator_bytes(h, range.first - all.first),
                                             .bytes = accumulator_bytes(h, range.count) };
        }
}

/* Gets memory for all parts, unless the offer has some; false: not now. */
static bool offer_reserve(struct offer *o, bool its_turn)
{
        struct replica *h = o->replica;
        uint64_t most = h->job->x->part_bytes / accumulator_bytes(h, 1);

        if (o->parts)
                return true;
        o->n_parts = o->announced ? 1 : range_parts(accumulator_range(h, o->group).count, most);
        o->parts = calloc(o->n_parts, sizeof *o->parts);
        if (!o->parts || !offer_take_buffer(o, its_turn)) {
                free(STEAL(o->parts));
                h->job->reduce->lacking = h->job->reduce->lacking || its_turn;
                return false;
        }
        offer_cut(o);
        return true;
}

void offer_pull(struct offer *o, bool its_turn)
{
        if (o->phase != OFFER_WAITING || o->empty || o->node_gradient ||
            !offer_reserve(o, its_turn))
                return;
        o->phase = OFFER_PULLING;
        o->next_part = 0;
        o->failed = o->cut = false;
        offer_ask(o);
        if (o->in_flight == 0)
                offer_pulled(o);
}

void offer_void(struct offer *o)
{
        if (o->phase != OFFER_PULLING) {
                offer_free(o);
                return;
        }
        o->void_ = true;
        list_remove(&o->link);
        for (uint32_t i = 0; i < o->n_parts; i++)
                if (o->parts[i].phase == PART_ASKED)
                        ask_forget(&o->parts[i].ask);
}

/* ---- offers ---- */

void offer_free(struct offer *o)
{
        assert(o->in_flight == 0);
        if (o->announced)
                fabric_forget(o->replica->job->x->fabric, o->node, o->announced);
        offer_give_buffer(o);
        list_remove(&o->link);
        free(o->parts);
        free(o->present);
        job_unref(o->replica->job);
        free(o);
}

void offer_drop(struct engine *x, uint32_t node, const Zero__Offer *m)
{
        if (m->transfer & BULK_ANNOUNCED)
                fabric_forget(x->fabric, node, m->transfer);
}

/* Whether the rules allow the offer in its attempt, which is the current one. */
static bool offer_allowed(const struct offer *o, size_t present_bytes)
{
        const struct replica *h = o->replica;

        return accumulator_has(h, o->group) &&
               (o->empty ||
                (present_bytes == (h->job->layout->groups[o->group].n_tensors + 7) / 8 &&
                 accumulator_range(h, o->group).count)) &&
               o->micro_batch >= h->accumulator->groups[o->group].nodes[o->node].offered &&
               o->micro_batch < MICRO_BATCHES_MAX;
}

/* False for an offer after one that a link has lost, and for an offer of a node that does not know
 * yet where its ranks are now. */
static bool offer_counts(const struct offer *o)
{
        return accumulator_expects(o->replica, o->group, o->node) &&
               o->micro_batch == o->replica->accumulator->groups[o->group].nodes[o->node].offered;
}

static int offer_queue(struct offer *o)
{
        struct accumulator_group *lg = &o->replica->accumulator->groups[o->group];

        if (!offer_allowed(o, o->present_bytes)) {
                offer_free(o);
                return -EPROTO;
        }
        if (!offer_counts(o)) {
                offer_free(o);
                return 0;
        }
        lg->nodes[o->node].offered++;
        o->replica->accumulator->moved_ms = engine_now(o->replica->job->x);
        list_insert(&lg->nodes[o->node].queue, &o->link);
        offer_pull(o, false);
        return 0;
}

static struct offer *offer_new(struct replica *h, uint32_t node, const Zero__Offer *m,
                               struct node_gradient *node_gradient)
{
        struct offer *o = calloc(1, sizeof *o);

        if (!o)
                return NULL;
        o->present = malloc(m->present.len + 1);
        if (!o->present) {
                free(o);
                return NULL;
        }
        if (m->present.len)
                memcpy(o->present, m->present.data, m->present.len);
        o->present_bytes = m->present.len;
        list_init(&o->link);
        list_init(&o->with);
        o->replica = h;
        job_ref(h->job);
        o->node = node;
        o->group = m->group;
        o->micro_batch = m->micro_batch;
        o->attempt = m->attempt;
        o->announced = m->transfer;
        o->last = m->last;
        o->empty = m->empty;
        o->node_gradient = node_gradient;
        return o;
}

/* So high that no node is cut for being ahead, as far as the rules allow. */
static uint64_t early_max(const struct job *job)
{
        return (uint64_t)job->x->cluster->n_nodes * (MICRO_BATCHES_MAX + job->layout->n_groups);
}

static enum owner_offer offer_stands(const struct job *job, uint64_t attempt)
{
        return owner_offer(job->attempt, job->started, attempt);
}

/* Whether the offer's owner belongs on this node.  If it is not here, it was lost and is being
 * filled. */
static bool is_holder(const struct job *job, const Zero__Offer *m)
{
        const struct placement *placement = &job->placement;

        return m->owner < placement->n_owners && m->copy < placement->copies &&
               holder_node(placement, holder_of(placement, m->owner, m->copy)) ==
                       job->x->cluster->self;
}

int accumulator_offer(struct job *job, uint32_t node, const Zero__Offer *m,
                      struct node_gradient *node_gradient)
{
        struct replica *h = replica_of_copy(job, m->owner, m->copy);
        struct accumulator *l = h ? h->accumulator : NULL;
        enum owner_offer stands;
        struct offer *o;
        int r;

        if (m->group >= job->layout->n_groups || !is_holder(job, m) ||
            (m->transfer && !(m->transfer & BULK_ANNOUNCED)))
                return -EPROTO;
        stands = offer_stands(job, m->attempt);
        if (!h || stands == OWNER_OFFER_OVER) {
                offer_drop(job->x, node, m);
                return 0;
        }
        if (stands == OWNER_OFFER_EARLY && l->n_early >= early_max(job))
                return -EPROTO;
        o = offer_new(h, node, m, node_gradient);
        if (!o) {
                offer_drop(job->x, node, m);
                return -ENOMEM;
        }
        if (stands == OWNER_OFFER_EARLY) {
                list_insert(&l->early, &o->link);
                l->n_early++;
                return 0;
        }
        r = offer_queue(o);
        if (r == 0)
                accumulator_advance(h, m->group);
        return r;
}

void accumulator_take_early(struct replica *h)
{
        const struct job *job = h->job;
        struct accumulator *l = h->accumulator;

        list_for_each (&l->early, item) {
                struct offer *o = CONTAINER_OF(item, struct offer, link);
                enum owner_offer stands = offer_stands(job, o->attempt);
                uint32_t node = o->node;

                if (!job->dead && stands == OWNER_OFFER_EARLY)
                        continue;
                list_remove(&o->link);
                l->n_early--;
                if (job->dead || stands == OWNER_OFFER_OVER)
                        offer_free(o);
                else if (offer_queue(o))
                        fabric_cut(job->x->fabric, node,
                                   "its offer of a gradient does not fit the job's layout, owners "
                                   "or order of micro-batches");
        }
}

/* A lost link voids the attempts.  A node that has lost its state may begin others of the same
 * numbers. */
static void accumulator_forget_node(struct replica *h, uint32_t node)
{
        struct accumulator *l = h->accumulator;

        list_for_each (&l->early, item) {
                struct offer *o = CONTAINER_OF(item, struct offer, link);

                if (o->node != node)
                        continue;
                list_remove(&o->link);
                l->n_early--;
                offer_free(o);
        }
        /* announcements end with their link, and a new process numbers from the start */
        for (uint32_t g = 0; g < l->n_groups; g++)
                list_for_each (&l->groups[g].nodes[node].queue, item) {
                        CONTAINER_OF(item, struct offer, link)->announced = 0;
                }
}

void accumulators_node_down(struct engine *x, uint32_t node, const char *why)
{
        list_for_each (&x->jobs, item) {
                for_replicas (CONTAINER_OF(item, struct job, link), h)
                        accumulator_forget_node(h, node);
        }
}
