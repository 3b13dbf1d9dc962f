/* Collects from all nodes who is late and tells all nodes, so that every wait has a name. */
#include "daemon/cluster/coordinator/coordinator.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "proto/cleanup.h"

/* ---- who is late -------------------------------------------------------------------------- */

void coordinated_report(struct coordinated *c, uint32_t node, const Zero__Progress *p)
{
        struct report *r = c->reports[node];

        if (!r && !p->waiting && p->n_waits == 0)
                return;
        if (!r)
                r = c->reports[node] = malloc(sizeof *r);
        if (!r)
                return; /* the node will report again */
        r->waiting = p->waiting;
        progress_read(c->x, p, &r->waits);
}

static void summary_add(struct wait_lines *waits, const struct wait_line *line)
{
        if (waits->n < WAIT_LINES)
                waits->lines[waits->n++] = *line;
}

/* Names a node that it cannot reach, and rather one that is down from here, too. */
static void describe_cut(const struct coordinated *c, uint32_t node, struct wait_line *ret)
{
        node_set cut = c->state.step.cut[node] & ~node_set_of(node), down = cut & ~c->x->up;
        uint32_t other = node_set_any(down)  ? node_set_first(down)
                         : node_set_any(cut) ? node_set_first(cut)
                                             : UINT32_MAX;

        if (other < c->x->cluster->n_nodes)
                snprintf(ret->what, sizeof ret->what, WAIT_TO_REACH "%.60s",
                         node_name(c->x, other));
        else
                snprintf(ret->what, sizeof ret->what, "to say which nodes it reaches");
}

/* Nodes that are away, and other obstacles to the job. */
static void nodes_summary(const struct coordinated *c, struct wait_lines *waits)
{
        uint64_t now = engine_now(c->x);

        if (c->state.fault.status) {
                struct wait_line line = { .since_ms = now };

                snprintf(line.who, sizeof line.who, "a person, for node %.60s",
                         node_name(c->x, c->state.hinders));
                snprintf(line.what, sizeof line.what, "%.150s", c->state.fault.text);
                summary_add(waits, &line);
        }
        for (uint32_t i = 0; i < c->x->cluster->n_nodes; i++) {
                struct wait_line line = { .since_ms = now };

                if (!step_needs_node(&c->state.step, i) ||
                    (node_set_has(c->state.step.open, i) &&
                     !(c->state.step.phase == STEP_FORMING && node_set_any(c->state.step.cut[i]))))
                        continue;
                snprintf(line.who, sizeof line.who, "node %.60s", node_name(c->x, i));
                if (node_set_has(c->state.step.open, i))
                        describe_cut(c, i, &line);
                else
                        snprintf(line.what, sizeof line.what, "%s",
                                 c->state.nodes[i] != NODE_UNASKED ? "to get its shards"
                                 : node_set_has(c->x->up, i)
                                         ? "to have memory for its state (see its log)"
                                         : "to come up");
                summary_add(waits, &line);
        }
        for (uint32_t i = 0; i < c->x->cluster->n_nodes; i++) {
                struct wait_line line = { .since_ms = now };

                if (!node_set_has(c->state.untold, i))
                        continue;
                snprintf(line.who, sizeof line.who, "node %.60s", node_name(c->x, i));
                snprintf(line.what, sizeof line.what, "%s", coordinated_untold(c));
                summary_add(waits, &line);
        }
}

/* Ranks of another world size wait until those of this one have left. */
static bool world_waits(const struct coordinated *c, struct wait_lines *waits)
{
        const struct join *j = coordinator_other_world(&c->state);
        struct wait_line line = { .since_ms = engine_now(c->x) };

        if (!j)
                return false;
        for (uint32_t r = 0; r < c->state.step.world_size; r++) {
                if (c->state.step.rank_slots[r] != RANK_SLOT_HERE)
                        continue;
                snprintf(line.who, sizeof line.who, "rank %u of %u", r, c->state.step.world_size);
                snprintf(line.what, sizeof line.what, "to leave: ranks of world size %u wait",
                         j->world_size);
                summary_add(waits, &line);
        }
        return true;
}

/* An absent rank may still come, unless its process has ended. */
static void absent_waits(const struct coordinated *c, uint32_t rank, struct wait_lines *waits)
{
        const struct sitter *sitter = &c->state.sitters[rank];
        bool lost = c->state.step.rank_slots[rank] == RANK_SLOT_LOST;
        struct wait_line line = { .since_ms = engine_now(c->x),
                                  .alive = !lost || sitter->cut_off_ms };

        if (lost && sitter->cut_off_ms)
                line.since_ms = sitter->cut_off_ms;
        else if (!lost && !list_empty(&c->state.joins))
                line.since_ms = CONTAINER_OF(c->state.joins.next, struct join, link)->since_ms;
        snprintf(line.who, sizeof line.who, "rank %u", rank);
        snprintf(line.what, sizeof line.what, "%s",
                 !lost                ? "to attach"
                 : sitter->cut_off_ms ? "to attach again: the link to its node was lost"
                                      : "it was lost: its session ended");
        summary_add(waits, &line);
}

/* What is absent gives no sign of its own: the wait for it began when it was first told of. */
static void keep_since(const struct coordinated *c, struct wait_lines *waits)
{
        for (uint32_t i = 0; i < waits->n; i++)
                for (uint32_t k = 0; !waits->lines[i].alive && k < c->said.n; k++)
                        if (strcmp(waits->lines[i].who, c->said.lines[k].who) == 0 &&
                            strcmp(waits->lines[i].what, c->said.lines[k].what) == 0)
                                waits->lines[i].since_ms = c->said.lines[k].since_ms;
}

/* Absent nodes and ranks first, then what the nodes report. */
static void coordinator_summary(const struct coordinated *c, struct wait_lines *waits)
{
        const struct step *s = &c->state.step;

        nodes_summary(c, waits);
        if (world_waits(c, waits)) {
                keep_since(c, waits);
                return;
        }
        for (uint32_t r = 0; r < s->world_size; r++) {
                if (s->rank_slots[r] != RANK_SLOT_HERE)
                        absent_waits(c, r, waits);
        }
        keep_since(c, waits);
        for (uint32_t i = 0; i < c->x->cluster->n_nodes; i++)
                for (uint32_t k = 0; c->reports[i] && k < c->reports[i]->waits.n; k++)
                        summary_add(waits, &c->reports[i]->waits.lines[k]);
}

static bool coordinator_is_waited_for(const struct coordinated *c)
{
        if (!list_empty(&c->state.joins) || c->state.fault.status)
                return true;
        for (uint32_t i = 0; i < c->x->cluster->n_nodes; i++)
                if (c->reports[i] && c->reports[i]->waiting)
                        return true;
        return false;
}

static Zero__Move *move_message(struct coordinated *c, Zero__Move *ret)
{
        struct move m;

        if (!coordinated_moves(c, &m))
                return NULL;
        zero__move__init(ret);
        ret->from = m.from;
        ret->to = m.to;
        ret->bytes = m.bytes;
        ret->total = m.total;
        return ret;
}

void coordinated_tell(struct coordinated *c)
{
        Zero__LinkMessage m = job_message(c->name);
        struct progress_message message;
        struct wait_lines waits = { 0 };
        Zero__Progress *progress = &message.progress;
        Zero__Move move;

        if (coordinator_is_waited_for(c))
                coordinator_summary(c, &waits);
        c->said = waits;
        progress_write(c->x, &waits, &message);
        progress->move = move_message(c, &move);
        if (waits.n == 0 && !progress->move && !c->told)
                return;
        progress->summary = true;
        m.body_case = ZERO__LINK_MESSAGE__BODY_PROGRESS;
        m.progress = progress;
        send_all(c->x, &m);
        c->told = waits.n > 0 || progress->move;
}
