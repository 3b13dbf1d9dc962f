/*
 * Layouts: building, checking, lookup.
 *
 * This file checks every limit, whether a layout comes from a message or from calls: limits of
 * groups and tensors when they are added, unique names in layout_check().  A refused addition
 * leaves the layout as it was.  Arrays double when their length reaches a power of two, so no
 * capacity is kept.
 */
#include "proto/layout.h"

#include <assert.h>
#include <errno.h>
#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "proto/cleanup.h"
#include "proto/dtype.h"
#include "proto/text.h"

DEFINE_CLEANUP(layout *, layout_free)

int layout_new(layout **ret)
{
        layout *l = calloc(1, sizeof(*l));
        if (!l)
                return -ENOMEM;
        *ret = l;
        return 0;
}

static void tensor_free(struct layout_tensor *t)
{
        free(t->name);
        free(t->optimizer);
        free(t->rows);
}

void layout_free(layout *l)
{
        if (!l)
                return;
        for (uint32_t g = 0; g < l->n_groups; g++) {
                free(l->groups[g].name);
                free(l->groups[g].ranks);
        }
        for (uint32_t t = 0; t < l->n_tensors; t++)
                tensor_free(&l->tensors[t]);
        free(l->groups);
        free(l->tensors);
        free(l);
}

/* Room for one more item behind n. */
static int grow(void **items, uint32_t n, size_t size)
{
        if (n & (n - 1)) /* between two powers of two there is room */
                return 0;

        void *larger = reallocarray(*items, n ? (size_t)n * 2 : 1, size);
        if (!larger)
                return -ENOMEM;
        *items = larger;
        return 0;
}

/* ---- checks ------------------------------------------------------------- */

static const char *name_flaw(const char *name)
{
        if (!name || !*name)
                return "has no name";
        if (strnlen(name, ZERO_NAME_MAX + 1) > ZERO_NAME_MAX)
                return "has a name of more than 255 bytes";
        if (!text_printable(name))
                return "has a name with control characters, or that is not UTF-8";
        return NULL;
}

static const char *ranks_flaw(const uint32_t *ranks, uint32_t n)
{
        if (!ranks)
                return n > 0 ? "has no list of ranks but a number of them" : NULL;
        if (n == 0)
                return "has an empty list of ranks (no list means all)";
        if (n > ZERO_RANK_MAX)
                return "lists more than 4096 ranks";
        for (uint32_t i = 0; i < n; i++) {
                if (ranks[i] >= ZERO_RANK_MAX)
                        return "lists a rank of 4096 or more";
                if (i > 0 && ranks[i] <= ranks[i - 1])
                        return "does not list its ranks in ascending order, each once";
        }
        return NULL;
}

static const char *group_flaw(uint32_t dtype, const uint32_t *ranks, uint32_t n_ranks,
                              double divisor)
{
        if (!dtype_valid(dtype) && !dtype_is_bytes(dtype))
                return "has an unknown dtype";
        if (!isfinite(divisor) || (divisor != 0 && divisor < LAYOUT_DIVISOR_MIN))
                return "has a divisor that is negative, below 1e-30 or not finite";
        return ranks_flaw(ranks, n_ranks);
}

static const char *tensor_flaw(const struct layout_tensor *t, enum zero_dtype dtype)
{
        if (dtype_is_bytes(dtype) && !t->frozen)
                return "is not frozen: bytes are kept as they are; fp32, bf16 and fp16 are trained";
        if (dtype_is_bytes(dtype) && t->init != ZERO_INIT_ZEROS && t->init != ZERO_INIT_PUT)
                return "has bytes, which begin as zeros or are put";
        if (t->set >= ZERO_SET_MAX)
                return "has a hyperparameter set of 256 or more";
        if ((uint32_t)t->init > ZERO_INIT_PUT)
                return "has an unknown kind of initialisation";
        if (!isfinite(t->init_value) || fabs(t->init_value) > FLT_MAX)
                return "has an initial value that does not fit fp32";
        if (t->init == ZERO_INIT_NORMAL && t->init_value < 0)
                return "has a negative standard deviation";
        return NULL;
}

static const char *optimizer_flaw(const char *name)
{
        if (!name || !*name || strnlen(name, ZERO_OPTIMIZER_MAX + 1) > ZERO_OPTIMIZER_MAX ||
            !text_printable(name))
                return "has an optimizer whose name is not printable, or has not 1 to 31 bytes";
        return NULL;
}

static const char *rows_flaw(const layout *l, const struct layout_tensor *t, const uint64_t *rows,
                             uint32_t n_rows)
{
        uint64_t left = t->ndim >= 2 ? t->shape[t->ndim - 2] : 0;

        if (t->frozen)
                return "is frozen: no optimizer updates its matrices";
        if (t->ndim < 2)
                return "has no matrices: these need two dimensions";
        if (n_rows == 0 || n_rows > LAYOUT_ROWS_MAX || !rows)
                return "is cut into no matrices, or into more than 256 below one another";
        if (n_rows > LAYOUT_ROWS_SUM - l->n_rows)
                return "brings the layout to more than 1048576 matrices, stacks of them counted "
                       "once";
        for (uint32_t i = 0; i < n_rows; left -= rows[i++])
                if (rows[i] == 0 || rows[i] > left)
                        return "is cut into matrices without rows, or with more rows than it has";
        return left ? "has more rows than the matrices into which it is cut" : NULL;
}

/* Elements of a shape, at most ZERO_GROUP_ELEMENTS_MAX. */
static const char *count_elements(const struct layout_tensor *t, enum zero_dtype dtype,
                                  uint64_t *ret_elements)
{
        if (t->ndim > ZERO_DIM_MAX)
                return "has more than 8 dimensions";

        uint64_t elements = 1;
        for (uint32_t i = 0; i < t->ndim; i++) {
                if (t->shape[i] > ZERO_GROUP_ELEMENTS_MAX)
                        return "has an extent of more than 2^40";
                if (t->shape[i] == 0)
                        elements = 0;
        }
        for (uint32_t i = 0; elements > 0 && i < t->ndim; i++) {
                if (elements > ZERO_GROUP_ELEMENTS_MAX / t->shape[i])
                        return "has more than 2^40 elements";
                elements *= t->shape[i];
        }
        *ret_elements = dtype_is_bytes(dtype) ? (elements + 3) / 4 : elements;
        return NULL;
}

static int compare_names(const void *a, const void *b)
{
        return strcmp(*(const char *const *)a, *(const char *const *)b);
}

static int check_unique(const char **names, uint32_t n, const char *what, struct fault *fault)
{
        qsort(names, n, sizeof(*names), compare_names);
        for (uint32_t i = 1; i < n; i++)
                if (strcmp(names[i - 1], names[i]) == 0)
                        return fault_set(fault, ZERO_EINVAL, "two %s are named %s", what,
                                         text_quote(names[i]).text);
        return 0;
}

int layout_check(const layout *l, struct fault *fault)
{
        if (l->n_groups == 0)
                return fault_set(fault, ZERO_EINVAL, "the layout has no groups");

        uint32_t most = l->n_groups > l->n_tensors ? l->n_groups : l->n_tensors;
        CLEANUP(cleanup_free) const char **names = calloc(most, sizeof(*names));
        if (!names)
                return -ENOMEM;
        for (uint32_t g = 0; g < l->n_groups; g++)
                names[g] = l->groups[g].name;
        int r = check_unique(names, l->n_groups, "groups", fault);
        if (r)
                return r;
        for (uint32_t t = 0; t < l->n_tensors; t++)
                names[t] = l->tensors[t].name;
        return check_unique(names, l->n_tensors, "tensors", fault);
}

/* ---- building ----------------------------------------------------------- */

static int refuse_group(const layout *l, const char *name, const char *flaw, struct fault *fault)
{
        return fault_set(fault, ZERO_EINVAL, "group %u %s %s", l->n_groups, text_quote(name).text,
                         flaw);
}

int layout_add_group(layout *l, const char *name, enum zero_dtype dtype, const uint32_t *ranks,
                     uint32_t n_ranks, double divisor, uint32_t *ret_group, struct fault *fault)
{
        if (l->n_groups >= ZERO_GROUP_MAX)
                return fault_set(fault, ZERO_EINVAL, "the layout has more than %d groups",
                                 ZERO_GROUP_MAX);
        const char *flaw = name_flaw(name);
        if (flaw)
                return fault_set(fault, ZERO_EINVAL, "group %u %s", l->n_groups, flaw);
        flaw = group_flaw(dtype, ranks, n_ranks, divisor);
        if (flaw)
                return refuse_group(l, name, flaw, fault);

        CLEANUP(cleanup_free) char *own_name = strdup(name);
        CLEANUP(cleanup_free) uint32_t *own_ranks = NULL;
        if (!own_name || grow((void **)&l->groups, l->n_groups, sizeof(*l->groups)) < 0)
                return -ENOMEM;
        if (ranks) {
                own_ranks = malloc(n_ranks * sizeof(*ranks));
                if (!own_ranks)
                        return -ENOMEM;
                memcpy(own_ranks, ranks, n_ranks * sizeof(*ranks));
        }
        l->groups[l->n_groups] = (struct layout_group){
                .name = STEAL(own_name),
                .dtype = dtype,
                .ranks = STEAL(own_ranks),
                .n_ranks = n_ranks,
                .divisor = divisor,
                .first_tensor = l->n_tensors,
        };
        *ret_group = l->n_groups++;
        return 0;
}

static int find_group(const layout *l, uint32_t group, struct fault *fault)
{
        return group < l->n_groups
                       ? 0
                       : fault_set(fault, ZERO_ENOGROUP, "there is no group %u: the layout has %u",
                                   group, l->n_groups);
}

static const char ema_suffix[] = "-ema";

struct layout_optimizer layout_optimizer(const struct layout_group *g)
{
        struct layout_optimizer ret;

        const char *state = *g->state || !*g->master ? g->state : "fp32";

        snprintf(ret.text, sizeof(ret.text), "%s%s%s%s%s%s", g->optimizer, g->ema ? ema_suffix : "",
                 *state ? "+" : "", state, *g->master ? "+" : "", g->master);
        return ret;
}

/* "8bit" or "8bit+bf16+8". */
static int set_formats(layout *l, uint32_t group, const char *text, struct fault *fault)
{
        const char *plus = strchr(text, '+');
        char state[sizeof(struct layout_optimizer)];

        snprintf(state, sizeof(state), "%.*s", (int)strcspn(text, "+"), text);
        return layout_set_state(l, group, state, plus ? plus + 1 : NULL, fault);
}

int layout_set_optimizer(layout *l, uint32_t group, const char *name, struct fault *fault)
{
        int r = find_group(l, group, fault);
        if (r)
                return r;
        struct layout_group *g = &l->groups[group];
        size_t suffix = sizeof(ema_suffix) - 1;
        size_t n = name ? strcspn(name, "+") : SIZE_MAX;
        const char *state = name && name[n] ? name + n + 1 : NULL;
        bool ema = name && n >= suffix && strncmp(name + n - suffix, ema_suffix, suffix) == 0;

        n -= ema ? suffix : 0;
        if (n > ZERO_OPTIMIZER_MAX || !text_printable(name))
                return fault_set(
                        fault, ZERO_EINVAL,
                        "group %s: an optimizer's name is printable and has at most %d bytes",
                        text_quote(g->name).text, ZERO_OPTIMIZER_MAX);
        snprintf(g->optimizer, sizeof(g->optimizer), "%.*s", (int)n, name);
        g->ema = g->ema || ema;
        return state ? set_formats(l, group, state, fault) : 0;
}

int layout_set_ema(layout *l, uint32_t group, struct fault *fault)
{
        int r = find_group(l, group, fault);

        if (r == 0)
                l->groups[group].ema = true;
        return r;
}

static const char *format_flaw(const char *name)
{
        return text_printable(name) && strlen(name) <= LAYOUT_FORMAT_MAX
                       ? NULL
                       : "has a format whose name is not printable, or has over 15 bytes";
}

static void set_format(char to[static LAYOUT_FORMAT_MAX + 1], const char *name)
{
        snprintf(to, LAYOUT_FORMAT_MAX + 1, "%s", strcmp(name, "fp32") ? name : "");
}

int layout_set_state(layout *l, uint32_t group, const char *state, const char *master,
                     struct fault *fault)
{
        int r = find_group(l, group, fault);
        if (r)
                return r;
        struct layout_group *g = &l->groups[group];
        const char *flaw;

        state = state ? state : "fp32";
        master = master ? master : "fp32";
        flaw = format_flaw(state);
        flaw = flaw ? flaw : format_flaw(master);
        if (!flaw && strchr(state, '+'))
                flaw = "has moments in a format with a +, which only master weights may have";
        if (dtype_is_bytes(g->dtype))
                flaw = "has bytes, which are never updated: it has no state with formats";
        if (flaw)
                return fault_set(fault, ZERO_EINVAL, "group %s %s", text_quote(g->name).text, flaw);
        set_format(g->state, state);
        set_format(g->master, master);
        return 0;
}

void layout_set_base(layout *l, const uint8_t hash[static LAYOUT_HASH])
{
        l->has_base = true;
        memcpy(l->base, hash, sizeof(l->base));
}

int layout_set_eager(layout *l, uint32_t group, bool eager, struct fault *fault)
{
        int r = find_group(l, group, fault);
        if (r)
                return r;
        if (eager && dtype_is_bytes(l->groups[group].dtype))
                return fault_set(fault, ZERO_EINVAL,
                                 "group %s has bytes, which are never updated: it cannot be eager",
                                 text_quote(l->groups[group].name).text);
        l->groups[group].eager = eager;
        return 0;
}

static int find_tensor(const layout *l, uint32_t tensor, struct fault *fault)
{
        return tensor < l->n_tensors
                       ? 0
                       : fault_set(fault, ZERO_EINVAL, "there is no tensor %u: the layout has %u",
                                   tensor, l->n_tensors);
}

static int refuse_tensor(const struct layout_tensor *t, const char *flaw, struct fault *fault)
{
        return fault_set(fault, ZERO_EINVAL, "tensor %s %s", text_quote(t->name).text, flaw);
}

static uint64_t *copy_rows(const uint64_t *rows, uint32_t n)
{
        uint64_t *own = malloc(n * sizeof(*rows));

        if (own)
                memcpy(own, rows, n * sizeof(*rows));
        return own;
}

int layout_set_whole(layout *l, uint32_t tensor, struct fault *fault)
{
        int r = find_tensor(l, tensor, fault);

        if (r == 0)
                l->tensors[tensor].whole = true;
        return r;
}

int layout_set_tensor_optimizer(layout *l, uint32_t tensor, const char *name, struct fault *fault)
{
        int r = find_tensor(l, tensor, fault);
        if (r)
                return r;
        struct layout_tensor *t = &l->tensors[tensor];
        const char *flaw = optimizer_flaw(name);

        if (flaw)
                return refuse_tensor(t, flaw, fault);
        char *own = strdup(name);
        if (!own)
                return -ENOMEM;
        free(t->optimizer);
        t->optimizer = own;
        return 0;
}

int layout_set_matrices(layout *l, uint32_t tensor, const uint64_t *rows, uint32_t n_rows,
                        struct fault *fault)
{
        int r = find_tensor(l, tensor, fault);
        if (r)
                return r;
        struct layout_tensor *t = &l->tensors[tensor];
        const char *flaw = rows_flaw(l, t, rows, n_rows);

        if (flaw)
                return refuse_tensor(t, flaw, fault);
        uint64_t *own = copy_rows(rows, n_rows);
        if (!own)
                return -ENOMEM;
        layout_no_matrices(l, tensor);
        t->rows = own;
        t->n_rows = n_rows;
        l->n_rows += n_rows;
        return 0;
}

void layout_no_matrices(layout *l, uint32_t tensor)
{
        free(STEAL(l->tensors[tensor].rows));
        l->n_rows -= l->tensors[tensor].n_rows;
        l->tensors[tensor].n_rows = 0;
}

static int check_tensor(const layout *l, const struct layout_tensor *t, uint64_t *ret_elements,
                        struct fault *fault)
{
        if (l->n_groups == 0 || t->group != l->n_groups - 1)
                return fault_set(fault, t->group < l->n_groups ? ZERO_EINVAL : ZERO_ENOGROUP,
                                 "a tensor for group %u, but only the last of the %u groups can "
                                 "still be given tensors",
                                 t->group, l->n_groups);

        const struct layout_group *g = &l->groups[t->group];
        struct text_quote group = text_quote(g->name);
        if (l->n_tensors >= ZERO_TENSOR_MAX)
                return fault_set(fault, ZERO_EINVAL,
                                 "group %s: the layout has more than %d tensors", group.text,
                                 ZERO_TENSOR_MAX);
        const char *flaw = name_flaw(t->name);
        if (flaw)
                return fault_set(fault, ZERO_EINVAL, "tensor %u of group %s %s", g->n_tensors,
                                 group.text, flaw);

        uint64_t elements = 0;
        flaw = tensor_flaw(t, g->dtype);
        if (!flaw)
                flaw = count_elements(t, g->dtype, &elements);
        if (!flaw && t->optimizer)
                flaw = optimizer_flaw(t->optimizer);
        if (!flaw && t->n_rows)
                flaw = rows_flaw(l, t, t->rows, t->n_rows);
        if (!flaw && elements > ZERO_GROUP_ELEMENTS_MAX - g->elements)
                flaw = "brings its group to more than 2^40 elements";
        if (flaw)
                return fault_set(fault, ZERO_EINVAL, "tensor %s of group %s %s",
                                 text_quote(t->name).text, group.text, flaw);
        *ret_elements = elements;
        return 0;
}

int layout_add_tensor(layout *l, const struct layout_tensor *t, uint32_t *ret_tensor,
                      struct fault *fault)
{
        uint64_t elements = 0;
        int r = check_tensor(l, t, &elements, fault);
        if (r)
                return r;

        CLEANUP(cleanup_free) char *name = strdup(t->name);
        CLEANUP(cleanup_free) char *optimizer = t->optimizer ? strdup(t->optimizer) : NULL;
        CLEANUP(cleanup_free) uint64_t *rows = t->n_rows ? copy_rows(t->rows, t->n_rows) : NULL;
        if (!name || (t->optimizer && !optimizer) || (t->n_rows && !rows) ||
            grow((void **)&l->tensors, l->n_tensors, sizeof(*l->tensors)) < 0)
                return -ENOMEM;

        struct layout_group *g = &l->groups[t->group];
        struct layout_tensor *own = &l->tensors[l->n_tensors];
        *own = *t;
        own->name = STEAL(name);
        own->optimizer = STEAL(optimizer);
        own->rows = STEAL(rows);
        l->n_rows += own->n_rows;
        own->elements = elements;
        own->offset = g->elements;
        g->elements += layout_tensor_room(own);
        g->n_tensors++;
        l->elements += layout_tensor_room(own);
        *ret_tensor = l->n_tensors++;
        return 0;
}

static int copy_group(layout *to, const layout *from, uint32_t group)
{
        const struct layout_group *g = &from->groups[group];
        uint32_t index;
        int r = layout_add_group(to, g->name, g->dtype, g->ranks, g->n_ranks, g->divisor, &index,
                                 NULL);

        if (r == 0)
                r = layout_set_optimizer(to, index, layout_optimizer(g).text, NULL);
        if (r == 0)
                r = layout_set_eager(to, index, g->eager, NULL);
        for (uint32_t t = 0; r == 0 && t < g->n_tensors; t++)
                r = layout_add_tensor(to, &from->tensors[g->first_tensor + t], &index, NULL);
        return r;
}

int layout_copy(const layout *l, layout **ret)
{
        CLEANUP(cleanup_layout_free) layout *copy = NULL;
        int r = layout_new(&copy);

        for (uint32_t g = 0; r == 0 && g < l->n_groups; g++)
                r = copy_group(copy, l, g);
        assert(r <= 0);
        if (r < 0)
                return r;
        if (l->has_base)
                layout_set_base(copy, l->base);
        *ret = STEAL(copy);
        return 0;
}

/* ---- lookup ------------------------------------------------------------- */

static int compare_ranks(const void *a, const void *b)
{
        uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
        return (x > y) - (x < y);
}

bool layout_group_has_rank(const struct layout_group *g, uint32_t rank)
{
        return !g->ranks || bsearch(&rank, g->ranks, g->n_ranks, sizeof(rank), compare_ranks);
}

double layout_group_divisor(const struct layout_group *g, uint32_t world_size)
{
        if (g->divisor > 0)
                return g->divisor;
        return g->ranks ? g->n_ranks : world_size;
}

size_t layout_group_served(const struct layout_group *g)
{
        /* an update ahead of its decision changes the master weights, but not what is served */
        if (dtype_is_bytes(g->dtype))
                return 0;
        return g->dtype == ZERO_FP32 && !g->eager ? 0 : dtype_bytes(g->dtype, 1);
}

uint32_t layout_formats(const layout *l, struct layout_formats ret[static LAYOUT_FORMATS_MAX])
{
        uint32_t n = 0;

        for (uint32_t g = 0; g < l->n_groups; g++) {
                const struct layout_group *group = &l->groups[g];
                struct layout_formats of = { *group->state ? group->state : "fp32",
                                             *group->master ? group->master : "fp32", 0 };
                uint32_t i = 0;

                if (!*group->state && !*group->master)
                        continue;
                while (i < n &&
                       (strcmp(ret[i].state, of.state) || strcmp(ret[i].master, of.master)))
                        i++;
                if (i == LAYOUT_FORMATS_MAX)
                        continue;
                if (i == n)
                        ret[n++] = of;
                ret[i].n_groups++;
        }
        return n;
}

uint64_t layout_group_bytes(const struct layout_group *g, uint64_t elements)
{
        return dtype_bytes(g->dtype, elements);
}

bool layout_group_trainable(const layout *l, uint32_t group)
{
        const struct layout_group *g = &l->groups[group];

        for (uint32_t t = 0; t < g->n_tensors; t++)
                if (!l->tensors[g->first_tensor + t].frozen)
                        return true;
        return false;
}

bool layout_group_whole(const layout *l, uint32_t group)
{
        const struct layout_group *g = &l->groups[group];

        for (uint32_t t = 0; t < g->n_tensors; t++)
                if (l->tensors[g->first_tensor + t].whole)
                        return true;
        return false;
}

uint64_t layout_tensor_room(const struct layout_tensor *t)
{
        return (t->elements + LAYOUT_ALIGN - 1) / LAYOUT_ALIGN * LAYOUT_ALIGN;
}

const char *layout_tensor_optimizer(const layout *l, uint32_t tensor)
{
        const struct layout_tensor *t = &l->tensors[tensor];

        return t->optimizer ? t->optimizer : l->groups[t->group].optimizer;
}

uint64_t layout_matrices(const struct layout_tensor *t)
{
        if (t->n_rows == 0 || t->elements == 0)
                return 0;
        return t->elements / (t->shape[t->ndim - 2] * t->shape[t->ndim - 1]) * t->n_rows;
}

struct layout_matrix layout_matrix(const struct layout_tensor *t, uint64_t i)
{
        uint64_t rows = t->shape[t->ndim - 2], cols = t->shape[t->ndim - 1];
        uint64_t before = i / t->n_rows * rows;

        for (uint64_t k = 0; k < i % t->n_rows; k++)
                before += t->rows[k];
        return (struct layout_matrix){ before * cols, t->rows[i % t->n_rows], cols };
}

uint64_t layout_matrix_at(const struct layout_tensor *t, uint64_t element)
{
        uint64_t rows = t->shape[t->ndim - 2], row = element / t->shape[t->ndim - 1];
        uint64_t i = row / rows * t->n_rows;

        row %= rows;
        for (uint32_t k = 0; row >= t->rows[k]; row -= t->rows[k++])
                i++;
        return i;
}
