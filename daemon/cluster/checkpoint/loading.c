/*
 * A node's part of a restore: it loads an owner's shards as a draft beside its present state, then
 * puts the draft in its place.  Nodes without shards only take the job's layout.
 */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "daemon/cluster/checkpoint/operation.h"
#include "daemon/floor/base/log.h"
#include "daemon/job/core/shut.h"
#include "daemon/step/update/update.h"
#include "proto/cleanup.h"

struct loading {
        struct list link; /* checkpoints.loadings */
        struct engine *x;
        uint64_t id, call;
        uint32_t node;
        struct job_spec job;
        layout *saved; /* as the checkpoint's owners had it */
        char *directory;
        struct manifest manifest;
        struct blocking_work disk;
        bool busy, ended;
        int status; /* of the blocking work */
        struct fault fault;
        /* One for each replica on this node; none on nodes without shards. */
        uint32_t n_drafts;
        struct draft {
                uint32_t owner, copy;
                struct state *state;
                struct snapshot_loaded loaded;
        } drafts[REPLICAS_MAX];
        struct snapshot_progress progress;
        uint64_t told; /* bytes, in the last progress message */
};

DEFINE_CLEANUP(struct partition *, partition_free)

static void loading_free(struct loading *ld)
{
        list_remove(&ld->link);
        for (uint32_t i = 0; i < ld->n_drafts; i++) {
                state_drop_later(ld->x, NULL, ld->drafts[i].state);
                snapshot_loaded_deinit(&ld->drafts[i].loaded);
        }
        layout_free(ld->job.layout);
        layout_free(ld->saved);
        free(ld->directory);
        free(ld);
}

static void loading_end(struct loading *ld)
{
        ld->ended = true;
        ld->progress.cancelled = true;
        if (!ld->busy)
                loading_free(ld);
}

static void loading_refuse(struct loading *ld, int status, const char *text)
{
        Zero__LinkMessage m = ZERO__LINK_MESSAGE__INIT;

        m.call = ld->call;
        answer(ld->x, ld->node, &m, status, text);
}

/* ---- the disk's thread ------------------------------------------------------------------ */

static int make_draft(struct loading *ld, struct draft *d, struct fault *fault)
{
        CLEANUP(cleanup_partition_free) struct partition *partition = NULL;
        struct engine *x = ld->x;
        int r = partition_new(ld->job.layout, x->placement.n_owners, &partition);

        if (r)
                return fault_set(fault, ZERO_ENOMEM, "out of memory");
        return shards_make(x, &ld->job, &x->placement, partition, d->owner, d->copy, true,
                           &d->state, fault);
}

static int load_draft(struct loading *ld, struct draft *d, int dir)
{
        struct fault *fault = &ld->fault;
        int r = make_draft(ld, d, fault);

        if (r == 0)
                r = snapshot_load(dir, &ld->manifest, ld->saved, ld->job.layout, d->state,
                                  ld->x->ops, &ld->progress, &d->loaded, fault);
        for (uint32_t g = 0; r == 0 && g < ld->job.layout->n_groups; g++)
                state_serve_group(d->state, ld->job.layout, g, ld->x->ops);
        return r;
}

static void load_run(struct blocking_work *job)
{
        struct loading *ld = CONTAINER_OF(job, struct loading, disk);
        struct snapshot_place place = { ld->x->conf->checkpoint_dir, ld->directory, ld->job.uid };
        CLEANUP(cleanup_close) int dir = -1;
        struct fault *fault = &ld->fault;
        int r = snapshot_place_open(&place, PLACE_READ, &dir, fault);

        for (uint32_t i = 0; r == 0 && i < ld->n_drafts; i++)
                r = load_draft(ld, &ld->drafts[i], dir);
        ld->status = r;
}

static void loading_tell(struct loading *ld)
{
        Zero__Snapshotted s = ZERO__SNAPSHOTTED__INIT;
        const struct job *job = job_find(ld->x, ld->job.name);

        s.attempt = job ? job->attempt : 0;
        snapshot_answer(ld->x, ld->node, ld->call, &s);
}

static void load_done(struct blocking_work *job)
{
        struct loading *ld = CONTAINER_OF(job, struct loading, disk);

        ld->busy = false;
        if (ld->ended) {
                loading_refuse(ld, ZERO_EABORTED, "the restore was cancelled");
                loading_free(ld);
        } else if (ld->status) {
                loading_refuse(ld, ld->status, ld->fault.text);
                loading_free(ld);
        } else {
                loading_tell(ld);
        }
}

/* ---- LOAD ---------------------------------------------------------------------------------- */

/* Checks that no state file of a job that could not be taken up is in the way, except for one
 * lost on a GPU. */
static int vacant_check(const struct engine *x, const char *name, struct fault *fault)
{
        struct state_identity id = { .job = job_spec_named(name), .epoch = x->placement.epoch };
        int r = 0;

        for (uint32_t i = 0; r == 0 && i < placement_holders(&x->placement); i++) {
                if (holder_node(&x->placement, i) != x->cluster->self)
                        continue;
                id.copy = holder_copy(&x->placement, i);
                if (!state_was_lost(x->store, &id, holder_owner(&x->placement, i)))
                        r = state_vacant(x->store, &id, holder_owner(&x->placement, i), fault);
        }
        return r;
}

/* Whether the job may be replaced: it belongs to this user and nobody works on it. */
static int job_check(struct engine *x, const char *name, uint32_t uid, struct fault *fault)
{
        const struct job *job = job_find(x, name);

        for_modules (x, module)
                if (module->job_replace && module->job_replace(x, name, fault))
                        return fault->status;
        if (shut_has(x, name))
                return fault_set(fault, ZERO_EBUSY,
                                 "the state of job '%s' on node %s is whole and waits for memory",
                                 name, node_name(x, x->cluster->self));
        if (!job && shut_why(x, name))
                return fault_set(fault, ZERO_EBUSY, "node %s: %s", node_name(x, x->cluster->self),
                                 shut_why(x, name));
        if (!job)
                return vacant_check(x, name, fault);
        if (job->opening)
                return fault_set(fault, ZERO_EBUSY, "job '%s' is being created: try again", name);
        if (uid != 0 && uid != job->uid)
                return fault_set(fault, ZERO_EPERM, "job '%s' belongs to user %u", name, job->uid);
        if (job->n_attached)
                return fault_set(fault, ZERO_EBUSY,
                                 "%u ranks of job '%s' are attached: end the trainers first",
                                 job->n_attached, name);
        return 0;
}

int loadings_admit(struct engine *x, const char *name, uint32_t uid, uint64_t *n_jobs,
                   struct fault *fault)
{
        list_for_each (&x->checkpoints->loadings, item) {
                const struct loading *ld = CONTAINER_OF(item, struct loading, link);

                *n_jobs += ld->job.uid == uid && !ld->ended && !job_find(x, ld->job.name);
        }
        return 0;
}

static int loading_fill(struct loading *ld, const Zero__LinkMessage *m, struct fault *fault)
{
        const Zero__Snapshot *s = m->snapshot;
        const struct job *job = job_find(ld->x, m->job);
        uint8_t model[MANIFEST_HASH];
        int r = manifest_parse(s->manifest, strlen(s->manifest), &ld->manifest, fault);

        if (r == 0)
                r = snapshot_layout(s->layout.data, s->layout.len, &ld->saved, fault);
        if (r)
                return r;
        layout_hash(ld->saved, model);
        if (memcmp(model, ld->manifest.model_hash, sizeof model) != 0)
                return fault_set(fault, ZERO_EIO,
                                 "the checkpoint's layout does not match its manifest");
        r = converted_layout(&s->target, ld->saved, &ld->job.layout, fault);
        if (r)
                return r;
        snprintf(ld->job.name, sizeof ld->job.name, "%s", m->job);
        ld->job.world_size = ld->manifest.job.world_size;
        ld->job.reduce_dtype = ld->manifest.job.reduce_dtype;
        ld->job.accumulate = ld->manifest.job.accumulate;
        ld->job.uid = job ? job->uid : s->uid ? s->uid : ld->manifest.job.uid;
        if (!job && job_admit(ld->x, m->job, ld->job.uid, ld->job.layout, fault))
                return fault->status;
        ld->directory = strdup(s->directory);
        return ld->directory ? 0 : fault_set(fault, ZERO_ENOMEM, "out of memory");
}

void loading_begin(struct engine *x, uint32_t node, const Zero__LinkMessage *m)
{
        struct snapshot_place place = { x->conf->checkpoint_dir, m->snapshot->directory,
                                        m->snapshot->uid };
        struct loading *ld = calloc(1, sizeof *ld);
        struct fault fault;
        int r = ld ? job_check(x, m->job, m->snapshot->uid, &fault)
                   : fault_set(&fault, ZERO_ENOMEM, "out of memory");

        if (ld) {
                ld->x = x;
                ld->id = m->snapshot->id;
                ld->call = m->call;
                ld->node = node;
                list_init(&ld->link);
        }
        if (r == 0)
                r = snapshot_place_check(&place, &fault);
        if (r == 0)
                r = loading_fill(ld, m, &fault);
        if (r) {
                answer(x, node, m, r, fault.text);
                if (ld)
                        loading_free(ld);
                return;
        }
        list_insert(&x->checkpoints->loadings, &ld->link);
        for (uint32_t i = 0; i < placement_holders(&x->placement); i++)
                if (holder_node(&x->placement, i) == x->cluster->self)
                        ld->drafts[ld->n_drafts++] =
                                (struct draft){ .owner = holder_owner(&x->placement, i),
                                                .copy = holder_copy(&x->placement, i) };
        if (ld->n_drafts == 0) {
                loading_tell(ld);
                return;
        }
        ld->busy = true;
        ld->disk = (struct blocking_work){ .run = load_run,
                                           .done = load_done,
                                           .what = "to restore job",
                                           .of = ld->job.name,
                                           .uid = ld->job.uid };
        blocking_submit(x->blocking, LANE_CHECKPOINTS, &ld->disk);
}

/* ---- SWAP ------------------------------------------------------------------------------------ */

static struct loading *loading_find(const struct engine *x, uint32_t node, uint64_t id)
{
        list_for_each (&x->checkpoints->loadings, item) {
                struct loading *ld = CONTAINER_OF(item, struct loading, link);

                if (ld->node == node && ld->id == id)
                        return ld;
        }
        return NULL;
}

/* Blobs count once the record names their attempt as the last one, so they are stored before the
 * record. */
static int settle_state(struct loading *ld, struct draft *d, uint64_t attempt)
{
        struct state_record record = d->loaded.record;
        int r = 0;

        for (uint32_t i = 0; r == 0 && i < d->loaded.n_blobs; i++)
                r = state_blob_stage(d->state, d->loaded.blobs[i]->rank, attempt,
                                     d->loaded.blobs[i]->data, d->loaded.blobs[i]->bytes);
        if (r)
                return fault_errno(&ld->fault, r, "cannot store the ranks' blobs");
        record.decided_attempt = attempt;
        record.attempt = attempt + 1;
        state_restore(d->state, &record);
        return 0;
}

static int replace_state(struct loading *ld, struct draft *d, struct job *old)
{
        struct replica *was = old ? replica_of_copy(old, d->owner, d->copy) : NULL;

        if (!was && state_was_lost(ld->x->store, &d->state->id, d->owner)) {
                log_warning("job %s: replaced the lost shards of owner %u", ld->job.name, d->owner);
                state_discard(ld->x->store, &d->state->id, d->owner);
        }
        return state_replace(d->state, was ? was->state : NULL, &ld->fault);
}

static void settle_job(struct loading *ld, struct job *job, uint64_t attempt)
{
        job->opening = JOB_OPEN;
        list_insert(&ld->x->jobs, &job->link);
        if (!list_empty(&job->replicas)) {
                job_take_up(job);
                return;
        }
        job->version = ld->manifest.version;
        job->attempt = attempt + 1;
}

/* All are settled before the first takes its place.  If a later one cannot, those of a new job go
 * again: a part of a job would keep the whole from coming. */
static int settle_states(struct loading *ld, struct job *job, struct job *old, uint64_t attempt)
{
        struct replica *made[REPLICAS_MAX] = { NULL };
        int r = 0;

        for (uint32_t i = 0; r == 0 && i < ld->n_drafts; i++) {
                struct draft *d = &ld->drafts[i];

                r = replica_new(job, d->owner, d->copy, &made[i])
                            ? fault_set(&ld->fault, ZERO_ENOMEM, "out of memory")
                            : settle_state(ld, d, attempt);
        }
        for (uint32_t i = 0; r == 0 && i < ld->n_drafts; i++) {
                r = replace_state(ld, &ld->drafts[i], old);
                if (r == 0)
                        made[i]->state = STEAL(ld->drafts[i].state);
        }
        for (uint32_t i = 0; r && !old && i < ld->n_drafts; i++)
                if (made[i])
                        state_drop_later(ld->x, NULL, STEAL(made[i]->state));
        return r;
}

static int swap(struct loading *ld, uint64_t attempt)
{
        struct engine *x = ld->x;
        struct job *old = job_find(x, ld->job.name), *job;
        int r;

        if (old && old->uid != ld->job.uid) /* created since the check */
                return fault_set(&ld->fault, ZERO_EPERM, "job '%s' belongs to user %u", old->name,
                                 old->uid);
        job = job_new(x, &ld->job);
        ld->job.layout = NULL;
        if (!job)
                return fault_set(&ld->fault, ZERO_ENOMEM, "out of memory");
        r = settle_states(ld, job, old, attempt);
        if (r) {
                job_unref(job);
                return r;
        }
        job_name_dropped(x, ld->job.name, true);
        if (old) {
                old->drop_state = true;
                job_detach(old);
        }
        settle_job(ld, job, attempt);
        log_info("job %s: restored from %s at version %llu", job->name, ld->directory,
                 (unsigned long long)job->version);
        return 0;
}

void loading_swap(struct engine *x, uint32_t node, const Zero__LinkMessage *m)
{
        struct loading *ld = loading_find(x, node, m->snapshot->id);
        Zero__Snapshotted s = ZERO__SNAPSHOTTED__INIT;

        if (!ld || ld->busy || ld->ended) {
                answer(x, node, m, ZERO_EABORTED, "the restore has ended on this node");
                return;
        }
        if (swap(ld, m->snapshot->attempt))
                answer(x, node, m, ld->fault.status, ld->fault.text);
        else
                snapshot_answer(x, node, m->call, &s);
        loading_free(ld);
}

void loading_cancel(struct engine *x, uint32_t node, uint64_t id)
{
        list_for_each (&x->checkpoints->loadings, item) {
                struct loading *ld = CONTAINER_OF(item, struct loading, link);

                if (ld->node == node && (id == 0 || ld->id == id))
                        loading_end(ld);
        }
}

bool loadings_any(const struct engine *x)
{
        return !list_empty(&x->checkpoints->loadings);
}

void loadings_tick(struct engine *x)
{
        list_for_each (&x->checkpoints->loadings, item) {
                struct loading *ld = CONTAINER_OF(item, struct loading, link);
                uint64_t bytes = ld->progress.bytes;

                if (bytes == ld->told)
                        continue;
                ld->told = bytes;
                snapshot_send_progress(x, ld->job.name, ld->node, ld->id, 0, bytes);
        }
}
