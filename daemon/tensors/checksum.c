/*
 * A hash of the planes that does not depend on the partition: the sum of the hashes of all blocks
 * of 128 elements, each keyed with its plane, tensor and place.  Each block also hashes its
 * tensor's step and set, because every owner with a part of the tensor keeps both.
 */
#include "daemon/tensors/access.h"

#include <sodium.h>
#include <stdlib.h>
#include <string.h>

#include "proto/cleanup.h"

/* ---- checksum ---------------------------------------------------------------------------- */

enum { HASH_BLOCK = LAYOUT_ALIGN, PIECE = 8192 * HASH_BLOCK }; /* elements */

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

static void checksum_single(uint64_t sum[2], enum zero_plane plane, const struct plan_segment *s,
                            uint64_t first, uint64_t value)
{
        for (uint64_t i = 0; i < s->count; i += HASH_BLOCK) {
                const struct {
                        uint32_t plane, tensor;
                        uint64_t first, value;
                } block = { plane, s->tensor, first + i, value };
                uint64_t hash[2];

                crypto_generichash((uint8_t *)hash, sizeof hash, (const uint8_t *)&block,
                                   sizeof block, NULL, 0);
                sum[0] += hash[0];
                sum[1] += hash[1];
        }
}

/* Hashes the values that the tensor has once. */
static void checksum_singles(struct work *w, const struct plan_segment *s)
{
        const struct state *state = w->replica->state;
        uint64_t first = s->in_group - w->job->layout->tensors[s->tensor].offset;

        checksum_single(w->checksum.sum[CHECKSUM_STEP], ZERO_PLANE_STEP, s, first,
                        state->tensor_step[s->tensor]);
        checksum_single(w->checksum.sum[CHECKSUM_SET], ZERO_PLANE_SET, s, first,
                        state->tensor_set[s->tensor]);
}

/* The segment's first element in the plane is `at`. */
static void checksum_segment(struct work *w, enum zero_plane plane, const struct plan_segment *s,
                             uint64_t at)
{
        struct mapping values = state_map(w->replica->state, plane, (struct range){ at, s->count });
        uint64_t first = s->in_group - w->job->layout->tensors[s->tensor].offset;
        uint64_t *sum = w->checksum.sum[plane - ZERO_PLANE_MASTER];

        for (uint64_t i = 0, n; i < s->count; i += n) {
                n = s->count - i < PIECE ? s->count - i : PIECE;
                checksum_blocks(sum, plane, s->tensor, first + i,
                                place_read((float *)values.at + i, n * sizeof(float), w->buffer),
                                n);
        }
        state_unmap(&values);
}

static void checksum_run(struct offload_task *task, uint32_t worker)
{
        struct work *w = CONTAINER_OF(task, struct work, task);
        const struct state *state = w->replica->state;
        const struct plan *plan = state->plan;

        for (uint32_t i = 0; i < plan->n_segments; i++) {
                const struct plan_segment *s = &plan->segments[i];
                const struct plan_shard *shard = &plan->shards[s->group];

                checksum_segment(w, ZERO_PLANE_MASTER, s, s->master);
                if (w->job->layout->tensors[s->tensor].frozen)
                        continue;
                for (uint32_t k = 0; k < optimizer_moments(shard->optimizer); k++)
                        checksum_segment(w, (enum zero_plane)(ZERO_PLANE_MOMENT1 + k), s,
                                         plan_moment(shard, k, s->moment));
                checksum_singles(w, s);
        }
}

static void checksum_end(struct offload_task *task)
{
        struct work *w = CONTAINER_OF(task, struct work, task);

        w->checksum_done(w->checksum_arg, &w->checksum);
        for (uint32_t g = 0; g < w->job->layout->n_groups; g++)
                shard_unpin(w->replica, g);
        work_free(w);
}

static void checksum_begin(struct work *w)
{
        for (uint32_t g = 0; g < w->job->layout->n_groups; g++)
                shard_pin(w->replica, g);
        w->checksum.version = w->job->version; /* the pins keep the next update waiting */
        w->task.run = checksum_run;
        w->task.done = checksum_end;
        offload_submit(w->job->x->offload, &w->task);
}

void checksum_start(struct replica *h, uint64_t version,
                    void (*done)(void *arg, const struct checksum *sum), void *arg)
{
        struct work *w = calloc(1, sizeof *w);

        if (w)
                w->buffer = malloc(PIECE * sizeof(float));
        if (!w || !w->buffer)
                abort(); /* nothing else keeps the promise to call done() */
        w->owns_buffer = true;
        w->job = h->job;
        w->replica = h;
        list_init(&w->link);
        job_ref(h->job);
        w->version = version;
        w->checksum_done = done;
        w->checksum_arg = arg;
        w->begin = checksum_begin;
        work_start(w);
}
