/*
 * The jobs of this node: names and references.
 */
#include "daemon/job/core/progress.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "proto/cleanup.h"

/* ---- names and lookups ---------------------------------------------------- */

bool job_name_valid(const char *name)
{
        size_t n =
                strspn(name, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-");

        return n > 0 && n <= ZERO_NAME_MAX && name[n] == '\0' && name[0] != '.';
}

Zero__LinkMessage job_message(const char *job)
{
        Zero__LinkMessage m = ZERO__LINK_MESSAGE__INIT;

        m.job = (char *)job;
        return m;
}

struct job *job_find(struct engine *x, const char *name)
{
        list_for_each (&x->jobs, item) {
                struct job *job = CONTAINER_OF(item, struct job, link);

                if (strcmp(job->name, name) == 0)
                        return job;
        }
        return NULL;
}

uint32_t coordinator_of(const struct engine *x, const char *job)
{
        return placement_coordinator(&x->placement, job);
}

void job_last_reply(const struct job *job, Zero__StepReply *ret)
{
        ret->version = job->last.version;
        ret->attempt = job->attempt;
        ret->skipped = job->last.skipped;
        ret->grad_norm = job->last.grad_norm;
        ret->loss_scale = job->last.loss_scale;
}

uint64_t group_version(const struct job *job, uint32_t group, uint64_t version)
{
        return layout_group_trainable(job->layout, group) ? version : 0;
}

bool job_needs_node(const struct job *job, uint32_t node)
{
        if (node_set_has(placement_nodes(&job->placement), node))
                return true;
        for (uint32_t r = 0; r < job->world_size; r++)
                if (job->node_of_rank[r] == node)
                        return true;
        return false;
}

/* ---- lifetime ---------------------------------------------------------------- */

void job_compute(const struct job *job, enum offload_lane lane, struct offload_task *task)
{
        offload_submit(job->x->offload, lane, job->uid, task);
}

static void copy_run(struct offload_task *task, uint32_t worker)
{
        const struct copy *copy = CONTAINER_OF(task, struct copy, task);

        copy->ops->copy(copy->to, copy->from, copy->bytes);
}

void job_copy(const struct job *job, struct copy *copy, void *to, const void *from, size_t bytes,
              void (*done)(struct offload_task *task))
{
        *copy = (struct copy){ { .run = copy_run, .done = done }, job->x->ops, to, from, bytes };
        job_compute(job, OFFLOAD_STEP, &copy->task);
}

void job_ref(struct job *job)
{
        job->references++;
}

void job_ranks_free(struct job *job)
{
        free(job->node_of_rank);
        rank_states_free(job->ranks, job->world_size);
}

static bool modules_init(struct job *job)
{
        for_modules (job->x, module) {
                if (module->job_bytes) {
                        *module_state(job, module->job_at) = calloc(1, module->job_bytes);
                        if (!*module_state(job, module->job_at))
                                return false;
                }
                if (module->job_init && module->job_init(job))
                        return false;
        }
        return true;
}

static void modules_free(struct job *job)
{
        for_modules_down (job->x, module) {
                if (module->job_free)
                        module->job_free(job);
                if (module->job_bytes)
                        free(*module_state(job, module->job_at));
        }
}

static void job_free(struct job *job)
{
        job->x->freed++;
        modules_free(job);
        partition_free(job->partition);
        store_uncount(job->x->store, job_layout_bytes(job->layout));
        layout_free(job->layout);
        job_ranks_free(job);
        free(job->progress);
        list_remove(&job->link);
        free(job);
}

void job_unref(struct job *job)
{
        struct engine *x = job->x;
        bool dead = job->dead;

        assert(job->references > 0);
        /* before the last reference goes: states refer to their job until their memory is free */
        if (dead && job->references - 1 == job->holders)
                for_modules (x, module)
                        if (module->job_released)
                                module->job_released(job);
        if (--job->references == 0)
                job_free(job);
        for_modules (x, module)
                if (dead && module->job_left)
                        module->job_left(x);
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

void job_detach(struct job *job)
{
        if (job->dead)
                return;
        job->dead = true;
        list_remove(&job->link);
        list_insert(&job->x->dead_jobs, &job->link);
        for_modules_down (job->x, module)
                if (module->job_dropped)
                        module->job_dropped(job, ZERO_ENOJOB,
                                            "the job was dropped or the daemon stops");
        job_unref(job);
}

void job_discard(struct engine *x, const char *name)
{
        struct job *job = job_find(x, name);

        if (!job)
                return;
        job->drop_state = true;
        job_detach(job);
}

void job_name_dropped(struct engine *x, const char *name, bool replaced)
{
        for_modules (x, module)
                if (module->name_dropped)
                        module->name_dropped(x, name, replaced);
}

bool job_ranks_alloc(struct job *job, uint32_t world_size)
{
        job->node_of_rank = malloc(world_size * sizeof *job->node_of_rank);
        job->ranks = calloc(world_size, sizeof *job->ranks);
        for (uint32_t r = 0; job->node_of_rank && r < world_size; r++)
                job->node_of_rank[r] = RANK_ABSENT;
        return job->node_of_rank && job->ranks;
}

static bool job_alloc(struct job *job)
{
        job->progress = calloc(1, sizeof *job->progress);
        if (!job->progress)
                return false;
        job->progress->lost = RANK_ABSENT;
        return job_ranks_alloc(job, job->world_size) &&
               partition_new(job->layout, job->placement.n_owners, &job->partition) == 0 &&
               modules_init(job);
}

struct job *job_new(struct engine *x, const struct job_spec *spec)
{
        struct job *job = calloc(1, sizeof *job);

        if (!job) {
                layout_free(spec->layout);
                return NULL;
        }
        job->x = x;
        job->references = 1;
        job->opening = JOB_OPENING;
        job->spec = *spec;
        job->last.loss_scale = 1;
        job->coordinator = coordinator_of(x, job->name);
        store_count(x->store, job_layout_bytes(job->layout));
        job->placement = x->placement;
        list_init(&job->link);
        list_init(&job->replicas);
        list_init(&job->old_replicas);
        list_init(&job->gathers);
        if (!job_alloc(job)) {
                job_unref(job);
                return NULL;
        }
        return job;
}

/* ---- another job ------------------------------------------------------------ */

/* Jobs of a user; lasting: but those that give up their place. */
struct users_jobs {
        const struct engine *x;
        uint32_t uid;
        bool lasting;
};

bool job_gives_place(const struct job *job)
{
        return job->progress->finished_ms && job->holders == job->onlookers &&
               !job->progress->waits.n;
}

static bool counts(const struct users_jobs *of, const struct job *job)
{
        return job->uid == of->uid && !(of->lasting && job_gives_place(job));
}

static bool same_base(const layout *a, const layout *b)
{
        return a->has_base && b->has_base && memcmp(a->base, b->base, sizeof a->base) == 0;
}

/* How many jobs, of those in the list before `end`, are on the layout's base; stops at `most`. */
static uint64_t on_base(const struct users_jobs *of, const struct list *end, const layout *l,
                        uint64_t most)
{
        uint64_t n = 0;

        list_for_each (&of->x->jobs, item) {
                const struct job *job = CONTAINER_OF(item, struct job, link);

                if (item == end || n >= most)
                        break;
                n += counts(of, job) && same_base(job->layout, l);
        }
        return n;
}

/* Jobs without a base, and bases that jobs are on. */
static uint64_t jobs_counted(const struct users_jobs *of)
{
        uint64_t n = 0;

        list_for_each (&of->x->jobs, item) {
                const struct job *job = CONTAINER_OF(item, struct job, link);

                n += counts(of, job) && !on_base(of, item, job->layout, 1);
        }
        return n;
}

bool jobs_full(const struct engine *x, uint32_t uid, const layout *l, bool lasting)
{
        struct users_jobs of = { x, uid, lasting };
        uint64_t same = on_base(&of, NULL, l, BASE_JOBS);

        return same ? same >= BASE_JOBS : jobs_counted(&of) >= x->conf->job_limit;
}

bool job_end_makes_place(const struct job *job, const layout *l)
{
        struct users_jobs all = { job->x, job->uid, false }, lasting = { job->x, job->uid, true };

        if (on_base(&all, NULL, l, 1))
                return same_base(job->layout, l);
        return !on_base(&lasting, NULL, job->layout, 1);
}

int job_admit(struct engine *x, const char *name, uint32_t uid, const layout *l,
              struct fault *fault)
{
        struct users_jobs of = { x, uid, false };
        uint64_t n = jobs_counted(&of), same = on_base(&of, NULL, l, BASE_JOBS);

        for_modules (x, module)
                if (module->job_admit && module->job_admit(x, name, uid, &n, fault))
                        return fault->status;
        if (same >= BASE_JOBS)
                return fault_set(fault, ZERO_EQUOTA,
                                 "user %u has %d jobs on this base, the most that count as one: "
                                 "zeroctl drop ends one",
                                 uid, BASE_JOBS);
        if (n < x->conf->job_limit || same)
                return 0;
        return fault_set(
                fault, ZERO_EQUOTA,
                "user %u has %llu jobs, as many as job_limit allows: zeroctl drop ends one", uid,
                (unsigned long long)n);
}
