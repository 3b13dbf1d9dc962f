/* The table of optimizers, and what they have in common. */
#include "daemon/compute/optimizer/optimizer.h"

#include <float.h>
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

const struct optimizer *optimizer_of(const layout *l, uint32_t group)
{
        return optimizer_find(l->groups[group].optimizer);
}

uint32_t optimizer_moments(const layout *l, uint32_t group)
{
        return rule_planes(optimizer_of(l, group)->rule) - 1 + l->groups[group].ema;
}

const char *optimizer_moment(const layout *l, uint32_t group, uint32_t i)
{
        const char *own = optimizer_of(l, group)->moments[i];

        return own || i + 1 != optimizer_moments(l, group) ? own : "ema";
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

/* Gives a group without an optimizer the default's name, so that both forms of a layout are equal.
 */
static int check_groups(layout *l, struct fault *fault)
{
        for (uint32_t g = 0; g < l->n_groups; g++) {
                const struct optimizer *o = optimizer_of(l, g);
                char who[160];

                if (o) {
                        snprintf(l->groups[g].optimizer, sizeof(l->groups[g].optimizer), "%s",
                                 o->name);
                        continue;
                }
                snprintf(who, sizeof(who), "group %s", text_quote(l->groups[g].name).text);
                return unknown(l->groups[g].optimizer, who, fault);
        }
        return 0;
}

int optimizer_layout(const Zero__Layout *m, layout **ret, struct fault *fault)
{
        CLEANUP(cleanup_layout_free) layout *l = NULL;
        int r = layout_from_message(m, &l, fault);

        if (r == 0)
                r = check_groups(l, fault);
        if (r == 0)
                *ret = STEAL(l);
        return r;
}

const char *optimizer_plane_name(const layout *l, struct plane plane)
{
        const char *name = NULL;

        if (plane.kind != PLANE_MOMENT && plane.kind != PLANE_OLD)
                return plane_name(plane_number(plane));
        for (uint32_t g = 0; g < l->n_groups; g++) {
                const char *own = plane.kind == PLANE_MOMENT ? optimizer_moment(l, g, plane.index)
                                  : l->groups[g].eager       ? "old"
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
        for (uint32_t g = 0; g < l->n_groups; g++) {
                char one[128];

                snprintf(one, sizeof(one), "%s (master", layout_optimizer(&l->groups[g]).text);
                for (uint32_t i = 0; i < optimizer_moments(l, g); i++)
                        list_word(one, sizeof(one), ", ", optimizer_moment(l, g, i));
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

static const char *value_flaw(enum hyper_bound bound, double lr, double x)
{
        switch (bound) {
        case HYPER_FP32:
        case HYPER_DIVISOR:
                return fp32_holds(x) ? NULL : "is not an fp32 number >= 0";
        case HYPER_DECAY:
                return fp32_holds(x) && fp32_holds(lr * x)
                               ? NULL
                               : "(times lr) is not an fp32 number >= 0";
        case HYPER_UNIT:
                return x >= 0 && x < 1 ? NULL : "is not in [0, 1)";
        case HYPER_FLAG:
                return x == 0 || x == 1 ? NULL : "is neither 0 nor 1";
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
        for (uint32_t i = 0; i < m->n_values; i++) {
                const struct hyper *h = hyper_at(o, i);
                const char *flaw = value_flaw(h->bound, m->values[0], m->values[i]);

                if (flaw)
                        return fault_set(fault, ZERO_EINVAL, "set %zu: %s %g %s", number, h->name,
                                         m->values[i], flaw);
                set.value[i] = m->values[i] + 0.0; /* turns -0 into 0 */
        }
        *ret = set;
        return 0;
}

int hyper_given(const struct hyper_set *set, size_t number, struct fault *fault)
{
        const struct hyper *values = table[set->optimizer].row->values;

        for (const struct hyper *h = values; h->name; h++) {
                double x = set->value[h - values];

                if (h->bound == HYPER_DIVISOR && (float)x == 0)
                        return fault_set(fault, ZERO_EINVAL,
                                         "set %zu: %s %g is not an fp32 number > 0: a gradient of "
                                         "0 would make NaN",
                                         number, h->name, x);
        }
        return 0;
}

void hyper_to_message(const struct hyper_set *set, Zero__HyperSet *ret)
{
        zero__hyper_set__init(ret);
        ret->optimizer = (char *)table[set->optimizer].name;
        ret->n_values = count_values(table[set->optimizer].row);
        ret->values = (double *)set->value;
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
        for (uint32_t i = 0; i < count_values(o); i++) {
                if (memcmp(&a->value[i], &b->value[i], sizeof(double)) == 0)
                        continue;
                snprintf(text, size, "%s %.17g and %.17g", hyper_at(o, i)->name, a->value[i],
                         b->value[i]);
                return false;
        }
        return true;
}

/* The average begins as the first weights of training, as torch's AveragedModel does. */
struct update_scalars hyper_scalars(const struct hyper_set *set, bool ema, uint64_t t,
                                    double grad_scale)
{
        const struct optimizer *o = table[set->optimizer].row;
        struct update_scalars s = o->scalars(set->value, t, grad_scale);

        if (ema)
                s.ema_rate = t == 1 ? 1 : (float)(1.0 - set->value[count_values(o) - 1]);
        return s;
}
