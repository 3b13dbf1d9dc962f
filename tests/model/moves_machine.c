/*
 * The daemon's own structs, out of a world and back into it; see moves.h.
 *
 * Rule: parameters, by far the largest part of them, are the same throughout.  They are written
 * once; that alone is most of what the explorer would spend its time with.
 */
#include <stddef.h>
#include <string.h>

#include "moves.h"

const struct step_params step_params = { .n_sets = 1, .loss_scale = 1 };

/* What every attempt comes to: votes are the same in all of them. */
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

/* ret: zero, or what this has made before. */
static void standing_fill(struct standing *ret, const struct stand *s, uint32_t owner)
{
        ret->version = s->version;
        ret->decided_attempt = s->decided;
        ret->decision = decision_of(s->decided);
        ret->done = s->done;
        ret->prepared_attempt = s->prepared;
        ret->vote = *vote_of(owner);
        if (!ret->params.n_sets)
                ret->params = step_params;
}

/* All but the parameters becomes zero. */
static void step_clear(struct step *s)
{
        const size_t behind = offsetof(struct step, params) + sizeof s->params;

        memset(s, 0, offsetof(struct step, params));
        memset((char *)s + behind, 0, sizeof *s - behind);
        if (!s->params.n_sets)
                s->params = step_params;
}

struct step *step_load(const struct world *w, uint32_t self)
{
        static uint32_t node_of_rank[1];
        static enum step_seat seats[1];
        static uint64_t cut[NODES];
        static bool ready[NODES], voted[HOLDERS], done[HOLDERS];
        static struct votes ballots[HOLDERS];
        static struct step step;
        const struct coordinator *c = &w->nodes[self].c;

        node_of_rank[0] = self;
        seats[0] = SEAT_HERE;
        memset(ready, 0, sizeof ready);
        step_clear(&step);
        step.world_size = 1;
        step.n_nodes = bounds.n_nodes;
        step.view = *view_of(w, self);
        step.odd = NO_HOLDER;
        step.phase = c->phase;
        step.version = c->version;
        step.attempt = c->attempt;
        step.heard = c->heard;
        step.decided_attempt = c->decided;
        step.decision = decision_of(c->decided);
        step.loss_scale = 1;
        step.open = c->open;
        step.have_params = true;
        step.node_of_rank = node_of_rank;
        step.seats = seats;
        step.cut = cut;
        step.ready = ready;
        step.voted = voted;
        step.ballots = ballots;
        step.done = done;
        for (uint32_t h = 0; h < HOLDERS; h++) {
                voted[h] = c->voted >> h & 1;
                done[h] = c->done >> h & 1;
                ballots[h] = *vote_of(h % step.view.n_owners);
        }
        return &step;
}

void step_store(struct world *w, uint32_t self, const struct step *s)
{
        struct coordinator *c = &w->nodes[self].c;

        c->phase = (u8)s->phase;
        c->version = (u8)s->version;
        c->attempt = (u8)s->attempt;
        c->heard = (u8)s->heard;
        c->decided = (u8)s->decided_attempt;
        c->open = (u8)s->open;
        c->voted = c->done = 0;
        for (uint32_t h = 0; h < HOLDERS; h++) {
                c->voted |= (u8)(s->voted[h] << h);
                c->done |= (u8)(s->done[h] << h);
        }
}

/* What is known of states in force; NULL: no state. */
const struct standing *const *standings_load(const struct world *w, uint32_t self)
{
        static struct standing standings[HOLDERS];
        static const struct standing *pointers[HOLDER_MAX];
        const struct placement *view = view_of(w, self);

        for (uint32_t h = 0; h < placement_holders(view); h++) {
                const struct stand *s =
                        &w->nodes[self]
                                 .c.stands[holder_node(view, h)][view->epoch][holder_copy(view, h)];

                pointers[h] = s->attempt ? &standings[h] : NULL;
                if (s->attempt)
                        standing_fill(&standings[h], s, holder_owner(view, h));
        }
        return pointers;
}

static bool is_away(const struct coordinator *c, uint32_t node)
{
        return c->nodes[node] < NODE_KNOWN;
}

static void formers_hear_node(const struct coordinator *c, struct former *formers, uint32_t node,
                              uint32_t epoch)
{
        static struct standing standing;
        const struct placement *was = &views[epoch];
        struct fault fault;

        for (uint32_t copy = 0; copy < COPIES; copy++) {
                const struct stand *s = &c->stands[node][epoch][copy];
                uint32_t h = holder_on(was, node, copy);
                const struct state_place of = { epoch, was->n_owners, h % was->n_owners, copy };

                if (!s->attempt &&
                    !(is_away(c, node) && c->told[node] >> (epoch * COPIES + copy) & 1))
                        continue;
                standing_fill(&standing, s, h % was->n_owners);
                if (formers_hear(formers, node, &of, &standing, 0, &fault))
                        violate("%s", fault.text);
        }
}

/* What is known of earlier placements. */
struct former *formers_load(const struct world *w, uint32_t self)
{
        static struct former formers[FORMER_MAX];
        const struct coordinator *c = &w->nodes[self].c;

        formers_free(formers);
        for (uint32_t i = 0; i < FORMER_MAX; i++)
                formers[i].place.n_owners = 0;
        for (uint32_t e = 0; e < w->nodes[self].epoch; e++)
                for (uint32_t n = 0; n < bounds.n_nodes; n++)
                        formers_hear_node(c, formers, n, e);
        for (uint32_t n = 0; n < bounds.n_nodes; n++)
                if (is_away(c, n))
                        formers_forget_node(formers, n);
        for (uint32_t i = 0; i < FORMER_MAX; i++)
                if (c->former && formers[i].place.n_owners &&
                    formers[i].place.epoch == c->former - 1u) {
                        formers[i].settling = c->settling;
                        formers[i].settled = c->settled_nodes;
                }
        return formers;
}

/* The one that is moved from; NULL: nobody who is there has any of it. */
struct former *former_load(const struct world *w, uint32_t self)
{
        struct former *formers = formers_load(w, self);

        for (uint32_t i = 0; i < FORMER_MAX; i++)
                if (formers[i].place.n_owners &&
                    formers[i].place.epoch == w->nodes[self].c.former - 1u)
                        return &formers[i];
        return NULL;
}
