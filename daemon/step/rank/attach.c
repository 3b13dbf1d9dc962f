/*
 * Ranks of this node attach.
 *
 * The rank's layout goes to the job's coordinator (join).  When every rank is there, the
 * coordinator starts the job on all nodes and answers.  While the coordinator is not up, the join
 * waits for it.  A rank that replaces a lost one is answered at once and continues from what that
 * rank has handed in; if that was the whole step, the rank waits for the decision.
 *
 * After the link to the coordinator was lost, the node's ranks join again by themselves.
 */
#include "daemon/step/rank/local.h"

#include <stdlib.h>
#include <string.h>

#include "daemon/floor/base/crash.h"
#include "daemon/floor/base/log.h"
#include "daemon/floor/base/process.h"
#include "daemon/step/rank/event_wait.h"
#include "proto/cleanup.h"

/* SETUPS_LEFT_MAX: an attach that a driver holds up outlives its session. */
enum { JOIN_MS = 24 * 3600 * 1000, SETUPS_LEFT_MAX = 64 };

/* ---- attaching ---------------------------------------------------------------- */

static void rank_free(struct rank *rank)
{
        list_remove(&rank->link);
        layouts_unref(rank->layout);
        push_window_unref(rank->window);
        event_waits_drop(rank->x->event_waits, rank->stream_events);
        free(rank->needs.stash.ranks);
        free(rank);
}

/* Tells the coordinator that the rank has left. */
static void rank_part(const struct rank *rank, bool orderly)
{
        struct engine *x = rank->x;
        Zero__LinkMessage m = job_message(rank->needs.job.name);
        Zero__Part part = ZERO__PART__INIT;

        if (x->leaving) /* the end of the link will say so for all ranks */
                return;
        part.rank = rank->rank;
        part.session = rank->session;
        part.orderly = orderly;
        part.gave_up = !rank->job && !rank->attaching;
        part.finish = rank->finish;
        m.body_case = ZERO__LINK_MESSAGE__BODY_PART;
        m.part = &part;
        fabric_send(x->fabric, coordinator_of(x, rank->needs.job.name), &m);
}

/* Ends the call that attaches, if it still waits. */
static void attach_end(struct rank *rank, int status, const char *text)
{
        struct request *r = rank->attaching;

        rank->attaching = NULL;
        rank->admitted = rank->admitted || (r && status == ZERO_OK);
        if (r)
                request_end(r, status, "%s", text);
}

/* The rank no longer joins, and no longer needs its layout. */
static void rank_withdraw(struct rank *rank)
{
        list_remove(&rank->link);
        layouts_unref(STEAL(rank->layout));
}

/* Nobody waits for the rank: it does not join when the coordinator comes up. */
static void attach_forget(struct request *r)
{
        struct rank *rank = r->subject;

        rank->attaching = NULL;
        if (rank->calling && !r->gone)
                rank_part(rank, true);
        else if (!rank->calling && !rank->setup)
                rank_withdraw(rank);
}

static int attach_describe(const struct request *r, struct wait_line *ret)
{
        const struct rank *rank = r->subject;
        struct engine *x = rank->x;
        const struct job *job = job_find(x, rank->needs.job.name);
        struct fault fault;

        if (rank->setup) {
                rank_setup_describe(rank->setup, ret);
                return ZERO_EDEADLINE;
        }
        if (job && job->progress->waits.n)
                return job_describe(job, ret);
        for (uint32_t n = 0; n < x->cluster->n_nodes; n++)
                if (wait_for_node(x, n, ret))
                        return ZERO_EDEADLINE;
        if (!job && rank->layout &&
            job_admit(x, rank->needs.job.name, rank->needs.job.uid, rank->layout->layout, &fault)) {
                snprintf(ret->who, sizeof ret->who, "the job's creation");
                snprintf(ret->what, sizeof ret->what, "%.199s", fault.text);
                return ZERO_EDEADLINE;
        }
        snprintf(ret->who, sizeof ret->who, "the other ranks");
        snprintf(ret->what, sizeof ret->what, "to attach");
        return ZERO_EDEADLINE;
}

bool rank_attaching(const struct rank *rank, struct wait_line *ret)
{
        if (!rank->attaching)
                return false;
        *ret = (struct wait_line){ .who = "the daemon" };
        attach_describe(rank->attaching, ret);
        ret->since_ms = rank->attaching->since_ms;
        return true;
}

static void rank_gone(struct rank *rank, int status, const char *text)
{
        rank->events.gone(rank->events.arg, status, text);
}

/* A rank of the job has rejoined, or has lost its place. */
static void rank_rejoined(struct rank *rank, int status, const char *text)
{
        if (status != ZERO_OK && status != ZERO_EPEER && !rank->job->dead)
                rank_gone(rank, status, text);
}

static void attach_refused(struct rank *rank, int status, const char *text)
{
        rank_withdraw(rank);
        attach_end(rank, status, text);
}

static void rank_join(struct rank *rank);

/* ---- entering ------------------------------------------------------------------- */

/*
 * The coordinator has answered the join: the rank gets its windows and enters the job.  Windows on
 * a GPU take time (setup.c).  The rank enters when they are ready, unless the rank, the job, or
 * the link that brought the answer has ended meanwhile.
 */

/* Whether the job, which has started with this rank, is here and has a place for the session. */
static int rank_check(const struct rank *rank, const struct job *job, struct fault *fault)
{
        const struct rank_needs *needs = &rank->needs;

        if (!job || !job->started || job_find(rank->x, rank->needs.job.name) != job)
                return fault_set(fault, ZERO_EABORTED, "the job ended while the rank attached");
        if (rank->rank >= job->world_size)
                return fault_set(fault, ZERO_ERANK, "rank %u is outside the world size %u",
                                 rank->rank, job->world_size);
        if (job->ranks[rank->rank].session)
                return fault_set(fault, ZERO_ERANK, "rank %u is taken by process %u on this node",
                                 rank->rank, job->ranks[rank->rank].session->pid);
        if ((job->n_attached || reduce_any(job)) && reduce_grad_dtype(job) != needs->grad_dtype)
                return fault_set(
                        fault, ZERO_ECONFLICT,
                        "ranks of one node push one dtype: this rank has %s, the others %s",
                        dtype_name(needs->grad_dtype), dtype_name(reduce_grad_dtype(job)));
        return 0;
}

/* Windows in host memory. */
static int rank_windows(struct rank *rank, struct job *job, struct fault *fault)
{
        const struct rank_needs *needs = &rank->needs;
        int status = push_window_new_rank(job->layout, needs->push_groups, needs->grad_dtype, false,
                                          needs->keeps_slots, &rank->window, fault);

        if (status)
                return status;
        return holds_admit(&rank->holds, job, needs->windows, needs->hold_groups,
                           needs->local_world_size, fault);
}

/* Memory for what the rank stashes. */
static int rank_stash_admit(struct rank *rank, struct job *job, struct fault *fault)
{
        if (!rank->needs.stash.n_ranks || rank->stash)
                return 0;
        return stash_admit(job, rank->rank, &rank->needs.stash, &rank->stash, fault);
}

/* The rank, which has its windows, enters the job. */
static int rank_enter(struct rank *rank, struct job *job, struct fault *fault)
{
        struct rank_state *state;
        int status = rank_check(rank, job, fault);

        if (status)
                return status;
        state = &job->ranks[rank->rank];
        state->session = rank;
        state->window = rank->window;
        state->refused = false; /* the session hands in again what was not accepted */
        reduce_rejoin(job, rank->rank, rank->needs.grad_dtype);
        job->n_attached++;
        job_hold(job);
        rank->job = job;
        rank_called(rank, "zero_attach");
        layouts_unref(STEAL(rank->layout));
        return 0;
}

/* Nobody needs the windows of a rank that cannot enter. */
static void windows_give(struct rank *rank)
{
        holds_leave(&rank->holds);
        stash_leave(STEAL(rank->stash), rank->rank, false);
        rank->stash_reserved = false;
        push_window_unref(STEAL(rank->window));
}

/* A rank that comes back to its job tries again: it has not left. */
static void rank_turned_away(struct rank *rank, int status, const char *text)
{
        windows_give(rank);
        rank_part(rank, !rank->needs.resume);
        attach_refused(rank, status, text);
}

static void rank_equipped(struct rank *rank, int status, const char *text);

/* The rank has its windows: it enters when the memory of its stash is taken, too. */
static void rank_entering(struct rank *rank, struct job *job)
{
        struct fault fault = { 0 };
        int status = rank_stash_admit(rank, job, &fault);

        if (!status && rank->stash && !rank->stash_reserved) {
                if (rank_reserve_stash(rank, job, rank_equipped) == 0)
                        return;
                status = fault_set(&fault, ZERO_ENOMEM, "out of memory");
        }
        if (!status)
                status = rank_enter(rank, job, &fault);
        if (status) {
                rank_turned_away(rank, status, fault.text);
                return;
        }
        list_remove(&rank->link);
        crash_point(CRASH_ATTACH_ENTERED);
        if (!rank->job->ranks[rank->rank].stepped) /* else the call ends when that step is over */
                attach_end(rank, ZERO_OK, "");
}

/* The setup has ended.  Nobody needs the windows if the setup failed or took too long. */
static void rank_equipped(struct rank *rank, int status, const char *text)
{
        struct job *job = rank->holds.job;
        bool rejoin = rank->rejoin;

        rank->rejoin = false;
        if (rank->left) { /* rank_leave() has told the coordinator */
                windows_give(rank);
                rank_free(rank);
        } else if (!rank->attaching) { /* the client has given up */
                windows_give(rank);
                rank_withdraw(rank);
                rank_part(rank, true);
        } else if (rejoin) {
                windows_give(rank);
                rank_join(rank);
        } else if (status) {
                rank_turned_away(rank, status, text);
        } else {
                rank_entering(rank, job);
        }
}

/* Lets the rank enter the job, or refuses it, perhaps before this returns. */
static void rank_admitted(struct rank *rank)
{
        struct job *job = job_find(rank->x, rank->needs.job.name);
        struct fault fault = { 0 };
        int status = rank_check(rank, job, &fault);

        if (!status && !place_is_host(rank->needs.windows)) {
                if (rank_make_windows(rank, job, rank_equipped) == 0)
                        return;
                status = fault_set(&fault, ZERO_ENOMEM, "out of memory");
        }
        if (!status)
                status = rank_windows(rank, job, &fault);
        if (status)
                rank_turned_away(rank, status, fault.text);
        else
                rank_entering(rank, job);
}

static void rank_joined(void *arg, int status, const char *text, const Zero__LinkMessage *m)
{
        struct rank *rank = arg;

        rank->calling = false;
        if (rank->left) { /* rank_leave() has told the coordinator */
                rank_free(rank);
                return;
        }
        if (rank->job) {
                rank_rejoined(rank, status, text);
                return;
        }
        if (!rank->attaching && (status == ZERO_OK || !m)) { /* the client has given up */
                rank_withdraw(rank);
                rank_part(rank, true);
                return;
        }
        if (status == ZERO_EPEER)
                return; /* the join is sent again when the coordinator is up, until the deadline */
        if (status == ZERO_EABORTED && rank->attaching) /* no job yet, since owners change */
                rank_join(rank);
        else if (status != ZERO_OK)
                attach_refused(rank, status, text);
        else
                rank_admitted(rank);
}

void ranks_admit(struct job *job)
{
        for (uint32_t r = 0; r < job->world_size; r++)
                if (job->ranks[r].session && !job->ranks[r].stepped)
                        attach_end(job->ranks[r].session, ZERO_OK, "");
}

/* ---- joining -------------------------------------------------------------------- */

/* Without a deadline while the session lasts: its own calls have deadlines. */
static void join_call(struct rank *rank, Zero__Layout *l, bool resume)
{
        Zero__LinkMessage m = job_message(rank->needs.job.name);
        Zero__Join join = ZERO__JOIN__INIT;

        JOB_SPEC_WRITE(&join, &rank->needs.job);
        join.rank = rank->rank;
        join.session = rank->session;
        join.layout = l;
        join.incarnation = rank->needs.incarnation;
        join.resume = resume;
        join.fail_on_lost = rank->needs.fail_on_lost;
        join.pid = rank->pid;
        m.body_case = ZERO__LINK_MESSAGE__BODY_JOIN;
        m.join = &join;
        rank->calling = true;
        call_send(rank->x, coordinator_of(rank->x, rank->needs.job.name), &m, JOIN_MS, rank_joined,
                  rank);
}

static void rank_join(struct rank *rank)
{
        join_call(rank, rank->layout->message, rank->needs.resume);
}

static void ranks_rejoin(struct job *job)
{
        Zero__Layout *l = NULL;

        if (job->n_attached == 0)
                return;
        if (layout_to_message(job->layout, &l)) {
                log_error("job %s: out of memory: its ranks wait for the next link", job->name);
                return;
        }
        for (uint32_t r = 0; r < job->world_size; r++)
                if (job->ranks[r].session && !job->ranks[r].session->calling)
                        join_call(job->ranks[r].session, l, true);
        zero__layout__free_unpacked(l, NULL);
}

/* A coordinator has come up: sends the joins that wait for it, and rejoins ranks of its jobs. */
static void ranks_up(struct engine *x, uint32_t node)
{
        list_for_each (&x->jobs, item) {
                struct job *job = CONTAINER_OF(item, struct job, link);

                if (job->coordinator == node)
                        ranks_rejoin(job);
        }
        list_for_each (&x->ranks->joining, item) {
                struct rank *rank = CONTAINER_OF(item, struct rank, link);

                if (coordinator_of(x, rank->needs.job.name) != node)
                        continue;
                if (rank->setup)
                        rank->rejoin =
                                rank_setup_job(rank->setup); /* the link went down meanwhile */
                else if (!rank->calling)
                        rank_join(rank);
        }
}

/* ---- fencing -------------------------------------------------------------------- */

static void rank_taken(struct rank *rank)
{
        char text[120];

        snprintf(text, sizeof text,
                 "rank %u was taken by a later incarnation, or after its process had ended",
                 rank->rank);
        rank_gone(rank, ZERO_ERANK, text);
}

void rank_fence(struct job *job, uint32_t rank, uint64_t session)
{
        list_for_each (&job->x->ranks->joining, item) {
                struct rank *r = CONTAINER_OF(item, struct rank, link);

                if (r->setup && rank_setup_job(r->setup) == job && r->rank == rank &&
                    r->session == session)
                        rank_taken(r);
        }
        if (rank < job->world_size && job->ranks[rank].session &&
            job->ranks[rank].session->session == session)
                rank_taken(job->ranks[rank].session);
}

/*
 * The rank has two processes, and the coordinator, which did not hear of this one in time, has
 * started the other one.  This one must not hear what becomes of an attempt that counts the other's
 * gradients.  It attaches again, and the later incarnation gets the rank.
 */
void ranks_displace(struct job *job)
{
        for (uint32_t r = 0; r < job->world_size; r++) {
                struct rank *rank = job->ranks[r].session;

                if (!rank || job->node_of_rank[r] == job->x->cluster->self)
                        continue;
                log_warning_for(job->uid,
                                "job %s: rank %u started on node %s: its process %u here attaches "
                                "again",
                                job->name, r, node_name(job->x, job->node_of_rank[r]), rank->pid);
                rank_gone(rank, ZERO_ECLOSED, "");
        }
}

/* Whether the rank means this job: a rank that will be refused fences nobody. */
static bool means_job(const struct job *job, const struct rank_needs *needs, layout *l)
{
        struct job_spec spec = needs->job;
        struct fault fault;

        spec.layout = l;
        spec.uid = spec.uid ? spec.uid : job->uid; /* root may join */
        return spec.world_size == job->world_size && !job_spec_compare(&spec, &job->spec, &fault);
}

/* A forked child may keep the session of a process that has ended. */
static bool makes_way(const struct rank *rank, const struct rank_needs *needs)
{
        return rank->needs.incarnation < needs->incarnation ||
               process_life(rank->pid, rank->needs.process_start) == PROCESS_ENDED;
}

static bool is_earlier(const struct rank *rank, const struct rank_needs *needs)
{
        return rank->rank == needs->rank && rank->needs.job.world_size == needs->job.world_size &&
               (needs->job.uid == 0 || needs->job.uid == rank->needs.job.uid) &&
               makes_way(rank, needs) && strcmp(rank->needs.job.name, needs->job.name) == 0;
}

/* Earlier sessions of the rank on this node, attached or attaching, make way. */
static void fence_earlier(struct engine *x, const struct rank_needs *needs, layout *l)
{
        struct job *job = job_find(x, needs->job.name);
        struct rank *rank =
                job && needs->rank < job->world_size ? job->ranks[needs->rank].session : NULL;

        if (rank && makes_way(rank, needs) && means_job(job, needs, l))
                rank_taken(rank);
        list_for_each (&x->ranks->joining, item) {
                rank = CONTAINER_OF(item, struct rank, link);
                if (is_earlier(rank, needs))
                        rank_taken(rank);
        }
}

/* A node of the release before can only add up in fp32. */
static int accumulate_check(struct engine *x, const struct job_spec *spec, struct fault *fault)
{
        for (uint32_t i = 0; spec->accumulate && i < x->cluster->n_nodes; i++) {
                struct fabric_info info;

                fabric_info(x->fabric, i, &info);
                if (i != x->cluster->self && info.link.speaks &&
                    info.link.speaks < MESSAGES_ACCUMULATE)
                        return fault_set(fault, ZERO_EVERSION,
                                         "node %s is of a release that accumulates in fp32 only: "
                                         "upgrade it, or attach with ZERO_ACCUMULATE_FP32",
                                         node_name(x, i));
        }
        return 0;
}

static int needs_check(struct engine *x, const struct rank_needs *n, struct fault *fault)
{
        /* a job of an earlier release may have a longer name, and cannot be checkpointed */
        if (!job_name_valid(n->job.name) ||
            (strlen(n->job.name) > ZERO_JOB_MAX && !job_find(x, n->job.name)))
                return fault_set(
                        fault, ZERO_EINVAL,
                        "a job's name has 1 to %d characters of [A-Za-z0-9._-] and does not begin "
                        "with a dot",
                        ZERO_JOB_MAX);
        if (job_spec_check(&n->job, fault))
                return fault->status;
        if (n->rank >= n->job.world_size)
                return fault_set(fault, ZERO_ERANK, "rank %u is outside the world size %u", n->rank,
                                 n->job.world_size);
        if (n->local_world_size > n->job.world_size)
                return fault_set(fault, ZERO_ERANK, "local world size %u exceeds the world size %u",
                                 n->local_world_size, n->job.world_size);
        if (accumulate_check(x, &n->job, fault))
                return fault->status;
        if (!dtype_valid(n->grad_dtype))
                return fault_set(fault, ZERO_EINVAL, "grad_dtype is " ZERO_DTYPES);
        if (n->hold_groups < 1 || n->push_groups < 1)
                return fault_set(fault, ZERO_EINVAL, "hold_groups and push_groups are at least 1");
        if (!place_is_host(n->windows) && setups_left(x, n->job.uid, n->windows) >= SETUPS_LEFT_MAX)
                return fault_set(
                        fault, ZERO_EBUSY,
                        "%d ranks of user %u have left while they waited for the driver of this "
                        "GPU, which has not answered yet: attach again; if that lasts, the driver "
                        "hangs: zeroctl doctor tells for how long",
                        SETUPS_LEFT_MAX, n->job.uid);
        return 0;
}

/* The rank may join now. */
static void events_opened(struct rank *rank, int status, const char *text)
{
        if (rank->left)
                rank_free(rank);
        else if (!rank->attaching) /* the client has given up */
                rank_withdraw(rank);
        else if (status)
                attach_refused(rank, status, text);
        else
                rank_join(rank);
}

int rank_attach(struct engine *x, const Zero__Layout *message, const struct rank_needs *needs,
                const struct rank_events *events, struct request *r, struct rank **ret_rank,
                struct fault *fault)
{
        struct shared_layout *shared = NULL;
        struct rank *rank;
        layout *l = NULL;
        int status = needs_check(x, needs, fault);

        if (!status)
                status = optimizer_layout(message, &l, fault);
        if (!status)
                status = layouts_add(x, needs->job.uid, l, &shared, fault);
        rank = status ? NULL : calloc(1, sizeof *rank);
        if (!rank) {
                layouts_unref(shared);
                free(needs->stash.ranks);
                return status ? status : fault_set(fault, ZERO_ENOMEM, "out of memory");
        }
        rank->layout = shared;
        fence_earlier(x, needs, shared->layout);
        rank->x = x;
        rank->events = *events;
        rank->needs = *needs;
        rank->needs.event_handles = NULL; /* it belongs to the caller */
        rank->rank = needs->rank;
        rank->session = ++x->ranks->last_session;
        rank->pid = needs->pid;
        list_init(&rank->ordered);
        list_init(&rank->link);
        if (!place_is_host(needs->windows) &&
            rank_make_events(rank, needs->event_handles, needs->n_events, events_opened)) {
                rank_free(rank);
                return fault_set(fault, ZERO_ENOMEM, "out of memory");
        }
        rank->attaching = r;
        r->subject = rank;
        r->describe = attach_describe;
        r->forget = attach_forget;
        list_insert(&x->ranks->joining, &rank->link);
        if (!rank->setup)
                rank_join(rank);
        *ret_rank = rank;
        return 0;
}

void rank_finish(struct rank *rank, Zero__Finish finish)
{
        rank->finish = finish;
}

void rank_leave(struct rank *rank, bool orderly)
{
        struct job *job;

        if (!rank)
                return;
        ordered_drop(rank);
        job = rank->job;
        if (!job) {
                rank->left = true;
                list_remove(&rank->link);
                if (rank->calling || (rank->setup && rank_setup_job(rank->setup)))
                        rank_part(rank, orderly);
                if (!rank->calling && !rank->setup)
                        rank_free(rank);
                return;
        }
        job->n_attached--;
        holds_leave(&rank->holds);
        stash_leave(STEAL(rank->stash), rank->rank, true);
        if (job->n_attached == 0)
                reduce_vacate(job);
        for_replicas (job, h)
                if (reduce_any(job))
                        accumulator_left(h);
        job->ranks[rank->rank].session = NULL;
        job->ranks[rank->rank].window = NULL;
        job->ranks[rank->rank].pushed = 0;
        if (!job->dead)
                rank_part(rank, orderly);
        if (rank->calling)
                rank->left = true;
        else
                rank_free(rank);
        job_let_go(job);
}

/* ---- what the node goes through ---------------------------------------------------- */

void ranks_stop(struct engine *x)
{
        list_for_each (&x->ranks->joining, item) {
                struct rank *rank = CONTAINER_OF(item, struct rank, link);

                if (rank->attaching)
                        request_end(STEAL(rank->attaching), ZERO_ECLOSED, "the daemon stops");
        }
}

void ranks_fail(struct job *job, int status, const char *text)
{
        for (uint32_t r = 0; r < job->world_size; r++) {
                struct rank *rank = job->ranks[r].session;

                if (rank && rank->closing)
                        request_end(STEAL(rank->closing), status, "%s", text);
                if (rank)
                        ordered_fail(rank, status, text);
        }
}

static bool ranks_idle(const struct engine *x)
{
        return list_empty(&x->ranks->joining) && list_empty(&x->ranks->setups);
}

static int ranks_replace(struct engine *x, const char *name, struct fault *fault)
{
        list_for_each (&x->ranks->joining, item) {
                const struct rank *rank = CONTAINER_OF(item, struct rank, link);

                if (strcmp(rank->needs.job.name, name) == 0)
                        return fault_set(fault, ZERO_EBUSY,
                                         "rank %u of job '%s' is attaching: end the trainers first",
                                         rank->rank, name);
        }
        return 0;
}

static void ranks_init(struct engine *x)
{
        list_init(&x->ranks->joining);
        list_init(&x->ranks->setups);
}

const struct module rank_module = { .node_at = offsetof(struct engine, ranks),
                                    .node_bytes = sizeof(struct ranks),
                                    .node_init = ranks_init,
                                    .node_up = ranks_up,
                                    .idle = ranks_idle,
                                    .job_replace = ranks_replace,
                                    .job_dropped = ranks_fail };
