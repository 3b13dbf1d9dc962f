/*
 * A fill at the holder's node: it makes a draft, fills the draft, and gives the draft the state's
 * name.
 *
 * The job need not be here yet: its first holder brings it.  Any failure drops the draft and tells
 * the coordinator why; the old state stays.
 */
#include <stdlib.h>
#include <string.h>

#include "daemon/floor/base/crash.h"
#include "daemon/job/core/shut.h"
#include "daemon/floor/base/log.h"
#include "daemon/cluster/reshard/fill_target.h"
#include "daemon/step/gather/gather.h"
#include "daemon/step/reduce/reduce.h"
#include "daemon/step/update/update.h"
#include "proto/cleanup.h"

enum { SETTLE_MS = 60000 };

DEFINE_CLEANUP(struct partition *, partition_free)

/* ---- the end ----------------------------------------------------------------------------- */

static void fill_target_free(struct fill_target *f)
{
        list_remove(&f->link);
        state_drop_later(f->x, NULL, f->state);
        pieces_free(f->pieces);
        if (f->job)
                job_unref(f->job);
        free(f);
}

void fill_target_part_ended(struct fill_target *f)
{
        if (--f->busy == 0 && f->phase == FILL_TARGET_ENDED)
                fill_target_free(f);
}

/* Ends the fill once nothing of it is in flight. */
static void fill_target_end(struct fill_target *f)
{
        f->phase = FILL_TARGET_ENDED;
        fill_target_forget_pulls(f);
        if (f->made_job && f->job->opening && !fill_target_of_job(f->job))
                job_detach(f->job);
        if (f->busy == 0)
                fill_target_free(f);
}

void fill_target_fail(struct fill_target *f, int status, const char *text)
{
        Zero__LinkMessage m = job_message(f->job->name);

        if (f->phase == FILL_TARGET_ENDED)
                return;
        m.call = f->call;
        log_warning("job %s: cannot fill the shards of owner %u: %s", f->job->name, f->owner, text);
        answer(f->x, f->node, &m, status, text);
        f->busy++;
        fill_target_end(f);
        fill_target_part_ended(f);
}

/* ---- the draft ----------------------------------------------------------------------------- */

static int cut_pieces(struct fill_target *f, const struct partition *from,
                      const struct partition *to)
{
        const struct shared_out was = { &f->from, from }, is = { &f->to, to };
        int r = pieces_new(&was, f->readable, &is, fill_target_holder(f), FILL_TARGET_PIECE,
                           &f->pieces);

        if (r == -ENODATA)
                return fault_set(&f->fault, ZERO_ECONFLICT,
                                 "the nodes that are up do not have all of its shards");
        return r ? fault_set(&f->fault, ZERO_ENOMEM, "out of memory") : 0;
}

static void draft_run(struct offload_task *task, uint32_t worker)
{
        struct fill_target *f = CONTAINER_OF(task, struct fill_target, task);
        CLEANUP(cleanup_partition_free) struct partition *from = NULL, *to = NULL;
        CLEANUP(cleanup_partition_free) struct partition *second = NULL;
        struct job_spec job = f->job->spec;

        job.world_size = f->record.world_size;
        if (partition_new(job.layout, f->from.n_owners, &from) ||
            partition_new(job.layout, f->to.n_owners, &second)) {
                fault_set(&f->fault, ZERO_ENOMEM, "out of memory");
                return;
        }
        to = STEAL(second);
        if (cut_pieces(f, from, to) == 0)
                shards_make(f->x, &job, &f->to, to, f->owner, f->copy, true, &f->state, &f->fault);
}

static void draft_done(struct offload_task *task)
{
        struct fill_target *f = CONTAINER_OF(task, struct fill_target, task);

        if (f->phase == FILL_TARGET_ENDED) {
                ;
        } else if (f->fault.status) {
                bool room = f->fault.status == ZERO_EQUOTA || f->fault.status == ZERO_ESHM;

                /* with ZERO_EBUSY the coordinator asks again */
                fill_target_fail(f, room && f->crowded ? ZERO_EBUSY : f->fault.status,
                                 f->fault.text);
        } else {
                crash_point(CRASH_FILL_DRAFTED);
                f->total = plan_state_bytes(f->state->plan);
                f->phase = FILL_TARGET_PULLING;
                fill_target_pull(f);
        }
        fill_target_part_ended(f);
}

static void task_submit(struct fill_target *f, void (*run)(struct offload_task *, uint32_t),
                        void (*done)(struct offload_task *))
{
        f->busy++;
        f->task.run = run;
        f->task.done = done;
        job_compute(f->job, OFFLOAD_MAKE, &f->task);
}

/* ---- the name ------------------------------------------------------------------------------ */

/* Whether others read the replica that this one is going to replace. */
static bool replica_read(const struct replica *h)
{
        for (uint32_t g = 0; g < h->job->layout->n_groups; g++)
                if (h->pins[g])
                        return true;
        return update_holds(h) || accumulator_in_use(h) || h->capture || h->codings;
}

/* From here on the draft is the state. */
static int name_draft(struct fill_target *f, struct state *old, struct fault *fault)
{
        const struct state_identity *id = &f->state->id;

        if (!old && state_vacant(f->x->store, id, f->owner, NULL)) {
                log_warning("job %s: replaces an unused state file of owner %u", f->job->name,
                            f->owner);
                state_discard(f->x->store, id, f->owner);
        }
        state_set_puts(f->state, f->puts);
        state_restore(f->state, &f->record);
        crash_point(CRASH_FILL_FILLED);
        if (state_replace(f->state, old, fault))
                return fault->status;
        shut_replaced(f->x, state_file(f->state));
        return 0;
}

static void tell_filled(struct fill_target *f, const struct state *state)
{
        Zero__LinkMessage m = job_message(f->job->name);
        Zero__Filled filled = ZERO__FILLED__INIT;
        struct standing_message standing;

        filled.standing = standing_fill(state, &standing);
        m.answer = f->call;
        m.body_case = ZERO__LINK_MESSAGE__BODY_FILLED;
        m.filled = &filled;
        fabric_send(f->x->fabric, f->node, &m);
}

/* Gives the state to the job. */
static int take_into_job(struct fill_target *f, struct fault *fault)
{
        struct job *job = f->job;
        bool first = list_empty(&job->replicas);
        struct replica *h = replica_of_copy(job, f->owner, f->copy);
        struct state *old = h ? h->state : NULL;
        int r;

        if (!h && replica_new(job, f->owner, f->copy, &h))
                return fault_set(fault, ZERO_ENOMEM, "out of memory");
        r = name_draft(f, old, fault);
        if (r && !old)
                replica_free(h);
        if (r)
                return r;
        h->state = STEAL(f->state);
        if (old) {
                accumulator_reset(h);
                state_drop_later(f->x, job, old);
        }
        job->opening = JOB_OPEN;
        if (first)
                job_take_up(job);
        else
                replica_take_up(h);
        for (uint32_t g = 0; g < job->layout->n_groups; g++)
                gather_dirty(job, g);
        log_info("job %s: filled the %s of owner %u in %.1f s: %llu bytes, %llu from other nodes",
                 job->name, f->copy ? "mirror" : "shards", f->owner,
                 (double)(engine_now(f->x) - f->begun_ms) / 1000, (unsigned long long)f->bytes,
                 (unsigned long long)f->moved);
        tell_filled(f, h->state);
        fill_target_end(f);
        return 0;
}

static void fill_target_settle(struct fill_target *f)
{
        struct replica *h = replica_of_copy(f->job, f->owner, f->copy);
        struct fault fault;
        int r = 0;

        f->phase = FILL_TARGET_SETTLING;
        if (h)
                update_undo(h);
        if (!h || !replica_read(h))
                r = take_into_job(f, &fault);
        else if (engine_now(f->x) >= f->settle_until_ms)
                r = fault_set(&fault, ZERO_EBUSY,
                              "the state that the fill replaces is still being read");
        if (r)
                fill_target_fail(f, fault.status, fault.text);
}

static void serve_run(struct offload_task *task, uint32_t worker)
{
        struct fill_target *f = CONTAINER_OF(task, struct fill_target, task);

        for (uint32_t g = 0; g < f->job->layout->n_groups; g++)
                state_serve_group(f->state, f->job->layout, g, f->x->ops);
}

static void serve_done(struct offload_task *task)
{
        struct fill_target *f = CONTAINER_OF(task, struct fill_target, task);

        f->settle_until_ms = engine_now(f->x) + SETTLE_MS;
        if (f->phase == FILL_TARGET_SERVING)
                fill_target_settle(f);
        fill_target_part_ended(f);
}

void fill_target_pulled(struct fill_target *f)
{
        f->phase = FILL_TARGET_ASKING;
        fill_target_ask(f);
}

void fill_target_asked(struct fill_target *f)
{
        f->phase = FILL_TARGET_SERVING;
        task_submit(f, serve_run, serve_done);
}

/* ---- the beginning ------------------------------------------------------------------- */

/* Whether the fill was done before, and the coordinator has not heard of that: tells it again. */
static bool told_again(struct fill_target *f)
{
        struct replica *h = replica_of_copy(f->job, f->owner, f->copy);
        const struct state_record *r = h ? h->state->record : NULL;

        if (!r || r->phase != ATTEMPT_OPEN || r->version != f->record.version ||
            r->attempt != f->record.attempt || r->decided_attempt != f->record.decided_attempt ||
            h->state->puts != f->puts)
                return false;
        tell_filled(f, h->state);
        return true;
}

static int fill_target_begin(struct fill_target *f, const Zero__LinkMessage *m, struct fault *fault)
{
        struct job_spec spec = job_spec_named(m->job);
        int r = fill_target_read_order(f, m->fill, &spec, fault);

        if (r == 0)
                r = fill_target_join_job(f, &spec, fault);
        if (r)
                return r;
        list_insert(&f->x->reshard->fill_targets, &f->link);
        f->crowded = f->x->releases > 0;
        if (told_again(f))
                fill_target_end(f);
        else
                task_submit(f, draft_run, draft_done);
        return 0;
}

static void fill_target_cancel(struct engine *x, uint32_t node, uint64_t id)
{
        list_for_each (&x->reshard->fill_targets, item) {
                struct fill_target *f = CONTAINER_OF(item, struct fill_target, link);

                if (f->node == node && f->id == id)
                        fill_target_fail(f, ZERO_EABORTED, "the fill was cancelled");
        }
}

void fill_target_message(struct engine *x, uint32_t node, const Zero__LinkMessage *m)
{
        struct fill_target *f;
        struct fault fault;

        if (m->fill->cancel) {
                fill_target_cancel(x, node, m->fill->id);
                return;
        }
        if (!job_name_valid(m->job) || node != coordinator_of(x, m->job)) {
                answer(x, node, m, ZERO_EPROTO,
                       "the request to fill is malformed or not from the job's coordinator");
                return;
        }
        f = calloc(1, sizeof *f);
        if (!f) {
                answer(x, node, m, ZERO_ENOMEM, "out of memory");
                return;
        }
        f->x = x;
        f->begun_ms = engine_now(x);
        f->id = m->fill->id;
        f->call = m->call;
        f->node = node;
        list_init(&f->link);
        if (fill_target_begin(f, m, &fault)) {
                answer(x, node, m, fault.status, fault.text);
                fill_target_free(f);
        }
}

/* ---- hooks --------------------------------------------------------------------------- */

static void tell_progress(struct fill_target *f)
{
        Zero__LinkMessage m = job_message(f->job->name);
        Zero__FillProgress progress = ZERO__FILL_PROGRESS__INIT;

        progress.id = f->id;
        progress.bytes = f->told = f->bytes;
        progress.total = f->total;
        progress.moved = f->moved;
        m.body_case = ZERO__LINK_MESSAGE__BODY_FILL_PROGRESS;
        m.fill_progress = &progress;
        fabric_send(f->x->fabric, f->node, &m);
}

static void fill_targets_tick(struct engine *x)
{
        fills_tick(x);
        list_for_each (&x->reshard->fill_targets, item) {
                struct fill_target *f = CONTAINER_OF(item, struct fill_target, link);

                if (f->phase == FILL_TARGET_DRAFTING || f->phase == FILL_TARGET_SERVING ||
                    (f->phase == FILL_TARGET_PULLING && f->told != f->bytes))
                        tell_progress(f);
                else if (f->phase == FILL_TARGET_SETTLING)
                        fill_target_settle(f);
        }
}

static void fill_targets_down(struct engine *x, uint32_t node, const char *why)
{
        list_for_each (&x->reshard->fill_targets, item) {
                struct fill_target *f = CONTAINER_OF(item, struct fill_target, link);

                if (f->node == node)
                        fill_target_fail(f, ZERO_EPEER, "the link to the coordinator was lost");
        }
}

static void fill_targets_forget(struct job *job, int status, const char *text)
{
        list_for_each (&job->x->reshard->fill_targets, item) {
                struct fill_target *f = CONTAINER_OF(item, struct fill_target, link);

                if (f->job == job)
                        fill_target_fail(f, status, text);
        }
}

static bool fill_targets_idle(const struct engine *x)
{
        return list_empty(&x->reshard->fill_targets) && list_empty(&x->reshard->fills);
}

static void reshard_init(struct engine *x)
{
        list_init(&x->reshard->fills);
        list_init(&x->reshard->fill_targets);
}

const struct module fill_target_module = { .node_at = offsetof(struct engine, reshard),
                                           .node_bytes = sizeof(struct reshard),
                                           .node_init = reshard_init,
                                           .progress = fill_targets_tick,
                                           .node_down = fill_targets_down,
                                           .idle = fill_targets_idle,
                                           .job_dropped = fill_targets_forget };
