/* States when owners change; see moving.h for the rules. */
#include "daemon/job/rules/moving.h"

#include <stdlib.h>
#include <string.h>

/* ---- at a node --------------------------------------------------------------------- */

enum state_use state_use(const struct placement *p, uint32_t node, const struct state_place *s)
{
        if (s->epoch < p->epoch)
                return STATE_OLD_PLACEMENT;
        if (s->epoch == p->epoch && s->n_owners == p->n_owners && s->owner < p->n_owners &&
            s->copy < p->copies && holder_node(p, holder_of(p, s->owner, s->copy)) == node)
                return STATE_IN_FORCE;
        return STATE_FOREIGN;
}

bool state_ends(const struct placement *p, uint64_t whole, uint64_t epoch)
{
        return whole == p->epoch && epoch < whole;
}

bool state_void(const struct placement *p, uint64_t stands, uint64_t epoch)
{
        return stands < epoch && epoch < p->epoch;
}

enum settling settling(uint64_t prepared, uint64_t last)
{
        if (!prepared)
                return SETTLE_STANDS;
        return prepared == last ? SETTLE_CARRY_OUT : SETTLE_VOID;
}

/* ---- what nodes hold of earlier placements ------------------------------------------- */

static const struct standing *const *standings_of(const struct old_placement *f)
{
        return (const struct standing *const *)f->standings;
}

/* True if a node has told of such a state, and has not said since that it has none. */
static bool is_known(const struct old_placement *f)
{
        for (uint32_t h = 0; f->placement.n_owners && h < placement_holders(&f->placement); h++)
                if (holder_node(&f->placement, h) != NO_NODE)
                        return true;
        return false;
}

static bool is_older(const struct old_placement *f, const struct old_placement *than)
{
        return is_known(f) && (!than || f->placement.epoch < than->placement.epoch);
}

static struct old_placement *old_placement_before(struct old_placement *old_placements,
                                                  const struct old_placement *than)
{
        struct old_placement *newest = NULL;

        for (uint32_t i = 0; i < OLD_PLACEMENT_MAX; i++)
                if (is_older(&old_placements[i], than) &&
                    (!newest || old_placements[i].placement.epoch > newest->placement.epoch))
                        newest = &old_placements[i];
        return newest;
}

static struct old_placement *old_placement_of(struct old_placement *old_placements, uint64_t epoch)
{
        for (uint32_t i = 0; i < OLD_PLACEMENT_MAX; i++)
                if (old_placements[i].placement.n_owners &&
                    old_placements[i].placement.epoch == epoch)
                        return &old_placements[i];
        for (uint32_t i = 0; i < OLD_PLACEMENT_MAX; i++)
                if (old_placements[i].placement.n_owners == 0)
                        return &old_placements[i];
        return NULL;
}

static void old_placement_forget(struct old_placement *f)
{
        for (uint32_t h = 0; h < HOLDER_MAX; h++) {
                free(f->standings[h]);
                f->standings[h] = NULL;
        }
        f->settling = f->settled = (node_set){ 0 };
}

/* An owner has no node until a node tells of its state. */
static void old_placement_begin(struct old_placement *f, const struct state_place *of)
{
        uint32_t nobody[NODE_SET_MAX];

        for (uint32_t o = 0; o < NODE_SET_MAX; o++)
                nobody[o] = NO_NODE;
        old_placement_forget(f);
        placement_init(&f->placement, of->epoch, nobody, of->n_owners, false);
        f->placement.copies = of->n_owners > 1 ? PLACEMENT_COPIES : 1;
        memcpy(f->placement.mirror, nobody, sizeof nobody);
}

int old_placements_hear(struct old_placement *old_placements, uint32_t node,
                        const struct state_place *of, const struct standing *standing,
                        uint64_t puts, struct fault *fault)
{
        struct old_placement *f = old_placement_of(old_placements, of->epoch);
        uint32_t holder;

        if (of->n_owners < 1 || of->n_owners > NODE_SET_MAX || of->owner >= of->n_owners)
                return fault_set(fault, ZERO_EPROTO,
                                 "its state of an earlier owner list names an impossible owner or "
                                 "number of owners");
        if (!f)
                return fault_set(fault, ZERO_EBUSY,
                                 "it has states of too many earlier owner lists");
        if (f->placement.n_owners == 0)
                old_placement_begin(f, of);
        if (of->n_owners != f->placement.n_owners || of->copy >= f->placement.copies)
                return fault_set(fault, ZERO_EPROTO,
                                 "its state of an earlier owner list differs from others of that "
                                 "list in the number of owners or copies");
        holder = holder_of(&f->placement, of->owner, of->copy);
        *(of->copy ? &f->placement.mirror[of->owner] : &f->placement.node[of->owner]) = node;
        if (!f->standings[holder])
                f->standings[holder] = malloc(sizeof *standing);
        if (!f->standings[holder])
                return fault_set(fault, ZERO_ENOMEM, "out of memory");
        *f->standings[holder] = *standing;
        f->puts[holder] = puts;
        return 0;
}

static void forget_standings(struct old_placement *f, uint32_t node)
{
        for (uint32_t h = 0; f->placement.n_owners && h < placement_holders(&f->placement); h++)
                if (holder_node(&f->placement, h) == node) {
                        free(f->standings[h]);
                        f->standings[h] = NULL;
                }
}

void old_placements_forget_node(struct old_placement *old_placements, uint32_t node)
{
        for (uint32_t i = 0; i < OLD_PLACEMENT_MAX; i++) {
                forget_standings(&old_placements[i], node);
                node_set_remove(&old_placements[i].settling, node);
                node_set_remove(&old_placements[i].settled, node);
        }
}

static void retell(struct old_placement *f, uint32_t node)
{
        for (uint32_t o = 0; o < f->placement.n_owners; o++) {
                if (f->placement.node[o] == node)
                        f->placement.node[o] = NO_NODE;
                if (f->placement.mirror[o] == node)
                        f->placement.mirror[o] = NO_NODE;
        }
}

void old_placements_retell(struct old_placement *old_placements, uint32_t node)
{
        for (uint32_t i = 0; i < OLD_PLACEMENT_MAX; i++) {
                forget_standings(&old_placements[i], node);
                retell(&old_placements[i], node);
        }
}

void old_placements_free(struct old_placement *old_placements)
{
        for (uint32_t i = 0; i < OLD_PLACEMENT_MAX; i++)
                old_placement_forget(&old_placements[i]);
}

/* ---- where the job stood ------------------------------------------------------------------ */

static bool fits(const struct standing *s, const struct recovery *now)
{
        struct fault fault;
        bool behind;

        return s && recover_one(s, now, &behind, &fault) == 0;
}

static struct recovery newest(const struct standing *const *standings, uint32_t n)
{
        const struct standing *best = NULL;

        for (uint32_t h = 0; h < n; h++)
                if (standings[h] &&
                    (!best || standings[h]->decided_attempt > best->decided_attempt))
                        best = standings[h];
        return (struct recovery){ .version = best->version,
                                  .decided_attempt = best->decided_attempt,
                                  .decision = best->decision,
                                  .skipped = best->skipped };
}

int old_placement_recover(const struct old_placement *f, struct recovery *ret, uint32_t *ret_odd,
                          struct fault *fault)
{
        const struct standing *left[HOLDER_MAX], *some[HOLDER_MAX];
        uint32_t n = placement_holders(&f->placement);

        memcpy(left, f->standings, n * sizeof left[0]);
        while (recover_lost(left, &f->placement) == NO_OWNER) {
                struct recovery now = newest(left, n);

                for (uint32_t h = 0; h < n; h++)
                        some[h] = fits(left[h], &now) ? left[h] : NULL;
                if (recover_lost(some, &f->placement) == NO_OWNER)
                        return recover(some, &f->placement, ret, ret_odd, fault);
                for (uint32_t h = 0; h < n; h++)
                        if (left[h] && left[h]->decided_attempt == now.decided_attempt)
                                left[h] = NULL;
        }
        return recover(standings_of(f), &f->placement, ret, ret_odd, fault);
}

bool old_placement_gives(const struct old_placement *f, uint32_t holder, const struct recovery *now)
{
        return fits(f->standings[holder], now);
}

static node_set giving_nodes(const struct old_placement *f, const struct recovery *now)
{
        node_set nodes = { 0 };

        for (uint32_t h = 0; h < placement_holders(&f->placement); h++)
                if (old_placement_gives(f, h, now))
                        node_set_add(&nodes, holder_node(&f->placement, h));
        return nodes;
}

node_set old_placement_unsettled(const struct old_placement *f, const struct recovery *now)
{
        return giving_nodes(f, now) & ~(f->settling | f->settled);
}

bool old_placement_covers(const struct old_placement *f, const struct recovery *now)
{
        const struct standing *some[HOLDER_MAX];

        for (uint32_t h = 0; h < placement_holders(&f->placement); h++)
                some[h] = old_placement_gives(f, h, now) ? f->standings[h] : NULL;
        return recover_lost(some, &f->placement) == NO_OWNER;
}

bool old_placement_settled(const struct old_placement *f, const struct recovery *now)
{
        return !node_set_any(giving_nodes(f, now) & ~f->settled) && old_placement_covers(f, now);
}

/* ---- which states count -------------------------------------------------------------- */

/* True if every state is as it was filled: then no step ever ran on them. */
static bool is_unused(const struct standing *const *standings, const struct placement *p,
                      const struct recovery *from)
{
        for (uint32_t h = 0; h < placement_holders(p); h++)
                if (standings[h] &&
                    (standings[h]->prepared_attempt || standings[h]->version > from->version))
                        return false;
        return true;
}

static bool has_some(const struct old_placement *f)
{
        for (uint32_t h = 0; h < placement_holders(&f->placement); h++)
                if (f->standings[h])
                        return true;
        return false;
}

static bool is_fresh(const struct standing *const *standings, const struct placement *p)
{
        for (uint32_t h = 0; h < placement_holders(p); h++)
                if (standings[h] && !standings[h]->fresh)
                        return false;
        return true;
}

/* The newest complete old placement on which somebody has worked, or else the newest complete one.
 */
static struct old_placement *old_placement_complete(struct old_placement *old_placements)
{
        struct old_placement *f = NULL, *fresh = NULL;

        while ((f = old_placement_before(old_placements, f))) {
                if (recover_lost(standings_of(f), &f->placement) != NO_OWNER)
                        continue;
                if (!is_fresh(standings_of(f), &f->placement))
                        return f;
                fresh = fresh ? fresh : f;
        }
        return fresh;
}

/* Finds the placement from which the job moves; NULL: states of a later one have been worked on.  A
 * move that was given up for another one leaves states that were never complete, and those do not
 * count. */
static struct old_placement *old_placement_choose(struct old_placement *old_placements,
                                                  const struct standing *const *standings,
                                                  const struct placement *placement)
{
        struct old_placement *f = old_placement_complete(old_placements);
        struct recovery r;
        struct fault fault;
        uint32_t odd;

        if (!f || old_placement_recover(f, &r, &odd, &fault)) /* open_recover() will say why */
                return f;
        if (!is_unused(standings, placement, &r))
                return NULL;
        for (struct old_placement *n = old_placement_before(old_placements, NULL); n != f;
             n = old_placement_before(old_placements, n))
                if (!has_some(n) || !is_unused(standings_of(n), &n->placement, &r))
                        return NULL;
        return f;
}

/* True if all nodes of the list have told, and what they have is fresh: then no node has the rest.
 */
static bool is_remnant(const struct old_placement *f, const struct placement *p, node_set told)
{
        uint64_t i = p->epoch - 1 - f->placement.epoch;
        node_set nodes = i < PLACEMENT_BEFORE ? p->before[i] : p->older;

        return !node_set_any(nodes & ~(told | p->dead)) && is_fresh(standings_of(f), &f->placement);
}

static bool some_count(struct old_placement *old_placements, const struct placement *p,
                       node_set told)
{
        struct old_placement *f = NULL;

        while ((f = old_placement_before(old_placements, f)))
                if (!is_remnant(f, p, told))
                        return true;
        return false;
}

enum opening_choice opening_choose(const struct standing *const *standings,
                                   const struct placement *placement,
                                   struct old_placement *old_placements, node_set told,
                                   struct old_placement **ret)
{
        bool covered = recover_lost(standings, placement) == NO_OWNER;
        bool fresh = is_fresh(standings, placement);
        struct recovery r;
        struct fault fault;
        struct old_placement *f;
        uint32_t odd;

        if (covered && !fresh && recover(standings, placement, &r, &odd, &fault) == 0)
                return OPENING_STANDS;
        f = old_placement_choose(old_placements, standings, placement);
        if (f && covered && fresh && is_fresh(standings_of(f), &f->placement))
                f = NULL;
        if (f) {
                *ret = f;
                return OPENING_MOVES;
        }
        if (covered) /* open_recover() will say why not */
                return OPENING_STANDS;
        return some_count(old_placements, placement, told) ? OPENING_WAITS : OPENING_MAKES;
}

node_set lists_untold(const struct placement *p, uint64_t since, node_set told)
{
        uint64_t n = p->epoch - since;
        node_set untold = { 0 };

        if (n > PLACEMENT_BEFORE)
                untold = p->older & ~told;

        for (uint64_t i = 0; i < n && i < PLACEMENT_BEFORE; i++)
                if (!node_set_any(p->before[i] & told))
                        untold |= p->before[i];
        return untold;
}

bool holder_lacks(const struct standing *s, const struct recovery *now, bool whole)
{
        struct fault fault;
        bool behind;

        if (!s)
                return true;
        return !whole && (recover_one(s, now, &behind, &fault) || behind);
}

bool twin_gives(const struct standing *s, const struct recovery *now, bool done)
{
        struct fault fault;
        bool behind;

        return s && (done || (recover_one(s, now, &behind, &fault) == 0 && !behind && s->done));
}
