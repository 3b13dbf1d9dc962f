/* Starts and stops the engine, ticks, and passes messages to the folders. */
#include "daemon/cluster/checkpoint/checkpoint.h"
#include "daemon/cluster/coordinator/coordinator.h"
#include "daemon/cluster/doctor/doctor.h"
#include "daemon/cluster/engine/lifetime.h"
#include "daemon/cluster/measure/measure.h"
#include "daemon/cluster/membership/membership.h"
#include "daemon/cluster/reshard/reshard.h"
#include "daemon/job/core/shut.h"
#include "daemon/job/recorder/recorder.h"
#include "daemon/job/deltas/deltas.h"
#include "daemon/step/bases/bases.h"
#include "daemon/step/follow/follow.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/floor/base/log.h"
#include "proto/cleanup.h"
#include "proto/sure.h"

/* ---- the tick ----------------------------------------------------------------- */

/* Tells the job's coordinator who is late on this node. */
static void progress_send(struct job *job)
{
        Zero__LinkMessage m = job_message(job->name);
        struct progress_message progress;
        struct wait_lines waits = { 0 };
        bool waiting = false;

        waits.n = local_waits(job, waits.lines, WAIT_LINES, &waiting);
        if (!job->started || (job->n_attached == 0 && waits.n == 0 && !job->progress->reported))
                return;
        job->progress->reported = waits.n > 0 || waiting;
        progress_write(job->x, &waits, &progress);
        progress.progress.waiting = waiting;
        m.body_case = ZERO__LINK_MESSAGE__BODY_PROGRESS;
        m.progress = &progress.progress;
        fabric_send(job->x->fabric, job->coordinator, &m);
}

static void progress_summary(struct job *job, const Zero__Progress *p)
{
        job_move_told(job, p->move);
        progress_read(job->x, p, &job->progress->waits);
}

static bool modules_init(struct engine *x)
{
        for_modules (x, module) {
                if (!module->node_bytes)
                        continue;
                *module_state(x, module->node_at) = calloc(1, module->node_bytes);
                if (!*module_state(x, module->node_at))
                        return false;
                if (module->node_init)
                        module->node_init(x);
        }
        return true;
}

static void engine_free(struct engine *x)
{
        for_modules (x, module) {
                if (!module->node_bytes)
                        continue;
                cleanup_free(module_state(x, module->node_at));
                *module_state(x, module->node_at) = NULL;
        }
}

static void tick_closed(uv_handle_t *tick)
{
        struct lifetime *life = CONTAINER_OF((uv_timer_t *)tick, struct lifetime, tick);
        void (*closed)(void *arg) = life->closed;
        void *arg = life->closed_arg;

        engine_free(life->x);
        closed(arg);
}

static void engine_check_stopped(struct engine *x)
{
        if (!x->stopping || !list_empty(&x->dead_jobs) || offload_pending(x->offload))
                return;
        for_modules (x, module)
                if (module->idle && !module->idle(x))
                        return;
        membership_free(x);
        uv_close((uv_handle_t *)&x->lifetime->tick, tick_closed);
}

static void engine_tick(uv_timer_t *timer)
{
        struct lifetime *life = CONTAINER_OF(timer, struct lifetime, tick);
        struct engine *x = life->x;
        bool progress = engine_now(x) - life->progress_ms >= PROGRESS_MS;

        sure_fill();
        if (progress)
                life->progress_ms = engine_now(x);
        for_modules (x, module) {
                if (module->tick)
                        module->tick(x);
                if (progress && module->progress)
                        module->progress(x);
        }
        links_tick(x);
        requests_expire(&x->requests, engine_now(x));
        drain_check(x);
        engine_check_stopped(x);
}

/* ---- the modules --------------------------------------------------------------------- */

static void engine_progress(struct engine *x)
{
        list_for_each (&x->jobs, item) {
                progress_send(CONTAINER_OF(item, struct job, link));
        }
        resume_tick(x);
}

/* The stop may have waited for a step that has ended now. */
static void engine_settled(struct job *job)
{
        if (job->x->draining)
                uv_timer_start(&job->x->lifetime->tick, engine_tick, 0, TICK_MS);
}

static void engine_init(struct engine *x)
{
        x->lifetime->x = x;
        uv_timer_init(x->loop, &x->lifetime->tick);
}

static const struct module engine_module = { .node_at = offsetof(struct engine, lifetime),
                                             .node_bytes = sizeof(struct lifetime),
                                             .node_init = engine_init,
                                             .progress = engine_progress,
                                             .node_up = jobs_claim };
static const struct shard_observer engine_observer = { .settled = engine_settled };

static const struct module *const modules[] = {
        &drop_module,        &transfer_module,    &measure_module,       &recorder_module,
        &shard_module,       &deltas_module,      &gather_module,        &follow_module,
        &grants_module,      &stash_module,       &bases_module,         &reduce_module,
        &update_module,      &tensors_module,     &checkpoint_module,    &rank_module,
        &bringing_module,    &fill_target_module, &old_placement_module, &membership_module,
        &coordinator_module, &doctor_module,      &engine_module,
};
static const struct shard_observer *const observers[] = {
        &gather_observer,     &reduce_observer,        &update_observer, &tensors_observer,
        &checkpoint_observer, &old_placement_observer, &engine_observer, NULL,
};

/* ---- start and stop ---------------------------------------------------------------- */

int engine_start(struct engine *x)
{
        struct list *lists[] = { &x->jobs,     &x->dead_jobs, &x->coordinators, &x->composings,
                                 &x->composes, &x->layouts,   &x->shut };
        uint32_t owners[ZERO_NODE_MAX], n_owners = 0;

        x->modules = modules;
        x->n_modules = sizeof modules / sizeof modules[0];
        x->observers = observers;
        for (size_t i = 0; i < sizeof lists / sizeof lists[0]; i++)
                list_init(lists[i]);
        requests_init(&x->requests);
        x->linked = x->agreeing = x->up = NODE_SET_NONE;
        for (uint32_t n = 0; n < ZERO_NODE_MAX; n++)
                x->cut[n] = NODE_SET_ALL; /* until the node says which */
        for (uint32_t n = 0; n < x->cluster->n_nodes; n++)
                for (uint32_t i = 0; i < x->cluster->nodes[n].owners; i++)
                        owners[n_owners++] = n;
        placement_init(&x->placement, 0, owners, n_owners, x->cluster->mirror);
        if (!modules_init(x)) {
                engine_free(x);
                return -ENOMEM;
        }
        return uv_timer_start(&x->lifetime->tick, engine_tick, TICK_MS, TICK_MS);
}

void engine_stop(struct engine *x, void (*closed)(void *arg), void *arg)
{
        x->stopping = true;
        x->lifetime->closed = closed;
        x->lifetime->closed_arg = arg;
        membership_back_forget(x);
        coordinators_free(x);
        ranks_stop(x);
        composes_stop(x);
        while (!list_empty(&x->jobs))
                job_detach(CONTAINER_OF(x->jobs.next, struct job, link));
        for (uint32_t n = 0; n < x->cluster->n_nodes; n++)
                calls_down(x, n, "the daemon stops");
        drops_free(x);
        shut_forget(x);
        operations_stop(x);
}

/* ---- other nodes -------------------------------------------------------------------- */

void engine_up(struct engine *x, uint32_t node)
{
        log_info("node %s is up", node_name(x, node));
        links_up(x, node);
        membership_up(x, node);
}

void engine_down(struct engine *x, uint32_t node, const char *why)
{
        links_down(x, node);
        list_for_each (&x->jobs, item) {
                struct job *job = CONTAINER_OF(item, struct job, link);

                if (job->coordinator == node)
                        /* the coordinator tells them again when it is back */
                        job->progress->waits.n = 0;
        }
        for_modules (x, module)
                if (module->node_down)
                        module->node_down(x, node, why);
}

static void pull_message(struct job *job, uint32_t node, const Zero__Pull *pull)
{
        switch (pull->kind) {
        case ZERO__PULL__KIND__PARAM:
                shard_pull_message(job, node, pull);
                break;
        case ZERO__PULL__KIND__DELTA:
                deltas_pull_message(job, node, pull);
                break;
        case ZERO__PULL__KIND__STASH:
                stash_pull_message(job, node, pull);
                break;
        case ZERO__PULL__KIND__GRAD:
                reduce_pull_message(job, node, pull);
                break;
        case ZERO__PULL__KIND__SUM:
                mirror_pull_message(job, node, pull);
                break;
        case ZERO__PULL__KIND__STATE:
                fill_source_pull_message(job, node, pull);
                break;
        case ZERO__PULL__KIND__PLANE:
        case ZERO__PULL__KIND__PUT:
                access_pull_message(job, node, pull);
                break;
        default:
                ask_refuse(job, node, pull->transfer, ZERO_EPROTO, "unknown kind of pull");
        }
}

static void prepare_message(struct job *job, const Zero__Prepare *m)
{
        const struct owner_event e = { .kind = m->ahead ? OWNER_AHEAD : OWNER_PREPARE,
                                       .attempt = m->attempt };
        struct replica *at[OWNER_REPLICAS] = { 0 };
        struct owner_actions actions;
        struct step_params params;
        struct fault fault;
        struct owner o;

        if ((m->ahead && !m->params) ||
            (m->params && step_params_from_message(m->params, &params, &fault)))
                return;
        owner_of_job(job, &o, at);
        owner_step(&o, &e, &actions);
        for (uint32_t i = 0; i < actions.n; i++) {
                struct replica *h = at[actions.items[i].replica];

                if (actions.items[i].kind == OWNER_LEAD) {
                        update_lead(h, &params);
                } else { /* OWNER_ASK */
                        if (m->params)
                                update_led_as(h, &params);
                        accumulator_prepare(h, m, m->params ? &params : NULL);
                }
        }
}

static void offer_message(struct job *job, uint32_t node, const Zero__Offer *offer)
{
        int r = accumulator_offer(job, node, offer, NULL);

        if (r) /* the attempt cannot do without it */
                fabric_cut(job->x->fabric, node,
                           r == -ENOMEM ? "out of memory for its offer of a gradient"
                                        : "its offer of a gradient does not fit the job's layout, "
                                          "owners or order of micro-batches");
}

/* A message for a job on this node. */
static void job_message_in(struct job *job, uint32_t node, const Zero__LinkMessage *m)
{
        bool trusted = node == job->coordinator;

        switch (m->body_case) {
        case ZERO__LINK_MESSAGE__BODY_START:
                if (trusted)
                        job_start_message(job, m);
                break;
        case ZERO__LINK_MESSAGE__BODY_PART:
                if (trusted)
                        job_part_message(job, m->part);
                break;
        case ZERO__LINK_MESSAGE__BODY_DECISION:
                if (trusted)
                        job_decision_message(job, m->decision);
                break;
        case ZERO__LINK_MESSAGE__BODY_REDUCED:
                if (trusted)
                        reduced_message(job, m->reduced);
                break;
        case ZERO__LINK_MESSAGE__BODY_PREPARE:
                if (trusted)
                        prepare_message(job, m->prepare);
                break;
        case ZERO__LINK_MESSAGE__BODY_PROGRESS:
                if (trusted)
                        progress_summary(job, m->progress);
                break;
        case ZERO__LINK_MESSAGE__BODY_PULL:
                pull_message(job, node, m->pull);
                break;
        case ZERO__LINK_MESSAGE__BODY_OFFER:
                offer_message(job, node, m->offer);
                break;
        case ZERO__LINK_MESSAGE__BODY_STASH_DONE:
                stash_done_message(job, node, m->stash_done);
                break;
        case ZERO__LINK_MESSAGE__BODY_FILL_INFO:
                fill_source_info_message(job, node, m);
                break;
        case ZERO__LINK_MESSAGE__BODY_PUT_RANGE:
                access_put_message(job, node, m);
                break;
        case ZERO__LINK_MESSAGE__BODY_NORMS_ASK:
                norms_ask_message(job, node, m);
                break;
        case ZERO__LINK_MESSAGE__BODY_DIRTY:
                if (m->dirty->group < job->layout->n_groups)
                        gather_dirty(job, m->dirty->group);
                answer(job->x, node, m, ZERO_OK, "");
                break;
        case ZERO__LINK_MESSAGE__BODY_SETTLE:
                if (trusted)
                        old_placement_settle_message(job, node, m);
                break;
        default:
                answer(job->x, node, m, ZERO_EPROTO, "unknown kind of message");
        }
}

static bool for_coordinator(const Zero__LinkMessage *m)
{
        switch (m->body_case) {
        case ZERO__LINK_MESSAGE__BODY_JOIN:
        case ZERO__LINK_MESSAGE__BODY_COMPOSE_PART:
        case ZERO__LINK_MESSAGE__BODY_READY:
        case ZERO__LINK_MESSAGE__BODY_NUMBERS:
        case ZERO__LINK_MESSAGE__BODY_PREPARED:
        case ZERO__LINK_MESSAGE__BODY_DONE:
                return true;
        case ZERO__LINK_MESSAGE__BODY_PART:
                return !m->part->told;
        case ZERO__LINK_MESSAGE__BODY_PROGRESS:
                return !m->progress->summary;
        default:
                return false;
        }
}

/* Refuses a message.  An offer has no answer: its announced payload is forgotten. */
static void refuse(struct engine *x, uint32_t node, const Zero__LinkMessage *m, int status,
                   const char *text)
{
        if (m->body_case == ZERO__LINK_MESSAGE__BODY_OFFER)
                offer_drop(x, node, m->offer);
        answer(x, node, m, status, text);
}

/* A message for a job that is not on this node. */
static void unknown_job(struct engine *x, uint32_t node, const Zero__LinkMessage *m)
{
        if (m->body_case == ZERO__LINK_MESSAGE__BODY_PULL) {
                Zero__LinkMessage reply = ZERO__LINK_MESSAGE__INIT;
                Zero__Refuse refuse = ZERO__REFUSE__INIT;

                refuse.transfer = m->pull->transfer;
                refuse.status = ZERO_ENOJOB;
                refuse.text = (char *)"no such job";
                reply.body_case = ZERO__LINK_MESSAGE__BODY_REFUSE;
                reply.refuse = &refuse;
                fabric_send(x->fabric, node, &reply);
                return;
        }
        refuse(x, node, m, ZERO_ENOJOB, "no such job on this node");
}

void engine_message(struct engine *x, uint32_t node, const Zero__LinkMessage *m)
{
        struct job *job;

        if (m->answer) {
                calls_answer(x, node, m);
        } else if (m->body_case == ZERO__LINK_MESSAGE__BODY_REFUSE) {
                ask_refused_message(x, node, m->refuse);
        } else if (x->stopping) {
                refuse(x, node, m, ZERO_ECLOSED, "the daemon stops");
        } else if (m->body_case == ZERO__LINK_MESSAGE__BODY_LINKS) {
                links_message(x, node, m->links);
        } else if (m->body_case == ZERO__LINK_MESSAGE__BODY_VOTE) {
                membership_message(x, node, m);
        } else if (!node_set_has(x->agreeing, node)) {
                refuse(x, node, m, ZERO_EPEER, "another owner list is in force here");
        } else if (m->body_case == ZERO__LINK_MESSAGE__BODY_OPEN) {
                job_open_message(x, node, m);
        } else if (m->body_case == ZERO__LINK_MESSAGE__BODY_DROP) {
                drop_message(x, node, m);
        } else if (m->body_case == ZERO__LINK_MESSAGE__BODY_QUERY) {
                x->query(x, node, m);
        } else if (m->body_case == ZERO__LINK_MESSAGE__BODY_PULL &&
                   m->pull->kind == ZERO__PULL__KIND__MEASURE) {
                measure_pull_message(x, node, m);
        } else if (m->body_case == ZERO__LINK_MESSAGE__BODY_SNAPSHOT ||
                   m->body_case == ZERO__LINK_MESSAGE__BODY_SNAPSHOT_PROGRESS) {
                snapshot_message(x, node, m);
        } else if (m->body_case == ZERO__LINK_MESSAGE__BODY_GRANTS) {
                grants_message(x, node, m);
        } else if (m->body_case == ZERO__LINK_MESSAGE__BODY_PLACED) {
                old_placement_placed_message(x, node, m);
        } else if (m->body_case == ZERO__LINK_MESSAGE__BODY_FILL) {
                fill_target_message(x, node, m);
        } else if (m->body_case == ZERO__LINK_MESSAGE__BODY_FILL_PROGRESS) {
                fill_progress_message(x, node, m);
        } else if (for_coordinator(m)) {
                coordinator_message(x, node, m);
        } else if (m->body_case == ZERO__LINK_MESSAGE__BODY_COMPOSE_WAITS) {
                compose_waits_message(x, node, m);
        } else {
                job = job_find(x, m->job);
                if (job && !job->opening)
                        job_message_in(job, node, m);
                else
                        unknown_job(x, node, m);
        }
}
