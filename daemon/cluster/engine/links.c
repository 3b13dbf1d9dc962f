/*
 * Which nodes reach each other.
 *
 * A node is up when its link stands and it has said that the same owner list is in force there.
 * Until then this node ignores what it says about jobs.
 *
 * Every node tells all others which nodes it cannot reach, whenever that changes.  A broken link
 * loses what was on its way.  So an attempt that needs both nodes is void, even if neither of them
 * coordinates the job.
 */
#include "daemon/cluster/coordinator/coordinator.h"
#include "daemon/cluster/engine/engine.h"

#include "daemon/floor/base/log.h"
#include "proto/cleanup.h"

/* Tells all nodes which nodes this one reaches. */
static void links_tell(struct engine *x)
{
        Zero__LinkMessage m = ZERO__LINK_MESSAGE__INIT;
        Zero__Links links = ZERO__LINKS__INIT;
        node_set cut = node_set_first_n(x->cluster->n_nodes) & ~x->up;

        links.n_cut = node_set_words(&cut, &links.cut);
        links.epoch = x->placement.epoch;
        links.mark = placement_mark(&x->placement);
        m.job = (char *)"";
        m.body_case = ZERO__LINK_MESSAGE__BODY_LINKS;
        m.links = &links;
        send_all(x, &m);
}

/* Once both hold, what waits for the node goes on. */
static void links_check(struct engine *x, uint32_t node)
{
        if (node_set_has(x->up, node) || !node_set_has(x->linked & x->agreeing, node))
                return;
        node_set_add(&x->up, node);
        links_tell(x);
        for_modules (x, module)
                if (module->node_up)
                        module->node_up(x, node);
}

void links_up(struct engine *x, uint32_t node)
{
        node_set_add(&x->linked, node);
        links_tell(x);
        links_check(x, node);
}

void links_down(struct engine *x, uint32_t node)
{
        node_set_remove(&x->linked, node);
        node_set_remove(&x->agreeing, node);
        node_set_remove(&x->up, node);
        x->cut[node] = NODE_SET_ALL; /* until the node says which */
        links_tell(x);
}

/* The first word of a node on a link; messages may come before this node hears that the link
 * stands. */
static void links_agree(struct engine *x, uint32_t node, const Zero__Links *m)
{
        if (m->epoch == x->placement.epoch &&
            (!m->mark || m->mark == placement_mark(&x->placement))) {
                node_set_add(&x->agreeing, node);
                links_check(x, node);
        } else {
                log_info("node %s has owner list %llu in force, this node %llu: one of the two is "
                         "about to hear of the list on record",
                         node_name(x, node), (unsigned long long)m->epoch,
                         (unsigned long long)x->placement.epoch);
        }
}

void links_message(struct engine *x, uint32_t node, const Zero__Links *m)
{
        links_agree(x, node, m);
        if (!node_set_from_words(m->cut, m->n_cut, &x->cut[node]))
                fabric_cut(x->fabric, node, "sends a set of nodes that no cluster has");
        coordinators_cut(x, node, x->cut[node]);
}
