/* The calls of an attached rank: it holds groups, pushes gradients and ends the step. */
#include "daemon/step/rank/local.h"
#include "daemon/step/tensors/tensors.h"

#include <stdlib.h>
#include <string.h>

#include "daemon/floor/base/crash.h"
#include "daemon/floor/base/process.h"
#include "daemon/floor/base/log.h"
#include "proto/cleanup.h"
#include "proto/sure.h"

static struct rank_state *rank_state_of(const struct rank *rank)
{
        return &rank->job->ranks[rank->rank];
}

uint32_t rank_accepted(const struct rank *rank, uint32_t group)
{
        return reduce_pushed(rank->job, group, rank->rank);
}

/* ---- fetching and pushing ------------------------------------------------------- */

/* Only the newest session is the rank. */
static int rank_check(const struct rank *rank, struct fault *fault)
{
        if (rank->job->ranks[rank->rank].session == rank)
                return 0;
        return fault_set(fault, ZERO_ERANK, "rank %u has attached again in another session",
                         rank->rank);
}

/* Refuses a client that has not heard that its attempt is over; attempt 0: the client names none.
 */
static int attempt_check(const struct rank *rank, uint64_t attempt, struct fault *fault)
{
        if (attempt == 0 || attempt == rank->job->attempt)
                return 0;
        return fault_set(fault, ZERO_EABORTED, "attempt %llu is over, replay the step",
                         (unsigned long long)attempt);
}

int group_check(const struct rank *rank, uint32_t group, struct fault *fault)
{
        if (rank->job->dead)
                return fault_set(fault, ZERO_ENOJOB, "job '%s' was dropped", rank->job->name);
        if (group >= rank->job->layout->n_groups)
                return fault_set(fault, ZERO_ENOGROUP, "there is no group %u: the layout has %u",
                                 group, rank->job->layout->n_groups);
        return rank_check(rank, fault);
}

int rank_fetch(struct rank *rank, const Zero__Request *m, struct request *r, struct fault *fault)
{
        struct job *job = rank->job;
        uint32_t group = m->fetch->group;
        uint64_t version = m->fetch->version;
        int status = group_check(rank, group, fault);

        if (!status)
                status = attempt_check(rank, m->fetch->attempt, fault);
        if (status)
                return status;
        if (version != job->version)
                return fault_set(fault, ZERO_EABORTED, "version %llu is over, the job is at %llu",
                                 (unsigned long long)version, (unsigned long long)job->version);
        if (rank->closing && rank->waits == WAITS_STEP)
                return fault_set(fault, ZERO_EORDER,
                                 "the step is being ended: wait for its result first");
        return holds_fetch(&rank->holds, group, group_version(job, group, version), r, fault);
}

int rank_prefetch(struct rank *rank, const Zero__Request *m, struct request *r, struct fault *fault)
{
        uint32_t group = m->prefetch->group;
        uint64_t version = m->prefetch->version;

        if (group_check(rank, group, fault) == 0 && version == rank->job->version)
                holds_prefetch(&rank->holds, group, group_version(rank->job, group, version));
        request_end(r, ZERO_OK, NULL);
        return 0;
}

int lease_end(struct rank *rank, const Zero__Request *m, struct request *r, struct fault *fault)
{
        holds_return(&rank->holds, m->release->group);
        if (r)
                request_end(r, ZERO_OK, NULL);
        return 0;
}

int rank_release(struct rank *rank, const Zero__Request *m, struct request *r, struct fault *fault)
{
        uint32_t group = m->release->group;
        int status = group_check(rank, group, fault);

        if (!status)
                status = attempt_check(rank, m->release->attempt, fault);
        if (!status)
                status = holds_check(&rank->holds, group, fault);
        if (!status)
                status = ordered_run(rank, lease_end, m, r, fault);
        if (!status)
                holds_release(&rank->holds, group);
        return status;
}

/* Says it once. */
static void note_unpinned(struct rank *rank)
{
        if (rank->stash_unpinned || !rank->stash)
                return;
        rank->stash_unpinned = true;
        log_warning_for(rank->needs.job.uid,
                        "job %s: rank %u (process %u of user %u) waits for its GPU at each copy to "
                        "its stash in host memory, which costs it time: CUDA does not pin that "
                        "memory (cudaHostRegister); raise the memory limit of the trainer's "
                        "container, if it has one, or keep the stash with the windows",
                        rank->needs.job.name, rank->rank, rank->pid, rank->needs.job.uid);
}

static int stash_now(struct rank *rank, const Zero__Request *request, struct request *r,
                     struct fault *fault)
{
        const Zero__Stash *m = request->stash;
        int status = group_check(rank, 0, fault);

        if (!status)
                status = attempt_check(rank, m->attempt, fault);
        if (status)
                return status;
        if (!rank->stash)
                return fault_set(fault, ZERO_EORDER, "rank %u declared no stash at attach",
                                 rank->rank);
        if ((m->op == ZERO__STASH__OP__WRITE || m->op == ZERO__STASH__OP__READ) &&
            rank->job->progress->left && job_lost(rank->job, fault))
                return fault->status;
        if (!ordered_stashes(rank))
                stash_aware(rank->stash, rank->rank);
        switch (m->op) {
        case ZERO__STASH__OP__WRITE:
                return stash_write(rank->stash, rank->rank, m->key, m->bytes, m->hash,
                                   !ordered_stashes(rank), r, fault);
        case ZERO__STASH__OP__READ:
                return stash_read(rank->stash, rank->rank, m->key, r, fault);
        case ZERO__STASH__OP__WRITTEN:
                status = stash_written(rank->stash, rank->rank, m->key, fault);
                break;
        case ZERO__STASH__OP__RELEASE:
                status = stash_release(rank->stash, rank->rank, m->key, m->last, fault);
                break;
        default:
                status = fault_set(fault, ZERO_EPROTO,
                                   "this daemon does not know that use of a stash");
        }
        if (!status)
                request_end(r, ZERO_OK, NULL);
        return status;
}

/*
 * Reads and writes overtake messages that wait for the GPU, so that it does not run out of work,
 * unless those use the same entry, or a write has no room before them: what it waits for may be
 * theirs.
 */
int rank_stash(struct rank *rank, const Zero__Request *m, struct request *r, struct fault *fault)
{
        const Zero__Stash *use = m->stash;
        bool told = use->op == ZERO__STASH__OP__WRITTEN || use->op == ZERO__STASH__OP__RELEASE;
        int status;

        if (use->unpinned)
                note_unpinned(rank);
        if (told ? ordered_waits(rank, use->event) : ordered_uses(rank, use))
                return ordered_add(rank, stash_now, m, told ? use->event : 0, r, fault);
        status = stash_now(rank, m, r, fault);
        if (status == ZERO_EWINDOW && ordered_stashes(rank))
                return ordered_add(rank, stash_now, m, 0, r, fault);
        return status;
}

int job_lost(const struct job *job, struct fault *fault)
{
        if (job->progress->lost == RANK_ABSENT)
                return 0;
        return fault_set(fault, ZERO_ELOSTRANK,
                         job->progress->left ? "rank %u has left the job"
                                             : "rank %u was lost: its session ended",
                         job->progress->lost);
}

void rank_push_refused(struct rank *rank, uint64_t attempt)
{
        if (attempt == rank->job->attempt)
                rank_state_of(rank)->refused = true;
}

int rank_push(struct rank *rank, const Zero__Request *m, struct request *r, struct fault *fault)
{
        const Zero__Push *push = m->push;
        const struct pusher from = { rank->job, rank->rank, rank->window };
        int status = group_check(rank, push->group, fault);

        if (!status && push->attempt == rank->job->attempt && job_lost(rank->job, fault))
                return fault->status; /* the attempt is void */
        if (!status)
                status = reduce_push(&from, push, r, fault);
        if (status)
                rank_push_refused(rank, push->attempt);
        if (status)
                return status;
        rank_state_of(rank)->pushed++;
        rank->last_pushed = push->group;
        crash_point(CRASH_PUSH_ACCEPTED);
        return 0;
}

int rank_reclaim(struct rank *rank, const Zero__Request *m, struct request *r, struct fault *fault)
{
        bool current = m->reclaim->attempt == rank->job->attempt;
        int status = group_check(rank, m->reclaim->group, fault);

        if (status)
                return status;
        if (current && rank_state_of(rank)->closed)
                return fault_set(fault, ZERO_EORDER,
                                 "the rank has ended its gradients of the step: no zero_grad() "
                                 "before the next one");
        if (current)
                reduce_reclaim(rank->job, m->reclaim->group);
        request_end(r, ZERO_OK, NULL);
        return 0;
}

/* ---- ending the step ---------------------------------------------------------------- */

static const char any_call[] = "zero_norm or zero_step";
static const char *const call_names[] = { [WAITS_STEP] = "zero_step",
                                          [WAITS_NORM] = "zero_norm",
                                          [WAITS_REDUCED] = "zero_all_reduce",
                                          [WAITS_NORMS] = "zero_tensor_norms" };

/* The node of the rank that is waited for may not know of the reduction. */
static int close_describe(const struct request *r, struct wait_line *ret)
{
        const struct rank *rank = r->subject;
        int status = job_describe(rank->job, ret);
        char rest[sizeof ret->what];

        if (rank->waits == WAITS_NORMS && ret->waits) /* none of these waits for another */
                *ret = (struct wait_line){ .who = "the other ranks" };
        if (rank->waits != WAITS_REDUCED || strncmp(ret->what, any_call, strlen(any_call)) != 0)
                return status;
        snprintf(rest, sizeof rest, "%s", ret->what + strlen(any_call));
        snprintf(ret->what, sizeof ret->what, "%s%.180s", call_names[rank->waits], rest);
        return status;
}

void rank_begin_attempt(struct rank *rank, bool decided)
{
        rank_state_of(rank)->pushed = 0;
        /* its node refused a step that the others could end */
        if (decided && rank->closing && rank->waits != WAITS_STEP)
                request_end(STEAL(rank->closing), ZERO_EABORTED,
                            "the attempt is over, replay the step");
        if (!decided)
                holds_abort(&rank->holds);
}

static void close_forget(struct request *r)
{
        struct rank *rank = r->subject;

        rank->closing = NULL;
}

void rank_wait(struct rank *rank, struct request *r, int what)
{
        rank->waits = what;
        rank->closing = r;
        rank->n_closing++;
        r->subject = rank;
        r->describe = close_describe;
        r->forget = close_forget;
}

static void close_end_all(struct job *job, int status, const char *text)
{
        for (uint32_t i = 0; i < job->world_size; i++) {
                struct rank *rank = job->ranks[i].session;

                if (rank && rank->closing)
                        request_end(STEAL(rank->closing), status, "%s", text);
        }
}

void ranks_refuse_step(struct job *job, int status, const char *text)
{
        for (uint32_t i = 0; i < job->world_size; i++)
                job->ranks[i].stepped = false;
        ranks_admit(job);
        close_end_all(job, status, text);
}

static void ready_answered(void *arg, int status, const char *text, const Zero__LinkMessage *m)
{
        struct job *job = arg;

        /* a coordinator that was lost begins a new attempt when it is back */
        if (status != ZERO_OK && status != ZERO_EPEER && !job->dead)
                ranks_refuse_step(job, status, text);
        job_unref(job);
}

/* Whether a rank of this node has asked for the step, or for the norm. */
static bool rank_state_closes(const struct job *job, uint32_t rank, bool norm)
{
        const struct rank *session = job->ranks[rank].session;

        return norm ? session && session->closing && session->waits == WAITS_NORM
                    : job->ranks[rank].stepped;
}

static size_t blobs_fill(const struct job *job, Zero__RankBlob *kept, Zero__RankBlob **pointers)
{
        size_t n = 0;

        for (uint32_t i = 0; i < job->world_size; i++) {
                const struct blob *k = &job->ranks[i].handed;

                if (k->bytes == 0)
                        continue;
                zero__rank_blob__init(&kept[n]);
                kept[n].rank = i;
                kept[n].blob = (ProtobufCBinaryData){ k->bytes, k->data };
                pointers[n] = &kept[n];
                n++;
        }
        return n;
}

/* Tells the coordinator that every local rank waits for the same thing. */
static void ready_send(struct job *job, const struct rank *last)
{
        Zero__LinkMessage m = job_message(job->name);
        Zero__Ready ready = ZERO__READY__INIT;
        Zero__RankBlob *kept = sure_realloc(NULL, job->world_size * sizeof *kept);
        Zero__RankBlob **pointers = sure_realloc(NULL, job->world_size * sizeof *pointers);
        struct step_params_message params;

        ready.attempt = job->attempt;
        ready.rank = last->rank;
        if (last->waits == WAITS_STEP) {
                ready.params = step_params_to_message(rank_state_of(last)->params, &params);
                ready.n_kept = blobs_fill(job, kept, pointers);
                ready.kept = pointers;
        }
        m.body_case = ZERO__LINK_MESSAGE__BODY_READY;
        m.ready = &ready;
        job_ref(job);
        call_send(job->x, job->coordinator, &m, CALL_MS, ready_answered, job);
        free(kept);
        free(pointers);
}

static void close_report(struct job *job, const struct rank *last)
{
        for (uint32_t i = 0; i < job->world_size; i++)
                if (job->node_of_rank[i] == job->x->cluster->self &&
                    !rank_state_closes(job, i, last->waits == WAITS_NORM))
                        return;
        ready_send(job, last);
}

int close_check(const struct rank *rank, uint64_t attempt, const struct step_params *params,
                struct fault *fault)
{
        const struct job *job = rank->job;
        char text[240];

        if (job->dead)
                return fault_set(fault, ZERO_ENOJOB, "job '%s' was dropped", job->name);
        if (attempt != job->attempt)
                return fault_set(fault, ZERO_EABORTED, "attempt %llu is over, replay the step",
                                 (unsigned long long)attempt);
        if (job_lost(job, fault) || rank_check(rank, fault))
                return fault->status;
        if (rank->closing)
                return fault_set(fault, ZERO_EORDER, "the step is being ended already");
        if (rank_state_of(rank)->refused)
                return fault_set(fault, ZERO_EORDER,
                                 "a gradient of rank %u was refused in this attempt: zero_close(), "
                                 "connect and attach again",
                                 rank->rank);
        if (!params && rank_state_of(rank)->stepped)
                return fault_set(fault, ZERO_EORDER,
                                 "rank %u has called zero_step: only that call may be made again "
                                 "in this attempt",
                                 rank->rank);
        if (params && holds_settled(&rank->holds, fault))
                return fault->status;
        for (uint32_t i = 0; params && i < job->world_size; i++)
                if (job->ranks[i].stepped && i != rank->rank &&
                    !step_params_equal(job->ranks[i].params, params, text, sizeof text))
                        return fault_set(fault, ZERO_ECONFLICT,
                                         "ranks %u and %u pass different values to zero_step: %s",
                                         i, rank->rank, text);
        return 0;
}

int others_check(const struct rank *rank, int what, struct fault *fault)
{
        const struct job *job = rank->job;

        for (uint32_t i = 0; i < job->world_size; i++) {
                const struct rank *other = job->ranks[i].session;
                bool waits = other && other->closing && other->waits != WAITS_NORMS;
                int theirs = waits ? (int)other->waits : job->ranks[i].stepped ? WAITS_STEP : what;

                if (i != rank->rank && theirs != what)
                        return fault_set(fault, ZERO_ECONFLICT,
                                         "rank %u calls %s while rank %u calls %s", rank->rank,
                                         call_names[what], i, call_names[theirs]);
        }
        return 0;
}

/* What a rank hands in with a step stays, even if its session ends. */
static int rank_state_step(struct rank_state *rank_state, const struct step_params *params,
                           const ProtobufCBinaryData *blob, struct fault *fault)
{
        if (blob->len > ZERO_BLOB_MAX)
                return fault_set(fault, ZERO_EINVAL,
                                 "a rank keeps at most %d bytes with a step, not %zu",
                                 ZERO_BLOB_MAX, blob->len);
        if (!rank_state->params)
                rank_state->params = malloc(sizeof *rank_state->params);
        if (!rank_state->params || blob_set(&rank_state->handed, blob->data, blob->len))
                return fault_set(fault, ZERO_ENOMEM, "out of memory");
        *rank_state->params = *params;
        rank_state->stepped = true;
        return 0;
}

/* The rank pushes nothing more in this attempt. */
static void rank_pushed_all(struct rank *rank)
{
        struct rank_state *rank_state = rank_state_of(rank);

        if (rank_state->closed)
                return;
        rank_state->closed = true;
        reduce_close(rank->job, rank->rank);
}

/* params NULL: zero_norm().  Otherwise the blob is kept with the step. */
static int rank_close(struct rank *rank, uint64_t attempt, const struct step_params *params,
                      const ProtobufCBinaryData *blob, struct request *r, struct fault *fault)
{
        struct rank_state *rank_state;
        int status = rank_check(rank, fault);

        /* the step was decided while nobody of this rank waited for it */
        if (!status && params && attempt && attempt == rank->job->last.attempt) {
                job_last_reply(rank->job, &r->result.step);
                request_end(r, ZERO_OK, NULL);
                return 0;
        }
        if (!status)
                status = close_check(rank, attempt, params, fault);
        if (!status)
                status = others_check(rank, params ? WAITS_STEP : WAITS_NORM, fault);
        if (status)
                return status;
        rank_state = rank_state_of(rank);
        if (params) {
                status = rank_state_step(rank_state, params, blob, fault);
                if (status)
                        return status;
                holds_end(&rank->holds, HOLD_HELD);
        }
        rank_wait(rank, r, params ? WAITS_STEP : WAITS_NORM);
        rank_pushed_all(rank);
        close_report(rank->job, rank);
        return 0;
}

int rank_norm(struct rank *rank, const Zero__Request *m, struct request *r, struct fault *fault)
{
        return rank_close(rank, m->norm->attempt, NULL, NULL, r, fault);
}

int rank_step(struct rank *rank, const Zero__Request *m, struct request *r, struct fault *fault)
{
        const Zero__Step *step = m->step;
        struct step_params params;
        int status;

        if (!step->params)
                return fault_set(fault, ZERO_EINVAL, "a step needs its parameters");
        status = step_params_given(step->params, &params, fault);
        if (status)
                return status;
        return rank_close(rank, step->attempt, &params, &step->blob, r, fault);
}

/* ---- ahead of the end of the step ------------------------------------------------------- */

/* A refusal comes again, by name, with zero_step(). */
static void ahead_answered(void *arg, int status, const char *text, const Zero__LinkMessage *m)
{
        job_unref(arg);
}

/*
 * zero_tensor_norms() of gradients: a rank asks alone, pushes nothing more in the attempt, and
 * waits until owners have all that the others push.  A rank whose call ended by its deadline may
 * call again, and waits for the answer to its first call.
 */

/* A lost node voids the attempt, and the rank hears of that. */
static void rank_norms_done(struct norms *n)
{
        struct rank *rank = n->rank < n->job->world_size ? n->job->ranks[n->rank].session : NULL;
        struct request *r;

        if (!rank || rank->norms != n)
                return;
        rank->norms = NULL;
        if (!rank->closing || rank->waits != WAITS_NORMS || n->status == ZERO_EPEER)
                return;
        r = STEAL(rank->closing);
        rank->active_ms = engine_now(rank->x);
        norms_result(n, r);
        request_end(r, n->status, "%s", n->text);
}

int rank_norms(struct rank *rank, const Zero__Request *m, struct request *r, struct fault *fault)
{
        int status = close_check(rank, m->norms->attempt, NULL, fault);

        if (!status)
                status = norms_start_grad(rank->job, rank->window, m->norms, rank->rank,
                                          rank_norms_done, &rank->norms, fault);
        if (status)
                return status;
        rank_wait(rank, r, WAITS_NORMS);
        rank_pushed_all(rank);
        return 0;
}

static int ahead_check(const struct rank *rank, const Zero__Ahead *ahead,
                       struct step_params *ret_params, struct fault *fault)
{
        const struct job *job = rank->job;
        bool eager = false;
        int status = 0;

        for (uint32_t g = 0; g < job->layout->n_groups; g++)
                eager = eager || job->layout->groups[g].eager;
        if (!ahead->params)
                status = fault_set(fault, ZERO_EINVAL, "zero_ahead() needs the step's parameters");
        else if (!eager)
                status = fault_set(fault, ZERO_EINVAL,
                                   "job '%s' has no eager group to update ahead: see "
                                   "zero_layout_eager()",
                                   job->name);
        if (!status)
                status = step_params_given(ahead->params, ret_params, fault);
        if (!status)
                status = step_params_ahead(ret_params, fault);
        return status;
}

int rank_ahead(struct rank *rank, const Zero__Request *request, struct request *r,
               struct fault *fault)
{
        const Zero__Ahead *ahead = request->ahead;
        Zero__LinkMessage m;
        Zero__Ready ready = ZERO__READY__INIT;
        struct step_params_message message;
        struct step_params params;
        int status = rank_check(rank, fault);

        if (!status)
                status = ahead_check(rank, ahead, &params, fault);
        if (!status)
                status = close_check(rank, ahead->attempt, NULL, fault);
        if (status)
                return status;
        m = job_message(rank->job->name);
        ready.attempt = rank->job->attempt;
        ready.rank = rank->rank;
        ready.ahead = true;
        ready.params = step_params_to_message(&params, &message);
        m.body_case = ZERO__LINK_MESSAGE__BODY_READY;
        m.ready = &ready;
        job_ref(rank->job);
        call_send(rank->x, rank->job->coordinator, &m, CALL_MS, ahead_answered, rank->job);
        request_end(r, ZERO_OK, NULL);
        return 0;
}

/* ---- names ------------------------------------------------------------------------------ */

void rank_called(struct rank *rank, const char *name)
{
        rank->active_ms = engine_now(rank->x);
        rank->last_call = name;
}

/* In which call ranks of this node wait for the rest to call it too; what ranks of other nodes
 * call, this node does not hear. */
static const char *awaited_call(const struct job *job)
{
        for (uint32_t i = 0; i < job->world_size; i++) {
                const struct rank *rank = job->ranks[i].session;

                if (rank && rank->closing && rank->waits != WAITS_NORMS)
                        return call_names[rank->waits];
        }
        return any_call;
}

/* Says what others wait for from the rank, and whether the rank may still do that. */
static void rank_describe(const struct rank *rank, struct wait_line *ret)
{
        const struct job *job = rank->job;
        enum process_life life = process_life(rank->pid, rank->needs.process_start);
        bool waits = rank->closing;

        *ret = (struct wait_line){ .since_ms = rank->active_ms,
                                   .waits = waits,
                                   .alive = life == PROCESS_RUNS || life == PROCESS_UNSEEN };
        snprintf(ret->who, sizeof ret->who, "rank %u on %.60s", rank->rank,
                 node_name(job->x, job->x->cluster->self));
        snprintf(ret->what, sizeof ret->what,
                 "%s (pushed %u gradients%s%.60s%s); %s %s, %.1f s%s%s", awaited_call(job),
                 rank_state_of(rank)->pushed,
                 rank_state_of(rank)->pushed ? ", the last of group '" : "",
                 rank_state_of(rank)->pushed ? job->layout->groups[rank->last_pushed].name : "",
                 rank_state_of(rank)->pushed ? "'" : "", waits ? "in" : "last call",
                 rank->last_call, (double)(engine_now(job->x) - rank->active_ms) / 1000,
                 waits ? "" : " ago", life == PROCESS_STOPPED ? "; its process is stopped" : "");
}

static bool rank_waits(const struct rank *rank)
{
        return rank && (rank->closing || rank->attaching);
}

uint32_t local_waits(struct job *job, struct wait_line *lines, uint32_t n, bool *ret_waiting)
{
        uint32_t used = 0;

        *ret_waiting = reduce_push_waits(job);
        for (uint32_t i = 0; i < job->world_size && used < n; i++) {
                const struct rank *rank = job->ranks[i].session;
                struct wait_line *line = &lines[used];

                if (rank_waits(rank))
                        *ret_waiting = true;
                if (!rank || (rank->closing && rank->waits != WAITS_NORMS) || rank->attaching)
                        continue;
                rank_describe(rank, line);
                *ret_waiting = ordered_describe_first(rank, line) || *ret_waiting;
                used++;
        }
        used += setups_waits(job, lines + used, n - used);
        for_replicas (job, h)
                used += accumulator_waits(h, lines + used, n - used);
        return used;
}
