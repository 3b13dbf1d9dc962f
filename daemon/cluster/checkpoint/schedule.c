/*
 * Periodic checkpoints.
 *
 * A schedule belongs to its job, not to a process: whoever coordinates the job carries it out.  The
 * coordinator alone changes it, gives each change a higher stamp, and tells all nodes.  Each node
 * that has the job keeps the newest that it has heard, in a note beside its states.  Now and then
 * the coordinator tells all nodes again, and they tell the coordinator, so a new one learns of it.
 * A schedule that was ended is kept too, with every 0: a node that was away does not bring it back.
 *
 * The drop of a job deletes its schedule.  Nobody makes a new job of that name before all nodes
 * that may have the old one have heard of the drop (drop.c).  So whoever has no job of the name
 * neither tells a schedule nor takes one: it may be a dropped job's.
 */
#include "daemon/cluster/checkpoint/directory.h"
#include "daemon/cluster/checkpoint/operation.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "daemon/floor/base/log.h"
#include "proto/cleanup.h"

enum { TELL_MS = 2000 };

static void schedule_free(struct schedule *s)
{
        free(s->directory);
        free(s);
}

DEFINE_CLEANUP(struct schedule *, schedule_free)

static struct schedule *find(const struct engine *x, const char *job)
{
        list_for_each (&x->checkpoints->schedules, item) {
                struct schedule *s = CONTAINER_OF(item, struct schedule, link);

                if (strcmp(s->job, job) == 0)
                        return s;
        }
        return NULL;
}

const struct schedule *schedule_find(const struct engine *x, const char *job)
{
        const struct schedule *s = find(x, job);

        return s && s->every ? s : NULL;
}

static void schedule_write(const struct engine *x, const struct schedule *s)
{
        char text[NOTE_SIZE];
        struct fault fault;

        snprintf(text, sizeof text, "%s\n%u %u %llu %llu %llu %llu\n%s\n", s->job, s->uid, s->keep,
                 (unsigned long long)s->every, (unsigned long long)s->stamp,
                 (unsigned long long)s->last_version, (unsigned long long)s->last_unix_s,
                 s->directory);
        if (node_keeps_notes(x) && note_write(x->store, NOTE_SCHEDULE, s->job, text, &fault))
                log_error(
                        "job %s: cannot write down when its checkpoints are due: %s; a restart of "
                        "this daemon may forget that",
                        s->job, fault.text);
}

/* node: ZERO_NODE_MAX for all. */
static void schedule_tell(struct engine *x, const struct schedule *s, uint32_t node)
{
        Zero__LinkMessage m = job_message(s->job);
        Zero__Snapshot of = ZERO__SNAPSHOT__INIT;

        of.phase = ZERO__SNAPSHOT__PHASE__SCHEDULE;
        of.uid = s->uid;
        of.keep = s->keep;
        of.directory = s->directory;
        of.every = s->every;
        of.stamp = s->stamp;
        of.last_version = s->last_version;
        of.last_unix_s = s->last_unix_s;
        m.body_case = ZERO__LINK_MESSAGE__BODY_SNAPSHOT;
        m.snapshot = &of;
        if (node == ZERO_NODE_MAX)
                send_all(x, &m);
        else
                fabric_send(x->fabric, node, &m);
}

/* Replaces the job's schedule by a copy; false: out of memory. */
static bool schedule_put(struct engine *x, const struct schedule *of)
{
        CLEANUP(cleanup_schedule_free) struct schedule *s = calloc(1, sizeof *s);
        struct schedule *old = find(x, of->job);

        if (!s)
                return false;
        *s = *of;
        s->directory = strdup(of->directory);
        if (!s->directory)
                return false;
        s->next_version = s->last_version + s->every;
        if (old) {
                list_remove(&old->link);
                schedule_free(old);
        }
        list_insert(&x->checkpoints->schedules, &s->link);
        schedule_write(x, s);
        s = NULL;
        return true;
}

int checkpoint_schedule(struct engine *x, const struct order *order, uint64_t every,
                        struct fault *fault)
{
        const struct schedule *old = find(x, order->job);
        struct schedule s = { .directory = (char *)order->directory,
                              .uid = order->uid,
                              .keep = order->keep,
                              .every = every,
                              .stamp = stamp_after(old ? old->stamp : 0),
                              .last_unix_s = (uint64_t)time(NULL) };
        int r = order_check(x, order, fault);

        if (r || (!old && every == 0))
                return r;
        snprintf(s.job, sizeof s.job, "%s", order->job);
        s.last_version = job_find(x, order->job)->version;
        if (!schedule_put(x, &s))
                return fault_set(fault, ZERO_ENOMEM, "out of memory");
        schedule_tell(x, &s, ZERO_NODE_MAX);
        return 0;
}

void schedule_done(struct engine *x, const struct operation *op)
{
        struct schedule *s = find(x, op->job);

        if (!s || s->every == 0 || strcmp(s->directory, op->directory) != 0)
                return;
        s->last_version = op->manifest.version;
        s->last_unix_s = (uint64_t)time(NULL);
        s->stamp = stamp_after(s->stamp);
        schedule_write(x, s);
        schedule_tell(x, s, ZERO_NODE_MAX);
}

/* A checkpoint that is due while another one is being written, or ranks are away, waits. */
static void schedule_run(struct engine *x, struct schedule *s)
{
        struct order order = { s->job, s->directory, s->uid, s->keep };
        const struct job *job = job_find(x, s->job);
        struct fault fault;
        uint64_t id;
        int r;

        if (s->every == 0 || !job || !job->started || coordinator_of(x, s->job) != x->cluster->self)
                return;
        if (job->version + s->every < s->next_version) /* an older checkpoint was restored */
                s->next_version = job->version + s->every;
        if (job->version < s->next_version)
                return;
        r = checkpoint_order(x, &order, &id, &fault);
        if (r == ZERO_EBUSY)
                return;
        if (r)
                log_error("job %s: periodic checkpoint: %s", s->job, fault.text);
        s->next_version = job->version + s->every;
}

static bool has_job(struct engine *x, const char *name)
{
        const struct job *job = job_find(x, name);

        return job && !job->opening;
}

static void schedule_tell_again(struct engine *x, struct schedule *s)
{
        uint32_t coordinator = coordinator_of(x, s->job);

        if (engine_now(x) - s->told_ms < TELL_MS || !has_job(x, s->job))
                return;
        s->told_ms = engine_now(x);
        schedule_tell(x, s, coordinator == x->cluster->self ? ZERO_NODE_MAX : coordinator);
}

void checkpoints_due(struct engine *x)
{
        list_for_each (&x->checkpoints->schedules, item) {
                struct schedule *s = CONTAINER_OF(item, struct schedule, link);

                schedule_run(x, s);
                schedule_tell_again(x, s);
        }
}

/* Of a file, or of another node. */
static bool is_sane(const struct engine *x, const struct schedule *s)
{
        struct snapshot_place place = { x->conf->checkpoint_dir, s->directory, s->uid, NULL };
        struct fault fault;

        return s->every <= SCHEDULE_EVERY_MAX &&
               (s->stamp | s->last_version | s->last_unix_s) >> STAMP_BITS == 0 &&
               snapshot_place_check(&place, &fault) != ZERO_EINVAL;
}

/* ---- other nodes ------------------------------------------------------------------------ */

void schedule_message(struct engine *x, uint32_t node, const Zero__LinkMessage *m)
{
        const Zero__Snapshot *of = m->snapshot;
        bool coordinates = coordinator_of(x, m->job) == x->cluster->self;
        const struct schedule *old = find(x, m->job);
        struct schedule s = { .directory = of->directory,
                              .uid = of->uid,
                              .keep = of->keep,
                              .every = of->every,
                              .stamp = of->stamp,
                              .last_version = of->last_version,
                              .last_unix_s = of->last_unix_s };

        if ((!coordinates && coordinator_of(x, m->job) != node) || (old && old->stamp >= s.stamp) ||
            !has_job(x, m->job) || !is_sane(x, &s))
                return;
        snprintf(s.job, sizeof s.job, "%s", m->job);
        if (schedule_put(x, &s) && coordinates)
                schedule_tell(x, &s, ZERO_NODE_MAX);
}

/* ---- lifetime ------------------------------------------------------------------------- */

void schedule_dropped(struct engine *x, const char *job, bool replaced)
{
        struct schedule *s = find(x, job);

        if (replaced)
                return;
        note_delete(x->store, NOTE_SCHEDULE, job);
        if (!s)
                return;
        list_remove(&s->link);
        schedule_free(s);
}

/* A node that was declared dead keeps none: the others may have made a new job of that name. */
static void resume_note(char *job, void *arg)
{
        char *numbers = strchr(job, '\n'), *directory = numbers ? strchr(numbers + 1, '\n') : NULL;
        unsigned long long every, stamp, last_version, last_unix_s;
        struct engine *x = arg;
        struct schedule s = { 0 };

        if (!directory)
                return;
        *numbers++ = *directory++ = 0;
        directory[strcspn(directory, "\n")] = 0;
        if (!job_name_valid(job) || sscanf(numbers, "%u %u %llu %llu %llu %llu", &s.uid, &s.keep,
                                           &every, &stamp, &last_version, &last_unix_s) != 6)
                return;
        if (node_set_has(x->placement.dead, x->cluster->self)) {
                note_delete(x->store, NOTE_SCHEDULE, job);
                return;
        }
        snprintf(s.job, sizeof s.job, "%s", job);
        s.directory = directory;
        s.every = every;
        s.stamp = stamp;
        s.last_version = last_version;
        s.last_unix_s = last_unix_s;
        if (is_sane(x, &s))
                schedule_put(x, &s);
}

void schedules_resume(struct engine *x)
{
        notes_each(x->store, NOTE_SCHEDULE, resume_note, x);
}

void schedules_free(struct engine *x)
{
        list_for_each (&x->checkpoints->schedules, item) {
                struct schedule *s = CONTAINER_OF(item, struct schedule, link);

                list_remove(&s->link);
                schedule_free(s);
        }
}
