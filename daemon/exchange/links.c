/*
 * Which nodes reach each other.
 *
 * Every node tells all others, whenever that changes, which nodes it cannot reach: what was on
 * its way over a link that broke is lost, also between two nodes that are no coordinator,
 * and an attempt that needs both is void.
 */
#include "daemon/exchange/coordinator.h"

#include "proto/cleanup.h"

static uint64_t all_nodes(const struct exchange *x)
{
        uint32_t n = x->cluster->n_nodes;

        return n == 64 ? UINT64_MAX : (1ull << n) - 1;
}

void links_tell(struct exchange *x)
{
        Zero__LinkMessage m = ZERO__LINK_MESSAGE__INIT;
        Zero__Links links = ZERO__LINKS__INIT;

        links.cut = all_nodes(x) & ~x->up;
        m.job = (char *)"";
        m.body_case = ZERO__LINK_MESSAGE__BODY_LINKS;
        m.links = &links;
        send_all(x, &m);
}

void links_message(struct exchange *x, uint32_t node, const Zero__Links *m)
{
        x->cut[node] = m->cut;
        list_for_each (&x->coordinators, item) {
                struct coordinator *c = CONTAINER_OF(item, struct coordinator, link);

                step_links(&c->step, node, m->cut);
                coordinator_advance(c);
        }
}
