/* zero_layout_*(): proto/layout.h for trainers.  The layout keeps the last refusal, for
 * zero_layout_error(). */
#include "zero.h"

#include "optimizers.h"

#include <stdio.h>
#include <string.h>

#include "proto/dtype.h"
#include "proto/layout.h"

static int settle(struct zero_layout *l, int r, struct fault *fault)
{
        if (r < 0)
                r = fault_errno(fault, r, "layout");
        if (r)
                snprintf(l->error, sizeof(l->error), "%.*s", (int)sizeof(l->error) - 1,
                         fault->text);
        return r;
}

int zero_layout_new(struct zero_layout **ret_layout)
{
        return layout_new(ret_layout) < 0 ? ZERO_ENOMEM : ZERO_OK;
}

void zero_layout_free(struct zero_layout *l)
{
        layout_free(l);
}

int zero_layout_group(struct zero_layout *l, const char *name, enum zero_dtype dtype,
                      const uint32_t *ranks, uint32_t n_ranks, double divisor, uint32_t *ret_group)
{
        struct fault fault = { 0 };
        int r;

        if (!name)
                return settle(l, fault_set(&fault, ZERO_EINVAL, "a group has no name"), &fault);
        r = layout_add_group(l, name, dtype, ranks, n_ranks, divisor, ret_group, &fault);
        if (r == 0)
                r = layout_set_optimizer(l, *ret_group, optimizer_default(), &fault);
        return settle(l, r, &fault);
}

int zero_layout_optimizer(struct zero_layout *l, uint32_t group, const char *optimizer)
{
        struct fault fault = { 0 };
        int r = layout_set_optimizer(l, group, optimizer ? optimizer : optimizer_default(), &fault);

        return settle(l, r, &fault);
}

int zero_layout_eager(struct zero_layout *l, uint32_t group)
{
        struct fault fault = { 0 };

        return settle(l, layout_set_eager(l, group, true, &fault), &fault);
}

static int copy_tensor(const struct zero_tensor *from, uint32_t group, struct layout_tensor *to,
                       struct fault *fault)
{
        if (!from || !from->name)
                return fault_set(fault, ZERO_EINVAL, "a tensor has no name");
        if (from->ndim > 0 && !from->shape)
                return fault_set(fault, ZERO_EINVAL,
                                 "tensor '%s' has %u dimensions, and its shape is NULL", from->name,
                                 (unsigned)from->ndim);
        if (from->ndim > ZERO_DIM_MAX)
                return fault_set(fault, ZERO_EINVAL, "tensor '%s' has %u dimensions, not 0 to %d",
                                 from->name, (unsigned)from->ndim, ZERO_DIM_MAX);
        *to = (struct layout_tensor){
                .name = (char *)from->name,
                .group = group,
                .ndim = from->ndim,
                .frozen = from->frozen,
                .set = from->set,
                .init = from->init,
                .init_value = from->init_value,
                .init_seed = from->init_seed,
        };
        if (from->ndim > 0)
                memcpy(to->shape, from->shape, from->ndim * sizeof(*from->shape));
        return 0;
}

int zero_layout_tensor(struct zero_layout *l, uint32_t group, const struct zero_tensor *tensor,
                       uint32_t *ret_tensor)
{
        struct fault fault = { 0 };
        struct layout_tensor t;
        int r = copy_tensor(tensor, group, &t, &fault);

        if (r == 0)
                r = layout_add_tensor(l, &t, ret_tensor, &fault);
        return settle(l, r, &fault);
}

const char *zero_layout_error(const struct zero_layout *l)
{
        return l->error;
}

/* ---- reading ----------------------------------------------------------- */

static const struct layout_group *group_at(const struct zero_layout *l, uint32_t group)
{
        return group < l->n_groups ? &l->groups[group] : NULL;
}

static const struct layout_tensor *tensor_at(const struct zero_layout *l, uint32_t tensor)
{
        return tensor < l->n_tensors ? &l->tensors[tensor] : NULL;
}

uint32_t zero_layout_groups(const struct zero_layout *l)
{
        return l->n_groups;
}

uint32_t zero_layout_tensors(const struct zero_layout *l)
{
        return l->n_tensors;
}

const char *zero_layout_group_name(const struct zero_layout *l, uint32_t group)
{
        const struct layout_group *g = group_at(l, group);

        return g ? g->name : NULL;
}

bool zero_layout_group_eager(const struct zero_layout *l, uint32_t group)
{
        return group < l->n_groups && l->groups[group].eager;
}

enum zero_dtype zero_layout_group_dtype(const struct zero_layout *l, uint32_t group)
{
        const struct layout_group *g = group_at(l, group);

        return g ? g->dtype : (enum zero_dtype)0;
}

uint32_t zero_layout_group_tensors(const struct zero_layout *l, uint32_t group, uint32_t *ret_first)
{
        const struct layout_group *g = group_at(l, group);

        if (g && ret_first)
                *ret_first = g->first_tensor;
        return g ? g->n_tensors : 0;
}

uint32_t zero_layout_group_ranks(const struct zero_layout *l, uint32_t group,
                                 const uint32_t **ret_ranks)
{
        const struct layout_group *g = group_at(l, group);

        if (g && ret_ranks)
                *ret_ranks = g->ranks;
        return g ? g->n_ranks : 0;
}

uint64_t zero_layout_group_elements(const struct zero_layout *l, uint32_t group)
{
        const struct layout_group *g = group_at(l, group);

        return g ? g->elements : 0;
}

const char *zero_layout_tensor_name(const struct zero_layout *l, uint32_t tensor)
{
        const struct layout_tensor *t = tensor_at(l, tensor);

        return t ? t->name : NULL;
}

uint32_t zero_layout_tensor_group(const struct zero_layout *l, uint32_t tensor)
{
        const struct layout_tensor *t = tensor_at(l, tensor);

        return t ? t->group : 0;
}

uint32_t zero_layout_tensor_shape(const struct zero_layout *l, uint32_t tensor,
                                  const uint64_t **ret_shape)
{
        const struct layout_tensor *t = tensor_at(l, tensor);

        if (t && ret_shape)
                *ret_shape = t->shape;
        return t ? t->ndim : 0;
}

bool zero_layout_tensor_frozen(const struct zero_layout *l, uint32_t tensor)
{
        const struct layout_tensor *t = tensor_at(l, tensor);

        return t && t->frozen;
}

uint64_t zero_layout_offset(const struct zero_layout *l, uint32_t tensor)
{
        const struct layout_tensor *t = tensor_at(l, tensor);

        return t ? t->offset : 0;
}

uint64_t zero_layout_tensor_elements(const struct zero_layout *l, uint32_t tensor)
{
        const struct layout_tensor *t = tensor_at(l, tensor);

        return t ? t->elements : 0;
}

int zero_layout_find(const struct zero_layout *l, const char *name, uint32_t *ret_tensor)
{
        for (uint32_t t = 0; t < l->n_tensors; t++) {
                if (strcmp(l->tensors[t].name, name) == 0) {
                        *ret_tensor = t;
                        return 0;
                }
        }
        return ZERO_ENOGROUP;
}

size_t zero_dtype_size(enum zero_dtype dtype)
{
        return dtype_valid(dtype) || dtype_is_bytes(dtype) ? dtype_size(dtype) : 0;
}

bool zero_dtype_is_bytes(enum zero_dtype dtype)
{
        return dtype_is_bytes(dtype);
}
