/* The table of optimizers, and what they have in common. */
#include "daemon/compute/optimizer/optimizer.h"

#include <float.h>
#include <stdio.h>
#include <string.h>

#include "proto/cleanup.h"
#include "proto/dtype.h"
#include "proto/text.h"

DEFINE_CLEANUP(layout *, layout_free)

/* Append only: state files hold the numbers.  A layout that names no optimizer gets the first. */
static const struct optimizer *const table[] = {
        &optimizer_adamw,        &optimizer_lion,    &optimizer_sgd,
        &optimizer_sgd_momentum, &optimizer_adam,    &optimizer_adamw_ema,
        &optimizer_lion_ema,     &optimizer_sgd_ema, &optimizer_sgd_momentum_ema,
        &optimizer_adam_ema
};
enum { N_OPTIMIZERS = sizeof(table) / sizeof(table[0]) };

const struct optimizer *optimizer_find(const char *name)
{
        if (*name == '\0')
                return table[0];
        for (uint32_t i = 0; i < N_OPTIMIZERS; i++)
                if (strcmp(table[i]->name, name) == 0)
                        return table[i];
        return NULL;
}

const struct optimizer *optimizer_of(const layout *l, uint32_t group)
{
        return optimizer_find(l->groups[group].optimizer);
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
                list_word(known, sizeof(known), ", ", table[i]->name);
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

const char *optimizer_plane_name(const layout *l, uint32_t plane)
{
        const char *name = NULL;

        if (plane < ZERO_PLANE_MOMENT1 || plane >= ZERO_PLANE_MOMENT1 + OPTIMIZER_MOMENTS)
                return plane_name(plane);
        for (uint32_t g = 0; g < l->n_groups; g++) {
                const char *own = optimizer_of(l, g)->moments[plane - ZERO_PLANE_MOMENT1];

                if (name && own && strcmp(name, own) != 0)
                        return plane_name(plane);
                name = own ? own : name;
        }
        return name;
}

void optimizer_text(const layout *l, char *text, size_t size)
{
        *text = '\0';
        for (uint32_t o = 0; o < N_OPTIMIZERS; o++) {
                char planes[96] = "master";
                bool used = false;

                for (uint32_t g = 0; g < l->n_groups; g++)
                        used = used || optimizer_of(l, g) == table[o];
                if (!used)
                        continue;
                for (uint32_t i = 0; table[o]->moments[i]; i++)
                        list_word(planes, sizeof(planes), ", ", table[o]->moments[i]);
                list_word(text, size, "; ", table[o]->name);
                list_word(text, size, " (", planes);
                list_word(text, size, ")", "");
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
        return n;
}

int hyper_from_message(const Zero__HyperSet *m, size_t number, struct hyper_set *ret,
                       struct fault *fault)
{
        const struct optimizer *o = optimizer_find(m->optimizer);
        struct hyper_set set = { 0 };
        char who[32];

        snprintf(who, sizeof(who), "set %zu", number);
        if (!o)
                return unknown(m->optimizer, who, fault);
        if (m->n_values != count_values(o))
                return fault_set(fault, ZERO_EINVAL,
                                 "set %zu: %s has %u hyperparameters, not %zu: the client comes "
                                 "from another version of zerod",
                                 number, o->name, count_values(o), m->n_values);
        while (table[set.optimizer] != o)
                set.optimizer++;
        for (uint32_t i = 0; i < m->n_values; i++) {
                const char *flaw = value_flaw(o->values[i].bound, m->values[0], m->values[i]);

                if (flaw)
                        return fault_set(fault, ZERO_EINVAL, "set %zu: %s %g %s", number,
                                         o->values[i].name, m->values[i], flaw);
                set.value[i] = m->values[i] + 0.0; /* turns -0 into 0 */
        }
        *ret = set;
        return 0;
}

int hyper_given(const struct hyper_set *set, size_t number, struct fault *fault)
{
        for (const struct hyper *h = table[set->optimizer]->values; h->name; h++) {
                double x = set->value[h - table[set->optimizer]->values];

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
        const struct optimizer *o = table[set->optimizer];

        zero__hyper_set__init(ret);
        ret->optimizer = (char *)o->name;
        ret->n_values = count_values(o);
        ret->values = (double *)set->value;
}

bool hyper_known(const struct hyper_set *set)
{
        return set->optimizer < N_OPTIMIZERS;
}

bool hyper_fits(const struct hyper_set *set, const struct optimizer *o)
{
        return table[set->optimizer] == o;
}

const char *hyper_optimizer(const struct hyper_set *set)
{
        return table[set->optimizer]->name;
}

bool hyper_equal(const struct hyper_set *a, const struct hyper_set *b, char *text, size_t size)
{
        const struct hyper *values = table[a->optimizer]->values;

        if (a->optimizer != b->optimizer) {
                snprintf(text, size, "optimizer %s and %s", hyper_optimizer(a), hyper_optimizer(b));
                return false;
        }
        for (uint32_t i = 0; values[i].name; i++) {
                if (memcmp(&a->value[i], &b->value[i], sizeof(double)) == 0)
                        continue;
                snprintf(text, size, "%s %.17g and %.17g", values[i].name, a->value[i],
                         b->value[i]);
                return false;
        }
        return true;
}

struct update_scalars hyper_scalars(const struct hyper_set *set, uint64_t t, double grad_scale)
{
        return table[set->optimizer]->scalars(set->value, t, grad_scale);
}
