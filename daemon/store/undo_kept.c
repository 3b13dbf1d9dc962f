/*
 * Old values that outlive an update: those of units that are updated ahead of the decision.
 *
 * Each eager group has a place for them (plan.h).  They come there before the unit's version is
 * raised, and stay until the unit is updated ahead again.  So a unit whose version is ahead of the
 * recorded decision has its old values there, and a reader or the next process puts them back.
 */
#include <assert.h>
#include <string.h>

#include "daemon/floor/base/crash.h"
#include "daemon/store/planes.h"

enum { KEEP_MOST = 1 << 30 }; /* elements in one copy */

uint8_t *kept_at(const struct state *s, const struct plan_chunk *c, uint32_t k)
{
        const struct plan_shard *shard = &s->plan->shards[c->group];
        uint8_t *old = s->in->old + shard->old;

        assert(shard->old != UINT64_MAX);
        if (k == 0)
                return old + (c->moment - shard->moment) * sizeof(float);
        old += shard->moment_count * sizeof(float);
        for (uint32_t i = 0; i + 1 < k; i++)
                old += shard->moment_bytes[i];
        return old + (plan_moment_at(c->run, k - 1, c->moment) - shard->moment_at[k - 1]);
}

/* Copies part of a shard to the place for its old values, or back; c: the part, as a chunk. */
static void copy(const struct state *s, const struct plan_chunk *c, bool back)
{
        uint8_t *planes[UPDATE_PLANES] = { NULL };
        uint32_t n = chunk_planes(s, c, planes);

        for (uint32_t k = 0; k < n; k++) {
                uint8_t *old = kept_at(s, c, k), *to = back ? planes[k] : old;
                const uint8_t *from = back ? old : planes[k];
                uint64_t bytes = plan_run_bytes(c->run, k, c->n);

                if (s->in->home->for_cpu)
                        memcpy(to, from, bytes);
                else
                        place_ops()->copy(to, from, bytes);
        }
}

static void copy_shard(const struct state *state, uint32_t group, bool back)
{
        const struct plan_shard *shard = &state->plan->shards[group];
        const struct plan_segment *s = &state->plan->segments[shard->first_segment];

        for (uint32_t i = 0; i < shard->n_segments; i++, s++)
                for (uint64_t done = 0; s->moment != UINT64_MAX && done < s->count;) {
                        uint64_t left = s->count - done;
                        struct plan_chunk part = { .group = group,
                                                   .n = left < KEEP_MOST ? (uint32_t)left
                                                                         : KEEP_MOST,
                                                   .master = s->master + done,
                                                   .moment = s->moment + done,
                                                   .run = &state->plan->runs[s->run] };

                        copy(state, &part, back);
                        done += part.n;
                }
}

static void copy_unit(const struct state *state, uint32_t unit, bool back)
{
        const struct plan_chunk c = plan_chunk(state->plan, unit);

        /* an update ahead of its decision leaves no shard mixed */
        assert(!state->in->mixed[c.group]);
        if (state->plan->shards[c.group].unit == UNIT_SHARD)
                copy_shard(state, c.group, back);
        else
                copy(state, &c, back);
}

void undo_keep(const struct state *state, uint32_t unit)
{
        copy_unit(state, unit, false);
}

void kept_back(struct state *state, uint32_t unit, uint64_t version)
{
        assert(state_chunk_version(state, unit) == version + 1);
        copy_unit(state, unit, true);
        crash_point(CRASH_AHEAD_UNDONE);
        tables_set_chunk_version(state, unit, version);
}

void kept_back_all(struct state *s)
{
        uint64_t version = s->record->version;

        for (uint32_t g = 0; g < s->plan->n_groups; g++)
                for (uint32_t i = 0; i < state_chunks(s, g); i++) {
                        uint32_t unit = s->plan->shards[g].first_chunk + i;

                        if (state_chunk_version(s, unit) != version)
                                kept_back(s, unit, version);
                }
}
