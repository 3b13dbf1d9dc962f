/*
 * A hash of the planes that does not depend on the partition: the sum of the hashes of all blocks
 * of 128 elements.  A block's hash covers its plane, tensor and place.  A tensor's step and set are
 * hashed once for each block of the tensor, because every owner with a part of the tensor keeps
 * both.
 *
 * An owner's part is hashed piece by piece, so that others have their turn in between.  Of an owner
 * at most one checksum waits and one runs: a caller that asks for the same values hears their
 * result.
 */
#include "daemon/step/tensors/access.h"

#include <sodium.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/floor/base/buffer.h"
#include "proto/cleanup.h"

/* HASH_BLOCK: elements.  A piece of PIECE_BLOCKS blocks takes a millisecond. */
enum { HASH_BLOCK = LAYOUT_ALIGN, PIECE_BLOCKS = 2048 };

struct summing {
        struct work work; /* first: work_free() frees it all */
        struct list link; /* tensors.summings */
        struct list askers;
        bool begun;
        uint64_t puts; /* the state's fingerprint of puts when the checksum began */
        struct checksum sum;
        /* the next piece begins here */
        uint32_t segment, plane; /* plane: place in sum.sum */
        uint64_t at;             /* in the segment */
};

/* Adds modulo 2^64, in two lanes. */
static void checksum_blocks(uint64_t sum[2], uint32_t plane, uint32_t tensor, uint64_t first,
                            const float *values, uint64_t count)
{
        for (uint64_t i = 0; i < count; i += HASH_BLOCK) {
                struct {
                        uint32_t plane, tensor;
                        uint64_t first;
                        float values[HASH_BLOCK];
                } block = { .plane = plane, .tensor = tensor, .first = first + i };
                uint64_t n = count - i < HASH_BLOCK ? count - i : HASH_BLOCK, hash[2];

                memcpy(block.values, values + i, n * sizeof(float));
                crypto_generichash((uint8_t *)hash, sizeof hash, (const uint8_t *)&block,
                                   sizeof block, NULL, 0);
                sum[0] += hash[0];
                sum[1] += hash[1];
        }
}

static void checksum_single(uint64_t sum[2], uint32_t plane, uint32_t tensor, uint64_t first,
                            uint64_t count, uint64_t value)
{
        for (uint64_t i = 0; i < count; i += HASH_BLOCK) {
                const struct {
                        uint32_t plane, tensor;
                        uint64_t first, value;
                } block = { plane, tensor, first + i, value };
                uint64_t hash[2];

                crypto_generichash((uint8_t *)hash, sizeof hash, (const uint8_t *)&block,
                                   sizeof block, NULL, 0);
                sum[0] += hash[0];
                sum[1] += hash[1];
        }
}

/* The elements of the segment that count in a plane. */
static uint64_t summing_count(const struct summing *c, const struct plan_segment *s)
{
        if (c->plane > 0 && s->moment == UINT64_MAX)
                return 0;
        if (c->plane > 0 && c->plane < CHECKSUM_STEP &&
            c->plane > c->work.replica->state->plan->runs[s->run].n_moments)
                return 0;
        return s->count;
}

/* Hashes the next n elements of the segment in the plane. */
static void summing_add(struct summing *c, const struct plan_segment *s, uint64_t n)
{
        const struct state *state = c->work.replica->state;
        struct plane plane = plane_updated(c->plane);
        uint64_t first = s->in_group - c->work.job->layout->tensors[s->tensor].offset + c->at;
        uint64_t *sum = c->sum.sum[c->plane];
        struct range part = { s->in_group + c->at, n };
        struct mapping values;

        if (c->plane == CHECKSUM_STEP || c->plane == CHECKSUM_SET) {
                bool step = c->plane == CHECKSUM_STEP;

                plane.kind = step ? PLANE_STEP : PLANE_SET;
                plane.index = 0;
                checksum_single(sum, plane_number(plane), s->tensor, first, n,
                                step ? state->tensor_step[s->tensor]
                                     : state->tensor_set[s->tensor]);
                return;
        }
        if (plan_format(state->plan, plane, s->group, part.first) != FORMAT_FP32) {
                state_read(state, plane, s->group, part, c->work.job->x->ops, c->work.buffer);
                checksum_blocks(sum, plane_number(plane), s->tensor, first, c->work.buffer, n);
                return;
        }
        values = state_map(state, plane, s->group, part);
        checksum_blocks(sum, plane_number(plane), s->tensor, first,
                        place_read(values.at, values.bytes, c->work.buffer), n);
        state_unmap(&values);
}

/* Hashes one piece.  A plane without elements counts as a block, because there may be many such
 * planes. */
static void summing_run(struct offload_task *task, uint32_t worker)
{
        struct summing *c = CONTAINER_OF(task, struct summing, work.task);
        const struct plan *plan = c->work.replica->state->plan;

        for (uint64_t blocks = PIECE_BLOCKS; blocks && c->segment < plan->n_segments;) {
                const struct plan_segment *s = &plan->segments[c->segment];
                uint64_t count = summing_count(c, s), n = count - c->at;

                n = n < blocks * HASH_BLOCK ? n : blocks * HASH_BLOCK;
                if (n)
                        summing_add(c, s, n);
                blocks -= n <= HASH_BLOCK ? 1 : (n + HASH_BLOCK - 1) / HASH_BLOCK;
                c->at += n;
                if (c->at < count)
                        continue;
                c->at = 0;
                c->plane = (c->plane + 1) % CHECKSUM_PLANES;
                c->segment += c->plane == 0;
        }
}

static void summing_end(struct summing *c, int status)
{
        list_remove(&c->link);
        while (!list_empty(&c->askers)) {
                struct checksum_asker *a =
                        CONTAINER_OF(c->askers.next, struct checksum_asker, link);

                list_remove(&a->link);
                a->done(a, status, &c->sum);
        }
        for (uint32_t g = 0; c->begun && g < c->work.job->layout->n_groups; g++)
                shard_unpin(c->work.replica, g);
        work_free(&c->work);
}

static void summing_ran(struct offload_task *task)
{
        struct summing *c = CONTAINER_OF(task, struct summing, work.task);

        if (c->work.job->dead)
                summing_end(c, ZERO_ENOJOB);
        else if (c->segment < c->work.replica->state->plan->n_segments)
                job_compute(c->work.job, work_lane(&c->work), task);
        else
                summing_end(c, ZERO_OK);
}

static void summing_begin(struct work *w)
{
        struct summing *c = CONTAINER_OF(w, struct summing, work);

        if (w->job->dead) {
                summing_end(c, ZERO_ENOJOB);
                return;
        }
        for (uint32_t g = 0; g < w->job->layout->n_groups; g++)
                shard_pin(w->replica, g);
        c->begun = true;
        c->puts = w->replica->state->puts;
        c->sum.version = w->job->version; /* the pins keep the next update waiting */
        w->task.run = summing_run;
        w->task.done = summing_ran;
        job_compute(w->job, OFFLOAD_READ, &w->task);
}

/* ---- who asks ------------------------------------------------------------------------- */

/* True if the checksum serves an asker at that version.  It does not have a put that has ended
 * since it began. */
static bool summing_serves(const struct summing *c, const struct replica *h, uint64_t version)
{
        if (c->work.replica != h || c->work.job != h->job)
                return false;
        return !c->begun || (c->sum.version >= version && c->puts == h->state->puts);
}

static struct summing *summing_find(const struct replica *h, uint64_t version)
{
        list_for_each (&h->job->x->tensors->summings, item) {
                struct summing *c = CONTAINER_OF(item, struct summing, link);

                if (summing_serves(c, h, version))
                        return c;
        }
        return NULL;
}

static struct summing *summing_new(struct replica *h, uint64_t version)
{
        struct summing *c = calloc(1, sizeof *c);

        if (c)
                c->work.buffer = buffer_new((size_t)PIECE_BLOCKS * HASH_BLOCK * sizeof(float));
        if (!c || !c->work.buffer) {
                free(c);
                return NULL;
        }
        c->work.owns_buffer = true;
        c->work.job = h->job;
        c->work.replica = h;
        c->work.version = version;
        c->work.begin = summing_begin;
        list_init(&c->work.link);
        list_init(&c->askers);
        list_insert(&h->job->x->tensors->summings, &c->link);
        job_ref(h->job);
        return c;
}

int checksum_ask(struct replica *h, uint64_t version, struct checksum_asker *a)
{
        struct summing *c = summing_find(h, version), *begins = NULL;

        if (!c)
                c = begins = summing_new(h, version);
        if (!c)
                return ZERO_ENOMEM;
        if (c->work.version < version) /* the checksum still waits */
                c->work.version = version;
        list_insert(&c->askers, &a->link);
        if (begins)
                work_start(&begins->work);
        return 0;
}
