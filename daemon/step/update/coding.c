/*
 * Codes deltas behind updates.
 *
 * Invariant: while tasks of a coding run, the group is pinned, so its next update waits for them.
 * A coding starts no task once an update wants the group: then the delta is lost, and readers get
 * the slice whole.
 */
#include "daemon/step/update/coding.h"

#include <stdalign.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "daemon/compute/delta/delta.h"
#include "daemon/step/update/update.h"
#include "proto/cleanup.h"

enum { BLOCK = 32768, TASK_ELEMENTS = 4 * BLOCK };

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
        struct shard_part is;
        struct offload_task task;
        uint64_t first, moment, n; /* elements: in the slice, in was */
        uint64_t bytes, room;      /* coded; 0: not yet, or there was no memory */
        uint8_t *data;
};

struct coding {
        struct replica *replica;
        struct was *was;
        struct delta *expected;
        enum zero_dtype dtype;
        uint32_t group, n, next, in_flight; /* pieces */
        bool lost;
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
        if (*was || !any || !deltas_take(h->job, bytes))
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

void was_copy(struct was *was, const struct replica *h, uint32_t chunk, const float *old_master)
{
        struct plan_chunk c = plan_chunk(h->state->plan, chunk);

        state_was(h->state, h->job->layout, chunk, old_master, h->job->x->ops,
                  was->values + c.moment);
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
        const uint16_t *is = p->is.bytes.at, *was = p->coding->was->values + p->moment;

        if (!piece_room(p, DELTA_HEADER + delta_bound(dtype, n)))
                return false;
        p->bytes += delta_append(dtype, p->first + at, was + at, is + at, n, p->data + p->bytes);
        return true;
}

static void piece_run(struct offload_task *task, uint32_t worker)
{
        struct piece *p = CONTAINER_OF(task, struct piece, task);
        uint64_t at, n;

        for (at = 0; at < p->n; at += n) {
                n = p->n - at < BLOCK ? p->n - at : BLOCK;
                if (!block_code(p, at, n)) {
                        p->bytes = 0;
                        return;
                }
        }
}

/* A delta as large as the slice helps nobody. */
static void coding_join(struct offload_task *task, uint32_t worker)
{
        struct coding *c = CONTAINER_OF(task, struct coding, task);
        const struct delta *d = c->expected;
        struct range slice = c->replica->state->plan->shards[c->group].range;
        uint64_t bytes = 0, at = 0;

        for (uint32_t i = 0; i < c->n; i++)
                bytes += c->pieces[i].bytes;
        if (bytes >= dtype_bytes(c->dtype, slice.count))
                return;
        c->delta = delta_new(d->group, d->owner, d->version, bytes);
        for (uint32_t i = 0; c->delta && i < c->n; i++) {
                memcpy(c->delta->data + at, c->pieces[i].data, c->pieces[i].bytes);
                at += c->pieces[i].bytes;
        }
}

/* ---- the loop ---- */

static void coding_end(struct coding *c)
{
        struct replica *h = c->replica;
        struct job *job = h->job;

        deltas_settle(job, c->expected, c->delta);
        if (!job->dead)
                shard_pulls(h, c->group);
        for (uint32_t i = 0; i < c->n; i++)
                free(c->pieces[i].data);
        was_free(&c->was);
        free(c);
        job_unref(job);
}

static void coding_joined(struct offload_task *task)
{
        coding_end(CONTAINER_OF(task, struct coding, task));
}

static void coding_go_on(struct coding *c);

static void piece_done(struct offload_task *task)
{
        struct piece *p = CONTAINER_OF(task, struct piece, task);
        struct coding *c = p->coding;

        shard_part_end(&p->is);
        c->in_flight--;
        c->lost = c->lost || p->bytes == 0;
        coding_go_on(c);
}

static void piece_mapped(struct shard_part *is)
{
        struct piece *p = CONTAINER_OF(is, struct piece, is);

        p->task.run = piece_run;
        p->task.done = piece_done;
        job_compute(p->coding->replica->job, OFFLOAD_READ, &p->task);
}

static void piece_start(struct piece *p)
{
        struct coding *c = p->coding;
        struct range slice = c->replica->state->plan->shards[c->group].range;
        struct range range = { slice.first + p->first, p->n };

        c->in_flight++;
        shard_want(&p->is, c->replica, plane_serve, c->group, range, piece_mapped);
}

static void coding_go_on(struct coding *c)
{
        struct replica *h = c->replica;
        uint32_t most = offload_workers(h->job->x->offload);

        c->lost = c->lost || h->job->dead || update_waits(h, c->group);
        while (!c->lost && c->next < c->n && c->in_flight < most)
                piece_start(&c->pieces[c->next++]);
        if (c->in_flight)
                return;
        c->task.run = coding_join;
        c->task.done = coding_joined;
        if (c->lost)
                coding_end(c);
        else
                job_compute(h->job, OFFLOAD_READ, &c->task);
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

void coding_start(struct replica *h, struct was *was, uint32_t group, uint64_t version)
{
        uint32_t n = pieces_of(h->state->plan, group, NULL);
        struct coding *c = calloc(1, sizeof *c + n * sizeof c->pieces[0]);
        struct delta *expected = c ? deltas_expect(h->job, group, h->owner, version) : NULL;

        if (!expected) {
                free(c);
                return;
        }
        *c = (struct coding){ .replica = h,
                              .was = was,
                              .expected = expected,
                              .dtype = h->job->layout->groups[group].dtype,
                              .group = group,
                              .n = n };
        pieces_of(h->state->plan, group, c->pieces);
        for (uint32_t i = 0; i < n; i++)
                c->pieces[i].coding = c;
        was->references++;
        job_ref(h->job);
        coding_go_on(c);
}

void coding_nothing(struct replica *h, uint32_t group, uint64_t version)
{
        struct delta *d = delta_new(group, h->owner, version, 0);

        if (d)
                deltas_keep(h->job, d);
}
