/*
 * Which nodes reach each other.
 *
 * A node is up when its link stands and it has said that the same owner list is in force there.
 * Until then this node ignores what it says about jobs.
 *
 * Every node tells all others which nodes it cannot reach.  A broken link loses what was on its
 * way. So an attempt that needs both nodes is void, even if neither of them coordinates the job.
 *
 * When n nodes start, each of them sees n links come up, and n^3 messages would follow.  So a node
 * tells at once only of the first change after a while, and of the one after which all nodes are
 * up. It tells of others together, when a tick saw no more of them.
 */
#include "daemon/cluster/coordinator/coordinator.h"
#include "daemon/cluster/engine/lifetime.h"

#include "daemon/floor/base/log.h"
#include "proto/cleanup.h"

enum { LINKS_TICKS = 10 }; /* between two tellings at the least, unless nothing changes */

/* Tells these nodes which nodes this one does not reach, or did not since all were told. */
static void links_tell(struct engine *x, node_set to)
{
        Zero__LinkMessage m = ZERO__LINK_MESSAGE__INIT;
        Zero__Links links = ZERO__LINKS__INIT;
        node_set nodes = node_set_first_n(x->cluster->n_nodes);
        node_set cut = nodes & (~x->up | x->lifetime->links_lost);

        links.n_cut = node_set_words(&cut, &links.cut);
        links.epoch = x->placement.epoch;
        links.mark = placement_mark(&x->placement);
        m.job = (char *)"";
        m.body_case = ZERO__LINK_MESSAGE__BODY_LINKS;
        m.links = &links;
        send_some(x, to, &m);
}

static void links_tell_all(struct engine *x)
{
        struct lifetime *life = x->lifetime;

        links_tell(x, NODE_SET_ALL);
        life->links_hush_ticks = LINKS_TICKS;
        /* a link that came back since has been told as lost, and stands */
        life->links_untold = node_set_any(life->links_lost & x->up);
        life->links_lost = NODE_SET_NONE;
}

static void links_changed(struct engine *x)
{
        struct lifetime *life = x->lifetime;
        node_set down = node_set_first_n(x->cluster->n_nodes) & ~x->up;

        life->links_untold = life->links_moving = true;
        if (!life->links_hush_ticks || !node_set_any(down))
                links_tell_all(x);
        else
                links_tell(x, node_set_of(x->cluster->self));
}

void links_tick(struct engine *x)
{
        struct lifetime *life = x->lifetime;
        bool moving = life->links_moving;

        life->links_moving = false;
        life->links_hush_ticks -= life->links_hush_ticks > 0;
        if (life->links_untold && (!moving || !life->links_hush_ticks))
                links_tell_all(x);
}

/* Once both hold, what waits for the node goes on. */
static void links_check(struct engine *x, uint32_t node)
{
        if (node_set_has(x->up, node) || !node_set_has(x->linked & x->agreeing, node))
                return;
        node_set_add(&x->up, node);
        links_changed(x);
        for_modules (x, module)
                if (module->node_up)
                        module->node_up(x, node);
}

void links_up(struct engine *x, uint32_t node)
{
        node_set_add(&x->linked, node);
        links_tell(x, node_set_of(node)); /* the first word there */
        links_check(x, node);
}

void links_down(struct engine *x, uint32_t node)
{
        node_set_remove(&x->linked, node);
        node_set_remove(&x->agreeing, node);
        node_set_remove(&x->up, node);
        x->cut[node] = NODE_SET_ALL; /* until the node says which */
        node_set_add(&x->lifetime->links_lost, node);
        links_changed(x);
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
