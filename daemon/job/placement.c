#include "daemon/job/placement.h"

#include <string.h>

void placement_init(struct placement *p, uint64_t epoch, const uint32_t *owners, uint32_t n,
                    bool mirror)
{
        *p = (struct placement){ .epoch = epoch,
                                 .n_owners = n,
                                 .copies = mirror && n > 1 ? PLACEMENT_COPIES : 1 };
        memcpy(p->node, owners, n * sizeof *owners);
}

void placement_to_message(const struct placement *p, Zero__Placement *ret)
{
        zero__placement__init(ret);
        ret->epoch = p->epoch;
        ret->n_owners = p->n_owners;
        ret->owners = (uint32_t *)p->node;
        ret->mirror = p->copies == PLACEMENT_COPIES;
}

bool placement_from_message(const Zero__Placement *m, uint32_t n_nodes, bool partly,
                            struct placement *ret)
{
        uint64_t seen = 0;

        if (!m || m->n_owners < 1 || m->n_owners > n_nodes)
                return false;
        for (size_t i = 0; i < m->n_owners; i++) {
                if (partly && m->owners[i] == ZERO_NODE_MAX)
                        continue;
                if (m->owners[i] >= n_nodes || seen >> m->owners[i] & 1)
                        return false;
                seen |= 1ull << m->owners[i];
        }
        placement_init(ret, m->epoch, m->owners, (uint32_t)m->n_owners, m->mirror);
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
        return p->node[(holder_owner(p, holder) + holder_copy(p, holder)) % p->n_owners];
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

uint64_t placement_nodes(const struct placement *p)
{
        uint64_t nodes = 0;

        for (uint32_t o = 0; o < p->n_owners; o++)
                nodes |= 1ull << p->node[o];
        return nodes;
}

/*
 * Behind the last owner it would shift the cut between all others, and half of all bytes move; in
 * the middle it shifts those on either side half as far.
 */
uint32_t placement_best_place(const struct placement *p)
{
        return (p->n_owners + 1) / 2;
}
