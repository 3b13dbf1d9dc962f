/* Plans the change of owners that a person asks for, or says why the change is impossible. */
#include "daemon/cluster/membership/membership.h"

#include <string.h>

enum { ANEW_MS = 5000 };

static int find_node(const struct engine *x, const char *name, size_t n, uint32_t *ret,
                     struct fault *fault)
{
        for (uint32_t i = 0; i < x->cluster->n_nodes; i++)
                if (strlen(node_name(x, i)) == n && strncmp(node_name(x, i), name, n) == 0) {
                        *ret = i;
                        return 0;
                }
        return fault_set(fault, ZERO_EINVAL,
                         "there is no node '%.*s': the nodes are those in `peers`, which is the "
                         "same on every node",
                         (int)(n < 64 ? n : 64), name);
}

static bool is_owner(const struct placement *p, uint32_t node)
{
        return node_set_has(placement_nodes(p), node);
}

/* True if the node's link went down a moment ago: the node may be restarting with other owners. */
static bool may_come(const struct engine *x, uint32_t node)
{
        struct fabric_info info;

        fabric_info(x->fabric, node, &info);
        return engine_now(x) - info.link.since_ms < ANEW_MS;
}

static int plan_add(const struct engine *x, uint32_t node, struct placement *p, struct fault *fault)
{
        if (is_owner(p, node))
                return fault_set(fault, ZERO_EINVAL, "node %s is an owner already",
                                 node_name(x, node));
        if (node != x->cluster->self && !node_set_has(x->linked, node))
                return fault_set(fault, may_come(x, node) ? ZERO_EBUSY : ZERO_EPEER,
                                 "node %s is not reachable from here: start its daemon first",
                                 node_name(x, node));
        uint32_t n = x->cluster->nodes[node].owners ? x->cluster->nodes[node].owners : 1;
        uint32_t at = placement_best_place(p);

        if (p->n_owners + n > ZERO_NODE_MAX)
                return fault_set(fault, ZERO_EINVAL, "there would be more than %d owners",
                                 ZERO_NODE_MAX);
        memmove(p->node + at + n, p->node + at, (p->n_owners - at) * sizeof *p->node);
        for (uint32_t i = 0; i < n; i++)
                p->node[at + i] = node;
        p->n_owners += n;
        return 0;
}

static int plan_remove(const struct engine *x, uint32_t node, struct placement *p,
                       struct fault *fault)
{
        uint32_t n = 0;

        if (!is_owner(p, node))
                return fault_set(fault, ZERO_EINVAL, "node %s is not an owner", node_name(x, node));
        if (!node_set_any(placement_nodes(p) & ~node_set_of(node)))
                return fault_set(fault, ZERO_EINVAL,
                                 "node %s is the only owner: add another one first",
                                 node_name(x, node));
        for (uint32_t o = 0; o < p->n_owners; o++)
                if (p->node[o] != node)
                        p->node[n++] = p->node[o];
        memset(p->node + n, 0, (p->n_owners - n) * sizeof *p->node);
        p->n_owners = n;
        return 0;
}

static int plan_dead(const struct engine *x, uint32_t node, struct membership_change *c,
                     struct fault *fault)
{
        if (node == x->cluster->self)
                return fault_set(fault, ZERO_EINVAL, "node %s is this one, and it is not dead",
                                 node_name(x, node));
        if (node_set_has(x->linked, node))
                return fault_set(fault, ZERO_ECONFLICT,
                                 "node %s is not dead: its daemon answers. To take its shards "
                                 "elsewhere, use remove-node",
                                 node_name(x, node));
        node_set_add(&c->dead, node);
        return is_owner(&c->wanted, node) ? plan_remove(x, node, &c->wanted, fault) : 0;
}

/* True if one of the nodes owned shards in an earlier epoch, so it may hold a job's newest state.
 */
static bool was_owner(const struct placement *p, node_set nodes)
{
        for (uint32_t i = 0; i < PLACEMENT_BEFORE; i++)
                if (node_set_any(p->before[i] & nodes & ~p->dead))
                        return true;
        return node_set_any(p->older & nodes & ~p->dead);
}

int membership_plan(const struct engine *x, enum membership_kind kind, const char *names,
                    struct membership_change *ret, struct fault *fault)
{
        const struct placement *now = &x->membership->durable.chosen; /* in force, or about to be */
        struct membership_change c = { .wanted = *now };
        uint32_t node = 0, owners[ZERO_NODE_MAX];
        int r = 0;

        if (x->membership->durable.chosen.epoch != x->placement.epoch)
                return fault_set(fault, ZERO_EBUSY,
                                 "the owners have just changed, and this node is about to restart "
                                 "with them: ask again in a moment");
        do {
                size_t n = kind == MEMBERSHIP_TAKEOVER ? strcspn(names, ",") : strlen(names);

                r = find_node(x, names, n, &node, fault);
                if (!r && kind == MEMBERSHIP_ADD)
                        r = plan_add(x, node, &c.wanted, fault);
                else if (!r && kind == MEMBERSHIP_REMOVE)
                        r = plan_remove(x, node, &c.wanted, fault);
                else if (!r)
                        r = plan_dead(x, node, &c, fault);
                names += n;
        } while (!r && *names++);
        if (!r && c.wanted.n_owners == now->n_owners && kind == MEMBERSHIP_TAKEOVER &&
            !was_owner(now, c.dead))
                r = fault_set(fault, ZERO_EINVAL,
                              "there is nothing to take over: no owner is "
                              "among these nodes");
        if (r)
                return r;
        memcpy(owners, c.wanted.node, sizeof owners);
        placement_init(&c.wanted, now->epoch, owners, c.wanted.n_owners, x->cluster->mirror);
        *ret = c;
        return r;
}
