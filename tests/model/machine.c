/*
 * Reads the coordinator of a world from the world's bytes, and writes it back.
 *
 * There is one struct, which is loaded before each event.  The bytes leave out what no rule reads
 * within the bounds of a world: texts, process numbers, times, puts (all the same), and fields that
 * only jobs use that are created, moved or change their size.
 */
#include "machine.h"

#include <stdlib.h>
#include <string.h>

static struct coordinator machine;
static struct coordinator_actions actions;
static struct join joins[PROCS + 1]; /* the last: the one that comes */
static struct standing told[COPIES];
/* Votes have numbers in the bytes: those that lie there, or came with this event. */
static struct stand stands[HOLDERS], told_stands[HOLDERS];
static u8 vote_now;

/* ---- what is always the same ---- */

static const struct step_params plain = { .n_sets = 1,
                                          .sets = { { .value = { 1e-3, 0.9, 0.999, 1e-8, 0.01 } } },
                                          .clip_norm = 0.25,
                                          .growth_interval = 2 };

const struct step_params *machine_params(u8 scale)
{
        static struct step_params params;

        if (!params.n_sets)
                params = plain;
        params.loss_scale = scale_value(scale);
        return &params;
}

void machine_new(void)
{
        static const char *const names[NODES] = { "a", "b", "c" };
        const struct coordinator_job job = { .name = "job",
                                             .nodes = names,
                                             .n_nodes = bounds.n_nodes,
                                             .world_size = bounds.n_ranks,
                                             .loss_scale = 1 };

        coordinator_deinit(&machine);
        if (coordinator_init(&machine, &job, &placement))
                abort();
        machine.step.params = plain;
        for (uint32_t h = 0; h < placement_holders(&placement); h++)
                machine.standing_storage[h].params = plain;
        for (uint32_t c = 0; c < COPIES; c++)
                told[c].params = plain;
}

const char *machine_fault(void)
{
        return machine.fault.text;
}

/* ---- standings ---- */

/* The parameters, by far the largest part, change only in the loss scale. */
static void standing_fill(struct standing *ret, const struct stand *s)
{
        ret->version = s->version;
        ret->decided_attempt = s->decided_attempt;
        ret->decision = *decision_at(s->decision);
        ret->skipped = s->skipped;
        ret->done = s->done;
        ret->fresh = false;
        ret->prepared_attempt = s->prepared_attempt;
        if (!s->prepared_attempt)
                return;
        ret->vote = *vote_at(s->vote);
        ret->params.loss_scale = scale_value(s->scale);
}

struct told_state machine_told(uint32_t holder, const struct stand *s)
{
        uint32_t copy = holder_copy(&placement, holder);

        standing_fill(&told[copy], s);
        told_stands[holder] = *s;
        return (struct told_state){ .place = { placement.epoch, placement.n_owners,
                                               holder_owner(&placement, holder), copy },
                                    .attempt = s->attempt,
                                    .standing = &told[copy] };
}

static struct stand standing_pack(uint32_t holder)
{
        const struct standing *s = machine.standings[holder];
        struct stand ret = stands[holder];

        if (!s)
                return (struct stand){ 0 };
        ret.attempt = 1;
        ret.version = (u8)s->version;
        ret.decided_attempt = (u8)s->decided_attempt;
        ret.decision = s->decided_attempt ? decision_number(&s->decision) : 0;
        ret.skipped = (u8)s->skipped;
        ret.done = s->done;
        ret.prepared_attempt = (u8)s->prepared_attempt;
        if (!ret.prepared_attempt)
                ret.vote = ret.scale = 0;
        return ret;
}

/* ---- joins ---- */

static void join_fill(struct join *j, uint32_t node, u8 rank, u8 session, u8 admitted)
{
        j->node = node;
        j->rank = rank;
        j->world_size = bounds.n_ranks;
        j->incarnation = session_incarnation(session);
        j->session = session;
        j->resume = true;
        j->admitted = admitted;
}

struct join *machine_join(const struct world *w, uint32_t node, u8 rank, u8 session)
{
        if (w->c.n_joins == PROCS)
                violate("too many joins");
        join_fill(&joins[PROCS], node, rank, session, 0);
        return &joins[PROCS];
}

static void joins_load(const struct coordination *c)
{
        list_init(&machine.joins);
        for (uint32_t i = 0; i < c->n_joins; i++) {
                const struct waiting *j = &c->joins[i];

                join_fill(&joins[i], j->node, j->rank, j->session, j->admitted);
                list_insert(&machine.joins, &joins[i].link);
        }
}

static void joins_store(struct coordination *c)
{
        memset(c->joins, 0, sizeof c->joins);
        c->n_joins = 0;
        list_for_each (&machine.joins, item) {
                const struct join *j = (const struct join *)item;

                if (c->n_joins < PROCS)
                        c->joins[c->n_joins++] = (struct waiting){ (u8)j->node, (u8)j->rank,
                                                                   (u8)j->session, j->admitted };
        }
}

/* ---- the step ---- */

static void step_fill(struct step *s, const struct coordination *c)
{
        s->phase = c->phase;
        s->version = c->version;
        s->attempt = c->attempt;
        s->heard = c->heard;
        s->open = node_set_from_word(c->open);
        s->have_params = c->have_params;
        s->params_rank = c->params_rank;
        s->params.loss_scale = scale_value(c->params_scale);
        s->decision = *decision_at(c->decision);
        s->decided_attempt = c->decided_attempt;
        s->loss_scale = scale_value(c->scale);
        s->skipped = c->skipped;
        s->collecting_norm = c->norm & 1;
        s->norm_only = c->norm & 2;
        s->normed = c->norm & 4;
        for (uint32_t r = 0; r < bounds.n_ranks; r++) {
                s->node_of_rank[r] =
                        c->node_of_rank[r] == NOBODY ? (uint32_t)RANK_ABSENT : c->node_of_rank[r];
                s->rank_slots[r] = c->rank_slots[r];
        }
        for (uint32_t n = 0; n < bounds.n_nodes; n++) {
                s->cut[n] = node_set_from_word(c->cut[n]);
                s->ready[n] = c->ready >> n & 1;
        }
        for (uint32_t h = 0; h < placement_holders(&placement); h++) {
                s->done[h] = c->done >> h & 1;
                s->voted[h] = c->votes[h] != 0;
                if (s->voted[h])
                        s->ballots[h] = *vote_at(c->votes[h]);
        }
}

static void step_pack(struct coordination *c, const struct step *s)
{
        c->phase = (u8)s->phase;
        c->version = (u8)s->version;
        c->attempt = (u8)s->attempt;
        c->heard = (u8)s->heard;
        c->open = (u8)node_set_to_word(s->open);
        c->have_params = s->have_params;
        c->params_rank = (u8)s->params_rank;
        c->params_scale = scale_number(s->params.loss_scale);
        c->decision = s->decided_attempt ? decision_number(&s->decision) : 0;
        c->decided_attempt = (u8)s->decided_attempt;
        c->scale = scale_number(s->loss_scale);
        c->skipped = (u8)s->skipped;
        c->norm = (u8)(s->collecting_norm | s->norm_only << 1 | s->normed << 2);
        c->ready = c->done = 0;
        for (uint32_t r = 0; r < bounds.n_ranks; r++) {
                c->node_of_rank[r] =
                        s->node_of_rank[r] == RANK_ABSENT ? NOBODY : (u8)s->node_of_rank[r];
                c->rank_slots[r] = (u8)s->rank_slots[r];
        }
        for (uint32_t n = 0; n < bounds.n_nodes; n++) {
                c->cut[n] = (u8)node_set_to_word(s->cut[n]);
                c->ready |= (u8)(s->ready[n] << n);
        }
        for (uint32_t h = 0; h < placement_holders(&placement); h++) {
                c->done |= (u8)(s->done[h] << h);
                if (!s->voted[h])
                        c->votes[h] = 0;
                else if (!c->votes[h])
                        c->votes[h] = vote_now;
        }
}

/* ---- all of it ---- */

/* Of the rounds only one bit a node counts: whether the node was asked in the current round. */
static void load(const struct coordination *c)
{
        machine.dead = false;
        machine.settled = machine.whole = c->settled;
        machine.round = 1;
        machine.others_until_ms = machine.return_until_ms = 0;
        machine.missed = NODE_SET_NONE;
        machine.fault.status = machine.refused.status = machine.clash.status = ZERO_OK;
        step_fill(&machine.step, c);
        for (uint32_t n = 0; n < bounds.n_nodes; n++) {
                machine.nodes[n] = c->nodes[n];
                machine.lacks[n] = c->lacks >> n & 1;
                machine.rounds[n] = c->asked_now >> n & 1;
        }
        for (uint32_t h = 0; h < placement_holders(&placement); h++) {
                const struct stand *s = &c->standings[h];

                machine.filling[h] = c->filling >> h & 1;
                machine.standings[h] = s->attempt ? &machine.standing_storage[h] : NULL;
                if (s->attempt)
                        standing_fill(machine.standings[h], s);
        }
        for (uint32_t r = 0; r < bounds.n_ranks; r++)
                machine.sitters[r] =
                        (struct sitter){ .incarnation = session_incarnation(c->sessions[r]),
                                         .session = c->sessions[r] };
        joins_load(c);
}

static void store(struct coordination *c)
{
        c->settled = machine.settled;
        c->lacks = c->asked_now = c->filling = 0;
        step_pack(c, &machine.step);
        for (uint32_t n = 0; n < bounds.n_nodes; n++) {
                c->nodes[n] = (u8)machine.nodes[n];
                c->lacks |= (u8)(machine.lacks[n] << n);
                c->asked_now |= (u8)((machine.rounds[n] == machine.round) << n);
        }
        for (uint32_t h = 0; h < placement_holders(&placement); h++) {
                c->filling |= (u8)(machine.filling[h] << h);
                c->standings[h] = standing_pack(h);
        }
        for (uint32_t r = 0; r < bounds.n_ranks; r++)
                c->sessions[r] = (u8)machine.sitters[r].session;
        joins_store(c);
}

static u8 source_of(uint32_t holder)
{
        struct coordinator_sources sources;
        uint32_t h = 0;

        coordinator_sources(&machine, holder, &sources);
        while (!sources.readable[h])
                h++;
        return (u8)holder_node(sources.from, h);
}

uint32_t machine_step(struct world *w, const struct coordinator_event *e,
                      struct coordinator_action ret[MACHINE_ACTIONS])
{
        uint32_t n;

        load(&w->c);
        for (uint32_t h = 0; h < HOLDERS; h++) {
                stands[h] = told_stands[h].prepared_attempt ? told_stands[h] : w->c.standings[h];
                told_stands[h].prepared_attempt = 0;
        }
        vote_now = (u8)e->call;
        actions.n = 0;
        coordinator_step(&machine, e, &actions);
        store(&w->c);
        n = actions.n < MACHINE_ACTIONS ? actions.n : MACHINE_ACTIONS;
        if (n < actions.n)
                violate("the coordinator does %u things at once", actions.n);
        memcpy(ret, actions.items, n * sizeof *ret);
        for (uint32_t i = 0; i < n; i++)
                if (ret[i].kind == COORDINATOR_ANSWER)
                        ret[i].call = (uint64_t)machine.note.status;
                else if (ret[i].kind == COORDINATOR_FILL)
                        ret[i].call = source_of(ret[i].holder);
        return n;
}
