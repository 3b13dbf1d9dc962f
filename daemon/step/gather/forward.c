/*
 * Brings a slice forward.
 *
 * Deltas that this node lacks come one after the other, each in parts of at most engine.part_bytes.
 * Once all are here, short tasks apply them in order, in place.
 */
#include "daemon/step/gather/forward.h"

#include <errno.h>
#include <stdlib.h>

#include "daemon/compute/delta/delta.h"
#include "proto/cleanup.h"

enum { TASK_ELEMENTS = 1 << 19 };

struct forward {
        struct job *job;
        uint32_t group, owner, n, next; /* deltas; the one that is lacking */
        uint64_t from;
        bool offered; /* bytes are known */
        uint64_t bytes[DELTAS_KEPT];
        struct delta *deltas[DELTAS_KEPT];
        uint64_t landed, received; /* of the next one; in all */
        void *values;
        struct range slice;
        uint32_t applied;
        struct delta_place at; /* in the delta that is being applied */
        int status;            /* of the last task */
        struct ask ask;
        struct offload_task task;
        void (*done)(void *arg, bool ok, uint64_t received);
        void *arg;
};

static bool forward_go_on(struct forward *f);

static void forward_free(struct forward *f)
{
        for (uint32_t i = 0; i < f->n; i++)
                delta_unref(f->deltas[i]);
        free(f);
}

static void forward_end(struct forward *f)
{
        f->done(f->arg, f->applied == f->n, f->received);
        forward_free(f);
}

/* A task as short as a step's others. */
static void forward_run(struct offload_task *task, uint32_t worker)
{
        struct forward *f = CONTAINER_OF(task, struct forward, task);
        const struct delta *d = f->deltas[f->applied];

        f->status = delta_apply_string(f->job->layout->groups[f->group].dtype, f->values,
                                       f->slice.count, d->data, d->bytes, &f->at, TASK_ELEMENTS);
}

static void forward_apply(struct forward *f);

/* Whoever else lacks a delta gets it from here, once it has turned out to be right. */
static void forward_ran(struct offload_task *task)
{
        struct forward *f = CONTAINER_OF(task, struct forward, task);

        if (f->status == 0) {
                struct delta *d = f->deltas[f->applied++];

                f->at = (struct delta_place){ 0 };
                if (!deltas_find(f->job, d->group, d->owner, d->version)) {
                        d->references++;
                        deltas_keep(f->job, d);
                }
        }
        if (f->status >= 0 && f->applied < f->n && !f->job->dead)
                forward_apply(f);
        else
                forward_end(f);
}

static void forward_apply(struct forward *f)
{
        f->task.run = forward_run;
        f->task.done = forward_ran;
        job_compute(f->job, OFFLOAD_STEP, &f->task);
}

static void forward_landed(struct ask *ask, int status)
{
        struct forward *f = CONTAINER_OF(ask, struct forward, ask);

        if (status) {
                forward_end(f);
                return;
        }
        f->landed += ask->n;
        f->received += ask->n;
        if (!forward_go_on(f))
                forward_end(f);
}

static bool part_ask(struct forward *f, struct delta *d)
{
        struct job *job = f->job;
        uint64_t left = d->bytes - f->landed;
        Zero__Pull pull = ZERO__PULL__INIT;

        pull.kind = ZERO__PULL__KIND__DELTA;
        pull.group = f->group;
        pull.owner = f->owner;
        pull.version = d->version;
        pull.first = f->landed;
        pull.count = left < job->x->part_bytes ? left : job->x->part_bytes;
        f->ask.done = forward_landed;
        return ask_send(&f->ask, job, job->placement.node[f->owner], TRAFFIC_GATHER, &pull,
                        d->data + f->landed, pull.count) == 0;
}

/* False: a delta has no memory, or its owner's node is gone. */
static bool next_here(struct forward *f, bool *asked)
{
        struct delta **d = &f->deltas[f->next];
        uint64_t version = f->from + 1 + f->next;

        *asked = false;
        if (!*d && (*d = deltas_find(f->job, f->group, f->owner, version))) {
                (*d)->references++;
                return true;
        }
        if (!*d && !f->offered)
                return false;
        if (!*d && !(*d = delta_new(f->group, f->owner, version, f->bytes[f->next])))
                return false;
        if (f->landed < (*d)->bytes) {
                *asked = true;
                return part_ask(f, *d);
        }
        return true;
}

/* False: it cannot go on. */
static bool forward_go_on(struct forward *f)
{
        for (; f->next < f->n; f->next++, f->landed = 0) {
                bool asked;

                if (!next_here(f, &asked))
                        return false;
                if (asked)
                        return true;
        }
        forward_apply(f);
        return true;
}

int forward_start(struct job *job, uint32_t group, uint32_t owner, uint64_t from, uint64_t to,
                  const uint64_t *bytes, void *values,
                  void (*done)(void *arg, bool ok, uint64_t received), void *arg)
{
        struct range slice = partition_range(job->partition, group, owner);
        uint64_t left = layout_group_bytes(&job->layout->groups[group], slice.count);
        struct forward *f;

        if (from >= to || to - from > DELTAS_KEPT)
                return -EINVAL;
        f = calloc(1, sizeof *f);
        if (!f)
                return -ENOMEM;
        *f = (struct forward){ .job = job,
                               .group = group,
                               .owner = owner,
                               .n = (uint32_t)(to - from),
                               .from = from,
                               .offered = bytes,
                               .values = values,
                               .slice = slice,
                               .done = done,
                               .arg = arg };
        for (uint32_t i = 0; bytes && i < f->n; i++) {
                f->bytes[i] = bytes[i] < left ? bytes[i] : left;
                left -= f->bytes[i];
        }
        if (left > 0 && forward_go_on(f))
                return 0;
        forward_free(f);
        return -ENOMEM;
}
