/*
 * Pulls offers in parts of at most engine.part_bytes, a few at a time: one is sent while transfer
 * stages the next at its node, and the one before on this node.  What is staged takes less memory
 * than the receive buffers of the offers.
 *
 * An offer with an announced payload has one part, and needs no request.
 *
 * Invariant: an offer is OFFER_PULLING exactly while parts of it are in flight.  Parts that have
 * come stay when another part is refused, because a node sends nothing twice.  They go when the
 * link does: no offer is put together from two links.
 */
#include "daemon/step/reduce/accumulator.h"
#include "daemon/step/reduce/node_gradient.h"

#include <stdlib.h>

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
        struct range all = accumulator_range(o->replica, o->group);
        size_t size = dtype_size(accumulator_dtype(o->replica));

        for (uint32_t i = 0; i < o->n_parts; i++) {
                struct range range = range_part(all, i, o->n_parts);

                o->parts[i] = (struct offer_part){ .offer = o,
                                                   .range = range,
                                                   .place = (char *)o->buffer->memory +
                                                            (range.first - all.first) * size,
                                                   .bytes = range.count * size };
        }
}

/* Gets memory for all parts, unless the offer has some; false: not now. */
static bool offer_reserve(struct offer *o, bool its_turn)
{
        struct replica *h = o->replica;
        uint64_t most = h->job->x->part_bytes / dtype_size(accumulator_dtype(h));

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
