/* Jobs start when all ranks are there, and advance with their coordinator's decisions. */
#include "daemon/cluster/engine/engine.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/floor/base/crash.h"
#include "daemon/job/core/progress.h"
#include "daemon/floor/base/log.h"
#include "daemon/job/core/shut.h"
#include "daemon/step/follow/follow.h"
#include "proto/cleanup.h"

static void job_fail_requests(struct job *job, int status, const char *text)
{
        ranks_fail(job, status, text);
        gather_fail(job, status, text);
}

/* The coordinator has made sure that no rank of the old world has a session here. */
static bool job_resize(struct job *job, uint32_t world_size)
{
        struct job old = *job;

        if (old.world_size == world_size)
                return true;
        if (old.n_attached > 0)
                return false;
        reduce_reset(job, false);
        job->world_size = world_size;
        if (!job_ranks_alloc(job, world_size) || reduce_resize(job, world_size)) {
                job_ranks_free(job);
                *job = old;
                return false;
        }
        job_ranks_free(&old);
        return true;
}

/* ---- the coordinator's word ------------------------------------------------------ */

static void job_begin_attempt(struct job *job, bool decided)
{
        for (uint32_t r = 0; r < job->world_size; r++)
                if (job->ranks[r].session)
                        rank_begin_attempt(job->ranks[r].session, decided);
        rank_states_reset(job, decided);
        stash_begin_attempt(job, decided);
        reduce_reset(job, decided);
        for_replicas (job, h)
                accumulator_reset(h);
}

static void job_remember(struct job *job, const Zero__Decision *d)
{
        job->last = (struct step_result){ .version = d->version,
                                          .attempt = d->attempt,
                                          .skipped = !d->commit,
                                          .n_skipped = d->skipped,
                                          .grad_norm = d->grad_norm,
                                          .loss_scale = d->loss_scale };
}

static void start_clashes(const struct job *job, const Zero__Start *start)
{
        log_error("job %s: its coordinator starts the job at version %llu, attempt %llu, but the "
                  "state here is at version %llu, attempt %llu: this node does not take part",
                  job->name, (unsigned long long)start->version, (unsigned long long)start->attempt,
                  (unsigned long long)job->version, (unsigned long long)job->attempt);
}

static void job_started(struct job *job, const Zero__Start *start)
{
        job->started = true;
        job->progress->finished_ms = 0;
        job->progress->lost = RANK_ABSENT;
        job->last.loss_scale = start->loss_scale;
        if (start->last)
                job_remember(job, start->last);
        for (uint32_t r = 0; r < job->world_size; r++) {
                job->node_of_rank[r] = start->node_of_rank[r];
                job->ranks[r].here = true;
        }
        reduce_placed(job);
        ranks_displace(job);
}

static void job_stand(struct job *job, const struct owner_action *a)
{
        job->version = a->version;
        job->attempt = a->attempt;
        follow_advance(job);
}

static void start_run(struct job *job, const Zero__Start *start, const struct owner_action *a,
                      struct replica *h)
{
        switch (a->kind) {
        case OWNER_STAND:
                job_stand(job, a);
                job_started(job, start);
                break;
        case OWNER_ABORT:
                state_abort(h->state, a->record.attempt);
                assert(record_stands(h, &a->record));
                break;
        case OWNER_UNDO:
                update_undo(h);
                break;
        default: /* OWNER_BEGIN */
                crash_point(CRASH_ATTEMPT_BEGUN);
                job->progress->aborts += job->progress->begun && !a->decided;
                job->progress->begun = true;
                job_begin_attempt(job, a->decided);
                rank_states_keep(job, start->kept, start->n_kept);
                job_fail_requests(
                        job, ZERO_EABORTED,
                        "the step begins again because a rank or a node was lost: replay it");
                gather_up(job);
                ranks_admit(job);
        }
}

void job_start_message(struct job *job, const Zero__LinkMessage *m)
{
        const Zero__Start *start = m->start;
        const struct owner_event e = { .kind = OWNER_START,
                                       .version = start->version,
                                       .attempt = start->attempt };
        struct replica *at[OWNER_REPLICAS] = { 0 };
        struct owner_actions actions;
        struct owner o;

        if (start->n_node_of_rank < 1 || start->n_node_of_rank > ZERO_RANK_MAX)
                return;
        owner_of_job(job, &o, at);
        owner_step(&o, &e, &actions);
        if (actions.items[0].kind == OWNER_CLASH) {
                start_clashes(job, start);
                return;
        }
        if (!job_resize(job, (uint32_t)start->n_node_of_rank)) {
                log_error_for(job->uid,
                              "job %s: cannot change its world size to %zu here: ranks are still "
                              "attached, or memory is short",
                              job->name, start->n_node_of_rank);
                return;
        }
        for (uint32_t i = 0; i < actions.n; i++)
                start_run(job, start, &actions.items[i], at[actions.items[i].replica]);
}

/* The coordinator tells all nodes where a rank is now. */
void job_part_message(struct job *job, const Zero__Part *part)
{
        struct fault fault;

        if (part->rank >= job->world_size)
                return;
        if (part->finish)
                job->progress->finished_ms = engine_now(job->x);
        if (part->fenced)
                rank_fence(job, part->rank, part->session);
        job->ranks[part->rank].here = part->back;
        /* who leaves after a loss ends what that has left: what is stashed */
        if (!part->fails || !job->started ||
            (job->progress->lost != RANK_ABSENT && (job->progress->left || !part->orderly)))
                return;
        job->progress->lost = part->rank;
        job->progress->left = part->orderly;
        job_lost(job, &fault);
        ranks_fail(job, fault.status, fault.text);
        reduce_fail(job, fault.status, fault.text);
        if (part->orderly) /* others may still fetch what the last step made, and wait for nobody */
                stash_fail(job, fault.status, fault.text);
        else /* a stash waits for links that come back */
                gather_fail(job, fault.status, fault.text);
}

static void decision_answer(struct job *job, const Zero__Decision *d)
{
        for (uint32_t i = 0; i < job->world_size; i++) {
                struct rank *rank = job->ranks[i].session;
                struct request *r = rank ? rank->closing : NULL;

                if (!r || rank->waits != (d->norm_only ? WAITS_NORM : WAITS_STEP))
                        continue;
                if (d->norm_only) {
                        r->result.norm.norm = d->grad_norm;
                        r->result.norm.finite = d->finite;
                } else {
                        job_last_reply(job, &r->result.step);
                }
                rank->closing = NULL;
                rank->active_ms = engine_now(job->x);
                request_end(r, ZERO_OK, NULL);
        }
}

/* Logs the first skip in a row, the second, the fourth and so on: a loop may skip thousands a
 * second. */
static void job_overflowed(struct job *job, const Zero__Decision *d)
{
        if (!d->overflow) {
                job->progress->overflows = 0;
                return;
        }
        job->progress->overflows++;
        if ((job->progress->overflows & (job->progress->overflows - 1)) == 0)
                log_warning_for(
                        job->uid,
                        "job %s: step skipped, a gradient was not finite (%u in a row); loss "
                        "scale is now %g",
                        job->name, job->progress->overflows, d->loss_scale);
}

static void job_decided(struct job *job, const Zero__Decision *d)
{
        job_remember(job, d);
        job_stepped(job);
        job_overflowed(job, d);
        crash_point(CRASH_DECISION_HEARD);
}

static void decision_run(struct job *job, const Zero__Decision *d, const struct owner_action *a,
                         struct replica *h)
{
        switch (a->kind) {
        case OWNER_CLASH:
                log_error_for(job->uid,
                              "job %s: ignored a decision that this owner has not voted for",
                              job->name);
                break;
        case OWNER_REFUSE:
                ranks_refuse_step(job, (int)d->status, d->text);
                for_replicas (job, replica)
                        accumulator_refused(replica);
                break;
        case OWNER_TELL_NORM:
                decision_answer(job, d);
                break;
        case OWNER_STAND:
                job_stand(job, a);
                job_decided(job, d);
                break;
        case OWNER_DECIDE:
                update_begin(h, d, &a->record);
                break;
        default: /* OWNER_BEGIN */
                crash_point(CRASH_DECISION_ANSWERING);
                job_begin_attempt(job, a->decided);
                decision_answer(job, d);
                ranks_admit(job);
                crash_point(CRASH_DECISION_ANSWERED);
        }
}

void job_decision_message(struct job *job, const Zero__Decision *d)
{
        const struct owner_event e = { .kind = OWNER_DECISION,
                                       .version = d->version,
                                       .attempt = d->attempt,
                                       .commit = d->commit,
                                       .refused = d->status != 0,
                                       .norm_only = d->norm_only };
        struct replica *at[OWNER_REPLICAS] = { 0 };
        struct owner_actions actions;
        struct owner o;

        owner_of_job(job, &o, at);
        owner_step(&o, &e, &actions);
        for (uint32_t i = 0; i < actions.n; i++)
                decision_run(job, d, &actions.items[i], at[actions.items[i].replica]);
}

/* ---- finding ---- */

struct job *job_made(struct engine *x, const char *name)
{
        struct job *job = job_find(x, name);

        return job && !job->opening ? job : NULL;
}

bool job_is_for(const struct job *job, uint32_t uid)
{
        return uid == 0 || uid == job->uid;
}

int job_for_user(struct engine *x, const char *name, uint32_t uid, struct job **ret,
                 struct fault *fault)
{
        struct job *job = job_made(x, name);

        if (!name[0])
                return fault_set(fault, ZERO_EINVAL, "the job's name is empty: name a job");
        if (shut_has(x, name))
                return fault_set(fault, ZERO_EBUSY,
                                 "the state of job '%.100s' on this node is whole and waits for "
                                 "memory: see the daemon's log",
                                 name);
        if (!job && shut_why(x, name))
                return fault_set(fault, ZERO_EIO, "%s", shut_why(x, name));
        if (!job)
                return fault_set(fault, ZERO_ENOJOB, "there is no job '%.100s' on this node", name);
        if (!job_is_for(job, uid))
                return fault_set(fault, ZERO_EPERM, "job '%s' belongs to user %u", job->name,
                                 job->uid);
        *ret = job;
        return 0;
}
