/*
 * Codes deltas while chunks are updated.
 *
 * A chunk is too small to be coded by itself.  So each task collects what its chunks served and
 * serve now in the thread's cache, and codes blocks of DELTA_BLOCK elements.  The task that ends
 * last joins what all of them have coded, on its thread.
 */
#include "daemon/step/update/coding.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/compute/delta/delta.h"
#include "proto/cleanup.h"

struct piece {
        struct piece *next;
        uint64_t first, bytes;
        uint8_t *data;
};

struct coding {
        struct replica *replica;
        uint32_t group;
        uint64_t version;
        enum zero_dtype dtype;
        uint32_t block; /* most elements that are coded at once */
        pthread_mutex_t lock;
        struct piece *pieces; /* by first */
        uint64_t bytes;
        uint32_t left; /* chunks that no task has ended with */
        bool lost;
        struct delta *delta; /* once all tasks have ended */
};

struct coding *coding_begin(struct replica *h, uint32_t group, uint64_t version)
{
        const struct plan *plan = h->state->plan;
        const struct plan_shard *shard = &plan->shards[group];
        struct coding *c;

        /* a change of fp32 values is as large as they are */
        if (shard->unit != UNIT_CHUNK || (shard->dtype != ZERO_BF16 && shard->dtype != ZERO_FP16))
                return NULL;
        c = calloc(1, sizeof *c);
        if (!c)
                return NULL;
        *c = (struct coding){ .replica = h,
                              .group = group,
                              .version = version,
                              .dtype = shard->dtype,
                              .block = plan->chunk_elements > DELTA_BLOCK ? plan->chunk_elements
                                                                          : DELTA_BLOCK,
                              .left = shard->n_chunks };
        pthread_mutex_init(&c->lock, NULL);
        return c;
}

void coding_free(struct coding *c)
{
        if (!c)
                return;
        while (c->pieces) {
                struct piece *p = c->pieces;

                c->pieces = p->next;
                free(p->data);
                free(p);
        }
        delta_unref(c->delta);
        pthread_mutex_destroy(&c->lock);
        free(c);
}

void coding_end(struct coding *c)
{
        if (c && c->delta)
                deltas_keep(c->replica->job, STEAL(c->delta));
        coding_free(c);
}

void coding_nothing(struct replica *h, uint32_t group, uint64_t version)
{
        struct delta *d = delta_new(group, h->owner, version, 0);

        if (d)
                deltas_keep(h->job, d);
}

/* ---- on threads ---- */

static uint64_t block_bytes(const struct coding *c)
{
        return dtype_bytes(c->dtype, c->block);
}

void coder_begin(struct coder *coder, struct coding *of)
{
        *coder = (struct coder){ .of = of, .begin = UINT64_MAX };
        if (of && !(coder->buffer = malloc(2 * block_bytes(of))))
                coder_lost(coder);
}

void coder_lost(struct coder *coder)
{
        free(STEAL(coder->buffer));
        free(STEAL(coder->bytes));
}

static bool coder_room(struct coder *coder, uint64_t bytes)
{
        uint8_t *grown;

        if (coder->room - coder->used >= bytes)
                return true;
        grown = realloc(coder->bytes, coder->used + 2 * bytes);
        if (!grown)
                return false;
        coder->bytes = grown;
        coder->room = coder->used + 2 * bytes;
        return true;
}

/* Codes what was collected. */
static void coder_code(struct coder *coder)
{
        const struct coding *c = coder->of;
        const uint8_t *was = coder->buffer, *is = was + block_bytes(c);
        size_t bound = delta_bound(c->dtype, coder->n);
        uint8_t header[DELTA_HEADER];
        size_t bytes, at;

        if (coder->n == 0)
                return;
        if (!coder_room(coder, DELTA_HEADER + bound)) {
                coder_lost(coder);
                return;
        }
        bytes = delta_code(c->dtype, was, is, coder->n,
                           coder->bytes + coder->used + DELTA_HEADER);
        at = delta_header(header, coder->first, coder->n, bytes);
        memcpy(coder->bytes + coder->used, header, at);
        memmove(coder->bytes + coder->used + at, coder->bytes + coder->used + DELTA_HEADER, bytes);
        coder->used += at + bytes;
        if (coder->begin == UINT64_MAX)
                coder->begin = coder->first;
        coder->n = 0;
}

void coder_chunk(struct coder *coder, uint32_t chunk, const float *old_master)
{
        const struct coding *c = coder->of;
        const struct replica *h = c->replica;
        struct plan_chunk of = plan_chunk(h->state->plan, chunk);
        uint64_t first = of.in_group - h->state->plan->shards[c->group].range.first, at;

        coder->chunks++;
        if (coder->buffer && (first != coder->first + coder->n || coder->n + of.n > c->block))
                coder_code(coder);
        if (!coder->buffer)
                return;
        if (coder->n == 0)
                coder->first = first;
        at = dtype_bytes(c->dtype, coder->n);
        state_served(h->state, h->job->layout, chunk, old_master, h->job->x->ops,
                     coder->buffer + at, coder->buffer + block_bytes(c) + at);
        coder->n += of.n;
}

void coder_pass(struct coder *coder)
{
        coder->chunks++;
}

/* Whoever codes less than the slice has coded enough. */
static void coding_join(struct coding *c)
{
        const struct plan_shard *shard = &c->replica->state->plan->shards[c->group];
        uint64_t at = 0;

        if (c->lost || c->bytes >= dtype_bytes(c->dtype, shard->range.count))
                return;
        c->delta = delta_new(c->group, c->replica->owner, c->version, c->bytes);
        for (struct piece *p = c->pieces; c->delta && p; p = p->next) {
                memcpy(c->delta->data + at, p->data, p->bytes);
                at += p->bytes;
        }
}

static void coding_add(struct coding *c, struct piece *piece)
{
        struct piece **at = &c->pieces;

        while (*at && (*at)->first < piece->first)
                at = &(*at)->next;
        piece->next = *at;
        *at = piece;
        c->bytes += piece->bytes;
}

void coder_end(struct coder *coder)
{
        struct coding *c = coder->of;
        struct piece *piece = NULL;

        if (!c)
                return;
        if (coder->buffer)
                coder_code(coder);
        if (coder->used && coder->bytes && (piece = malloc(sizeof *piece)))
                *piece = (struct piece){ .first = coder->begin,
                                         .bytes = coder->used,
                                         .data = STEAL(coder->bytes) };
        pthread_mutex_lock(&c->lock);
        c->lost = c->lost || !coder->buffer || (coder->used && !piece);
        if (piece)
                coding_add(c, piece);
        c->left -= coder->chunks;
        if (c->left == 0)
                coding_join(c);
        pthread_mutex_unlock(&c->lock);
        coder_lost(coder);
}
