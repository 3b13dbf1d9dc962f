#include "toy.h"

#include <assert.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

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
                s->master[i] = noise(1, i);
        for (uint64_t i = 0; i < s->plan->moment_elements; i++) {
                s->exp_avg[i] = noise(2, i);
                s->exp_avg_sq[i] = fabsf(noise(3, i));
        }
}

void toy_push(struct state *s, const layout *l)
{
        for (uint64_t i = 0; i < s->plan->moment_elements; i++)
                s->grad[i] = noise(s->record->version + 10, i);
        for (uint32_t t = 0; t < s->n_tensors; t++)
                s->present[t] = !l->tensors[t].frozen && (t + s->record->version) % 3 != 0;
}

void toy_decide(struct state *s)
{
        if (s->record->phase == ATTEMPT_OPEN) {
                struct state_record vote = *s->record;
                vote.finite = 1;
                vote.n_sets = 1;
                vote.clip_norm = (double)vote.version;
                state_prepare(s, &vote);
        }
        if (s->record->phase == ATTEMPT_PREPARED) {
                struct state_record decision = *s->record;
                decision.commit = decision.attempt % 5 != 4;
                decision.skipped += !decision.commit;
                state_decide(s, &decision);
        }
}

const struct device_ops *toy_ops;

static void update_chunk(struct state *s, uint32_t slot, uint32_t chunk)
{
        struct adamw_scalars scalars[16], all = adamw_scalars(0.01, 0.9, 0.99, 1e-8, 0.1, 3, 0.5);

        assert(s->n_tensors <= 16);
        for (uint32_t t = 0; t < s->n_tensors; t++)
                scalars[t] = all;
        undo_update(s, slot, chunk, s->record->version + 1, toy_ops ? toy_ops : device_host(NULL),
                    scalars);
}

void toy_update(struct state *s, uint32_t slot, uint32_t first, uint32_t stride)
{
        for (uint32_t c = first; s->record->commit && c < s->plan->n_chunks; c += stride)
                if (state_chunk_version(s, c) == s->record->version)
                        update_chunk(s, slot, c);
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
        size_t moments = p->moment_elements * sizeof(float);

        if (r->version != q->version || r->attempt != q->attempt || r->phase != q->phase ||
            r->skipped != q->skipped) {
                fprintf(stderr, "the record differs\n");
                return false;
        }
        return same("master", a->master, b->master, p->master_elements * sizeof(float)) &&
               same("exp_avg", a->exp_avg, b->exp_avg, moments) &&
               same("exp_avg_sq", a->exp_avg_sq, b->exp_avg_sq, moments) &&
               same("tensor_step", a->tensor_step, b->tensor_step,
                    a->n_tensors * sizeof(uint64_t)) &&
               same("chunk versions", a->versions, b->versions, p->n_chunks * sizeof(uint64_t));
}
