/*
 * Layouts as messages.
 *
 * Rule: a message is hostile.  layout.c checks all it can when it builds a layout; this file checks
 * only what does not fit into struct layout_tensor at all.
 */
#include "proto/layout.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "proto/cleanup.h"
#include "proto/text.h"

DEFINE_CLEANUP(layout *, layout_free)

static void free_message(Zero__Layout *m)
{
        zero__layout__free_unpacked(m, NULL);
}
DEFINE_CLEANUP(Zero__Layout *, free_message)

/* Added to the `init` of a whole tensor.  The release before would cut the tensor: it refuses this.
 */
enum { WHOLE = 16 };
/* The same of a tensor with matrices or an optimizer of its own. */
enum { OWN_UPDATE = 32 };

/* ---- from a message ----------------------------------------------------- */

static int read_tensor(layout *l, const Zero__Tensor *m, struct fault *fault)
{
        bool own = *m->optimizer || m->n_rows;
        uint32_t flags = WHOLE | (own ? OWN_UPDATE : 0);
        struct layout_tensor t = {
                .name = m->name,
                .group = l->n_groups - 1,
                .frozen = m->frozen,
                .set = m->set,
                .whole = m->init & WHOLE,
                .init = (enum zero_init)(m->init & ~flags),
                .init_value = m->init_value,
                .init_seed = m->init_seed,
                .optimizer = *m->optimizer ? m->optimizer : NULL,
                .rows = m->rows,
                .n_rows = m->n_rows < UINT32_MAX ? (uint32_t)m->n_rows : UINT32_MAX,
                .ndim = m->n_shape < UINT32_MAX ? (uint32_t)m->n_shape : UINT32_MAX,
        };
        uint32_t index;

        /* a shape that is too long is refused by its length, before it is looked at */
        if (m->n_shape > 0 && m->n_shape <= ZERO_DIM_MAX)
                memcpy(t.shape, m->shape, m->n_shape * sizeof(*t.shape));
        return layout_add_tensor(l, &t, &index, fault);
}

static int read_group(layout *l, const Zero__Group *m, struct fault *fault)
{
        uint32_t n_ranks = m->n_ranks < UINT32_MAX ? (uint32_t)m->n_ranks : UINT32_MAX;
        uint32_t index;
        int r = layout_add_group(l, m->name, (enum zero_dtype)m->dtype,
                                 n_ranks > 0 ? m->ranks : NULL, n_ranks, m->divisor, &index, fault);

        if (r == 0)
                r = layout_set_optimizer(l, index, m->optimizer, fault);
        if (r == 0)
                r = layout_set_eager(l, index, m->eager, fault);
        for (size_t i = 0; r == 0 && i < m->n_tensors; i++)
                r = read_tensor(l, m->tensors[i], fault);
        return r;
}

int layout_from_message(const Zero__Layout *m, layout **ret, struct fault *fault)
{
        if (!m)
                return fault_set(fault, ZERO_EINVAL, "the message has no layout");

        CLEANUP(cleanup_layout_free) layout *l = NULL;
        int r = layout_new(&l);

        if (r)
                return r;
        if (m->base_hash.len == LAYOUT_HASH)
                layout_set_base(l, m->base_hash.data);
        else if (m->base_hash.len)
                r = fault_set(fault, ZERO_EINVAL, "the hash of a base has %d bytes, not %zu",
                              LAYOUT_HASH, m->base_hash.len);
        for (size_t i = 0; r == 0 && i < m->n_groups; i++)
                r = read_group(l, m->groups[i], fault);
        if (r == 0)
                r = layout_check(l, fault);
        if (r)
                return r;
        *ret = STEAL(l);
        return 0;
}

/* ---- to a message ------------------------------------------------------- */

static int write_update(const struct layout_tensor *t, Zero__Tensor *m)
{
        if (t->optimizer && !(m->optimizer = strdup(t->optimizer)))
                return -ENOMEM;
        if (!t->n_rows)
                return 0;
        m->rows = calloc(t->n_rows, sizeof(*m->rows));
        if (!m->rows)
                return -ENOMEM;
        memcpy(m->rows, t->rows, t->n_rows * sizeof(*m->rows));
        m->n_rows = t->n_rows;
        return 0;
}

/* Each writer first links its message into its parent, so that freeing the root frees a half-built
 * message. */
static int write_tensor(const struct layout_tensor *t, Zero__Tensor **place)
{
        Zero__Tensor *m = malloc(sizeof(*m));
        if (!m)
                return -ENOMEM;
        zero__tensor__init(m);
        *place = m;

        m->name = strdup(t->name);
        m->shape = calloc(t->ndim + 1, sizeof(*m->shape));
        if (!m->name || !m->shape)
                return -ENOMEM;
        memcpy(m->shape, t->shape, t->ndim * sizeof(*m->shape));
        m->n_shape = t->ndim;
        m->frozen = t->frozen;
        m->set = t->set;
        m->init = t->init | (t->whole ? WHOLE : 0) | (t->optimizer || t->n_rows ? OWN_UPDATE : 0);
        m->init_value = t->init_value;
        m->init_seed = t->init_seed;
        return write_update(t, m);
}

static int write_ranks(const struct layout_group *g, Zero__Group *m)
{
        if (!g->ranks)
                return 0;
        m->ranks = calloc(g->n_ranks, sizeof(*m->ranks));
        if (!m->ranks)
                return -ENOMEM;
        memcpy(m->ranks, g->ranks, g->n_ranks * sizeof(*m->ranks));
        m->n_ranks = g->n_ranks;
        return 0;
}

static int write_group(const layout *l, const struct layout_group *g, Zero__Group **place)
{
        Zero__Group *m = malloc(sizeof(*m));
        if (!m)
                return -ENOMEM;
        zero__group__init(m);
        *place = m;

        m->dtype = g->dtype;
        m->divisor = g->divisor;
        m->eager = g->eager;
        m->name = strdup(g->name);
        m->optimizer = strdup(layout_optimizer(g).text);
        m->tensors = calloc((size_t)g->n_tensors + 1, sizeof(*m->tensors));
        if (!m->name || !m->optimizer || !m->tensors)
                return -ENOMEM;
        m->n_tensors = g->n_tensors;
        int r = write_ranks(g, m);
        for (uint32_t i = 0; r == 0 && i < g->n_tensors; i++)
                r = write_tensor(&l->tensors[g->first_tensor + i], &m->tensors[i]);
        return r;
}

int layout_to_message(const layout *l, Zero__Layout **ret)
{
        CLEANUP(cleanup_free_message) Zero__Layout *m = malloc(sizeof(*m));
        if (!m)
                return -ENOMEM;
        zero__layout__init(m);

        m->groups = calloc((size_t)l->n_groups + 1, sizeof(*m->groups));
        m->base_hash.data = l->has_base ? malloc(LAYOUT_HASH) : NULL;
        if (!m->groups || (l->has_base && !m->base_hash.data))
                return -ENOMEM;
        if (l->has_base) {
                memcpy(m->base_hash.data, l->base, LAYOUT_HASH);
                m->base_hash.len = LAYOUT_HASH;
        }
        m->n_groups = l->n_groups;
        for (uint32_t g = 0; g < l->n_groups; g++) {
                int r = write_group(l, &l->groups[g], &m->groups[g]);
                if (r < 0)
                        return r;
        }
        *ret = STEAL(m);
        return 0;
}
