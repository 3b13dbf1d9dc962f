/* See memory_seam.h. */
#include "memory_seam.h"

#include <assert.h>
#include <stdlib.h>

#include "random.h"

static struct memory_seam *of(struct seam *seam)
{
        return (struct memory_seam *)(void *)seam;
}

static int seam_acquire(struct seam *seam, uint32_t group, uint32_t next, const real **ret_params)
{
        struct memory_seam *m = of(seam);
        assert(m->held == 0);
        assert(m->expected == GPT_NO_GROUP || m->expected == group);
        m->expected = next;
        m->held++;
        m->acquired++;
        *ret_params = m->params[group];
        return 0;
}

static int seam_release(struct seam *seam, uint32_t group)
{
        assert(of(seam)->held == 1);
        of(seam)->held--;
        return 0;
}

static int seam_grad(struct seam *seam, uint32_t group, real **ret_grad)
{
        *ret_grad = of(seam)->grads[group];
        return 0;
}

static int seam_push(struct seam *seam, uint32_t group, bool last)
{
        struct memory_seam *m = of(seam);
        assert(group == m->next_push);
        m->next_push = group ? group - 1 : m->spec->n_groups - 1;
        m->micro_batches += group == 0;
        return 0;
}

static const struct seam_ops ops = {
        .acquire = seam_acquire,
        .release = seam_release,
        .grad = seam_grad,
        .push = seam_push,
};

void memory_seam_init(struct memory_seam *m, const struct gpt_spec *spec, uint64_t seed)
{
        *m = (struct memory_seam){ .seam.ops = &ops, .spec = spec, .expected = GPT_NO_GROUP };
        m->next_push = spec->n_groups - 1;
        m->params = calloc(spec->n_groups, sizeof(*m->params));
        m->grads = calloc(spec->n_groups, sizeof(*m->grads));
        for (uint32_t group = 0; group < spec->n_groups; group++) {
                uint64_t n = zero_layout_group_elements(spec->layout, group);
                m->params[group] = calloc(n, sizeof(real));
                m->grads[group] = calloc(n, sizeof(real));
                for (uint64_t i = 0; i < n; i++)
                        m->params[group][i] = (real)(0.3 * random_normal(seed + group, i));
        }
}

void memory_seam_deinit(struct memory_seam *m)
{
        for (uint32_t group = 0; group < m->spec->n_groups; group++) {
                free(m->params[group]);
                free(m->grads[group]);
        }
        free(m->params);
        free(m->grads);
}

void memory_seam_clear(struct memory_seam *m)
{
        for (uint32_t group = 0; group < m->spec->n_groups; group++)
                memset(m->grads[group], 0,
                       zero_layout_group_elements(m->spec->layout, group) * sizeof(real));
}
