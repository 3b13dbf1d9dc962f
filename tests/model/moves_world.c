/* Nodes, links and messages; see moves.h. */
#include "moves.h"

#include <stdlib.h>
#include <string.h>

struct bounds bounds;
struct placement placements[PLACEMENTS];
u8 n_placements;

/* ---- messages -------------------------------------------------------------------------- */

static uint32_t at(const struct world *w, uint32_t from, uint32_t to)
{
        uint32_t n = 0;

        for (uint32_t a = 0; a < NODES; a++)
                for (uint32_t b = 0; b < NODES; b++) {
                        if (a == from && b == to)
                                return n;
                        n += w->count[a][b];
                }
        abort();
}

static uint32_t all(const struct world *w)
{
        return at(w, NODES - 1, NODES - 1) + w->count[NODES - 1][NODES - 1];
}

size_t world_bytes(const void *world)
{
        const struct world *w = world;

        return offsetof(struct world, messages) + all(w) * sizeof w->messages[0];
}

static void drop(struct world *w, uint32_t from, uint32_t to, uint32_t n)
{
        uint32_t first = at(w, from, to), left = all(w) - n;

        memmove(&w->messages[first], &w->messages[first + n],
                (left - first) * sizeof w->messages[0]);
        memset(&w->messages[left], 0, n * sizeof w->messages[0]);
        w->count[from][to] = (u8)(w->count[from][to] - n);
}

bool linked(const struct world *w, uint32_t a, uint32_t b)
{
        return w->nodes[a].alive && (a == b || w->nodes[a].links >> b & 1);
}

bool send(struct world *w, uint32_t from, uint32_t to, struct message m)
{
        uint32_t behind = at(w, from, to) + w->count[from][to], n = all(w);

        if (!linked(w, from, to))
                return false;
        if (n == MESSAGES) {
                violate("too many messages for this model");
                return false;
        }
        memmove(&w->messages[behind + 1], &w->messages[behind],
                (n - behind) * sizeof w->messages[0]);
        w->messages[behind] = m;
        w->count[from][to]++;
        return true;
}

static bool for_coordinator(const struct message *m)
{
        return m->type == OPENED || m->type == SETTLED || m->type == FILLED ||
               m->type == PREPARED || m->type == DONE;
}

void deliver(struct world *w, uint32_t from, uint32_t to)
{
        const struct message m = w->messages[at(w, from, to)];

        drop(w, from, to, 1);
        if (for_coordinator(&m))
                coordinator_message(w, to, from, &m);
        else
                job_message(w, to, from, &m);
}

/* ---- links: between nodes where the same placement is in force --------------------------- */

void link_make(struct world *w, uint32_t a, uint32_t b)
{
        w->nodes[a].links |= (u8)(1 << b);
        w->nodes[b].links |= (u8)(1 << a);
        coordinator_up(w, a, b);
        coordinator_up(w, b, a);
}

static void down(struct world *w, uint32_t node, uint32_t lost)
{
        if (!w->nodes[node].alive)
                return;
        filling_lose(w, node, lost);
        if (lost == coordinator_of(w, node))
                w->nodes[node].settles = 0;
        coordinator_down(w, node, lost);
}

void link_cut(struct world *w, uint32_t a, uint32_t b)
{
        drop(w, a, b, w->count[a][b]);
        drop(w, b, a, w->count[b][a]);
        w->nodes[a].links &= (u8) ~(1 << b);
        w->nodes[b].links &= (u8) ~(1 << a);
        down(w, a, b);
        down(w, b, a);
}

/* ---- daemons -------------------------------------------------------------------------------- */

const struct placement *placement_of(const struct world *w, uint32_t node)
{
        return &placements[w->nodes[node].epoch];
}

uint32_t coordinator_of(const struct world *w, uint32_t node)
{
        const struct placement *placement = placement_of(w, node);

        return placement->node[bounds.coordinator % placement->n_owners];
}

uint32_t holder_on(const struct placement *placement, uint32_t node, uint32_t copy)
{
        for (uint32_t h = 0; h < placement_holders(placement); h++)
                if (holder_node(placement, h) == node && holder_copy(placement, h) == copy)
                        return h;
        return NO_HOLDER;
}

struct state *state_at(struct world *w, uint32_t epoch, uint32_t holder)
{
        const struct placement *placement = &placements[epoch];

        return &w->nodes[holder_node(placement, holder)]
                        .states[epoch][holder_copy(placement, holder)];
}

void daemon_crash(struct world *w, uint32_t node)
{
        struct node *n = &w->nodes[node], left = { .epoch = n->epoch, .dead = n->dead };

        memcpy(left.states, n->states, sizeof left.states);
        for (uint32_t e = 0; e < PLACEMENTS; e++)
                for (uint32_t c = 0; c < COPIES; c++)
                        left.states[e][c].running = 0;
        n->alive = 0;
        drop(w, node, node, w->count[node][node]);
        for (uint32_t b = 0; b < bounds.n_nodes; b++)
                if (b != node && n->links >> b & 1)
                        link_cut(w, node, b);
        *n = left;
}

void daemon_start(struct world *w, uint32_t node)
{
        w->nodes[node].alive = 1;
        job_resume(w, node);
        if (coordinator_of(w, node) == node)
                coordinator_new(w, node);
        for (uint32_t b = 0; bounds.less && b < bounds.n_nodes; b++)
                if (b != node && w->nodes[b].alive && w->nodes[b].epoch == w->nodes[node].epoch)
                        link_make(w, node, b);
}

void daemon_learn(struct world *w, uint32_t node, u8 epoch)
{
        daemon_crash(w, node);
        w->nodes[node].epoch = epoch;
        daemon_start(w, node);
}

/* ---- the beginning ------------------------------------------------------------------- */

static void placements_init(void)
{
        n_placements = 0;
        for (uint32_t e = 0; e < PLACEMENTS && bounds.lists[e]; e++) {
                uint32_t owners[ZERO_NODE_MAX], n = 0;

                for (const char *p = bounds.lists[e]; *p; p++)
                        owners[n++] = (uint32_t)(*p - '0');
                placement_init(&placements[e], e, owners, n, bounds.mirror);
                if (e)
                        placement_follow(&placements[e], &placements[e - 1], NODE_SET_NONE);
                n_placements++;
        }
}

void world_init(void *world)
{
        struct world *w = world;

        memset(w, 0, sizeof *w);
        placements_init();
        for (uint32_t h = 0; h < placement_holders(&placements[0]); h++)
                *state_at(w, 0, h) = (struct state){ .attempt = 1 };
        for (uint32_t n = 0; n < bounds.n_nodes; n++)
                daemon_start(w, n);
        for (uint32_t a = 0; a < bounds.n_nodes; a++)
                for (uint32_t b = a + 1; b < bounds.n_nodes; b++)
                        if (!linked(w, a, b))
                                link_make(w, a, b);
        for (uint32_t i = 0; all(w); i = (i + 1) % (NODES * NODES)) /* until the job is open */
                if (w->count[i / NODES][i % NODES])
                        deliver(w, i / NODES, i % NODES);
}
