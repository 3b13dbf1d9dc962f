/* The table of optimizers, and what they have in common. */
#include "daemon/compute/optimizer/optimizer.h"

#include <float.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "proto/cleanup.h"
#include "proto/dtype.h"
#include "proto/text.h"

DEFINE_CLEANUP(layout *, layout_free)

static const struct {
        const char *name;
        const struct optimizer *row;
} table[] = {
#define X(name, row) { name, &row },
        OPTIMIZER_MAP(X)
#undef X
};
enum { N_OPTIMIZERS = sizeof(table) / sizeof(table[0]) };

/* N_OPTIMIZERS: there is none of that name. */
static uint32_t find(const char *name)
{
        uint32_t i = 0;

        while (*name && i < N_OPTIMIZERS && strcmp(table[i].name, name) != 0)
                i++;
        return i;
}

const struct optimizer *optimizer_find(const char *name)
{
        uint32_t i = find(name);

        return i < N_OPTIMIZERS ? table[i].row : NULL;
}

const struct optimizer *optimizer_of(const layout *l, uint32_t tensor)
{
        return optimizer_find(layout_tensor_optimizer(l, tensor));
}

static uint32_t count_moments(const struct optimizer *o, const struct layout_group *g)
{
        uint32_t n = 0;

        while (n < OPTIMIZER_MOMENTS && o->moments[n])
                n++;
        return n + g->ema;
}

uint32_t optimizer_moments(const layout *l, uint32_t tensor)
{
        return count_moments(optimizer_of(l, tensor), &l->groups[l->tensors[tensor].group]);
}

/* NULL: the tensor has no moment i. */
static const char *optimizer_moment(const layout *l, uint32_t tensor, uint32_t i)
{
        const char *own = i < OPTIMIZER_MOMENTS ? optimizer_of(l, tensor)->moments[i] : NULL;

        return own || i + 1 != optimizer_moments(l, tensor) ? own : "ema";
}

uint32_t optimizer_group_moments(const layout *l, uint32_t group)
{
        const struct layout_group *g = &l->groups[group];
        uint32_t most = 0;

        if (!layout_group_trainable(l, group))
                return count_moments(optimizer_find(g->optimizer), g);

        for (uint32_t t = g->first_tensor; t < g->first_tensor + g->n_tensors; t++) {
                uint32_t n = l->tensors[t].frozen ? 0 : optimizer_moments(l, t);

                most = n > most ? n : most;
        }
        return most;
}

const char *optimizer_group_moment(const layout *l, uint32_t group, uint32_t i)
{
        const struct layout_group *g = &l->groups[group];
        const char *name = NULL;

        for (uint32_t t = g->first_tensor; t < g->first_tensor + g->n_tensors; t++) {
                const char *own = l->tensors[t].frozen ? NULL : optimizer_moment(l, t, i);

                if (name && own && strcmp(name, own) != 0)
                        return plane_name(plane_number(plane_updated(1 + i)));
                name = own ? own : name;
        }
        return name;
}

/* An average of weights is a weight, and stays in fp32. */
enum format optimizer_format(const layout *l, uint32_t tensor, uint32_t i)
{
        const struct layout_group *g = &l->groups[l->tensors[tensor].group];
        const struct optimizer *o = optimizer_of(l, tensor);
        bool last = i + 1 == OPTIMIZER_MOMENTS || !o->moments[i + 1];

        if (!*g->state || !o->moments[i])
                return FORMAT_FP32;
        return format_named(o->squares && last ? FORMAT_SQUARE : FORMAT_MOMENT, g->state);
}

enum format optimizer_master(const struct layout_group *g)
{
        return *g->master ? format_named(FORMAT_MASTER, g->master) : FORMAT_FP32;
}

uint64_t optimizer_moment_bytes(const layout *l, uint32_t group, struct range range, uint32_t i)
{
        const struct layout_group *g = &l->groups[group];
        uint64_t n = 0;

        for (uint32_t t = g->first_tensor; t < g->first_tensor + g->n_tensors; t++) {
                const struct layout_tensor *of = &l->tensors[t];

                if (!of->frozen && i < optimizer_moments(l, t))
                        n += format_bytes(
                                optimizer_format(l, t, i),
                                range_overlap((struct range){ of->offset, layout_tensor_room(of) },
                                              range));
        }
        return n;
}

/* Appends a word to a list. */
static void list_word(char *text, size_t size, const char *before, const char *word)
{
        size_t n = strlen(text);

        snprintf(text + n, size - n, "%s%s", n ? before : "", word);
}

static int unknown(const char *name, const char *who, struct fault *fault)
{
        char known[128] = "";

        for (uint32_t i = 0; i < N_OPTIMIZERS; i++)
                if (strcmp(table[i].name, table[i].row->name) == 0)
                        list_word(known, sizeof(known), ", ", table[i].name);
        return fault_set(fault, ZERO_EINVAL, "%s: there is no optimizer %s, only %s", who,
                         text_quote(name).text, known);
}

static int check_formats(const struct layout_group *g, const char *who, struct fault *fault)
{
        if (*g->state && format_named(FORMAT_MOMENT, g->state) == FORMATS)
                return fault_set(fault, ZERO_EINVAL,
                                 "%s: moments cannot be in the format %s, only in fp32, bf16 or "
                                 "8bit",
                                 who, text_quote(g->state).text);
        if (!*g->master)
                return 0;
        if (optimizer_master(g) == FORMATS)
                return fault_set(fault, ZERO_EINVAL,
                                 "%s: master weights cannot be in the format %s, only in fp32, "
                                 "bf16+16 or bf16+8",
                                 who, text_quote(g->master).text);
        if (g->dtype != ZERO_BF16)
                return fault_set(fault, ZERO_EINVAL,
                                 "%s is not served in bf16: its master weights cannot be in %s",
                                 who, g->master);
        if (g->eager)
                return fault_set(fault, ZERO_EINVAL,
                                 "%s is eager: an update ahead of the decision cannot change %s, "
                                 "which is served",
                                 who, g->master);
        return 0;
}

/* Gives a group without an optimizer the default's name, so that both forms of a layout are equal.
 */
static int check_group(struct layout_group *g, struct fault *fault)
{
        const struct optimizer *o = optimizer_find(g->optimizer);
        char who[160];
        int r;

        snprintf(who, sizeof(who), "group %s", text_quote(g->name).text);
        if (!o)
                return unknown(g->optimizer, who, fault);
        r = check_formats(g, who, fault);
        if (r)
                return r;
        snprintf(g->optimizer, sizeof(g->optimizer), "%s", o->name);
        return 0;
}

static int check_groups(layout *l, struct fault *fault)
{
        int r = 0;

        for (uint32_t g = 0; r == 0 && g < l->n_groups; g++)
                r = check_group(&l->groups[g], fault);
        return r;
}

static int check_tensor(const layout *l, uint32_t tensor, struct fault *fault)
{
        const struct layout_tensor *t = &l->tensors[tensor];
        const struct optimizer *o = optimizer_of(l, tensor);
        struct text_quote name = text_quote(t->name);
        char who[160];

        snprintf(who, sizeof(who), "tensor %s", name.text);
        if (!o)
                return unknown(t->optimizer, who, fault);
        if (t->frozen)
                return 0;
        if (o->matrices && !t->n_rows && t->elements)
                return fault_set(fault, ZERO_EINVAL,
                                 "tensor %s: %s updates matrices, and the layout says none of it "
                                 "(zero_layout_matrices()); another optimizer updates vectors "
                                 "and embeddings (zero_layout_tensor_optimizer())",
                                 name.text, o->name);
        if (!o->matrices && t->n_rows)
                return fault_set(fault, ZERO_EINVAL,
                                 "tensor %s has matrices, but %s updates element by element",
                                 name.text, o->name);
        if (o->matrices && l->groups[t->group].eager)
                return fault_set(fault, ZERO_EINVAL,
                                 "tensor %s: %s cannot update a group ahead of the decision: "
                                 "group %s must not be eager",
                                 name.text, o->name, text_quote(l->groups[t->group].name).text);
        return 0;
}

int optimizer_layout(const Zero__Layout *m, layout **ret, struct fault *fault)
{
        CLEANUP(cleanup_layout_free) layout *l = NULL;
        int r = layout_from_message(m, &l, fault);

        if (r == 0)
                r = check_groups(l, fault);
        for (uint32_t t = 0; r == 0 && t < l->n_tensors; t++)
                r = check_tensor(l, t, fault);
        if (r == 0)
                *ret = STEAL(l);
        return r == -ENOMEM ? fault_set(fault, ZERO_ENOMEM, "out of memory") : r;
}

const char *optimizer_plane_name(const layout *l, struct plane plane)
{
        const char *name = NULL;

        if (plane.kind != PLANE_MOMENT && plane.kind != PLANE_OLD)
                return plane_name(plane_number(plane));
        for (uint32_t g = 0; g < l->n_groups; g++) {
                const char *own = plane.kind == PLANE_MOMENT
                                          ? optimizer_group_moment(l, g, plane.index)
                                  : l->groups[g].eager ? "old"
                                                       : NULL;

                if (name && own && strcmp(name, own) != 0)
                        return plane_name(plane_number(plane));
                name = own ? own : name;
        }
        return name;
}

void optimizer_text(const layout *l, char *text, size_t size)
{
        *text = '\0';
        for (uint32_t t = 0; t < l->n_tensors; t++) {
                const struct layout_group *g = &l->groups[l->tensors[t].group];
                char one[128];

                if (l->tensors[t].frozen)
                        continue;
                snprintf(one, sizeof(one), "%s%s%s%s%s%s (master", layout_tensor_optimizer(l, t),
                         g->ema ? "-ema" : "", *g->state ? "+" : "", g->state,
                         *g->master ? "+" : "", g->master);
                for (uint32_t i = 0; i < optimizer_moments(l, t); i++)
                        list_word(one, sizeof(one), ", ", optimizer_moment(l, t, i));
                list_word(one, sizeof(one), ")", "");
                if (!strstr(text, one))
                        list_word(text, size, "; ", one);
        }
}

/* ---- hyperparameters ---- */

bool fp32_holds(double value)
{
        return value >= 0 && value <= (double)FLT_MAX;
}

static const char *value_flaw(const struct hyper *h, double lr, double x)
{
        switch (h->bound) {
        case HYPER_FP32:
        case HYPER_DIVISOR:
        case HYPER_NORM:
                return fp32_holds(x) ? NULL : "is not an fp32 number >= 0";
        case HYPER_DECAY:
                return fp32_holds(x) && fp32_holds(lr * x)
                               ? NULL
                               : "(times lr) is not an fp32 number >= 0";
        case HYPER_UNIT:
                return x >= 0 && x < 1 ? NULL : "is not in [0, 1)";
        case HYPER_FLAG:
                return x == 0 || x == 1 ? NULL : "is neither 0 nor 1";
        case HYPER_COUNT:
                return x >= 0 && x <= h->most && x == (uint8_t)x
                               ? NULL
                               : "is no whole number in its bounds";
        case HYPER_SIGNED:
                return fp32_holds(fabs(x)) ? NULL : "is not an fp32 number";
        case HYPER_NONE:
                return x == 0 ? NULL : "is not 0: the set's optimizer does not have it";
        }
        return NULL;
}

static uint32_t count_values(const struct optimizer *o)
{
        uint32_t n = 0;

        while (o->values[n].name)
                n++;
        return n + 1; /* ema_decay */
}

static const struct hyper *hyper_at(const struct optimizer *o, uint32_t i)
{
        static const struct hyper ema_decay = { "ema_decay", HYPER_UNIT };

        return i + 1 == count_values(o) ? &ema_decay : &o->values[i];
}

int hyper_from_message(const Zero__HyperSet *m, size_t number, struct hyper_set *ret,
                       struct fault *fault)
{
        struct hyper_set set = { .optimizer = find(m->optimizer) };
        const struct optimizer *o;
        char who[32];

        snprintf(who, sizeof(who), "set %zu", number);
        if (!hyper_known(&set))
                return unknown(m->optimizer, who, fault);
        o = table[set.optimizer].row;
        if (m->n_values != count_values(o))
                return fault_set(fault, ZERO_EINVAL,
                                 "set %zu: %s has %u hyperparameters, not %zu: the client comes "
                                 "from another version of zerod",
                                 number, o->name, count_values(o), m->n_values);
        for (uint32_t i = 0, values = 0, counts = 0; i < m->n_values; i++) {
                const struct hyper *h = hyper_at(o, i);
                const char *flaw = value_flaw(h, m->values[0], m->values[i]);

                if (flaw)
                        return fault_set(fault, ZERO_EINVAL, "set %zu: %s %g %s", number, h->name,
                                         m->values[i], flaw);
                if (h->bound == HYPER_COUNT)
                        set.counts[counts++] = (uint8_t)m->values[i];
                else
                        set.value[values++] = m->values[i] + 0.0; /* turns -0 into 0 */
        }
        *ret = set;
        return 0;
}

struct hyper_values hyper_values(const struct hyper_set *set)
{
        const struct optimizer *o = table[set->optimizer].row;
        struct hyper_values ret = { { 0 } };

        for (uint32_t i = 0, values = 0, counts = 0; i < count_values(o); i++)
                ret.value[i] = hyper_at(o, i)->bound == HYPER_COUNT ? set->counts[counts++]
                                                                    : set->value[values++];
        return ret;
}

int hyper_given(const struct hyper_set *set, size_t number, struct fault *fault)
{
        const struct hyper *row = table[set->optimizer].row->values;
        struct hyper_values values = hyper_values(set);

        for (const struct hyper *h = row; h->name; h++) {
                double x = values.value[h - row];

                bool norm = h->bound == HYPER_NORM;

                if (h->bound == HYPER_DIVISOR ? (float)x == 0 : norm && (float)x < FLT_MIN)
                        return fault_set(fault, ZERO_EINVAL,
                                         "set %zu: %s %g is not %s number > 0: a gradient of "
                                         "0 would make NaN",
                                         number, h->name, x, norm ? "a normal bf16" : "an fp32");
        }
        return 0;
}

void hyper_to_message(const struct hyper_set *set, struct hyper_values *values, Zero__HyperSet *ret)
{
        *values = hyper_values(set);
        zero__hyper_set__init(ret);
        ret->optimizer = (char *)table[set->optimizer].name;
        ret->n_values = count_values(table[set->optimizer].row);
        ret->values = values->value;
}

bool hyper_known(const struct hyper_set *set)
{
        return set->optimizer < N_OPTIMIZERS;
}

bool hyper_fits(const struct hyper_set *set, const struct optimizer *o)
{
        return table[set->optimizer].row == o;
}

const char *hyper_optimizer(const struct hyper_set *set)
{
        return table[set->optimizer].row->name;
}

bool hyper_equal(const struct hyper_set *a, const struct hyper_set *b, char *text, size_t size)
{
        const struct optimizer *o = table[a->optimizer].row;

        if (!hyper_fits(b, o)) {
                snprintf(text, size, "optimizer %s and %s", hyper_optimizer(a), hyper_optimizer(b));
                return false;
        }
        struct hyper_values x = hyper_values(a), y = hyper_values(b);

        for (uint32_t i = 0; i < count_values(o); i++) {
                if (memcmp(&x.value[i], &y.value[i], sizeof(double)) == 0)
                        continue;
                snprintf(text, size, "%s %.17g and %.17g", hyper_at(o, i)->name, x.value[i],
                         y.value[i]);
                return false;
        }
        return true;
}

/* Keeps an eps > 0 above 0: moments that are 0 are divided by it. */
static struct adam_scalars without_bias(struct adam_scalars s)
{
        float eps = s.eps * s.sqrt_bias2;

        s.step_size *= s.sqrt_bias2;
        s.eps = eps == 0 && s.eps > 0 ? FLT_TRUE_MIN : eps;
        s.sqrt_bias2 = 1;
        return s;
}

/* The average begins as the first weights of training, as torch's AveragedModel does. */
struct update_scalars hyper_scalars(const struct hyper_set *set, bool ema, bool narrow, uint64_t t,
                                    double grad_scale)
{
        const struct optimizer *o = table[set->optimizer].row;
        struct hyper_values values = hyper_values(set);
        struct update_scalars s = o->scalars(values.value, t, grad_scale);

        if (narrow && (o->rule == UPDATE_ADAMW || o->rule == UPDATE_ADAM))
                s.adam = without_bias(s.adam);
        if (ema)
                s.ema_rate = t == 1 ? 1 : (float)(1.0 - values.value[count_values(o) - 1]);
        return s;
}
