/*
 * Jobs on this node: found, held, started when all ranks are there, moved on by the coordinator's
 * decisions.
 */
#include "daemon/checkpoint/checkpoint.h"
#include "daemon/reshard/filling.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/base/crash.h"
#include "daemon/base/log.h"
#include "proto/cleanup.h"

enum { STEPPING_MS = 60000 };
enum { TENSOR_BYTES = 512, GROUP_BYTES = 1024, LAYOUT_COPIES = 3, LAYOUT_SMALL = 1 << 20 };

/* ---- names and lookups ---------------------------------------------------- */

bool job_name_valid(const char *name)
{
        size_t n =
                strspn(name, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-");

        return n > 0 && n <= ZERO_NAME_MAX && name[n] == '\0' && name[0] != '.';
}

struct job *job_find(struct exchange *x, const char *name)
{
        list_for_each (&x->jobs, item) {
                struct job *job = CONTAINER_OF(item, struct job, link);

                if (strcmp(job->name, name) == 0)
                        return job;
        }
        return NULL;
}

/* Jobs are spread over the owners by their names (FNV-1a). */
uint32_t coordinator_of(const struct exchange *x, const char *job)
{
        uint64_t h = 14695981039346656037u;

        for (; *job; job++)
                h = (h ^ (uint8_t)*job) * 1099511628211u;
        return x->view.node[(h >> 32) % x->view.n_owners];
}

uint64_t group_version(const struct job *job, uint32_t group, uint64_t version)
{
        return layout_group_trainable(job->layout, group) ? version : 0;
}

bool job_needs_node(const struct job *job, uint32_t node)
{
        if (placement_nodes(&job->place) >> node & 1)
                return true;
        for (uint32_t r = 0; r < job->world_size; r++)
                if (job->node_of_rank[r] == node)
                        return true;
        return false;
}

double job_steps_per_second(const struct job *job)
{
        uint32_t slots = sizeof job->step_times_ms / sizeof job->step_times_ms[0];
        uint32_t n = job->n_step_times < slots ? job->n_step_times : slots;
        uint64_t newest, oldest;

        if (n < 2)
                return 0;
        newest = job->step_times_ms[(job->n_step_times - 1) % slots];
        oldest = job->step_times_ms[(job->n_step_times - n) % slots];
        return newest > oldest ? (n - 1) * 1000.0 / (double)(newest - oldest) : 0;
}

bool job_is_stepping(const struct job *job)
{
        uint32_t slots = sizeof job->step_times_ms / sizeof job->step_times_ms[0];

        return job->n_step_times &&
               exchange_now(job->x) - job->step_times_ms[(job->n_step_times - 1) % slots] <
                       STEPPING_MS;
}

/* ---- lifetime ---------------------------------------------------------------- */

void job_ref(struct job *job)
{
        job->references++;
}

static void job_release_holdings(struct job *job)
{
        while (!list_empty(&job->holdings))
                holding_free(holding_first(job));
        list_for_each (&job->former, item) {
                holding_free(CONTAINER_OF(item, struct holding, link));
        }
}

static void job_free(struct job *job)
{
        reduce_free(job->reduce);
        gathers_free(job);
        job_release_holdings(job);
        partition_free(job->partition);
        store_uncount(job->x->store, job->layout_bytes);
        layout_free(job->layout);
        free(job->node_of_rank);
        free(job->here);
        seats_free(job->seats, job->world_size);
        free(job->ranks);
        list_remove(&job->link);
        free(job);
}

void job_unref(struct job *job)
{
        struct exchange *x = job->x;

        assert(job->references > 0);
        /* before: what it holds refers to it until its memory is free */
        if (job->dead && job->references - 1 == job->holders)
                job_release_holdings(job);
        if (--job->references == 0)
                job_free(job);
        drops_check(x);
}

void job_hold(struct job *job)
{
        job->holders++;
        job_ref(job);
}

void job_let_go(struct job *job)
{
        assert(job->holders > 0);
        job->holders--;
        job_unref(job);
}

void job_fail_requests(struct job *job, int status, const char *text)
{
        for (uint32_t r = 0; r < job->world_size; r++) {
                struct rank *rank = job->ranks[r];

                if (rank && rank->closing)
                        request_end(STEAL(rank->closing), status, "%s", text);
                if (rank)
                        due_fail(rank, status, text);
        }
        gather_fail(job, status, text);
}

void job_detach(struct job *job)
{
        if (job->dead)
                return;
        job->dead = true;
        list_remove(&job->link);
        list_insert(&job->x->dead_jobs, &job->link);
        job_fail_requests(job, ZERO_ENOJOB, "the job was dropped or the daemon stops");
        access_fail(job);
        for_holdings (job, h) {
                taking_forget(h);
                landing_reset(h);
        }
        fillings_forget(job);
        reduce_reset(job, false);
        for (uint32_t n = 0; n < job->x->cluster->n_nodes; n++)
                shard_forget_node(job, n);
        asks_forget(job);
        job_unref(job);
}

/* What there is of each rank. */
static bool ranks_alloc(struct job *job, uint32_t world_size)
{
        job->node_of_rank = malloc(world_size * sizeof *job->node_of_rank);
        job->here = calloc(world_size, sizeof *job->here);
        job->seats = calloc(world_size, sizeof *job->seats);
        job->ranks = calloc(world_size, sizeof *job->ranks);
        for (uint32_t r = 0; job->node_of_rank && r < world_size; r++)
                job->node_of_rank[r] = RANK_ABSENT;
        return job->node_of_rank && job->here && job->seats && job->ranks;
}

static bool job_alloc(struct job *job)
{
        return ranks_alloc(job, job->world_size) &&
               partition_new(job->layout, job->place.n_owners, &job->partition) == 0 &&
               reduce_new(job, &job->reduce) == 0;
}

/* Measured, with 262,144 tensors of nothing: 500 bytes a tensor beside the names. */
uint64_t job_layout_bytes(const layout *l)
{
        uint64_t bytes =
                (uint64_t)l->n_tensors * TENSOR_BYTES + (uint64_t)l->n_groups * GROUP_BYTES;

        for (uint32_t t = 0; t < l->n_tensors; t++)
                bytes += LAYOUT_COPIES * strlen(l->tensors[t].name);
        return bytes < LAYOUT_SMALL ? 0 : bytes;
}

struct job *job_new(struct exchange *x, const char *name, uint32_t uid, uint32_t world_size,
                    uint32_t reduce_dtype, layout *l)
{
        struct job *job = calloc(1, sizeof *job);

        if (!job) {
                layout_free(l);
                return NULL;
        }
        job->x = x;
        job->references = 1;
        job->opening = true;
        snprintf(job->name, sizeof job->name, "%s", name);
        job->uid = uid;
        job->world_size = world_size;
        job->reduce_dtype = (enum zero_dtype)reduce_dtype;
        job->grad_dtype = ZERO_FP32;
        job->loss_scale = 1;
        job->lost = RANK_ABSENT;
        job->coordinator = coordinator_of(x, name);
        job->layout = l;
        job->layout_bytes = job_layout_bytes(l);
        store_count(x->store, job->layout_bytes);
        job->place = x->view;
        list_init(&job->link);
        list_init(&job->holdings);
        list_init(&job->former);
        list_init(&job->gathers);
        if (!job_alloc(job)) {
                job_unref(job);
                return NULL;
        }
        return job;
}

/* No rank of the old world has a session here: the coordinator has made sure of it. */
static bool job_resize(struct job *job, uint32_t world_size)
{
        struct job old = *job;

        if (old.world_size == world_size)
                return true;
        if (old.n_attached > 0)
                return false;
        reduce_reset(job, false);
        if (!ranks_alloc(job, world_size) || reduce_resize(job, world_size)) {
                free(job->node_of_rank);
                free(job->here);
                free(job->seats);
                free(job->ranks);
                *job = old;
                return false;
        }
        free(old.node_of_rank);
        free(old.here);
        seats_free(old.seats, old.world_size);
        free(old.ranks);
        job->world_size = world_size;
        return true;
}

/* ---- the coordinator's word ------------------------------------------------------ */

static void job_begin_attempt(struct job *job, bool decided)
{
        for (uint32_t r = 0; r < job->world_size; r++)
                if (job->ranks[r])
                        rank_begin_attempt(job->ranks[r], decided);
        seats_reset(job, decided);
        reduce_reset(job, decided);
        for_holdings (job, h)
                landing_reset(h);
}

static void job_remember(struct job *job, const Zero__Decision *d)
{
        job->last = (struct step_result){ .version = d->version,
                                          .attempt = d->attempt,
                                          .skipped = !d->commit,
                                          .grad_norm = d->grad_norm,
                                          .loss_scale = d->loss_scale };
        job->loss_scale = d->loss_scale;
        job->grad_norm = d->grad_norm;
        job->skipped = d->skipped;
}

/* An owner is where the coordinator says the job is: it has heard every decision before. */
static bool start_fits(const struct job *job, const Zero__Start *start)
{
        if (list_empty(&job->holdings) ||
            (job->version == start->version && job->attempt <= start->attempt))
                return true;
        log_error("job %s: its coordinator starts it at version %llu, attempt %llu; the state here "
                  "is at version %llu, attempt %llu",
                  job->name, (unsigned long long)start->version, (unsigned long long)start->attempt,
                  (unsigned long long)job->version, (unsigned long long)job->attempt);
        return false;
}

void job_start_message(struct job *job, const Zero__LinkMessage *m)
{
        const Zero__Start *start = m->start;

        if (start->n_node_of_rank < 1 || start->n_node_of_rank > ZERO_RANK_MAX ||
            !start_fits(job, start))
                return;
        if (!job_resize(job, (uint32_t)start->n_node_of_rank)) {
                log_error_for(job->uid, "job %s: the world size cannot change to %zu here",
                              job->name, start->n_node_of_rank);
                return;
        }
        job->started = true;
        job->finished_ms = 0;
        job->lost = RANK_ABSENT;
        job->epoch = start->epoch;
        job->version = start->version;
        job->attempt = start->attempt;
        job->loss_scale = start->loss_scale;
        if (start->last)
                job_remember(job, start->last);
        job->n_local = 0;
        for (uint32_t r = 0; r < job->world_size; r++) {
                job->node_of_rank[r] = start->node_of_rank[r];
                job->here[r] = true;
                job->n_local += job->node_of_rank[r] == job->x->cluster->self;
        }
        /* not if a decision that was caught up on is carried out, or has been just now */
        for_holdings (job, h)
                if (!update_running(h->update) && h->state->record->attempt < job->attempt)
                        state_abort(h->state, job->attempt);
        crash_point(CRASH_ATTEMPT_BEGUN);
        job_begin_attempt(job, false);
        seats_keep(job, start->kept, start->n_kept);
        job_fail_requests(job, ZERO_EABORTED,
                          "the step was begun anew, as a rank or a node was lost: replay it");
        gather_up(job);
        ranks_admit(job);
}

/* The coordinator tells all nodes where a rank is now. */
void job_part_message(struct job *job, const Zero__Part *part)
{
        struct fault fault;

        if (part->rank >= job->world_size)
                return;
        if (part->finish)
                job->finished_ms = exchange_now(job->x);
        if (part->fenced)
                rank_fence(job, part->rank, part->session);
        job->here[part->rank] = part->back;
        if (!part->fails || !job->started || job->lost != RANK_ABSENT)
                return;
        job->lost = part->rank;
        job_lost(job, &fault);
        job_fail_requests(job, fault.status, fault.text);
        reduce_fail(job, fault.status, fault.text);
}

static void decision_answer(struct job *job, const Zero__Decision *d)
{
        for (uint32_t i = 0; i < job->world_size; i++) {
                struct rank *rank = job->ranks[i];
                struct request *r = rank ? rank->closing : NULL;

                if (!r || rank->wants_norm != d->norm_only)
                        continue;
                if (d->norm_only) {
                        r->result.norm.norm = d->grad_norm;
                        r->result.norm.finite = d->finite;
                } else {
                        r->result.step.version = job->version;
                        r->result.step.attempt = job->attempt;
                        r->result.step.skipped = !d->commit;
                        r->result.step.grad_norm = d->grad_norm;
                        r->result.step.loss_scale = d->loss_scale;
                }
                rank->closing = NULL;
                rank->active_ms = exchange_now(job->x);
                request_end(r, ZERO_OK, NULL);
        }
}

/* It has voted in the attempt; or it has recorded the decision, and another holding has not. */
static bool may_hear(const struct holding *h, const Zero__Decision *d)
{
        const struct state_record *record = h->state->record;

        return (record->phase == ATTEMPT_PREPARED && record->attempt == d->attempt) ||
               record->decided_attempt == d->attempt;
}

/* A node without shards, on which the job has not started since, only takes note. */
static bool is_news(const struct job *job, const Zero__Decision *d)
{
        return list_empty(&job->holdings) && !job->started && d->attempt > job->attempt &&
               !d->status && !d->norm_only;
}

/* Logged for the first of a row, the second, the fourth, ...: a loop may skip thousands a second.
 */
static void job_overflowed(struct job *job, const Zero__Decision *d)
{
        if (!d->overflow) {
                job->overflows = 0;
                return;
        }
        job->overflows++;
        if ((job->overflows & (job->overflows - 1)) == 0)
                log_warning_for(
                        job->uid,
                        "job %s: step skipped, a gradient was not finite (%u in a row); loss "
                        "scale is now %g",
                        job->name, job->overflows, d->loss_scale);
}

void job_decision_message(struct job *job, const Zero__Decision *d)
{
        if (is_news(job, d))
                job->attempt = d->attempt;
        if (d->attempt != job->attempt)
                return;
        if (d->status) {
                ranks_refuse_step(job, (int)d->status, d->text);
                for_holdings (job, h)
                        landing_refused(h);
                return;
        }
        if (d->norm_only) {
                decision_answer(job, d);
                return;
        }
        for_holdings (job, h) {
                if (may_hear(h, d))
                        continue;
                log_error_for(job->uid, "job %s: a decision that this owner has not voted for",
                              job->name);
                return;
        }
        job->version = d->version;
        job->attempt = d->attempt + 1;
        job_remember(job, d);
        job->step_times_ms[job->n_step_times++ %
                           (sizeof job->step_times_ms / sizeof job->step_times_ms[0])] =
                exchange_now(job->x);
        job_overflowed(job, d);
        crash_point(CRASH_DECISION_HEARD);
        for_holdings (job, h)
                if (h->state->record->phase == ATTEMPT_PREPARED)
                        update_begin(h, d);
        crash_point(CRASH_DECISION_ANSWERING);
        job_begin_attempt(job, true);
        decision_answer(job, d);
        ranks_admit(job);
        crash_point(CRASH_DECISION_ANSWERED);
}
