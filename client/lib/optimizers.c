/* The optimizers: each struct of zero.h is an array of doubles, in the order of the daemon's row,
 * which ema_decay follows. */
#include "optimizers.h"

#include <string.h>

#include "proto/text.h"

static const struct {
        const char *name;
        const char *ema; /* what a daemon of the release before calls a set with ema_decay */
        uint32_t n_values;
        const char *moments[ZERO_PLANE_SERVE - ZERO_PLANE_MOMENT1]; /* NULL: it has no more */
} rows[] = {
#define X(name, set, ...) \
        { name, name "-ema", sizeof(struct set) / sizeof(double), { __VA_ARGS__ } },
        ZERO_OPTIMIZER_MAP(X)
#undef X
};
static const struct zero_newton_schulz torch_ns = { 3.4445, -4.7750, 2.0315, 1e-7, 5 };

enum { N_ROWS = sizeof(rows) / sizeof(rows[0]) };

const char *optimizer_default(void)
{
        return rows[0].name;
}

/* N_ROWS: there is no such optimizer. */
static uint32_t find(const char *name)
{
        uint32_t i = 0;

        while (i < N_ROWS && strcmp(rows[i].name, name) != 0)
                i++;
        return i;
}

int optimizer_check_name(const char *name, struct fault *fault)
{
        for (uint32_t i = 0; name && i < N_ROWS; i++)
                if (strcmp(rows[i].ema, name) == 0)
                        return fault_set(
                                fault, ZERO_EINVAL,
                                "there is no optimizer %s: choose %s, and zero_layout_ema() "
                                "for the average",
                                name, rows[i].name);
        return 0;
}

static const char *name_of(const struct zero_set *set)
{
        return set->optimizer ? set->optimizer : optimizer_default();
}

bool optimizer_has_matrices(const char *name)
{
        return strcmp(name, "muon") == 0;
}

/* Returns how many they are. */
static uint32_t values_of(const struct zero_set *set, uint32_t row, double *ret)
{
        const struct zero_newton_schulz *ns = set->muon.ns ? set->muon.ns : &torch_ns;
        uint32_t n = rows[row].n_values;

        if (!optimizer_has_matrices(rows[row].name)) {
                memcpy(ret, &set->adamw, n * sizeof(double)); /* where each of the union begins */
                return n;
        }
        memcpy(ret, &set->muon, --n * sizeof(double)); /* all but the pointer */
        memcpy(ret + n, ns, sizeof(*ns));
        return n + (uint32_t)(sizeof(*ns) / sizeof(double));
}

static void message_of(const struct zero_set *set, uint32_t row, bool averages,
                       struct optimizer_values *ret)
{
        zero__hyper_set__init(&ret->message);
        ret->message.optimizer = (char *)(averages ? rows[row].ema : rows[row].name);
        uint32_t n = values_of(set, row, ret->values);

        ret->values[n] = set->ema_decay;
        ret->message.values = ret->values;
        ret->message.n_values = n + 1;
}

int optimizer_messages(const layout *l, const struct zero_set *sets, uint32_t n_sets,
                       struct optimizer_values *ret, struct fault *fault)
{
        const struct layout_group *averaging[N_ROWS + 1] = { NULL }; /* the last: of no row */
        bool decays[N_ROWS] = { false };

        for (uint32_t t = 0; t < l->n_tensors; t++) {
                const struct layout_group *g = &l->groups[l->tensors[t].group];

                if (g->ema && !l->tensors[t].frozen)
                        averaging[find(layout_tensor_optimizer(l, t))] = g;
        }
        for (uint32_t i = 0; i < n_sets; i++) {
                uint32_t row = find(name_of(&sets[i]));

                if (row == N_ROWS)
                        return fault_set(fault, ZERO_EINVAL,
                                         "set %u: this libzero has no optimizer '%s'", (unsigned)i,
                                         sets[i].optimizer);
                decays[row] = decays[row] || sets[i].ema_decay != 0;
                message_of(&sets[i], row, averaging[row], &ret[i]);
        }
        for (uint32_t i = 0; i < n_sets; i++) {
                uint32_t row = find(name_of(&sets[i]));

                if (averaging[row] && !decays[row])
                        return fault_set(fault, ZERO_EINVAL,
                                         "group %s keeps an average of its weights, and no set of "
                                         "%s has ema_decay",
                                         text_quote(averaging[row]->name).text, rows[row].name);
        }
        return 0;
}

enum zero_plane optimizer_plane(const layout *l, uint32_t tensor, enum zero_plane plane)
{
        uint32_t i = find(layout_tensor_optimizer(l, tensor)), n = 0;

        if (plane != ZERO_PLANE_EMA || !l->groups[l->tensors[tensor].group].ema || i == N_ROWS)
                return plane;
        while (rows[i].moments[n])
                n++;
        return (enum zero_plane)(ZERO_PLANE_MOMENT1 + n);
}
