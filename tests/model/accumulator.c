/* The owner's sums and their offers to the mirror: accumulator.c, vote.c. */
#include "world.h"

#include <string.h>

static uint32_t owner_node(uint32_t node, uint32_t copy)
{
        return placement.node[holder_owner(&placement, holder_on(node, copy))];
}

/* Whether the node has anything to offer to the replica. */
static bool expects(const struct node *n, uint32_t node, uint32_t copy, uint32_t from)
{
        if (copy)
                return from == owner_node(node, copy);
        for (uint32_t r = 0; r < bounds.n_ranks; r++)
                if (n->node_of_rank[r] == from)
                        return true;
        return false;
}

bool accumulator_complete(const struct world *w, uint32_t node, uint32_t copy)
{
        const struct node *n = &w->nodes[node];

        if (!n->started)
                return false;
        for (uint32_t i = 0; i < bounds.n_nodes; i++)
                if (expects(n, node, copy, i) && !(n->replicas[copy].finished >> i & 1))
                        return false;
        return true;
}

/* Gives the sum's parts: exactly one contribution of each rank to each micro-batch, all of this
 * attempt.
 */
void accumulator_sum(const struct world *w, uint32_t node, uint32_t copy,
                     u8 parts[MICRO_BATCHES][RANKS])
{
        const struct node *n = &w->nodes[node];
        const struct replica *h = &n->replicas[copy];

        memset(parts, 0, MICRO_BATCHES * RANKS);
        for (uint32_t i = 0; i < bounds.n_nodes; i++)
                for (uint32_t b = 0; b < h->offered[i]; b++) {
                        const struct node_gradient *p = &h->landed[i][b];

                        REQUIRE(p->attempt == n->attempt,
                                "node %u sums a contribution of attempt %u in attempt %u", node,
                                p->attempt, n->attempt);
                        for (uint32_t r = 0; r < bounds.n_ranks; r++) {
                                REQUIRE(!p->parts[r] || !parts[b][r],
                                        "node %u sums two contributions of rank %u", node, r);
                                parts[b][r] |= p->parts[r];
                        }
                }
        for (uint32_t b = 0; b < bounds.micro_batches; b++)
                for (uint32_t r = 0; r < bounds.n_ranks; r++)
                        REQUIRE(parts[b][r], "node %u sums without micro-batch %u of rank %u", node,
                                b, r);
}

/* Offers the sum to the mirror once the sum is complete. */
static void mirror_offer(struct world *w, uint32_t node)
{
        struct node *n = &w->nodes[node];
        struct replica *h = &n->replicas[0];
        struct message m = { .type = OFFER, .copy = 1, .attempt = n->attempt, .last = 1 };

        if (placement.copies < 2 || h->chained || h->running || !accumulator_complete(w, node, 0))
                return;
        h->chained = 1;
        accumulator_sum(w, node, 0, m.sum);
        send(w, node, holder_node(&placement, holder_of(&placement, holder_on(node, 0), 1)), m);
}

void accumulator_vote(struct world *w, uint32_t node, uint32_t copy)
{
        if (copy == 0)
                mirror_offer(w, node);
        replica_summed(w, node, copy);
}

/* ---- offers ---- */

/* All micro-batches of the sum are in one offer. */
static void sum_take(struct replica *h, const struct early *o)
{
        for (uint32_t b = 0; b < bounds.micro_batches; b++) {
                h->landed[o->node][b].attempt = o->attempt;
                memcpy(h->landed[o->node][b].parts, o->sum[b], RANKS);
        }
        h->offered[o->node] = bounds.micro_batches;
        h->finished |= (u8)(1 << o->node);
}

static void offer_queue(struct world *w, uint32_t node, const struct early *o)
{
        struct node *n = &w->nodes[node];
        struct replica *h = &n->replicas[o->copy];

        if (o->micro_batch < h->offered[o->node]) {
                violate("node %u, which keeps the rules, is cut by node %u", o->node, node);
                return;
        }
        if (o->micro_batch > h->offered[o->node] || !expects(n, node, o->copy, o->node))
                return;
        if (o->copy) {
                sum_take(h, o);
                return;
        }
        h->landed[o->node][o->micro_batch].attempt = o->attempt;
        memcpy(h->landed[o->node][o->micro_batch].parts, o->place, RANKS);
        h->offered[o->node]++;
        if (o->last)
                h->finished |= (u8)(1 << o->node);
}

static enum owner_offer offer_stands(const struct node *n, u8 attempt)
{
        return owner_offer(n->attempt, n->started, attempt);
}

void accumulator_offer(struct world *w, uint32_t node, uint32_t from, const struct message *m)
{
        struct node *n = &w->nodes[node];
        struct early o = { .node = (u8)from,
                           .copy = m->copy,
                           .attempt = m->attempt,
                           .micro_batch = m->micro_batch,
                           .last = m->last };

        memcpy(o.place, m->place, sizeof o.place);
        memcpy(o.sum, m->sum, sizeof o.sum);
        switch (offer_stands(n, m->attempt)) {
        case OWNER_OFFER_OVER:
                break;
        case OWNER_OFFER_NOW:
                offer_queue(w, node, &o);
                accumulator_vote(w, node, m->copy);
                break;
        case OWNER_OFFER_EARLY:
                if (n->n_early == EARLY)
                        violate("node %u has too many early offers", node);
                else
                        n->early[n->n_early++] = o;
        }
}

void accumulator_lose(struct world *w, uint32_t node, uint32_t from)
{
        struct node *n = &w->nodes[node];
        u8 kept = 0;

        for (u8 i = 0; i < n->n_early; i++)
                if (n->early[i].node != from)
                        n->early[kept++] = n->early[i];
        memset(&n->early[kept], 0, (n->n_early - kept) * sizeof n->early[0]);
        n->n_early = kept;
}

void accumulator_reset(struct world *w, uint32_t node)
{
        struct node *n = &w->nodes[node];
        struct early early[EARLY];
        u8 n_early = n->n_early;

        memcpy(early, n->early, sizeof early);
        memset(n->early, 0, sizeof n->early);
        n->n_early = 0;
        for (uint32_t c = 0; c < placement.copies; c++) {
                struct replica *h = &n->replicas[c];

                memset(h->offered, 0, sizeof h->offered);
                memset(h->landed, 0, sizeof h->landed);
                h->finished = h->chained = h->preparing = h->prepare_scale = 0;
        }
        for (u8 i = 0; i < n_early; i++) {
                enum owner_offer stands = offer_stands(n, early[i].attempt);

                if (stands == OWNER_OFFER_EARLY)
                        n->early[n->n_early++] = early[i];
                else if (stands == OWNER_OFFER_NOW)
                        offer_queue(w, node, &early[i]);
        }
        mirror_offer(w, node);
}
