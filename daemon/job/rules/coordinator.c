/* The coordinator of one job: its state, and what each event does; see coordinator.h. */
#include "daemon/job/rules/coordinator_parts.h"

#include <errno.h>
#include <stdlib.h>

int coordinator_init(struct coordinator *c, const struct coordinator_job *job,
                     const struct placement *placement)
{
        uint32_t holders = placement_holders(placement);

        *c = (struct coordinator){ .job = *job, .return_until_ms = job->return_until_ms };
        list_init(&c->joins);
        if (step_init(&c->step, job->world_size, job->n_nodes, placement))
                return -ENOMEM;
        c->step.loss_scale = job->loss_scale;
        c->standings = calloc(holders, sizeof *c->standings);
        c->standing_storage = calloc(holders, sizeof *c->standing_storage);
        c->sitters = calloc(job->world_size, sizeof *c->sitters);
        if (c->standings && c->standing_storage && c->sitters)
                return 0;
        coordinator_deinit(c);
        return -ENOMEM;
}

void coordinator_deinit(struct coordinator *c)
{
        step_deinit(&c->step);
        old_placements_free(c->old_placements);
        free(c->standings);
        free(c->standing_storage);
        free(c->sitters);
        c->standings = NULL;
        c->standing_storage = NULL;
        c->sitters = NULL;
}

/* ---- events ------------------------------------------------------------------------------ */

/* True if nobody wants the job any more, and the job was never known to exist. */
static bool is_idle(const struct coordinator *c, bool known)
{
        return !c->settled && !c->claimed && list_empty(&c->joins) && !known;
}

static void on_tick(struct coordinator *c, const struct coordinator_event *e)
{
        if (is_idle(c, e->known)) {
                coordinator_end(c, ZERO_ECLOSED, "");
                return;
        }
        open_ask_again(c);
        if (!c->settled && !c->fault.status)
                open_settle(c);
        if (!c->dead && c->settled)
                joins_admit(c);
        if (!c->dead)
                placing_advance(c);
}

/*
 * Loses the node's ranks and joins.  The ranks' sessions may still live, so no other world takes
 * their place.
 */
static void on_node_down(struct coordinator *c, uint32_t node)
{
        rank_slots_down(c, node);
        step_node_lost(&c->step, node);
        open_forget(c, node);
        joins_forget_node(c, node);
}

static void on_join(struct coordinator *c, const struct coordinator_event *e)
{
        struct join *j = e->join;
        int r;

        list_init(&j->link);
        j->admitted = false;
        j->since_ms = c->now_ms;
        if (e->kind == COORDINATOR_CLASH) {
                c->clash = j->fault;
                list_insert(&c->joins, &j->link);
                open_clash(c);
                return;
        }
        r = join_check(c, j);
        if (r) {
                act(c, (struct coordinator_action){ .kind = COORDINATOR_JOIN_END, .join = j });
        } else if (j->rank == RANK_ABSENT) {
                c->claimed = true;
                open_settle(c);
                join_end(c, j, ZERO_OK, "");
        } else {
                list_insert(&c->joins, &j->link);
                c->may_create = c->may_create || !j->resume;
                if (c->settled || c->fault.status)
                        joins_admit(c);
                else
                        open_settle(c);
        }
}

static void on_ready(struct coordinator *c, const struct coordinator_event *e)
{
        enum step_action action = STEP_NOTHING;
        struct fault fault;
        bool ahead = e->kind == COORDINATOR_AHEAD;
        int r = ahead ? step_ahead(&c->step, e->attempt, e->params, e->rank, &action, &fault)
                      : step_ready(&c->step, e->node, e->attempt, e->params, e->rank, &action,
                                   &fault);

        fault_set(&c->note, r, "%s", r ? fault.text : "");
        act(c, (struct coordinator_action){
                       .kind = COORDINATOR_ANSWER, .node = e->node, .call = e->call });
        if (action == STEP_PREPARE || action == STEP_AHEAD)
                act(c, (struct coordinator_action){ .kind = COORDINATOR_PREPARE, .flag = ahead });
}

static void on_reduce(struct coordinator *c, const struct coordinator_event *e)
{
        enum step_action action;
        struct fault fault;
        int r = step_reduce(&c->step, e->node, e->attempt, e->rank, e->numbers, &action, &fault);

        fault_set(&c->note, r, "%s", r ? fault.text : "");
        act(c, (struct coordinator_action){
                       .kind = COORDINATOR_ANSWER, .node = e->node, .call = e->call });
        if (action == STEP_REDUCED)
                act(c, (struct coordinator_action){ .kind = COORDINATOR_REDUCED });
        coordinator_advance(c); /* the attempt may be void */
}

/* Words the refusal of a step whose copies have summed the same gradients differently. */
static void refusal_name(struct coordinator *c)
{
        const struct placement *placement = &c->step.placement;
        uint32_t owner = holder_owner(placement, c->step.odd);

        fault_set(&c->step.refusal, c->step.refusal.status,
                  "nodes %s and %s hold the same shards and have summed the same gradients, but "
                  "with different results: the memory of one of the two is damaged",
                  c->job.nodes[holder_node(placement, holder_of(placement, owner, 0))],
                  c->job.nodes[holder_node(placement, c->step.odd)]);
}

static void on_vote(struct coordinator *c, const struct coordinator_event *e)
{
        uint32_t holder = coordinator_holder(c, e->node, e->owner, e->copy);
        enum step_action action;

        if (holder == NO_HOLDER || e->norm_only != c->step.norm_only)
                return;
        step_vote(&c->step, holder, e->attempt, e->vote, &action);
        if (action == STEP_DECIDE)
                act(c, (struct coordinator_action){
                               .kind = c->step.norm_only ? COORDINATOR_NORM : COORDINATOR_DECIDE });
        if (action != STEP_REFUSE)
                return;
        if (c->step.odd != NO_HOLDER)
                refusal_name(c);
        act(c, (struct coordinator_action){ .kind = COORDINATOR_REFUSE });
}

/* Events of nodes. */
static void node_event(struct coordinator *c, const struct coordinator_event *e)
{
        switch (e->kind) {
        case COORDINATOR_NODE_UP:
                if (c->nodes[e->node] == NODE_UNASKED)
                        open_ask(c, e->node);
                break;
        case COORDINATOR_NODE_DOWN:
                on_node_down(c, e->node);
                break;
        case COORDINATOR_LINKS:
                step_links(&c->step, e->node, e->cut);
                coordinator_advance(c);
                break;
        case COORDINATOR_OPENED:
                open_answered(c, e);
                break;
        case COORDINATOR_OPEN_FAILED:
                open_failed(c, e);
                break;
        case COORDINATOR_ASK_AGAIN:
                c->nodes[e->node] = NODE_AGAIN;
                c->created[e->node] = c->created[e->node] || e->created;
                break;
        case COORDINATOR_SETTLED:
                settle_answered(c, e);
                break;
        default:
                fill_ended(c, e);
        }
}

void coordinator_step(struct coordinator *c, const struct coordinator_event *e,
                      struct coordinator_actions *ret)
{
        if (c->dead)
                return;
        c->actions = ret;
        c->now_ms = e->now_ms;
        c->linked = e->linked;
        c->up = e->up;
        switch (e->kind) {
        case COORDINATOR_TICK:
                on_tick(c, e);
                break;
        case COORDINATOR_JOIN:
        case COORDINATOR_CLASH:
                on_join(c, e);
                break;
        case COORDINATOR_LEAVE:
                coordinator_leave(c, e);
                break;
        case COORDINATOR_READY:
        case COORDINATOR_AHEAD:
                on_ready(c, e);
                break;
        case COORDINATOR_REDUCE:
                on_reduce(c, e);
                break;
        case COORDINATOR_VOTE:
                on_vote(c, e);
                break;
        case COORDINATOR_DONE:
                open_done(c, coordinator_holder(c, e->node, e->owner, e->copy), e->attempt);
                coordinator_advance(c);
                break;
        case COORDINATOR_CLOSE:
                coordinator_end(c, e->status, e->text);
                break;
        default:
                node_event(c, e);
        }
}
