/* zero_layout_*(): proto/layout.h for trainers.  The layout keeps the last refusal, for
 * zero_layout_error(), and so does the thread, for zero_error(NULL). */
#include "client.h"
#include "optimizers.h"

#include <stdio.h>
#include <string.h>

#include "proto/cleanup.h"
#include "proto/dtype.h"
#include "proto/partition.h"
#include "proto/text.h"

DEFINE_CLEANUP(struct partition *, partition_free)
DEFINE_CLEANUP(layout *, layout_free)

static int settle(struct zero_layout *l, int r, struct fault *fault)
{
        if (r < 0)
                r = fault_errno(fault, r, "layout");
        if (r) {
                client_thread_fault = *fault;
                if (l)
                        snprintf(l->error, sizeof(l->error), "%.*s", (int)sizeof(l->error) - 1,
                                 fault->text);
        }
        return r;
}

/* r, or ZERO_EINVAL where the call lacks the object. */
#define given(r, object)       \
        ((r) || (object) ? (r) \
                         : fault_set(&fault, ZERO_EINVAL, "%s(): " #object " is NULL", __func__))

int zero_layout_new(struct zero_layout **ret_layout)
{
        if (!ret_layout)
                return fault_set(&client_thread_fault, ZERO_EINVAL,
                                 "zero_layout_new(): ret_layout is NULL");
        return layout_new(ret_layout) < 0
                       ? fault_set(&client_thread_fault, ZERO_ENOMEM, "out of memory")
                       : ZERO_OK;
}

void zero_layout_free(struct zero_layout *l)
{
        layout_free(l);
}

int zero_layout_group(struct zero_layout *l, const char *name, enum zero_dtype dtype,
                      const uint32_t *ranks, uint32_t n_ranks, double divisor, uint32_t *ret_group)
{
        struct fault fault = { 0 };
        int r = given(0, l);

        r = given(r, name);
        r = given(r, ret_group);
        if (r == 0)
                r = layout_add_group(l, name, dtype, ranks, n_ranks, divisor, ret_group, &fault);
        if (r == 0)
                r = layout_set_optimizer(l, *ret_group, optimizer_default(), &fault);
        return settle(l, r, &fault);
}

/* A tensor whose optimizer updates matrices is a stack of such, until the caller cuts them. */
static int follow_optimizer(layout *l, uint32_t tensor, struct fault *fault)
{
        const struct layout_tensor *t = &l->tensors[tensor];

        if (!optimizer_has_matrices(layout_tensor_optimizer(l, tensor)))
                layout_no_matrices(l, tensor);
        else if (!t->n_rows && !t->frozen && t->ndim >= 2 && t->elements)
                return layout_set_matrices(l, tensor, &t->shape[t->ndim - 2], 1, fault);
        return 0;
}

int zero_layout_optimizer(struct zero_layout *l, uint32_t group, const char *optimizer)
{
        struct fault fault = { 0 };
        int r = given(0, l);

        if (r == 0)
                r = optimizer_check_name(optimizer, &fault);
        if (r == 0)
                r = layout_set_optimizer(l, group, optimizer ? optimizer : optimizer_default(),
                                         &fault);
        for (uint32_t t = 0; r == 0 && t < l->n_tensors; t++)
                if (l->tensors[t].group == group)
                        r = follow_optimizer(l, t, &fault);
        return settle(l, r, &fault);
}

int zero_layout_tensor_optimizer(struct zero_layout *l, uint32_t tensor, const char *optimizer)
{
        struct fault fault = { 0 };
        int r = given(0, l);

        if (r == 0)
                r = optimizer_check_name(optimizer, &fault);
        if (r == 0)
                r = layout_set_tensor_optimizer(
                        l, tensor, optimizer ? optimizer : optimizer_default(), &fault);
        if (r == 0)
                r = follow_optimizer(l, tensor, &fault);
        return settle(l, r, &fault);
}

int zero_layout_matrices(struct zero_layout *l, uint32_t tensor, const uint64_t *rows,
                         uint32_t n_rows)
{
        struct fault fault = { 0 };
        int r = given(0, l);

        if (r == 0)
                r = layout_set_matrices(l, tensor, rows, n_rows, &fault);
        return settle(l, r, &fault);
}

int zero_layout_ema(struct zero_layout *l, uint32_t group)
{
        struct fault fault = { 0 };
        int r = given(0, l);

        if (r == 0)
                r = layout_set_ema(l, group, &fault);
        return settle(l, r, &fault);
}

int zero_layout_state(struct zero_layout *l, uint32_t group, const char *state, const char *master)
{
        struct fault fault = { 0 };
        int r = given(0, l);

        if (r == 0)
                r = layout_set_state(l, group, state, master, &fault);
        return settle(l, r, &fault);
}

int zero_layout_whole(struct zero_layout *l, uint32_t tensor)
{
        struct fault fault = { 0 };
        int r = given(0, l);

        if (r == 0)
                r = layout_set_whole(l, tensor, &fault);
        return settle(l, r, &fault);
}

int zero_layout_eager(struct zero_layout *l, uint32_t group)
{
        struct fault fault = { 0 };

        int r = given(0, l);

        if (r == 0)
                r = layout_set_eager(l, group, true, &fault);
        return settle(l, r, &fault);
}

static int copy_tensor(const struct zero_tensor *from, uint32_t group, struct layout_tensor *to,
                       struct fault *fault)
{
        if (!from->name)
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
        int r = given(0, l);

        r = given(r, tensor);
        r = given(r, ret_tensor);
        if (r == 0)
                r = copy_tensor(tensor, group, &t, &fault);
        if (r == 0)
                r = layout_add_tensor(l, &t, ret_tensor, &fault);
        if (r == 0)
                r = follow_optimizer(l, *ret_tensor, &fault);
        return settle(l, r, &fault);
}

const char *zero_layout_error(const struct zero_layout *l)
{
        return l ? l->error : "the layout is NULL";
}

/* ---- reading ----------------------------------------------------------- */

static const struct layout_group *group_at(const struct zero_layout *l, uint32_t group)
{
        return l && group < l->n_groups ? &l->groups[group] : NULL;
}

static const struct layout_tensor *tensor_at(const struct zero_layout *l, uint32_t tensor)
{
        return l && tensor < l->n_tensors ? &l->tensors[tensor] : NULL;
}

int zero_layout_partition(const struct zero_layout *l, uint32_t n_owners, enum zero_dtype dtype,
                          uint64_t *ret_first, uint64_t *ret_count)
{
        CLEANUP(cleanup_partition_free) struct partition *p = NULL;
        CLEANUP(cleanup_layout_free) layout *copy = NULL;
        struct fault fault = { 0 };
        int r = given(0, l);

        r = given(r, ret_first);
        r = given(r, ret_count);
        if (r == 0 && n_owners == 0)
                r = fault_set(&fault, ZERO_EINVAL, "n_owners is 0: at least one owner");
        if (r == 0 && dtype && !dtype_valid(dtype))
                r = fault_set(&fault, ZERO_EINVAL, "parameters have no dtype %d: choose %s",
                              (int)dtype, ZERO_DTYPES);
        if (r == 0)
                r = layout_copy(l, &copy);
        for (uint32_t g = 0; r == 0 && dtype && g < copy->n_groups; g++)
                if (!dtype_is_bytes(copy->groups[g].dtype))
                        copy->groups[g].dtype = dtype;
        if (r == 0)
                r = partition_new(copy, n_owners, &p);
        for (size_t i = 0; r == 0 && i < (size_t)p->n_groups * n_owners; i++) {
                ret_first[i] = p->ranges[i].first;
                ret_count[i] = p->ranges[i].count;
        }
        return settle(NULL, r, &fault);
}

uint32_t zero_layout_groups(const struct zero_layout *l)
{
        return l ? l->n_groups : 0;
}

uint32_t zero_layout_tensors(const struct zero_layout *l)
{
        return l ? l->n_tensors : 0;
}

const char *zero_layout_group_name(const struct zero_layout *l, uint32_t group)
{
        const struct layout_group *g = group_at(l, group);

        return g ? g->name : NULL;
}

const char *zero_layout_group_optimizer(const struct zero_layout *l, uint32_t group)
{
        const struct layout_group *g = group_at(l, group);

        return g ? g->optimizer : NULL;
}

const char *zero_layout_group_state(const struct zero_layout *l, uint32_t group,
                                    const char **ret_master)
{
        const struct layout_group *g = group_at(l, group);

        if (g && ret_master)
                *ret_master = *g->master ? g->master : "fp32";
        return !g ? NULL : *g->state ? g->state : "fp32";
}

double zero_layout_group_divisor(const struct zero_layout *l, uint32_t group)
{
        const struct layout_group *g = group_at(l, group);

        return g ? g->divisor : 0;
}

bool zero_layout_group_ema(const struct zero_layout *l, uint32_t group)
{
        const struct layout_group *g = group_at(l, group);

        return g && g->ema;
}

bool zero_layout_group_eager(const struct zero_layout *l, uint32_t group)
{
        const struct layout_group *g = group_at(l, group);

        return g && g->eager;
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

const char *zero_layout_optimizer_of(const struct zero_layout *l, uint32_t tensor)
{
        return tensor_at(l, tensor) ? layout_tensor_optimizer(l, tensor) : NULL;
}

uint32_t zero_layout_tensor_rows(const struct zero_layout *l, uint32_t tensor,
                                 const uint64_t **ret_rows)
{
        const struct layout_tensor *t = tensor_at(l, tensor);

        if (t && ret_rows)
                *ret_rows = t->rows;
        return t ? t->n_rows : 0;
}

bool zero_layout_tensor_frozen(const struct zero_layout *l, uint32_t tensor)
{
        const struct layout_tensor *t = tensor_at(l, tensor);

        return t && t->frozen;
}

int zero_layout_describe(const struct zero_layout *l, uint32_t tensor,
                         struct zero_tensor *ret_tensor)
{
        const struct layout_tensor *t = tensor_at(l, tensor);

        if (!l || !ret_tensor)
                return fault_set(&client_thread_fault, ZERO_EINVAL,
                                 "zero_layout_describe(): the layout or ret_tensor is NULL");
        if (!t)
                return fault_set(&client_thread_fault, ZERO_ENOGROUP,
                                 "no tensor %u: the layout has %u", (unsigned)tensor,
                                 (unsigned)l->n_tensors);
        *ret_tensor = (struct zero_tensor){ .name = t->name,
                                            .ndim = t->ndim,
                                            .shape = t->shape,
                                            .frozen = t->frozen,
                                            .set = t->set,
                                            .init = t->init,
                                            .init_value = t->init_value,
                                            .init_seed = t->init_seed };
        return 0;
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
        if (!l || !name || !ret_tensor)
                return fault_set(&client_thread_fault, ZERO_EINVAL,
                                 "zero_layout_find(): the layout, the name or ret_tensor is NULL");
        for (uint32_t t = 0; t < l->n_tensors; t++) {
                if (strcmp(l->tensors[t].name, name) == 0) {
                        *ret_tensor = t;
                        return 0;
                }
        }
        return fault_set(&client_thread_fault, ZERO_ENOGROUP,
                         "no tensor %s: the layout has %u others", text_quote(name).text,
                         (unsigned)l->n_tensors);
}

size_t zero_dtype_size(enum zero_dtype dtype)
{
        return dtype_valid(dtype) || dtype_is_bytes(dtype) ? dtype_bytes(dtype, 1) : 0;
}

bool zero_dtype_is_bytes(enum zero_dtype dtype)
{
        return dtype_is_bytes(dtype);
}
