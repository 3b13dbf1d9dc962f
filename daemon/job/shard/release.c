/* Deletes states: a thread that may block frees their memory. */
#include "daemon/job/shard/shard.h"

#include <stdio.h>
#include <stdlib.h>

#include "proto/cleanup.h"

struct release {
        struct blocking_work disk;
        struct engine *x;
        struct job *job;
        struct state *state;
        char name[ZERO_NAME_MAX + 1]; /* the state's own goes with its memory */
};

static void release_run(struct blocking_work *disk)
{
        struct release *r = CONTAINER_OF(disk, struct release, disk);

        state_drop(r->state);
}

static void release_done(struct blocking_work *disk)
{
        struct release *r = CONTAINER_OF(disk, struct release, disk);

        r->x->releases--;
        if (r->job)
                job_unref(r->job);
        free(r);
}

void state_drop_later(struct engine *x, struct job *job, struct state *state)
{
        struct release *r = state ? calloc(1, sizeof *r) : NULL;

        if (!r) {
                state_drop(state);
                return;
        }
        *r = (struct release){ .disk = { .run = release_run,
                                         .done = release_done,
                                         .what = "to free states of job",
                                         .of = r->name,
                                         .uid = state->id.job.uid },
                               .x = x,
                               .job = job,
                               .state = state };
        snprintf(r->name, sizeof r->name, "%s", state->id.job.name);
        state_unlink(state);
        if (job)
                job_ref(job);
        x->releases++;
        blocking_submit(x->blocking, LANE_MEMORY, &r->disk);
}
