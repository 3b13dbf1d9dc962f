/* The state machine of paxos.h: events in, actions out; no libuv and no messages of the wire. */
#include "daemon/job/rules/paxos.h"

#include <assert.h>
#include <string.h>

uint32_t paxos_quorum(uint32_t n_nodes, node_set dead)
{
        uint32_t n_dead = node_set_count(dead & node_set_first_n(n_nodes));
        uint32_t left = n_nodes - n_dead, half = (n_nodes + 1) / 2;

        if (n_dead == 0)
                return n_nodes / 2 + 1;
        return left < half ? left : half;
}

node_set paxos_voters(const struct paxos *r, node_set dead)
{
        return node_set_first_n(r->n_nodes) & ~dead;
}

void paxos_init(struct paxos *r, uint32_t n_nodes, uint32_t self, const struct placement *first,
                const struct paxos_record *record)
{
        *r = (struct paxos){ .n_nodes = n_nodes, .self = self };
        if (record)
                r->record = *record;
        else
                r->record = (struct paxos_record){ .voter = n_nodes == 1, .chosen = *first };
}

bool paxos_record_sane(const struct paxos_record *r, uint32_t n_nodes)
{
        if (!placement_sane(&r->chosen, n_nodes) || r->promised > PAXOS_BALLOT_MAX ||
            r->accepted > r->promised || r->chosen.epoch >= PAXOS_BALLOT_MAX)
                return false;
        return !r->accepted ||
               (placement_sane(&r->value, n_nodes) && r->value.epoch == r->chosen.epoch + 1);
}

/* ---- what is said ---- */

static void say(const struct paxos *r, struct paxos_message *m, enum paxos_kind kind,
                uint64_t ballot)
{
        *m = (struct paxos_message){ .kind = kind,
                                     .ballot = ballot,
                                     .dead = ballot ? r->dead : NODE_SET_NONE,
                                     .record = r->record };
}

static uint32_t answer(struct paxos *r, enum paxos_kind kind, uint64_t ballot)
{
        say(r, &r->answer, kind, ballot);
        r->answer.dead = NODE_SET_NONE;
        return PAXOS_ANSWER;
}

static uint32_t ask(struct paxos *r, enum paxos_kind kind, uint64_t ballot)
{
        say(r, &r->ask, kind, ballot);
        r->to = paxos_voters(r, ballot ? r->dead : NODE_SET_NONE) & ~node_set_of(r->self);
        return PAXOS_ASK;
}

/* ---- an epoch's end ---- */

/* Opens the next epoch, in which nothing is promised yet. */
static uint32_t chosen(struct paxos *r, const struct placement *placement)
{
        uint32_t actions = PAXOS_WRITE | PAXOS_CHOSEN;

        assert(placement->epoch > r->record.chosen.epoch);
        if (r->phase != PAXOS_IDLE)
                actions |= PAXOS_OVER;
        r->phase = PAXOS_IDLE;
        r->record.chosen = *placement;
        r->record.promised = r->record.accepted = r->top = 0;
        r->record.value = (struct placement){ 0 };
        return actions;
}

bool paxos_won(const struct paxos *r)
{
        return placement_same_owners(&r->record.chosen, &r->wanted);
}

bool paxos_undecided(const struct paxos *r)
{
        return r->record.accepted != 0;
}

/* ---- a node without a record ---- */

/* Takes over what this node may have granted before it lost its record. */
static void take_over(struct paxos *r, const struct paxos_record *theirs)
{
        if (theirs->chosen.epoch != r->record.chosen.epoch)
                return;
        if (theirs->promised > r->record.promised)
                r->record.promised = theirs->promised;
        if (theirs->accepted > r->record.accepted) {
                r->record.accepted = theirs->accepted;
                r->record.value = theirs->value;
        }
}

/* This node votes once it has heard everyone who may have heard it. */
static uint32_t become_voter(struct paxos *r, node_set dead)
{
        if (r->record.voter ||
            node_set_any(paxos_voters(r, dead) & ~(r->heard | node_set_of(r->self))))
                return 0;
        r->record.voter = true;
        return PAXOS_WRITE;
}

/* ---- proposing ---- */

static uint32_t accept_collect(struct paxos *r);

static uint32_t prepare(struct paxos *r)
{
        uint64_t top = r->top > r->record.promised ? r->top : r->record.promised;

        r->ballot = ((top >> PAXOS_NODE_BITS) + 1) << PAXOS_NODE_BITS | r->self;
        r->record.promised = r->top = r->ballot;
        r->phase = PAXOS_PREPARING;
        r->votes = node_set_of(r->self);
        r->best = r->record.accepted;
        r->best_value = r->record.value;
        if (paxos_quorum(r->n_nodes, r->dead) == 1)
                return accept_collect(r);
        return PAXOS_WRITE | ask(r, PAXOS_PREPARE, r->ballot);
}

static uint32_t decided(struct paxos *r)
{
        uint32_t actions = chosen(r, &r->value);

        return actions | ask(r, PAXOS_STATE, 0);
}

/* Begins to collect acceptances: enough nodes have promised. */
static uint32_t accept_collect(struct paxos *r)
{
        if (r->record.promised > r->ballot)
                return PAXOS_BEATEN;
        r->value = r->best ? r->best_value : r->wanted;
        if (!r->best)
                placement_follow(&r->value, &r->record.chosen, r->dead);
        r->record.accepted = r->ballot;
        r->record.value = r->value;
        r->phase = PAXOS_ACCEPTING;
        r->votes = node_set_of(r->self);
        if (paxos_quorum(r->n_nodes, r->dead) == 1)
                return decided(r);
        return PAXOS_WRITE | ask(r, PAXOS_ACCEPT, r->ballot);
}

int paxos_propose(struct paxos *r, const struct placement *wanted, node_set dead,
                  uint32_t *ret_actions, struct fault *fault)
{
        assert(placement_sane(wanted, r->n_nodes) && !node_set_has(dead, r->self));
        if (r->phase != PAXOS_IDLE)
                return fault_set(fault, ZERO_EBUSY, "another change of the owners is in progress");
        become_voter(r, dead);
        if (!r->record.voter)
                return fault_set(
                        fault, ZERO_EPEER,
                        "this node has no record of earlier owner lists and must hear from "
                        "every other node before it votes");
        r->wanted = *wanted;
        r->dead = dead;
        *ret_actions = prepare(r);
        return 0;
}

uint32_t paxos_retry(struct paxos *r)
{
        return r->phase == PAXOS_IDLE ? 0 : prepare(r);
}

void paxos_give_up(struct paxos *r)
{
        r->phase = PAXOS_IDLE;
}

static bool counts(const struct paxos *r, uint32_t from, const struct paxos_message *m,
                   enum paxos_phase phase)
{
        return r->phase == phase && m->ballot == r->ballot && !node_set_has(r->dead, from);
}

static bool enough(const struct paxos *r)
{
        return node_set_count(r->votes) >= paxos_quorum(r->n_nodes, r->dead);
}

static uint32_t hear_promise(struct paxos *r, uint32_t from, const struct paxos_message *m)
{
        if (!counts(r, from, m, PAXOS_PREPARING))
                return 0;
        node_set_add(&r->votes, from);
        if (m->record.accepted > r->best) {
                r->best = m->record.accepted;
                r->best_value = m->record.value;
        }
        return enough(r) ? accept_collect(r) : 0;
}

static uint32_t hear_accepted(struct paxos *r, uint32_t from, const struct paxos_message *m)
{
        if (!counts(r, from, m, PAXOS_ACCEPTING))
                return 0;
        node_set_add(&r->votes, from);
        return enough(r) ? decided(r) : 0;
}

/* ---- voting ---- */

static uint32_t hear_prepare(struct paxos *r, const struct paxos_message *m)
{
        uint32_t actions = 0;

        if (m->ballot < r->record.promised)
                return answer(r, PAXOS_STATE, 0);
        if (m->ballot > r->record.promised)
                actions = PAXOS_WRITE;
        r->record.promised = m->ballot;
        return actions | answer(r, PAXOS_PROMISE, m->ballot);
}

static uint32_t hear_accept(struct paxos *r, const struct paxos_message *m)
{
        uint32_t actions = 0;

        if (m->ballot < r->record.promised || m->record.accepted != m->ballot)
                return answer(r, PAXOS_STATE, 0);
        if (m->ballot != r->record.accepted)
                actions = PAXOS_WRITE;
        r->record.promised = r->record.accepted = m->ballot;
        r->record.value = m->record.value;
        return actions | answer(r, PAXOS_ACCEPTED, m->ballot);
}

/* ---- hearing ---- */

uint32_t paxos_up(struct paxos *r)
{
        return answer(r, PAXOS_STATE, 0);
}

/* Learns from the record that every message has. */
static uint32_t learn(struct paxos *r, const struct paxos_record *theirs)
{
        uint64_t ours = r->record.chosen.epoch;

        if (theirs->chosen.epoch > ours)
                return chosen(r, &theirs->chosen);
        if (theirs->chosen.epoch < ours ||
            placement_same_owners(&theirs->chosen, &r->record.chosen))
                return 0;
        if (ours || (theirs->voter && r->record.voter))
                return PAXOS_SPLIT;
        if (!theirs->voter)
                return 0;
        r->record.chosen = theirs->chosen;
        return PAXOS_WRITE | PAXOS_CHOSEN;
}

/* A proposal cannot count on a node that has promised a higher ballot. */
static uint32_t beaten(struct paxos *r, const struct paxos_record *theirs)
{
        if (theirs->promised > r->top)
                r->top = theirs->promised;
        return r->phase != PAXOS_IDLE && theirs->promised > r->ballot ? PAXOS_BEATEN : 0;
}

static uint32_t hear_kind(struct paxos *r, uint32_t from, const struct paxos_message *m)
{
        switch (m->kind) {
        case PAXOS_PREPARE:
                return r->record.voter ? hear_prepare(r, m) : answer(r, PAXOS_STATE, 0);
        case PAXOS_ACCEPT:
                return r->record.voter ? hear_accept(r, m) : answer(r, PAXOS_STATE, 0);
        case PAXOS_PROMISE:
                return hear_promise(r, from, m);
        case PAXOS_ACCEPTED:
                return hear_accepted(r, from, m);
        default:
                return 0;
        }
}

uint32_t paxos_hear(struct paxos *r, uint32_t from, const struct paxos_message *m)
{
        uint32_t actions = learn(r, &m->record);

        assert(from < r->n_nodes && from != r->self);
        if (actions & PAXOS_SPLIT)
                return actions;
        node_set_add(&r->heard, from);
        if (!r->record.voter) {
                take_over(r, &m->record);
                actions |= become_voter(r, m->dead);
        }
        if (m->record.chosen.epoch < r->record.chosen.epoch)
                return actions | answer(r, PAXOS_STATE, 0);
        actions |= beaten(r, &m->record);
        return actions | hear_kind(r, from, m);
}
