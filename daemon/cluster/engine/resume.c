/*
 * Jobs that an earlier process left in the state directory.
 *
 * A recorded decision is carried out.  If this owner has voted in an attempt, the job's coordinator
 * finds its outcome (coordinator.h).  Any other attempt is void: its gradients count for nothing.
 * Trainers then attach as usual.
 *
 * If memory is too short for a whole state, this node tries again until it can take up the state,
 * and the job with it.  Until then it answers like a node that is not up, so that nobody takes the
 * state for lost.
 */
#include "daemon/cluster/checkpoint/checkpoint.h"
#include "daemon/cluster/engine/lifetime.h"
#include "daemon/cluster/reshard/reshard.h"
#include "daemon/job/core/shut.h"
#include "daemon/job/rules/moving.h"
#include "daemon/step/follow/follow.h"

#include <string.h>

#include "daemon/floor/base/crash.h"
#include "daemon/floor/base/log.h"
#include "proto/cleanup.h"

enum { RESUME_MS = 3000 };

static enum state_use resume_use(const struct engine *x, const struct state *state)
{
        const struct state_place of = { state->id.epoch, state->id.n_owners, state->plan->owner,
                                        state->id.copy };

        return state_use(&x->placement, x->cluster->self, &of);
}

/* Nobody makes the file's job anew, and a person hears of the file. */
static void resume_refuse(struct engine *x, const char *file, const char *why)
{
        log_error("%s", why);
        shut_add(x, file, why);
}

static bool resume_check(struct engine *x, const struct state *state, const char *file)
{
        char why[400];

        if (job_name_valid(state->id.job.name) && resume_use(x, state) != STATE_FOREIGN)
                return true;
        snprintf(why, sizeof why,
                 "state file %s is whole, and of another owner list: of epoch %llu with %u owners, "
                 "of which this node is number %u%s; here epoch %llu with %u is in force: bring "
                 "the `peers`, `owners` and membership_dir of then back to use it",
                 file, (unsigned long long)state->id.epoch, state->id.n_owners, state->plan->owner,
                 state->id.copy ? " (mirror)" : "", (unsigned long long)x->placement.epoch,
                 x->placement.n_owners);
        resume_refuse(x, file, why);
        return false;
}

/* Whether the state belongs to the same job as the others. */
static bool resume_matches(const struct job *job, const struct state *state,
                           const struct job_spec *spec, const char *file)
{
        struct fault fault;
        char why[400];

        if (!job_spec_compare(spec, &job->spec, &fault) &&
            !replica_of_epoch(job, state->id.epoch, state->plan->owner, state->id.copy))
                return true;
        snprintf(why, sizeof why,
                 "state file %s names job '%.64s' but does not fit the job's other files here "
                 "(user, reduce_dtype, accumulate or layout), or repeats one of them: move away "
                 "the one that "
                 "is not wanted, and start again",
                 file, job->name);
        resume_refuse(job->x, file, why);
        return false;
}

/* Finds or makes the state's job; takes the layout over. */
static struct job *resume_find(struct engine *x, const struct state *state, layout *l,
                               const char *file)
{
        struct job_spec spec = state->id.job;
        struct job *job = job_find(x, spec.name);

        spec.layout = l;
        if (job) {
                job = resume_matches(job, state, &spec, file) ? job : NULL;
                layout_free(l);
                return job;
        }
        job = job_new(x, &spec);
        if (job) {
                job->opening = JOB_RESUMING;
                list_insert(&x->jobs, &job->link);
        } else {
                log_error("state file %s is not used: out of memory", file);
        }
        return job;
}

static int resume_add(struct job *job, struct state *state, struct replica **ret)
{
        int r;

        if (resume_use(job->x, state) == STATE_OLD_PLACEMENT)
                return replica_new_old_placement(job, state, ret);
        r = replica_new(job, state->plan->owner, state->id.copy, ret);
        if (r == 0)
                (*ret)->state = state;
        return r;
}

/* Nothing usable is left of the state: a person decides what follows. */
static void resume_lost(const struct engine *x, const struct state *state, const char *file)
{
        bool old_placement = resume_use(x, state) != STATE_IN_FORCE;

        log_error("job %s: this node's state of owner %u at version %llu was in GPU memory and is "
                  "lost with the process that held it (state file %s): %s",
                  state->id.job.name, state->plan->owner,
                  (unsigned long long)state->record->version, file,
                  old_placement
                          ? "other owners are in force; delete it when the job runs without it"
                          : "the mirror fills the state, if there is one; else restore a "
                            "checkpoint (zeroctl restore)");
}

/* Moves a state of the placement in force to where this node keeps states. */
static void resume_place(const struct engine *x, struct state *state)
{
        struct fault fault;
        uint32_t place;

        if (resume_use(x, state) != STATE_IN_FORCE || !place_is_host(state->id.place))
                return;
        place = shards_place(x, state->plan->owner, state->id.copy);
        if (!place_is_host(place) && state_move(state, place, &fault))
                log_warning("job %s: its state stays in host memory: %s", state->id.job.name,
                            fault.text);
}

/* Not 0: there is no memory for the state now. */
static int resume_open(struct engine *x, const char *file, struct fault *fault)
{
        struct state *state = NULL;
        struct replica *h = NULL;
        layout *l = NULL;
        struct job *job;
        int r = state_open(x->store, file, &state, &l, fault);

        if (r == ZERO_ESHM || r == ZERO_ENOMEM)
                return r;
        if (r) {
                resume_refuse(x, file, fault->text);
                return 0;
        }
        if (state->record->attempt < JOB_FILLED) {
                log_warning("state file %s was never filled with values: the file is deleted",
                            file);
                layout_free(l);
                state_drop(state);
                return 0;
        }
        if (state_lost(state))
                resume_lost(x, state, file);
        if (state_lost(state) || !resume_check(x, state, file)) {
                layout_free(l);
                state_close(state);
                return 0;
        }
        job = resume_find(x, state, l, file);
        r = job && resume_add(job, state, &h) ? fault_set(fault, ZERO_ENOMEM, "out of memory") : 0;
        if (!job || r) {
                state_close(state);
                return r;
        }
        crash_point(CRASH_RESUME_OPENED);
        resume_place(x, state);
        for (uint32_t g = 0; g < job->layout->n_groups; g++)
                state_serve_group(state, job->layout, g, x->ops);
        return 0;
}

/* ---- waiting for memory ------------------------------------------------------------ */

static int resume_state(const char *file, void *arg)
{
        struct engine *x = arg;
        struct fault fault;

        if (resume_open(x, file, &fault) == 0)
                return 0;
        log_error("state file %s is whole, but memory is short: %s; the daemon tries again until "
                  "there is enough",
                  file, fault.text);
        shut_add(x, file, NULL);
        return 0;
}

/* ---- taking up ------------------------------------------------------------------------ */

static void claim_answered(void *arg, int status, const char *text, const Zero__LinkMessage *m)
{
        if (status && status != ZERO_EPEER)
                log_debug("a job that an earlier process left is not taken up: %s", text);
}

static void job_claim(struct job *job)
{
        Zero__LinkMessage m = job_message(job->name);
        Zero__Join join = ZERO__JOIN__INIT;

        if (layout_to_message(job->layout, &join.layout))
                return; /* a rank that attaches resumes it */
        JOB_SPEC_WRITE(&join, job);
        join.rank = RANK_ABSENT;
        join.resume = true;
        m.body_case = ZERO__LINK_MESSAGE__BODY_JOIN;
        m.join = &join;
        call_send(job->x, job->coordinator, &m, CALL_MS, claim_answered, NULL);
        zero__layout__free_unpacked(join.layout, NULL);
}

/*
 * Whether this node has something that the job's coordinator may lack, or something fresh, of which
 * the coordinator may know nothing.  Old states that are fresh wait until they are asked for: they
 * may be another job's than the newer ones.
 */
static bool is_claimed(const struct job *job)
{
        if (job_fresh(job))
                return !list_empty(&job->replicas);
        return !list_empty(&job->old_replicas) || job->placement.copies > 1;
}

void jobs_claim(struct engine *x, uint32_t node)
{
        list_for_each (&x->jobs, item) {
                struct job *job = CONTAINER_OF(item, struct job, link);

                if (job->coordinator == node && node != x->cluster->self && !job->opening &&
                    is_claimed(job))
                        job_claim(job);
        }
}

/* Whether the job's only state found no memory, and is not even waiting for some. */
static bool is_empty(const struct job *job)
{
        return list_empty(&job->replicas) && list_empty(&job->old_replicas);
}

/* Takes up jobs whose states are all open; the others wait. */
static void jobs_begin(struct engine *x, bool late)
{
        list_for_each (&x->jobs, item) {
                struct job *job = CONTAINER_OF(item, struct job, link);

                if (job->opening != JOB_RESUMING || is_empty(job) || shut_has(x, job->name))
                        continue;
                job->opening = JOB_OPEN;
                old_placement_take_up(job);
                job_take_up(job);
                log_info("job %s: taken up at version %llu", job->name,
                         (unsigned long long)job->version);
                if (late)
                        job_claim(job);
        }
}

void jobs_resume(struct engine *x)
{
        int r;

        grants_resume(x);
        r = store_each(x->store, resume_state, x);
        if (r)
                log_error("the state directory cannot be read: %s", strerror(-r));
        if (store_quota(x->store) && store_used(x->store) > store_quota(x->store))
                log_warning("the states here take %llu bytes, more than memory_limit (%llu): they "
                            "are taken up, but no other job is created",
                            (unsigned long long)store_used(x->store),
                            (unsigned long long)store_quota(x->store));
        schedules_resume(x);
        drops_resume(x);
        jobs_begin(x, false);
}

static bool resume_opens(struct engine *x, const char *file)
{
        struct fault fault;

        return resume_open(x, file, &fault) == 0;
}

void resume_tick(struct engine *x)
{
        if (!shut_any(x) || engine_now(x) < x->lifetime->resume_ms)
                return;
        x->lifetime->resume_ms = engine_now(x) + RESUME_MS;
        shut_retry(x, resume_opens);
        jobs_begin(x, true);
}
