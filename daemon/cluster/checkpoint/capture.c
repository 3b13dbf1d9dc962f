/*
 * An owner's part of a checkpoint.
 *
 * PREPARING -> PREPARED -> (DUE) -> WRITING -> WRITTEN -> PUBLISHING -> ENDED
 *
 * What blocks runs on another thread, one piece of work at a time.  Any failure ends the capture:
 * it refuses the phase that waits for an answer, or the next one.  Once no copy is in progress it
 * gives planes and job back.  The disk may answer much later: then it deletes its files and is
 * freed.
 *
 * An engine that stops waits LEAVE_MS for that.  A capture that it leaves behind deletes no files:
 * the job may have others by the time that the disk answers.  They are a partial checkpoint, which
 * the job's next one deletes.
 */
#include "daemon/cluster/checkpoint/capture.h"
#include "daemon/step/update/update.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "daemon/floor/base/log.h"
#include "proto/cleanup.h"

enum { BATCH_BLOCKS = 16, DISK_RATE = 100000000 /* a guess, bytes a second */ };
static const char abandoned[] = "to end the cancelled checkpoint of job";

static void capture_answer(struct capture *t, Zero__Snapshotted *s)
{
        if (t->call)
                snapshot_answer(t->x, t->node, t->call, s);
        t->call = 0;
}

static void capture_refuse(struct capture *t)
{
        Zero__LinkMessage m = ZERO__LINK_MESSAGE__INIT;

        m.call = t->call;
        answer(t->x, t->node, &m, t->fault.status, t->fault.text);
        t->call = 0;
}

static void capture_fail(struct capture *t, int status, const char *text)
{
        if (t->phase == CAPTURE_ENDED)
                return;
        t->phase = CAPTURE_ENDED;
        t->progress.cancelled = true;
        fault_set(&t->fault, status, "%s", text);
        if (t->call) {
                capture_refuse(t);
                t->fault.status = ZERO_OK; /* the answer has the fault */
        }
        capture_advance(t);
}

/* ---- the disk's thread ---------------------------------------------------------------- */

static void capture_free(struct capture *t)
{
        list_remove(&t->link);
        capture_copy_deinit(t);
        free(t->directory);
        free(t->text);
        free(t->layout);
        free(t);
}

static void work_begin(struct capture *t, enum lane lane, void (*run)(struct blocking_work *),
                       void (*done)(struct blocking_work *))
{
        t->disk_busy = true;
        t->disk.run = run;
        t->disk.done = done;
        blocking_submit(t->x->blocking, lane, &t->disk);
}

static void disk_begin(struct capture *t, void (*run)(struct blocking_work *),
                       void (*done)(struct blocking_work *))
{
        work_begin(t, LANE_CHECKPOINTS, run, done);
}

/* Takes the result of a piece of work; false: it failed, and the capture ends. */
static bool disk_ended(struct capture *t)
{
        t->disk_busy = false;
        if (t->status && t->phase != CAPTURE_ENDED)
                capture_fail(t, t->disk_fault.status, t->disk_fault.text);
        else if (t->phase == CAPTURE_ENDED)
                capture_advance(t);
        else
                return true;
        return false;
}

static void open_run(struct blocking_work *job)
{
        struct capture *t = CONTAINER_OF(job, struct capture, disk);
        const struct conf *conf = t->x->conf;
        struct snapshot_place place = { conf->checkpoint_dir, t->directory, t->uid,
                                        conf->state_dir };
        struct fault *fault = &t->disk_fault;

        t->status = snapshot_place_open(&place, PLACE_MADE, &t->dir, fault);
        if (t->status == 0)
                t->status = snapshot_check_space(t->dir, t->map.bytes, fault);
}

static void memory_run(struct blocking_work *job)
{
        struct capture *t = CONTAINER_OF(job, struct capture, disk);

        t->status = capture_copy_prepare(t, &t->disk_fault);
}

static void probe_run(struct blocking_work *job)
{
        struct capture *t = CONTAINER_OF(job, struct capture, disk);

        if (snapshot_probe(t->dir, t->buffer, SLOTS_PROBED * SNAPSHOT_BLOCK, &t->probed_rate,
                           &t->disk_fault))
                t->probed_rate = DISK_RATE; /* the checkpoint's own writes tell what is wrong */
}

static void capture_prepared(struct capture *t)
{
        Zero__Snapshotted s = ZERO__SNAPSHOTTED__INIT;

        t->phase = CAPTURE_PREPARED;
        s.bytes = t->map.bytes;
        s.buffer = t->buffer_bytes;
        s.stall_us = capture_stall_us(t);
        capture_answer(t, &s);
}

static void probe_done(struct blocking_work *job)
{
        struct capture *t = CONTAINER_OF(job, struct capture, disk);

        if (!disk_ended(t))
                return;
        t->x->checkpoints->disk_rate = t->probed_rate;
        capture_prepared(t);
}

static void memory_done(struct blocking_work *job)
{
        struct capture *t = CONTAINER_OF(job, struct capture, disk);

        memory_kept(&t->promise);
        t->measuring = false;
        if (!disk_ended(t))
                return;
        if (t->n_slots < t->n_blocks && t->unmeasured)
                disk_begin(t, probe_run, probe_done);
        else
                capture_prepared(t);
}

/* The copy's memory is prepared apart from the disk, because that reads planes. */
static void open_done(struct blocking_work *job)
{
        struct capture *t = CONTAINER_OF(job, struct capture, disk);

        if (!disk_ended(t))
                return;
        capture_copy_plan(t);
        t->measuring = true;
        work_begin(t, state_for_cpu(t->replica->state) ? LANE_MEMORY : LANE_DRIVERS, memory_run,
                   memory_done);
}

static int write_blocks(struct capture *t, struct fault *fault)
{
        int r = 0;

        for (uint64_t b = t->written; r == 0 && b < t->write_end; b++) {
                if (t->progress.cancelled)
                        return fault_set(fault, ZERO_EABORTED, "the checkpoint was cancelled");
                r = snapshot_writer_block(t->writer, capture_block(t, b), fault);
                if (r == 0)
                        t->progress.bytes += capture_block_bytes(t, b);
        }
        return r;
}

static void write_run(struct blocking_work *job)
{
        struct capture *t = CONTAINER_OF(job, struct capture, disk);
        struct fault *fault = &t->disk_fault;
        uint64_t begin = uv_hrtime();
        int r = 0;

        if (!t->writer) {
                r = snapshot_partial_open(t->dir, t->header.job, t->header.version, &t->partial,
                                          fault);
                if (r == 0)
                        r = snapshot_writer_new(t->partial, &t->header, t->meta, &t->writer, fault);
        }
        if (r == 0)
                r = write_blocks(t, fault);
        if (r == 0 && t->write_end == t->n_blocks)
                r = snapshot_writer_finish(t->writer, &t->shard, fault);
        t->write_ns += uv_hrtime() - begin;
        t->status = r;
}

static void capture_tell_written(struct capture *t)
{
        Zero__Snapshotted s = ZERO__SNAPSHOTTED__INIT;

        s.bytes = t->shard.bytes;
        s.hash.data = t->shard.hash;
        s.hash.len = MANIFEST_HASH;
        s.copy_us = t->copy_us + 1;
        capture_answer(t, &s);
}

static void write_done(struct blocking_work *job)
{
        struct capture *t = CONTAINER_OF(job, struct capture, disk);

        if (!disk_ended(t))
                return;
        t->written = t->write_end;
        if (t->written == t->n_blocks) {
                t->phase = CAPTURE_WRITTEN;
                t->x->checkpoints->disk_rate =
                        (double)t->map.bytes / ((double)t->write_ns / 1e9 + 1e-6);
                capture_tell_written(t);
                return;
        }
        capture_advance(t);
}

static void write_begin(struct capture *t)
{
        uint64_t end =
                t->written + (t->n_slots < 2 * BATCH_BLOCKS ? (t->n_slots + 1) / 2 : BATCH_BLOCKS);

        t->write_end = t->copied < end ? t->copied : end;
        disk_begin(t, write_run, write_done);
}

static void publish_run(struct blocking_work *job)
{
        struct capture *t = CONTAINER_OF(job, struct capture, disk);
        struct manifest m;
        int r = manifest_parse(t->text, strlen(t->text), &m, &t->disk_fault);

        if (r == 0)
                r = snapshot_publish(t->dir, &m, t->text, t->layout, &t->disk_fault);
        if (r == 0)
                snapshot_keep(t->dir, &m, t->keep);
        t->status = r;
}

static void publish_done(struct blocking_work *job)
{
        struct capture *t = CONTAINER_OF(job, struct capture, disk);
        Zero__Snapshotted s = ZERO__SNAPSHOTTED__INIT;

        t->published = t->status == 0;
        if (!disk_ended(t))
                return;
        capture_answer(t, &s);
        t->phase = CAPTURE_ENDED;
        capture_advance(t);
}

static void leave_run(struct blocking_work *job)
{
        struct capture *t = CONTAINER_OF(job, struct capture, disk);

        snapshot_writer_free(STEAL(t->writer));
        cleanup_close(&t->partial);
        cleanup_close(&t->dir);
        t->dir = t->partial = -1;
        capture_copy_deinit(t);
}

static void remove_run(struct blocking_work *job)
{
        struct capture *t = CONTAINER_OF(job, struct capture, disk);

        if (t->partial >= 0 && !t->published)
                snapshot_partial_remove(t->dir, t->header.job, t->header.version);
        leave_run(job);
}

static void remove_done(struct blocking_work *job)
{
        struct capture *t = CONTAINER_OF(job, struct capture, disk);

        t->disk_busy = false;
        t->removed = true;
        capture_advance(t);
}

static void capture_release(struct capture *t)
{
        struct replica *h = t->replica;
        bool pinned = t->pinned;

        if (pinned) {
                t->pinned = h->copying = false;
                capture_unpin(t, UINT64_MAX);
        }
        t->disk.what = abandoned;
        h->capture = NULL;
        t->replica = NULL;
        if (pinned) /* whoever goes on then may end here again, and finds no capture */
                shard_settled(h->job);
        job_unref(h->job);
}

/* Gives the planes back once no copy is in progress, and the rest once the disk has answered. */
static void capture_wind_up(struct capture *t)
{
        if (t->replica && !t->copying && !t->measuring && !capture_saves_now(t))
                capture_release(t);
        if (t->replica || t->disk_busy)
                return;
        if (!t->removed)
                disk_begin(t, t->left ? leave_run : remove_run, remove_done);
        else if (t->fault.status == ZERO_OK) /* the coordinator still has to hear why */
                capture_free(t);
}

void capture_advance(struct capture *t)
{
        if (t->phase == CAPTURE_ENDED) {
                capture_wind_up(t);
        } else if (t->phase == CAPTURE_WRITING) {
                if (t->saves)
                        capture_save_advance(t);
                else
                        capture_copy_advance(t);
                if (!t->disk_busy && (t->copied > t->written || t->n_blocks == 0))
                        write_begin(t);
        }
}

/* ---- the coordinator's word --------------------------------------------------------------- */

static struct capture *capture_find(const struct engine *x, uint32_t node, uint64_t id,
                                    uint32_t owner)
{
        list_for_each (&x->checkpoints->captures, item) {
                struct capture *t = CONTAINER_OF(item, struct capture, link);

                if (t->node == node && t->id == id && t->header.owner == owner)
                        return t;
        }
        return NULL;
}

static int capture_new(struct replica *h, uint32_t node, const Zero__LinkMessage *m,
                       struct fault *fault)
{
        struct capture *t;
        int r;

        if (h->capture ||
            blocking_has(h->job->x->blocking, LANE_CHECKPOINTS, abandoned, h->job->name))
                return fault_set(fault, ZERO_EBUSY,
                                 "an earlier checkpoint of the job is being cancelled, and its "
                                 "disk has not answered yet: try again");
        t = calloc(1, sizeof *t);
        if (t)
                t->directory = strdup(m->snapshot->directory);
        r = t && t->directory ? snapshot_map_new(h->state->plan, &t->map) : -ENOMEM;
        if (r) {
                free(t ? t->directory : NULL);
                free(t);
                return fault_set(fault, ZERO_ENOMEM, "out of memory");
        }
        t->x = h->job->x;
        t->replica = h;
        job_ref(h->job);
        h->capture = t;
        t->id = m->snapshot->id;
        t->call = m->call;
        t->node = node;
        t->uid = m->snapshot->uid;
        t->dir = t->partial = -1;
        t->header.owner = h->owner;
        snprintf(t->header.job, sizeof t->header.job, "%s", h->job->name);
        t->disk.what = "to write the checkpoint of job";
        t->disk.of = t->header.job;
        t->disk.uid = h->job->uid;
        t->unmeasured = t->x->checkpoints->disk_rate == 0;
        list_insert(&t->x->checkpoints->captures, &t->link);
        disk_begin(t, open_run, open_done);
        return 0;
}

void capture_prepare(struct engine *x, uint32_t node, const Zero__LinkMessage *m)
{
        struct snapshot_place place = { x->conf->checkpoint_dir, m->snapshot->directory,
                                        m->snapshot->uid };
        const struct job *job = job_find(x, m->job);
        struct replica *h = NULL;
        struct fault fault;
        int r = 0;

        if (job && !job->opening)
                h = replica_of_copy(job, m->snapshot->owner, 0);
        if (!h)
                r = fault_set(&fault, ZERO_ENOJOB, "there is no job '%.100s' on this node", m->job);
        if (!r)
                r = snapshot_place_check(&place, &fault);
        if (!r)
                r = capture_new(h, node, m, &fault);
        if (r)
                answer(x, node, m, r, fault.text);
}

static int capture_describe(struct capture *t)
{
        const struct state *state = t->replica->state;
        const struct job *job = t->replica->job;
        struct snapshot_header *h = &t->header;
        size_t meta_bytes;
        int r = snapshot_meta_new(state, &t->meta, &meta_bytes);

        if (r)
                return r;
        h->n_owners = job->placement.n_owners;
        h->uid = job->uid;
        h->world_size = job->world_size;
        h->reduce_dtype = job->reduce_dtype;
        h->version = state->record->version;
        h->attempt = state->record->decided_attempt;
        h->meta_bytes = meta_bytes;
        h->stream_bytes = t->map.bytes;
        layout_hash(job->layout, h->model_hash);
        return 0;
}

static void capture_copy(struct capture *t)
{
        Zero__Snapshotted s = ZERO__SNAPSHOTTED__INIT;

        if (capture_describe(t)) {
                capture_fail(t, ZERO_ENOMEM, "out of memory");
                return;
        }
        t->phase = CAPTURE_WRITING;
        t->pinned = t->replica->copying = true;
        s.version = t->header.version;
        s.attempt = t->header.attempt;
        capture_answer(t, &s);
        capture_copy_begin(t);
        capture_advance(t);
}

static int capture_publish(struct capture *t, const Zero__Snapshot *s)
{
        struct manifest m;
        struct fault fault;

        if (manifest_parse(s->manifest, strlen(s->manifest), &m, &fault) ||
            s->layout.len != m.layout_bytes || strcmp(m.job.name, t->replica->job->name) != 0 ||
            m.version != t->header.version)
                return ZERO_EPROTO;
        t->text = strdup(s->manifest);
        t->layout = malloc(s->layout.len + 1);
        if (!t->text || !t->layout)
                return ZERO_ENOMEM;
        memcpy(t->layout, s->layout.data, s->layout.len);
        t->keep = s->keep;
        t->phase = CAPTURE_PUBLISHING;
        disk_begin(t, publish_run, publish_done);
        return 0;
}

static void capture_step(struct capture *t, const Zero__Snapshot *s)
{
        int r = ZERO_EPROTO;

        if (s->phase == ZERO__SNAPSHOT__PHASE__COPY && t->phase == CAPTURE_PREPARED) {
                r = 0;
                update_undo(t->replica);
                if (update_holds(t->replica))
                        t->phase = CAPTURE_DUE;
                else
                        capture_copy(t);
        } else if (s->phase == ZERO__SNAPSHOT__PHASE__WRITE && t->phase == CAPTURE_WRITING) {
                r = 0;
        } else if (s->phase == ZERO__SNAPSHOT__PHASE__WRITE && t->phase == CAPTURE_WRITTEN) {
                r = 0;
                capture_tell_written(t);
        } else if (s->phase == ZERO__SNAPSHOT__PHASE__PUBLISH && t->phase == CAPTURE_WRITTEN) {
                r = capture_publish(t, s);
        }
        if (r)
                capture_fail(t, r,
                             r == ZERO_ENOMEM ? "out of memory"
                                              : "the coordinator asked for the checkpoint's "
                                                "phases out of order");
}

void capture_phase(struct engine *x, uint32_t node, const Zero__LinkMessage *m)
{
        struct capture *t = capture_find(x, node, m->snapshot->id, m->snapshot->owner);

        if (!t) {
                answer(x, node, m, ZERO_EABORTED, "the checkpoint has ended on this node");
                return;
        }
        t->call = m->call;
        if (t->phase != CAPTURE_ENDED) {
                capture_step(t, m->snapshot);
                return;
        }
        capture_refuse(t);
        t->fault.status = ZERO_OK;
        capture_advance(t);
}

void capture_cancel(struct engine *x, uint32_t node, uint64_t id, const char *why)
{
        list_for_each (&x->checkpoints->captures, item) {
                struct capture *t = CONTAINER_OF(item, struct capture, link);

                if (t->node != node || (id && t->id != id))
                        continue;
                capture_fail(t, ZERO_EABORTED, why);
                if (t->fault.status) { /* nobody asks any more */
                        t->fault.status = ZERO_OK;
                        capture_advance(t);
                }
        }
}

/* ---- hooks ---------------------------------------------------------------------------------- */

static void capture_updated(struct replica *h)
{
        struct capture *t = h->capture;

        if (!t)
                return;
        if (t->phase == CAPTURE_DUE && h->state->id.epoch == h->job->placement.epoch)
                capture_copy(t);
        else if (t->phase == CAPTURE_DUE)
                capture_fail(t, ZERO_EABORTED, "the job was moved meanwhile: try again");
        else
                capture_advance(t);
}

void captures_job_dropped(struct job *job, int status, const char *text)
{
        for_replicas (job, h)
                if (h->capture)
                        capture_fail(h->capture, status, text);
}

void captures_tick(struct engine *x)
{
        list_for_each (&x->checkpoints->captures, item) {
                struct capture *t = CONTAINER_OF(item, struct capture, link);
                uint64_t bytes = t->progress.bytes;

                if (bytes == t->told)
                        continue;
                t->told = bytes;
                snapshot_send_progress(x, t->header.job, t->node, t->id, t->header.owner, bytes);
        }
}

void captures_leave(struct engine *x)
{
        list_for_each (&x->checkpoints->captures, item) {
                struct capture *t = CONTAINER_OF(item, struct capture, link);

                if (t->replica)
                        continue;
                log_warning("job %s: zerod waits for the disk of a cancelled checkpoint in %s no "
                            "longer; what was written stays there as a partial one, which the "
                            "job's next checkpoint deletes",
                            t->header.job, t->directory);
                t->left = true;
                list_remove(&t->link);
        }
}

const struct shard_observer checkpoint_observer = { .update_begin = capture_save_begin,
                                                    .update_chunk = capture_save,
                                                    .update_end = capture_save_end,
                                                    .updated = capture_updated };
