#include "daemon/job/rules/placement.h"

#include <string.h>

#define FNV_FIRST UINT64_C(14695981039346656037)

/* The next node in the list, or the owner's own if there is no other. */
static uint32_t next_node(const struct placement *p, uint32_t owner)
{
        uint32_t i = 1;

        while (i < p->n_owners && p->node[(owner + i) % p->n_owners] == p->node[owner])
                i++;
        return p->node[(owner + i) % p->n_owners];
}

void placement_init(struct placement *p, uint64_t epoch, const uint32_t *owners, uint32_t n,
                    bool mirror)
{
        *p = (struct placement){ .epoch = epoch, .n_owners = n, .copies = 1 };
        memcpy(p->node, owners, n * sizeof *owners);
        if (!mirror || n < 2 || next_node(p, 0) == p->node[0])
                return;
        p->copies = PLACEMENT_COPIES;
        for (uint32_t o = 0; o < n; o++)
                p->mirror[o] = next_node(p, o);
}

void placement_follow(struct placement *p, const struct placement *last, node_set dead)
{
        p->epoch = last->epoch + 1;
        p->older = last->older | last->before[PLACEMENT_BEFORE - 1];
        p->before[0] = placement_nodes(last);
        memcpy(p->before + 1, last->before, sizeof p->before - sizeof p->before[0]);
        p->dead = (last->dead | dead) & ~placement_nodes(p);
}

bool placement_same_owners(const struct placement *a, const struct placement *b)
{
        return a->n_owners == b->n_owners &&
               memcmp(a->node, b->node, a->n_owners * sizeof *a->node) == 0;
}

/* FNV-1a. */
static uint64_t fnv(uint64_t h, uint8_t byte)
{
        return (h ^ byte) * 1099511628211u;
}

uint64_t placement_mark(const struct placement *p)
{
        uint64_t h = FNV_FIRST;

        for (uint32_t o = 0; o < p->n_owners; o++)
                h = fnv(h, (uint8_t)p->node[o]);
        return h ? h : 1;
}

bool placement_sane(const struct placement *p, uint32_t n_nodes)
{
        node_set seen = { 0 };

        if (p->n_owners < 1 || p->n_owners > NODE_SET_MAX)
                return false;
        for (uint32_t o = 0; o < p->n_owners; o++) {
                bool same = o > 0 && p->node[o] == p->node[o - 1];

                if (p->node[o] >= n_nodes || (!same && node_set_has(seen, p->node[o])))
                        return false;
                node_set_add(&seen, p->node[o]);
        }
        for (uint32_t n = 0; n < n_nodes; n++)
                if (placement_owners_on(p, n) > NODE_OWNERS_MAX)
                        return false;
        return true;
}

uint32_t placement_holders(const struct placement *p)
{
        return p->copies * p->n_owners;
}

uint32_t holder_owner(const struct placement *p, uint32_t holder)
{
        return holder % p->n_owners;
}

uint32_t holder_copy(const struct placement *p, uint32_t holder)
{
        return holder / p->n_owners;
}

uint32_t holder_node(const struct placement *p, uint32_t holder)
{
        return holder_copy(p, holder) ? p->mirror[holder_owner(p, holder)]
                                      : p->node[holder_owner(p, holder)];
}

uint32_t holder_of(const struct placement *p, uint32_t owner, uint32_t copy)
{
        return copy * p->n_owners + owner;
}

int32_t placement_owner_on(const struct placement *p, uint32_t node)
{
        for (uint32_t o = 0; o < p->n_owners; o++)
                if (p->node[o] == node)
                        return (int32_t)o;
        return NO_OWNER;
}

uint32_t placement_owners_on(const struct placement *p, uint32_t node)
{
        uint32_t n = 0;

        for (uint32_t o = 0; o < p->n_owners; o++)
                n += p->node[o] == node;
        return n;
}

uint32_t holder_device(const struct placement *p, uint32_t holder)
{
        uint32_t owner = holder_owner(p, holder), node = holder_node(p, holder);
        uint32_t place = owner - (uint32_t)placement_owner_on(p, p->node[owner]);

        return place % placement_owners_on(p, node);
}

uint32_t placement_coordinator(const struct placement *p, const char *job)
{
        uint64_t h = FNV_FIRST;

        for (; *job; job++)
                h = fnv(h, (uint8_t)*job);
        return p->node[(h >> 32) % p->n_owners];
}

node_set placement_nodes(const struct placement *p)
{
        node_set nodes = { 0 };

        for (uint32_t o = 0; o < p->n_owners; o++)
                node_set_add(&nodes, p->node[o]);
        return nodes;
}

/*
 * At the end of the list the new owner would shift the cuts between all others, and half of all
 * bytes would move.  In the middle it shifts the cuts on either side half as far.  Owners of one
 * node stay adjacent.
 */
uint32_t placement_best_place(const struct placement *p)
{
        uint32_t at = (p->n_owners + 1) / 2;

        while (at < p->n_owners && p->node[at] == p->node[at - 1])
                at++;
        return at;
}
