/* Placements as messages between nodes. */
#include "daemon/job/rules/placement.h"

#include <string.h>

void placement_to_message(const struct placement *p, Zero__Placement *ret)
{
        zero__placement__init(ret);
        ret->epoch = p->epoch;
        ret->n_owners = p->n_owners;
        ret->owners = (uint32_t *)p->node;
        ret->mirror = p->copies == PLACEMENT_COPIES;
        ret->n_mirrors = ret->mirror ? p->n_owners : 0;
        ret->mirrors = (uint32_t *)p->mirror;
        ret->n_before = p->epoch < PLACEMENT_BEFORE ? (size_t)p->epoch : PLACEMENT_BEFORE;
        ret->n_before *= NODE_SET_WORDS;
        ret->before = (uint64_t *)p->before;
        ret->n_older = node_set_words(&p->older, &ret->older);
        ret->n_dead = node_set_words(&p->dead, &ret->dead);
}

static bool partly_sane(const struct placement *p, uint32_t n_nodes)
{
        for (uint32_t o = 0; o < p->n_owners; o++)
                if ((p->node[o] >= n_nodes && p->node[o] != NO_NODE) ||
                    (p->mirror[o] >= n_nodes && p->mirror[o] != NO_NODE))
                        return false;
        return true;
}

bool placement_from_message(const Zero__Placement *m, uint32_t n_nodes, bool partly,
                            struct placement *ret)
{
        struct placement p;

        if (!m || m->n_owners < 1 || m->n_owners > ZERO_NODE_MAX ||
            m->n_before > PLACEMENT_BEFORE * NODE_SET_WORDS)
                return false;
        placement_init(&p, m->epoch, m->owners, (uint32_t)m->n_owners, m->mirror);
        if (m->n_before)
                memcpy(p.before, m->before, m->n_before * sizeof *m->before);
        if (!node_set_from_words(m->older, m->n_older, &p.older) ||
            !node_set_from_words(m->dead, m->n_dead, &p.dead))
                return false;
        if (partly && m->n_mirrors) {
                if (m->n_mirrors != m->n_owners)
                        return false;
                p.copies = PLACEMENT_COPIES;
                memcpy(p.mirror, m->mirrors, m->n_mirrors * sizeof *m->mirrors);
        }
        if (partly ? !partly_sane(&p, n_nodes) : !placement_sane(&p, n_nodes))
                return false;
        *ret = p;
        return true;
}
