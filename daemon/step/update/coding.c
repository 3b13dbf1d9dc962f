/*
 * Codes deltas behind updates.
 *
 * Tasks wait for their turn behind other users' reads, and an update must not.  So a task asks for
 * leave as it begins.  Whoever stops the coding gives no more leaves, and waits for the tasks that
 * run alone: a fraction of a millisecond.
 *
 * Invariant: what a group serves, and what it served before, change only while no task has leave.
 * A put that comes in between is noticed at the end, and the delta is lost.
 */
#include "daemon/step/update/coding.h"

#include <stdalign.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "daemon/compute/delta/delta.h"
#include "daemon/floor/base/memory.h"
#include "proto/cleanup.h"

enum { BLOCK = 32768, TASK_ELEMENTS = 4 * BLOCK };
enum { DELTAS_SHARE = 8 }; /* without room for some deltas beside, coding them is in vain */

/* 16-bit values, where the gradients of the same elements have their place (plan_chunk.moment). */
struct was {
        uint32_t references; /* the replica's, and of codings */
        uint64_t bytes;
        struct job *job;
        alignas(64) uint16_t values[];
};

/* A part of a slice, of consecutive elements. */
struct piece {
        struct coding *coding;
        struct offload_task task;
        uint64_t first, moment, n; /* elements: in the slice, in was */
        uint64_t bytes, room;      /* coded; 0: not yet, or there was no memory */
        uint8_t *data;
};

struct coding {
        struct replica *replica;
        struct coding **place; /* of who started it; NULL: it has been stopped */
        struct was *was;
        struct mapping is; /* what is served of the slice now */
        enum zero_dtype dtype;
        uint32_t group, n, next, in_flight; /* pieces */
        uint64_t version, elements, puts;   /* elements: of the slice */
        uv_mutex_t lock;
        bool stopped;     /* locked: no task gets leave any more */
        uint32_t running; /* locked: tasks that have it */
        bool settled, lost;
        struct delta *delta;
        struct offload_task task;
        struct piece pieces[];
};

/* ---- what was served ---- */

/* A change of fp32 values is as large as they are. */
static bool coded(const struct replica *h, uint32_t group)
{
        const struct plan_shard *shard = &h->state->plan->shards[group];

        return shard->n_chunks > 0 && shard->unit == UNIT_CHUNK &&
               (shard->dtype == ZERO_BF16 || shard->dtype == ZERO_FP16);
}

bool was_has(const struct was *was, const struct replica *h, uint32_t group)
{
        return was && coded(h, group);
}

void was_make(struct replica *h, struct was **was)
{
        uint64_t bytes = sizeof **was + h->state->plan->moment_elements * sizeof(uint16_t);
        bool any = false;

        for (uint32_t g = 0; g < h->job->layout->n_groups; g++)
                any = any || coded(h, g);
        if (*was || !any || bytes > memory_available() ||
            !deltas_take(h->job, bytes, bytes / DELTAS_SHARE))
                return;
        *was = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (*was == MAP_FAILED) {
                *was = NULL;
                deltas_give(h->job, bytes);
                return;
        }
        (*was)->references = 1;
        (*was)->bytes = bytes;
        (*was)->job = h->job;
}

void was_free(struct was **was)
{
        struct was *w = STEAL(*was);

        if (!w || --w->references)
                return;
        deltas_give(w->job, w->bytes);
        munmap(w, w->bytes);
}

void was_copy(struct was *was, const struct replica *h, uint32_t chunk,
              const struct undo_values *old)
{
        struct plan_chunk c = plan_chunk(h->state->plan, chunk);

        state_was(h->state, h->job->layout, chunk, old, h->job->x->ops, was->values + c.moment);
}

/* ---- threads ---- */

static bool piece_room(struct piece *p, uint64_t bytes)
{
        uint8_t *grown;

        if (p->room - p->bytes >= bytes)
                return true;
        grown = realloc(p->data, p->bytes + 2 * bytes);
        if (!grown)
                return false;
        p->data = grown;
        p->room = p->bytes + 2 * bytes;
        return true;
}

static bool block_code(struct piece *p, uint64_t at, uint64_t n)
{
        enum zero_dtype dtype = p->coding->dtype;
        const uint16_t *is = (const uint16_t *)p->coding->is.at + p->first,
                       *was = p->coding->was->values + p->moment;

        if (!piece_room(p, DELTA_HEADER + delta_bound(dtype, n)))
                return false;
        p->bytes += delta_append(dtype, p->first + at, was + at, is + at, n, p->data + p->bytes);
        return true;
}

static bool leave_take(struct coding *c)
{
        bool leave;

        uv_mutex_lock(&c->lock);
        leave = !c->stopped;
        c->running += leave;
        uv_mutex_unlock(&c->lock);
        return leave;
}

static void leave_give(struct coding *c)
{
        uv_mutex_lock(&c->lock);
        c->running--;
        uv_mutex_unlock(&c->lock);
}

static void piece_run(struct offload_task *task, uint32_t worker)
{
        struct piece *p = CONTAINER_OF(task, struct piece, task);
        uint64_t at, n;
        uint8_t *fit;

        if (!leave_take(p->coding))
                return;
        for (at = 0; at < p->n; at += n) {
                n = p->n - at < BLOCK ? p->n - at : BLOCK;
                if (!block_code(p, at, n)) {
                        p->bytes = 0;
                        break;
                }
        }
        leave_give(p->coding);
        fit = realloc(p->data, p->bytes ? p->bytes : 1);
        p->data = fit ? fit : p->data;
}

/* A delta as large as the slice helps nobody. */
static void coding_join(struct offload_task *task, uint32_t worker)
{
        struct coding *c = CONTAINER_OF(task, struct coding, task);
        uint64_t bytes = 0, at = 0;

        for (uint32_t i = 0; i < c->n; i++)
                bytes += c->pieces[i].bytes;
        if (bytes >= dtype_bytes(c->dtype, c->elements))
                return;
        c->delta = delta_new(c->group, c->replica->owner, c->version, bytes);
        for (uint32_t i = 0; c->delta && i < c->n; i++) {
                memcpy(c->delta->data + at, c->pieces[i].data, c->pieces[i].bytes);
                at += c->pieces[i].bytes;
        }
}

/* ---- the loop ---- */

/* Who waits for the delta goes on: with it, or with the slice. */
static void coding_settle(struct coding *c)
{
        struct replica *h = c->replica;

        if (c->settled)
                return;
        c->settled = true;
        deltas_settle(h->job, c->group, h->owner);
        if (c->delta && !c->lost)
                deltas_keep(h->job, STEAL(c->delta));
        if (!h->job->dead)
                shard_pulls(h, c->group);
}

static void coding_end(struct coding *c)
{
        struct job *job = c->replica->job;

        c->lost =
                c->lost || job->dead || c->is.state->puts != c->puts || state_putting(c->is.state);
        coding_settle(c);
        if (c->place)
                *c->place = NULL;
        state_unmap(&c->is);
        c->replica->codings--;
        for (uint32_t i = 0; i < c->n; i++)
                free(c->pieces[i].data);
        delta_unref(c->delta);
        was_free(&c->was);
        uv_mutex_destroy(&c->lock);
        free(c);
        job_unref(job);
}

static void coding_joined(struct offload_task *task)
{
        coding_end(CONTAINER_OF(task, struct coding, task));
}

/* As work of the node: another user who follows a job costs the job's user no reads. */
static void coding_submit(const struct coding *c, struct offload_task *task)
{
        offload_submit(c->replica->job->x->offload, OFFLOAD_READ, OFFLOAD_NODE, task);
}

static void coding_go_on(struct coding *c)
{
        uint32_t most = offload_workers(c->replica->job->x->offload);

        c->lost = c->lost || c->replica->job->dead;
        while (!c->lost && c->next < c->n && c->in_flight < most) {
                c->in_flight++;
                coding_submit(c, &c->pieces[c->next++].task);
        }
        if (c->in_flight)
                return;
        if (c->lost)
                coding_end(c);
        else
                coding_submit(c, &c->task);
}

/* Nobody has leave any more, nor gets it. */
static bool coding_let_go(struct coding *c)
{
        bool running;

        uv_mutex_lock(&c->lock);
        c->stopped = true;
        running = c->running;
        uv_mutex_unlock(&c->lock);
        if (running)
                return false;
        if (c->place)
                *c->place = NULL;
        c->place = NULL;
        return true;
}

bool coding_stop(struct coding **place)
{
        struct coding *c = *place;

        if (!c)
                return true;
        c->lost = true;
        coding_settle(c); /* a slice that cannot be sent may have got the update here before */
        return coding_let_go(c);
}

static void piece_done(struct offload_task *task)
{
        struct piece *p = CONTAINER_OF(task, struct piece, task);
        struct coding *c = p->coding;
        struct replica *h = c->replica;
        bool awaited = c->place && c->settled;

        c->in_flight--;
        c->lost = c->lost || p->bytes == 0;
        if (awaited && coding_let_go(c))
                for_observers (h->job->x, o)
                        if (o->unpinned)
                                o->unpinned(h);
        coding_go_on(c);
}

/* The slice's runs of elements that updates change; pieces: NULL, or room for all.  How many. */
static uint32_t pieces_of(const struct plan *plan, uint32_t group, struct piece *pieces)
{
        const struct plan_shard *shard = &plan->shards[group];
        const struct plan_segment *s = &plan->segments[shard->first_segment], *end;
        const struct plan_run *run = NULL;
        uint32_t n = 0;

        for (end = s + shard->n_segments; s < end; s++) {
                if (s->moment == UINT64_MAX || run == &plan->runs[s->run])
                        continue;
                run = &plan->runs[s->run];
                for (uint64_t at = 0; at < run->count; at += TASK_ELEMENTS, n++)
                        if (pieces) {
                                pieces[n].first = run->in_group + at - shard->range.first;
                                pieces[n].moment = run->moment + at;
                                pieces[n].n = run->count - at < TASK_ELEMENTS ? run->count - at
                                                                              : TASK_ELEMENTS;
                        }
        }
        return n;
}

void coding_start(struct replica *h, struct was *was, uint32_t group, uint64_t version,
                  struct coding **ret)
{
        uint32_t n = pieces_of(h->state->plan, group, NULL);
        struct range slice = h->state->plan->shards[group].range;
        struct coding *c = calloc(1, sizeof *c + n * sizeof c->pieces[0]);

        if (!c || uv_mutex_init(&c->lock)) {
                free(c);
                return;
        }
        if (deltas_expect(h->job, group, h->owner, version)) {
                uv_mutex_destroy(&c->lock);
                free(c);
                return;
        }
        c->replica = h;
        c->place = ret;
        c->was = was;
        c->is = state_map(h->state, plane_serve, group, slice);
        c->dtype = h->job->layout->groups[group].dtype;
        c->group = group;
        c->n = n;
        c->version = version;
        c->elements = slice.count;
        c->puts = h->state->puts;
        c->task.run = coding_join;
        c->task.done = coding_joined;
        pieces_of(h->state->plan, group, c->pieces);
        for (uint32_t i = 0; i < n; i++) {
                c->pieces[i].coding = c;
                c->pieces[i].task.run = piece_run;
                c->pieces[i].task.done = piece_done;
        }
        was->references++;
        h->codings++;
        job_ref(h->job);
        *ret = c;
        coding_go_on(c);
}

void coding_nothing(struct replica *h, uint32_t group, uint64_t version)
{
        struct delta *d = delta_new(group, h->owner, version, 0);

        if (d)
                deltas_keep(h->job, d);
}
