#include "toy.h"

#include <assert.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "daemon/store/file.h"
#include "proto/dtype.h"

static float noise(uint64_t a, uint64_t b)
{
        uint64_t x =
                (a + 1) * UINT64_C(0x9e3779b97f4a7c15) ^ (b + 1) * UINT64_C(0xff51afd7ed558ccd);

        x = (x ^ (x >> 32)) * UINT64_C(0xd6e8feb86659fd93);
        return (float)(x >> 40) / 16777216.0f - 0.5f;
}

void toy_init(struct state *s)
{
        for (uint64_t i = 0; i < s->plan->master_elements; i++)
                s->in->master[i] = noise(1, i);
        for (uint32_t k = 0; k < OPTIMIZER_MOMENTS; k++)
                for (uint64_t i = 0; i < s->plan->moment_bytes[k] / sizeof(float); i++)
                        ((float *)s->in->moments[k])[i] = k ? fabsf(noise(2 + k, i)) : noise(2, i);
}

const struct hyper_set toy_sets[TOY_SETS] = {
        { .optimizer = 0, .value = { 0.01, 0.9, 0.99, 1e-8, 0.1 } },         /* adamw */
        { .optimizer = 1, .value = { 0.01, 0.9, 0.99, 0.1 } },               /* lion */
        { .optimizer = 2, .value = { 0.1, 0, 0, 0.1 } },                     /* sgd */
        { .optimizer = 3, .value = { 0.1, 0.9, 0, 0.1, 1 } },                /* sgd-momentum */
        { .optimizer = 4, .value = { 0.01, 0.9, 0.99, 1e-8, 0.1 } },         /* adam */
        { .optimizer = 5, .value = { 0.01, 0.9, 0.99, 1e-8, 0.1, 0, 0.9 } }, /* adamw, ema */
};

void toy_push(struct state *s, const layout *l)
{
        for (uint64_t i = 0; i < s->plan->moment_elements; i++)
                dtype_store(s->plan->grad_dtype, s->in->grad, i, noise(s->record->version + 10, i));
        for (uint32_t t = 0; t < s->n_tensors; t++)
                s->present[t] = !l->tensors[t].frozen && (t + s->record->version) % 3 != 0;
}

void toy_decide(struct state *s)
{
        if (s->record->phase == ATTEMPT_OPEN) {
                struct state_record vote = *s->record;
                vote.finite = 1;
                vote.n_sets = TOY_SETS;
                memcpy(vote.sets, toy_sets, sizeof(toy_sets));
                vote.clip_norm = (double)vote.version;
                state_prepare(s, &vote);
        }
        if (s->record->phase == ATTEMPT_PREPARED) {
                struct state_record decision = *s->record;
                decision.commit = decision.attempt % 5 != 4;
                decision.skipped += !decision.commit;
                int r = state_keeps_times(s) ? 0 : state_keep_times(s);
                assert(r == 0);
                state_decide(s, &decision, (uint32_t)decision.version + 1);
        }
}

const struct device_ops *toy_ops;

static void update_chunk(struct state *s, uint32_t slot, uint32_t chunk, bool ahead)
{
        const struct device_ops *ops = toy_ops ? toy_ops : device_host(NULL);
        uint32_t group = plan_chunk(s->plan, chunk).group;
        struct update_scalars scalars[16];
        const struct unit_update update = { .version = s->record->version + 1,
                                            .ahead = ahead,
                                            .present = s->present,
                                            .scalars = scalars };

        assert(s->n_tensors <= 16);
        for (uint32_t t = 0; t < s->n_tensors; t++)
                scalars[t] = hyper_scalars(
                        &toy_sets[s->tensor_set[t]], s->plan->shards[group].ema,
                        plan_chunk(s->plan, chunk).run->formats[0] != FORMAT_FP32, 3, 0.5);
        undo_update(s, slot, chunk, &update, ops);
}

void toy_update_ahead(struct state *s, uint32_t slot, uint32_t first, uint32_t stride)
{
        for (uint32_t c = first; c < s->plan->n_chunks; c += stride)
                if (state_chunk_version(s, c) == s->record->version)
                        update_chunk(s, slot, c, true);
}

void toy_update(struct state *s, uint32_t slot, uint32_t first, uint32_t stride)
{
        const struct state_record *r = s->record;

        for (uint32_t c = first; c < s->plan->n_chunks; c += stride)
                if (r->commit && state_chunk_version(s, c) == r->version)
                        update_chunk(s, slot, c, false);
                else if (!r->commit && state_chunk_version(s, c) != r->version)
                        undo_back(s, slot, c, r->version);
}

void toy_attempt(struct state *s, const layout *l)
{
        if (s->record->phase == ATTEMPT_OPEN)
                toy_push(s, l);
        toy_decide(s);
        toy_update(s, 0, 0, 1);
        state_finish(s);
}

static bool same(const char *what, const void *a, const void *b, size_t bytes)
{
        if (memcmp(a, b, bytes) == 0)
                return true;
        fprintf(stderr, "%s differs\n", what);
        return false;
}

bool toy_equal(const struct state *a, const struct state *b)
{
        const struct plan *p = a->plan;
        const struct state_record *r = a->record, *q = b->record;

        if (r->version != q->version || r->attempt != q->attempt || r->phase != q->phase ||
            r->skipped != q->skipped) {
                fprintf(stderr, "the record differs\n");
                return false;
        }
        return same("master", a->in->master, b->in->master, p->master_elements * sizeof(float)) &&
               same("moment 1", a->in->moments[0], b->in->moments[0], p->moment_bytes[0]) &&
               same("moment 2", a->in->moments[1], b->in->moments[1], p->moment_bytes[1]) &&
               same("moment 3", a->in->moments[2], b->in->moments[2], p->moment_bytes[2]) &&
               same("tensor_step", a->tensor_step, b->tensor_step,
                    a->n_tensors * sizeof(uint64_t)) &&
               same("chunk versions", a->in->versions, b->in->versions,
                    p->n_chunks * sizeof(uint64_t));
}
