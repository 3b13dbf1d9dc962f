/*
 * Reads the job's coordinator from the bytes of a world, and writes it back; see moves.h.
 *
 * One struct for each list of owners is loaded before each event.  The bytes leave out what no rule
 * reads within the bounds of a world: texts, times (except whether the job waits for others), puts
 * (all the same).  Parameters, by far the largest part of standings, never change and are written
 * once; otherwise the explorer would spend most of its time on them.
 */
#include <stdlib.h>
#include <string.h>

#include "moves.h"

const struct step_params step_params = { .n_sets = 1, .loss_scale = 1 };

static struct coordinator machines[PLACEMENTS], *machine;
static struct coordinator_actions actions;

/* ---- what every attempt comes to: votes are the same in all of them ---- */

const struct votes *vote_of(uint32_t owner)
{
        static struct votes votes[2];

        if (!votes[0].finite)
                for (uint32_t i = 0; i < 2; i++) {
                        exact_sum_init(&votes[i].norm);
                        if (i == 0)
                                exact_sum_add(&votes[i].norm, 1);
                        votes[i].finite = true;
                }
        return &votes[owner != 0];
}

static struct decision decision_of(u8 attempt)
{
        static const struct decision none = { .loss_scale = 0 };
        static struct decision made;

        if (!made.loss_scale)
                made = decide(vote_of(0), &step_params, 0);
        return attempt ? made : none;
}

/* ---- standings ---- */

static void standing_fill(struct standing *ret, const struct stand *s, uint32_t owner)
{
        ret->version = s->version;
        ret->decided_attempt = s->decided;
        ret->decision = decision_of(s->decided);
        ret->skipped = 0;
        ret->done = s->done;
        ret->fresh = false;
        ret->prepared_attempt = s->prepared;
        ret->vote = *vote_of(owner);
        ret->params.n_sets = step_params.n_sets;
        ret->params.sets[0] = step_params.sets[0];
        ret->params.clip_norm = 0;
        ret->params.loss_scale = step_params.loss_scale;
        ret->params.growth_interval = 0;
}

static struct stand standing_pack(const struct standing *s)
{
        return (struct stand){ .version = (u8)s->version,
                               .attempt = 1,
                               .decided = (u8)s->decided_attempt,
                               .done = s->done,
                               .prepared = (u8)s->prepared_attempt };
}

struct told_state machine_told(uint32_t node, uint32_t epoch, uint32_t copy, const struct stand *s)
{
        static struct standing told[PLACEMENTS][COPIES];
        const struct placement *was = &placements[epoch];
        uint32_t owner = holder_owner(was, holder_on(was, node, copy));

        standing_fill(&told[epoch][copy], s, owner);
        return (struct told_state){ .place = { epoch, was->n_owners, owner, copy },
                                    .attempt = s->attempt,
                                    .standing = &told[epoch][copy] };
}

/* ---- earlier placements ---- */

/* An owner has no node until a node tells of its state. */
static void old_placement_begin(struct old_placement *f, uint32_t epoch)
{
        const uint32_t n = placements[epoch].n_owners;
        uint32_t nobody[NODE_SET_MAX];

        for (uint32_t o = 0; o < NODE_SET_MAX; o++)
                nobody[o] = NO_NODE;
        placement_init(&f->placement, epoch, nobody, n, false);
        f->placement.copies = n > 1 ? PLACEMENT_COPIES : 1;
        memcpy(f->placement.mirror, nobody, sizeof nobody);
        f->settling = f->settled = NODE_SET_NONE;
}

static void old_placement_place(struct old_placement *f, uint32_t holder, uint32_t node,
                                const struct stand *s)
{
        uint32_t owner = holder_owner(&f->placement, holder);

        *(holder_copy(&f->placement, holder) ? &f->placement.mirror[owner]
                                             : &f->placement.node[owner]) = node;
        if (!s->attempt)
                return;
        f->standings[holder] = malloc(sizeof **f->standings);
        if (!f->standings[holder])
                abort();
        standing_fill(f->standings[holder], s, owner);
}

static void old_placements_load(const struct coordination *c, uint32_t epoch)
{
        old_placements_free(machine->old_placements);
        for (uint32_t i = 0; i < OLD_PLACEMENT_MAX; i++)
                machine->old_placements[i].placement.n_owners = 0;
        machine->old_placement =
                c->old_placement ? &machine->old_placements[c->old_placement - 1] : NULL;
        for (uint32_t e = 0; e < epoch; e++) {
                struct old_placement *f = &machine->old_placements[e];
                bool some = c->old_placement == e + 1;

                for (uint32_t n = 0; n < bounds.n_nodes; n++)
                        some = some || c->told[n] >> e * COPIES & 3;
                if (!some)
                        continue;
                old_placement_begin(f, e);
                for (uint32_t i = 0; i < bounds.n_nodes * COPIES; i++)
                        if (c->told[i / COPIES] >> (e * COPIES + i % COPIES) & 1)
                                old_placement_place(
                                        f, holder_on(&placements[e], i / COPIES, i % COPIES),
                                        i / COPIES, &c->stands[i / COPIES][e][i % COPIES]);
        }
        if (!machine->old_placement)
                return;
        machine->old_placement->settling = node_set_from_word(c->settling);
        machine->old_placement->settled = node_set_from_word(c->settled_nodes);
}

static void old_placement_store(struct coordination *c, const struct old_placement *f)
{
        for (uint32_t h = 0; h < placement_holders(&f->placement); h++) {
                uint32_t node = holder_node(&f->placement, h), copy = holder_copy(&f->placement, h);

                if (node == NO_NODE)
                        continue;
                c->told[node] |= (u8)(1 << (f->placement.epoch * COPIES + copy));
                if (f->standings[h])
                        c->stands[node][f->placement.epoch][copy] = standing_pack(f->standings[h]);
        }
}

static void old_placements_store(struct coordination *c)
{
        for (uint32_t i = 0; i < OLD_PLACEMENT_MAX; i++)
                if (machine->old_placements[i].placement.n_owners)
                        old_placement_store(c, &machine->old_placements[i]);
        c->old_placement = c->settling = c->settled_nodes = 0;
        if (!machine->old_placement)
                return;
        c->old_placement = (u8)(machine->old_placement->placement.epoch + 1);
        c->settling = (u8)node_set_to_word(machine->old_placement->settling);
        c->settled_nodes = (u8)node_set_to_word(machine->old_placement->settled);
}

/* ---- the step: one rank, always there ---- */

static void step_fill(struct step *s, const struct coordination *c, uint32_t self)
{
        s->node_of_rank[0] = self;
        s->rank_slots[0] = RANK_SLOT_HERE;
        s->phase = c->phase;
        s->version = c->version;
        s->attempt = c->attempt;
        s->heard = c->heard;
        s->decided_attempt = c->decided;
        s->decision = decision_of(c->decided);
        s->open = node_set_from_word(c->open);
        s->skipped = 0;
        s->loss_scale = 1;
        memset(s->ready, 0, bounds.n_nodes * sizeof *s->ready);
        for (uint32_t h = 0; h < placement_holders(&s->placement); h++) {
                s->voted[h] = c->voted >> h & 1;
                s->done[h] = c->done >> h & 1;
                if (s->voted[h])
                        s->ballots[h] = *vote_of(holder_owner(&s->placement, h));
        }
}

static void step_pack(struct coordination *c, const struct step *s)
{
        c->phase = (u8)s->phase;
        c->version = (u8)s->version;
        c->attempt = (u8)s->attempt;
        c->heard = (u8)s->heard;
        c->decided = (u8)s->decided_attempt;
        c->open = (u8)node_set_to_word(s->open);
        c->voted = c->done = 0;
        for (uint32_t h = 0; h < placement_holders(&s->placement); h++) {
                c->voted |= (u8)(s->voted[h] << h);
                c->done |= (u8)(s->done[h] << h);
        }
}

/* ---- all of it ---- */

static void machine_new(const struct placement *placement)
{
        static const char *const names[NODES] = { "a", "b", "c" };
        const struct coordinator_job job = {
                .name = "job", .nodes = names, .n_nodes = bounds.n_nodes, .world_size = 1
        };

        coordinator_deinit(machine);
        if (coordinator_init(machine, &job, placement))
                abort();
        memset(machine->step.cut, 0, bounds.n_nodes * sizeof *machine->step.cut);
        machine->step.have_params = true;
        machine->step.params = step_params;
}

/* Placements differ between cases. */
static void machine_of(const struct placement *placement)
{
        static struct bounds of[PLACEMENTS];

        machine = &machines[placement->epoch];
        if (memcmp(&of[placement->epoch], &bounds, sizeof bounds) == 0)
                return;
        of[placement->epoch] = bounds;
        machine_new(placement);
}

/* Of the rounds only one bit a node counts: whether the node was asked in the current round. */
static void load(const struct world *w, uint32_t self)
{
        const struct coordination *c = &w->nodes[self].c;
        const struct placement *placement = placement_of(w, self);

        machine_of(placement);
        machine->dead = false;
        machine->settled = c->settled;
        machine->whole = c->whole;
        machine->fault.status = c->fault;
        machine->refused.status = ZERO_OK;
        machine->stale = node_set_from_word(c->stale);
        machine->round = 1;
        machine->missed = NODE_SET_NONE;
        machine->others_until_ms = c->waits ? OTHERS_MS + 1 : 0;
        step_fill(&machine->step, c, self);
        old_placements_load(c, w->nodes[self].epoch);
        for (uint32_t n = 0; n < bounds.n_nodes; n++) {
                machine->nodes[n] = c->nodes[n];
                machine->lacks[n] = c->lacks >> n & 1;
                machine->rounds[n] = c->asked_now >> n & 1;
        }
        for (uint32_t h = 0; h < placement_holders(placement); h++) {
                const struct stand *s = &c->stands[holder_node(placement, h)][placement->epoch]
                                                  [holder_copy(placement, h)];

                machine->filling[h] = c->filling >> h & 1;
                machine->standings[h] = s->attempt ? &machine->standing_storage[h] : NULL;
                if (s->attempt)
                        standing_fill(machine->standings[h], s, holder_owner(placement, h));
        }
}

static void store(struct world *w, uint32_t self)
{
        struct coordination *c = &w->nodes[self].c;
        const struct placement *placement = placement_of(w, self);

        c->settled = machine->settled;
        c->whole = machine->whole;
        c->fault = machine->fault.status != ZERO_OK;
        c->stale = (u8)node_set_to_word(machine->stale);
        c->waits = machine->others_until_ms != 0;
        c->lacks = c->asked_now = c->filling = 0;
        memset(c->stands, 0, sizeof c->stands);
        memset(c->told, 0, sizeof c->told);
        step_pack(c, &machine->step);
        old_placements_store(c);
        for (uint32_t n = 0; n < bounds.n_nodes; n++) {
                c->nodes[n] = (u8)machine->nodes[n];
                c->lacks |= (u8)(machine->lacks[n] << n);
                c->asked_now |= (u8)((machine->rounds[n] == machine->round) << n);
        }
        for (uint32_t h = 0; h < placement_holders(placement); h++) {
                c->filling |= (u8)(machine->filling[h] << h);
                if (machine->standings[h])
                        c->stands[holder_node(placement, h)][placement->epoch]
                                 [holder_copy(placement, h)] = standing_pack(machine->standings[h]);
        }
}

static struct machine_action machine_action(const struct coordinator_action *a)
{
        struct machine_action ret = { .action = *a };
        struct coordinator_sources sources;

        if (a->kind == COORDINATOR_SETTLE)
                ret.from = (u8)machine->old_placement->placement.epoch;
        if (a->kind != COORDINATOR_FILL)
                return ret;
        coordinator_sources(machine, a->holder, &sources);
        ret.from = (u8)sources.from->epoch;
        for (uint32_t h = 0; h < HOLDERS; h++)
                ret.readable |= (u8)(sources.readable[h] << h);
        return ret;
}

uint32_t machine_step(struct world *w, uint32_t self, const struct coordinator_event *e,
                      struct machine_action ret[MACHINE_ACTIONS])
{
        load(w, self);
        actions.n = 0;
        coordinator_step(machine, e, &actions);
        store(w, self);
        if (actions.n > MACHINE_ACTIONS) {
                violate("the coordinator does %u things at once", actions.n);
                actions.n = MACHINE_ACTIONS;
        }
        for (uint32_t i = 0; i < actions.n; i++)
                ret[i] = machine_action(&actions.items[i]);
        return actions.n;
}
