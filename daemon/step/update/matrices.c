#include "daemon/step/update/matrices.h"

#include <assert.h>

bool matrix_next(const struct replica *h, uint32_t group, struct matrix_walk *walk,
                 struct shard_matrix *ret)
{
        const struct plan *plan = h->state->plan;
        const struct plan_shard *shard = &plan->shards[group];

        for (; walk->segment < shard->n_segments; walk->segment++, walk->matrix = 0) {
                const struct plan_segment *s =
                        &plan->segments[shard->first_segment + walk->segment];
                const struct layout_tensor *t = &h->job->layout->tensors[s->tensor];
                uint64_t first = s->in_group - t->offset;

                if (!layout_matrices(t) || !h->state->present[s->tensor] || first >= t->elements)
                        continue;
                if (walk->matrix == 0)
                        walk->matrix = layout_matrix_at(t, first);
                if (walk->matrix == layout_matrices(t))
                        continue;
                *ret = (struct shard_matrix){ .tensor = s->tensor,
                                              .matrix = layout_matrix(t, walk->matrix),
                                              .run = &plan->runs[s->run] };
                if (ret->matrix.first >= first + s->count)
                        continue;
                assert(ret->matrix.first >= first &&
                       ret->matrix.first + matrix_elements(ret) <= first + s->count);
                ret->master = s->master + (ret->matrix.first - first);
                ret->moment = s->moment + (ret->matrix.first - first);
                walk->matrix++;
                return true;
        }
        return false;
}

uint64_t matrix_in_chunk(const struct shard_matrix *m, uint64_t first, uint64_t most,
                         uint32_t *ret_chunk)
{
        uint64_t at = m->moment + first - m->run->moment, chunk = at / m->run->length;
        uint64_t left = (chunk + 1) * m->run->length - at;

        *ret_chunk = m->run->first_chunk + (uint32_t)chunk;
        return left < most ? left : most;
}
