/* What happens to a world of registers; see paxos.h. */
#include <stdio.h>
#include <string.h>

#include "paxos.h"

struct bounds bounds;

/* Only the fields of ret that are written here are ever not zero, so large structs need no
 * clearing. */
static void placement_fill(struct placement *ret, u8 id, uint64_t epoch)
{
        ret->epoch = epoch;
        ret->copies = 1;
        ret->n_owners = id ? 1 : bounds.n_nodes;
        for (uint32_t i = 0; i < NODES; i++)
                ret->node[i] = id ? i ? 0 : id - 1u : i < bounds.n_nodes ? i : 0;
}

static struct placement placement_wide(u8 id, uint64_t epoch)
{
        struct placement p = { 0 };

        placement_fill(&p, id, epoch);
        return p;
}

static u8 placement_small(const struct placement *p)
{
        return p->n_owners == 1 ? (u8)(p->node[0] + 1) : 0;
}

static uint64_t ballot_wide(u8 b)
{
        return (uint64_t)(b >> 2) << PAXOS_NODE_BITS | (b & 3);
}

static u8 ballot_small(uint64_t b)
{
        return (u8)((b >> PAXOS_NODE_BITS) << 2 | (b & 3));
}

static void record_fill(struct paxos_record *ret, const struct record *s)
{
        ret->voter = s->voter;
        placement_fill(&ret->chosen, s->chosen, s->epoch);
        ret->promised = ballot_wide(s->promised);
        ret->accepted = ballot_wide(s->accepted);
        if (s->accepted)
                placement_fill(&ret->value, s->value, s->epoch + 1u);
        else
                ret->value = (struct placement){ 0 };
}

static struct record record_small(const struct paxos_record *r)
{
        if (!paxos_record_sane(r, bounds.n_nodes))
                violate("a record that no cluster of this size can have");
        return (struct record){ .voter = r->voter,
                                .epoch = (u8)r->chosen.epoch,
                                .chosen = placement_small(&r->chosen),
                                .promised = ballot_small(r->promised),
                                .accepted = ballot_small(r->accepted),
                                .value = r->accepted ? placement_small(&r->value) : 0 };
}

static struct paxos *load(const struct world *w, uint32_t n)
{
        static struct paxos r;
        static struct paxos_record record;
        const struct node *s = &w->nodes[n];

        record_fill(&record, &s->record);
        paxos_init(&r, bounds.n_nodes, n, NULL, &record);
        r.heard = node_set_from_word(s->heard);
        r.top = ballot_wide(s->top);
        r.phase = s->phase;
        placement_fill(&r.wanted, s->wanted, 0);
        placement_fill(&r.value, s->value, s->record.epoch + 1u);
        r.dead = node_set_from_word(s->dead);
        r.ballot = ballot_wide(s->ballot);
        r.votes = node_set_from_word(s->votes);
        r.best = ballot_wide(s->best);
        placement_fill(&r.best_value, s->best_value, s->record.epoch + 1u);
        return &r;
}

static void chosen_is_true(struct world *w, const struct record *r)
{
        u8 *truth = &w->truth[r->epoch];

        if (r->epoch > EPOCHS || r->epoch == 0)
                return;
        if (!*truth && r->epoch > 1 && !w->truth[r->epoch - 1])
                violate("an epoch was left out");
        if (*truth && *truth != r->chosen)
                violate("two placements are chosen for one epoch");
        if (!r->chosen)
                violate("a placement was chosen that nobody proposed");
        *truth = r->chosen;
}

/* Clears what no longer counts, so that equal states have equal bytes. */
static void store(struct world *w, uint32_t n, const struct paxos *r)
{
        struct node *s = &w->nodes[n];

        *s = (struct node){ .record = record_small(&r->record) };
        chosen_is_true(w, &s->record);
        s->top = ballot_small(r->top);
        if (!r->record.voter)
                s->heard = (u8)node_set_to_word(r->heard);
        s->phase = (u8)r->phase;
        if (r->phase == PAXOS_IDLE)
                return;
        s->wanted = placement_small(&r->wanted);
        s->dead = (u8)node_set_to_word(r->dead);
        s->ballot = ballot_small(r->ballot);
        s->votes = (u8)node_set_to_word(r->votes);
        if (r->phase == PAXOS_ACCEPTING) {
                s->value = placement_small(&r->value);
        } else if (r->best) {
                s->best = ballot_small(r->best);
                s->best_value = placement_small(&r->best_value);
        }
}

/* ---- the network ---- */

static void put(struct world *w, const struct message *m)
{
        uint32_t i = 0;

        while (i < w->n_messages && memcmp(&w->messages[i], m, sizeof *m) < 0)
                i++;
        if (i < w->n_messages && memcmp(&w->messages[i], m, sizeof *m) == 0)
                return;
        if (w->n_messages == MESSAGES) {
                violate("too many messages for this model");
                return;
        }
        memmove(&w->messages[i + 1], &w->messages[i], (w->n_messages - i) * sizeof *m);
        w->messages[i] = *m;
        w->n_messages++;
}

static void take(struct world *w, uint32_t i)
{
        w->n_messages--;
        memmove(&w->messages[i], &w->messages[i + 1], (w->n_messages - i) * sizeof w->messages[0]);
        memset(&w->messages[w->n_messages], 0, sizeof w->messages[0]);
}

static void send(struct world *w, uint32_t from, uint32_t to, const struct paxos_message *m)
{
        struct message s = { .from = (u8)from,
                             .to = (u8)to,
                             .kind = (u8)m->kind,
                             .ballot = ballot_small(m->ballot),
                             .dead = (u8)node_set_to_word(m->dead),
                             .record = record_small(&m->record) };

        if (!(w->gone >> to & 1))
                put(w, &s);
}

/* The record is durable by now: store() has kept it. */
static void carry_out(struct world *w, uint32_t n, uint32_t from, const struct paxos *r,
                      uint32_t actions)
{
        u8 epoch = w->nodes[n].record.epoch, wanted = placement_small(&r->wanted);

        store(w, n, r);
        if (actions & PAXOS_ANSWER)
                send(w, n, from, &r->answer);
        for (uint32_t to = 0; actions & PAXOS_ASK && to < bounds.n_nodes; to++)
                if (node_set_has(r->to, to))
                        send(w, n, to, &r->ask);
        if (actions & PAXOS_SPLIT)
                violate("two placements of one epoch met");
        if (!(actions & PAXOS_CHOSEN) != (epoch == w->nodes[n].record.epoch))
                violate("a placement was chosen in silence");
        if (actions & PAXOS_OVER && paxos_won(r) != (w->truth[w->nodes[n].record.epoch] == wanted))
                violate("the proposer was told wrong who won");
}

/* New links: both ends say where they stand. */
static void meet(struct world *w, uint32_t n)
{
        for (uint32_t to = 0; to < bounds.n_nodes; to++) {
                struct paxos *r;

                if (to == n || w->gone >> to & 1)
                        continue;
                r = load(w, n);
                paxos_up(r);
                send(w, n, to, &r->answer);
                r = load(w, to);
                paxos_up(r);
                send(w, to, n, &r->answer);
        }
}

/* ---- events ---- */

static void deliver(struct world *w, const struct message *s)
{
        static struct paxos_message m;
        struct paxos *r = load(w, s->to);

        m.kind = s->kind;
        m.ballot = ballot_wide(s->ballot);
        m.dead = node_set_from_word(s->dead);
        record_fill(&m.record, &s->record);
        carry_out(w, s->to, s->from, r, paxos_hear(r, s->from, &m));
}

static void propose(struct world *w, uint32_t n)
{
        struct paxos *r = load(w, n);
        const struct placement wanted = placement_wide((u8)(n + 1), 0);
        uint32_t actions;
        struct fault fault;

        if (paxos_propose(r, &wanted, node_set_from_word(w->gone), &actions, &fault) == 0)
                carry_out(w, n, n, r, actions);
}

static void retry(struct world *w, uint32_t n)
{
        struct paxos *r = load(w, n);

        carry_out(w, n, n, r, paxos_retry(r));
}

static void crash(struct world *w, uint32_t n)
{
        w->nodes[n] = (struct node){ .record = w->nodes[n].record };
        meet(w, n);
}

static void lose(struct world *w, uint32_t n)
{
        struct paxos r;
        const struct placement first = placement_wide(0, 0);

        for (uint32_t i = w->n_messages; i-- > 0;)
                if (w->messages[i].to == n)
                        take(w, i);
        paxos_init(&r, bounds.n_nodes, n, &first, NULL);
        store(w, n, &r);
        meet(w, n);
}

static void die(struct world *w, uint32_t n)
{
        w->gone |= (u8)(1 << n);
        w->nodes[n] = (struct node){ 0 };
        for (uint32_t i = w->n_messages; i-- > 0;)
                if (w->messages[i].to == n)
                        take(w, i);
}

/* Whether a message can change nothing, now or later. */
static bool message_void(const struct world *w, const struct message *m)
{
        const struct node *to = &w->nodes[m->to];

        if (m->record.epoch > to->record.epoch || !to->record.voter)
                return false;
        if (m->record.epoch < to->record.epoch)
                return w->nodes[m->from].record.epoch >= to->record.epoch || w->gone >> m->from & 1;
        if (m->record.promised > to->top)
                return false;
        if (m->kind == PAXOS_PROMISE || m->kind == PAXOS_ACCEPTED)
                return to->phase == PAXOS_IDLE;
        return m->kind == PAXOS_STATE;
}

static void network_clear(struct world *w)
{
        for (uint32_t i = w->n_messages; i-- > 0;)
                if (message_void(w, &w->messages[i]))
                        take(w, i);
}

void happen(void *world, struct event e)
{
        struct world *w = world;
        const struct message m = w->messages[e.a % MESSAGES];

        switch (e.kind) {
        case DELIVER_TWICE:
                w->twice++;
                deliver(w, &m);
                break;
        case DELIVER:
                take(w, e.a);
                deliver(w, &m);
                break;
        case PROPOSE:
                w->proposals++;
                propose(w, e.a);
                break;
        case RETRY:
                w->retries++;
                retry(w, e.a);
                break;
        case CRASH:
                w->crashes++;
                crash(w, e.a);
                break;
        case LOSE:
                w->losses++;
                lose(w, e.a);
                break;
        case DIE:
                w->deaths++;
                die(w, e.a);
                break;
        }
        network_clear(w);
}

static bool all_vote(const struct world *w)
{
        for (uint32_t n = 0; n < bounds.n_nodes; n++)
                if (!w->nodes[n].record.voter && !(w->gone >> n & 1))
                        return false;
        return true;
}

static bool may_propose(const struct world *w, uint32_t n)
{
        return bounds.proposers >> n & 1 && w->nodes[n].phase == PAXOS_IDLE &&
               w->nodes[n].record.epoch < bounds.epochs && w->proposals < bounds.proposals;
}

static bool may_retry(const struct world *w, uint32_t n)
{
        return bounds.retriers >> n & 1 && w->nodes[n].phase != PAXOS_IDLE &&
               w->retries < bounds.retries;
}

uint32_t events(const void *world, struct event *ret)
{
        const struct world *w = world;
        uint32_t n_events = 0;

        for (uint32_t i = 0; i < w->n_messages; i++) {
                ret[n_events++] = (struct event){ DELIVER, (u8)i, 0 };
                if (w->twice < bounds.twice)
                        ret[n_events++] = (struct event){ DELIVER_TWICE, (u8)i, 0 };
        }
        for (uint32_t n = 0; n < bounds.n_nodes; n++) {
                if (w->gone >> n & 1)
                        continue;
                if (may_propose(w, n))
                        ret[n_events++] = (struct event){ PROPOSE, (u8)n, 0 };
                if (may_retry(w, n))
                        ret[n_events++] = (struct event){ RETRY, (u8)n, 0 };
                if (w->crashes < bounds.crashes)
                        ret[n_events++] = (struct event){ CRASH, (u8)n, 0 };
                if (w->losses < bounds.losses && all_vote(w))
                        ret[n_events++] = (struct event){ LOSE, (u8)n, 0 };
                if (w->deaths < bounds.deaths)
                        ret[n_events++] = (struct event){ DIE, (u8)n, 0 };
        }
        return n_events;
}

/* ---- alone ---- */

/* All messages arrive once, in order. */
static bool settle(struct world *w)
{
        for (uint32_t i = 0; i < ALONE_MAX; i++) {
                struct message m = w->messages[0];

                if (w->n_messages == 0)
                        return true;
                take(w, 0);
                deliver(w, &m);
        }
        return false;
}

static void alone_one(const struct world *from, uint32_t n)
{
        struct world w = *from;
        u8 epoch;

        memset(w.messages, 0, sizeof w.messages);
        w.n_messages = 0;
        for (uint32_t to = 0; to < bounds.n_nodes; to++)
                if (!(w.gone >> to & 1))
                        meet(&w, to);
        if (!settle(&w))
                violate("talk without end");
        epoch = w.nodes[n].record.epoch;
        if (w.nodes[n].dead != w.gone) /* the person declares the dead with a new proposal */
                w.nodes[n].phase = PAXOS_IDLE;
        for (int tries = 0; tries < 3 && w.nodes[n].record.epoch == epoch; tries++) {
                if (w.nodes[n].phase == PAXOS_IDLE)
                        propose(&w, n);
                else
                        retry(&w, n);
                if (!settle(&w))
                        violate("talk without end");
        }
        if (w.nodes[n].record.epoch == epoch || w.nodes[n].phase != PAXOS_IDLE)
                violate("a proposal that nothing hinders does not come to its end");
}

void alone(const void *world)
{
        const struct world *w = world;

        for (uint32_t n = 0; n < bounds.n_nodes; n++)
                if (!(w->gone >> n & 1))
                        alone_one(w, n);
}

/* ---- begin and end ---- */

size_t world_bytes(const void *world)
{
        const struct world *w = world;

        return offsetof(struct world, messages) + w->n_messages * sizeof w->messages[0];
}

void world_init(void *world)
{
        struct world *w = world;
        const struct placement first = placement_wide(0, 0);

        memset(w, 0, sizeof *w);
        for (uint32_t n = 0; n < bounds.n_nodes; n++) {
                struct paxos r;

                paxos_init(&r, bounds.n_nodes, n, &first, NULL);
                r.record.voter = r.record.voter || !bounds.blank;
                store(w, n, &r);
        }
        for (uint32_t n = 0; bounds.blank && n < bounds.n_nodes; n++)
                meet(w, n);
}

void print_event(const void *world, struct event e)
{
        const struct world *w = world;
        static const char *const kinds[] = { "STATE", "PREPARE", "PROMISE", "ACCEPT", "ACCEPTED" };
        static const char *const names[] = {
                "", "", "proposes", "tries again", "is killed and starts", "loses its disk", "dies"
        };
        const struct message *m = &w->messages[e.a % MESSAGES];

        if (e.kind > DELIVER_TWICE)
                printf("  node %u %s\n", e.a, names[e.kind]);
        else
                printf("  %u -> %u%s %s ballot %u.%u; epoch %u is %u, promised %u.%u, accepted "
                       "%u.%u value %u\n",
                       m->from, m->to, e.kind == DELIVER_TWICE ? " (not for the last time)" : "",
                       kinds[m->kind], m->ballot >> 2, m->ballot & 3u, m->record.epoch,
                       m->record.chosen, m->record.promised >> 2, m->record.promised & 3u,
                       m->record.accepted >> 2, m->record.accepted & 3u, m->record.value);
}
