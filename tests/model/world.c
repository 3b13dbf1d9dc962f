/* Links, messages, and daemons that come and go. */
#include "machine.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct bounds bounds;
struct placement placement;

bool is_owner(uint32_t node)
{
        return bounds.owners >> node & 1;
}

uint32_t holder_on(uint32_t node, uint32_t copy)
{
        uint32_t owner = (uint32_t)placement_owner_on(&placement, node);

        return holder_of(&placement, (owner + placement.n_owners - copy) % placement.n_owners,
                         copy);
}

struct replica *twin_of(struct world *w, uint32_t node, uint32_t copy)
{
        uint32_t owner = holder_owner(&placement, holder_on(node, copy)), other = !copy;

        return &w->nodes[holder_node(&placement, holder_of(&placement, owner, other))]
                        .replicas[other];
}

/* ---- messages ---- */

bool is_up(const struct world *w, uint32_t node, uint32_t to)
{
        return w->nodes[node].up >> to & 1;
}

static uint32_t queue_start(const struct world *w, uint32_t from, uint32_t to)
{
        const u8 *count = &w->count[0][0];
        uint32_t start = 0;

        for (uint32_t q = 0; q < from * NODES + to; q++)
                start += count[q];
        return start;
}

static uint32_t queue_total(const struct world *w)
{
        return queue_start(w, NODES - 1, NODES - 1) + w->count[NODES - 1][NODES - 1];
}

size_t world_bytes(const void *world)
{
        const struct world *w = world;
        return offsetof(struct world, messages) + queue_total(w) * sizeof w->messages[0];
}

bool send(struct world *w, uint32_t from, uint32_t to, struct message m)
{
        uint32_t total = queue_total(w), at = queue_start(w, from, to) + w->count[from][to];

        if (!is_up(w, from, to))
                return false;
        if (from != to && !(w->connected[from] >> to & 1))
                return true; /* it will hear that the link is broken */
        if (total == MESSAGES) {
                fprintf(stderr, "too many messages under way\n");
                exit(2);
        }
        memmove(&w->messages[at + 1], &w->messages[at], (total - at) * sizeof m);
        w->messages[at] = m;
        w->count[from][to]++;
        return true;
}

void send_all(struct world *w, uint32_t from, struct message m)
{
        for (uint32_t n = 0; n < bounds.n_nodes; n++)
                send(w, from, n, m);
}

const struct message *first(const struct world *w, uint32_t from, uint32_t to)
{
        return w->count[from][to] ? &w->messages[queue_start(w, from, to)] : NULL;
}

struct message take(struct world *w, uint32_t from, uint32_t to)
{
        uint32_t total = queue_total(w), at = queue_start(w, from, to);
        struct message m = w->messages[at];

        memmove(&w->messages[at], &w->messages[at + 1], (total - at - 1) * sizeof m);
        w->messages[total - 1] = (struct message){ 0 };
        w->count[from][to]--;
        return m;
}

static void queue_clear(struct world *w, uint32_t from, uint32_t to)
{
        while (w->count[from][to])
                take(w, from, to);
}

void deliver(struct world *w, uint32_t from, uint32_t to)
{
        struct message m = take(w, from, to);

        switch (m.type) {
        case JOIN:
        case PART:
        case OPENED:
        case READY:
        case PREPARED:
        case DONE:
        case LINKS:
        case FILLED:
                if (to == COORDINATOR)
                        coordinator_message(w, from, &m);
                break;
        case JOIN_ANSWER:
                rank_joined(w, to, &m);
                break;
        case READY_REFUSED:
                ranks_refuse_step(w, to, m.status);
                break;
        default:
                job_message(w, to, from, &m);
        }
}

/* ---- links ---- */

/* Only the coordinator gets the message: other nodes ignore it. */
static void links_tell(struct world *w, uint32_t node)
{
        u8 all = (u8)((1u << bounds.n_nodes) - 1);

        send(w, node, COORDINATOR,
             (struct message){ .type = LINKS, .flag = all & (u8)~w->nodes[node].up });
}

/* A new connection is made once both ends have given the old one up. */
static void link_connect(struct world *w, uint32_t a, uint32_t b)
{
        assert(a < NODES && b < NODES);
        if (!w->nodes[a].alive || !w->nodes[b].alive || is_up(w, a, b) || is_up(w, b, a))
                return;
        w->connected[a] |= (u8)(1 << b);
        w->connected[b] |= (u8)(1 << a);
}

void link_up(struct world *w, uint32_t node, uint32_t to)
{
        w->nodes[node].up |= (u8)(1 << to);
        links_tell(w, node);
        if (node == COORDINATOR)
                coordinator_up(w, to);
        if (to == COORDINATOR)
                ranks_up(w, node);
}

void link_down(struct world *w, uint32_t node, uint32_t to)
{
        w->nodes[node].up &= (u8) ~(1 << to);
        queue_clear(w, to, node);
        links_tell(w, node);
        fill_lose(w, node, to);
        accumulator_lose(w, node, to);
        if (to == COORDINATOR)
                ranks_down(w, node);
        if (node == COORDINATOR)
                coordinator_down(w, to);
        link_connect(w, node, to);
}

/* An end may still read what it has received before it sees that the link is broken. */
void link_cut(struct world *w, uint32_t a, uint32_t b)
{
        w->connected[a] &= (u8) ~(1 << b);
        w->connected[b] &= (u8) ~(1 << a);
        if (!is_up(w, b, a) || bounds.less & LESS_FLIGHT)
                queue_clear(w, a, b);
        if (!is_up(w, a, b) || bounds.less & LESS_FLIGHT)
                queue_clear(w, b, a);
}

void daemon_crash(struct world *w, uint32_t node)
{
        struct node *n = &w->nodes[node];
        struct record records[COPIES];

        for (uint32_t c = 0; c < COPIES; c++)
                records[c] = n->replicas[c].record;
        memset(n, 0, sizeof *n);
        for (uint32_t c = 0; c < COPIES; c++)
                n->replicas[c].record = records[c];
        for (uint32_t i = 0; i < bounds.n_nodes; i++) {
                queue_clear(w, i, node);
                if (i != node)
                        link_cut(w, i, node);
        }
        if (node == COORDINATOR)
                memset(&w->c, 0, sizeof w->c);
        for (uint32_t p = 0; p < PROCS; p++)
                if (w->procs[p].state != PROC_NONE && w->procs[p].node == node)
                        proc_lose_daemon(w, p);
}

void daemon_wipe(struct world *w, uint32_t node)
{
        daemon_crash(w, node);
        for (uint32_t c = 0; c < COPIES; c++)
                w->nodes[node].replicas[c].record = (struct record){ 0 };
}

void daemon_start(struct world *w, uint32_t node)
{
        w->nodes[node].alive = 1;
        if (is_owner(node))
                job_resume(w, node);
        w->nodes[node].up = (u8)(1 << node);
        if (node == COORDINATOR) {
                coordinator_new(w);
                links_tell(w, node);
        }
        for (uint32_t i = 0; i < bounds.n_nodes; i++)
                if (i != node)
                        link_connect(w, i, node);
}

static void settle(struct world *w)
{
        for (uint32_t quiet = 0; !quiet;) {
                quiet = 1;
                for (uint32_t q = 0; q < NODES * NODES; q++)
                        if (w->count[q / NODES][q % NODES]) {
                                deliver(w, q / NODES, q % NODES);
                                quiet = 0;
                        }
        }
}

static void owners_init(void)
{
        uint32_t nodes[NODES], n = 0;

        for (uint32_t i = 0; i < bounds.n_nodes; i++)
                if (is_owner(i))
                        nodes[n++] = i;
        placement_init(&placement, 0, nodes, n, bounds.mirror);
}

void world_init(void *world)
{
        struct world *w = world;

        memset(w, 0, sizeof *w);
        owners_init();
        machine_new();
        for (uint32_t r = 0; r < bounds.n_ranks; r++)
                w->procs[r] = (struct proc){
                        .state = PROC_AWAY, .rank = (u8)r, .node = (u8)r, .incarnation = 1
                };
        for (uint32_t n = 0; n < bounds.n_nodes; n++) {
                for (uint32_t c = 0; c < placement.copies && is_owner(n); c++)
                        w->nodes[n].replicas[c].record.attempt = 1;
                daemon_start(w, n);
        }
        for (uint32_t q = 0; q < bounds.n_nodes * bounds.n_nodes; q++)
                if (q / bounds.n_nodes != q % bounds.n_nodes)
                        link_up(w, q / bounds.n_nodes, q % bounds.n_nodes);
        settle(w);
}

/* ---- what must hold ---- */

static void check_record(const struct world *w, uint32_t node, const struct record *r)
{
        const struct truth *t = &w->truth[w->truth[0].attempt != r->decided_attempt];
        u8 version = (u8)(r->version + (r->phase == OWNER_DECIDED && commits(r->decision)));

        REQUIRE(r->decided_attempt == t->attempt && r->decision == t->decision &&
                        version == t->version,
                "node %u: its record has version %u by attempt %u: that is not so", node, version,
                r->decided_attempt);
        REQUIRE(r->planes == r->version, "node %u: planes of version %u in a state of version %u",
                node, r->planes, r->version);
}

void world_check(const struct world *w)
{
        for (uint32_t n = 0; n < bounds.n_nodes; n++) {
                for (uint32_t c = 0; c < COPIES; c++)
                        if (w->nodes[n].replicas[c].record.attempt)
                                check_record(w, n, &w->nodes[n].replicas[c].record);
                REQUIRE(w->nodes[n].version <= w->truth[0].version, "node %u is ahead of the job",
                        n);
        }
}

static bool records_done(const struct world *w)
{
        for (uint32_t h = 0; h < placement_holders(&placement); h++) {
                const struct node *n = &w->nodes[holder_node(&placement, h)];
                const struct record *r = &n->replicas[holder_copy(&placement, h)].record;

                if (!r->attempt || r->phase != OWNER_OPEN || r->version != bounds.steps)
                        return false;
        }
        return true;
}

bool world_done(const void *world)
{
        const struct world *w = world;

        if (queue_total(w) || !records_done(w))
                return false;
        for (uint32_t p = 0; p < PROCS; p++) {
                const struct proc *proc = &w->procs[p];

                if (proc->state != PROC_NONE && !proc->zombie &&
                    (proc->state != PROC_RUNS || proc->version != bounds.steps))
                        return false;
        }
        return w->truth[0].version == bounds.steps;
}
