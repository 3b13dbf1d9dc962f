/* The optimizers: each struct of zero.h is an array of doubles, in the order of the daemon's row,
 * which ema_decay follows. */
#include "optimizers.h"

#include <string.h>

static const struct {
        const char *name;
        uint32_t n_values, n_moments;
        const char *ema; /* what a daemon of the release before calls a set with ema_decay */
} rows[] = {
        { "adamw", sizeof(struct zero_adamw) / sizeof(double), 2, "adamw-ema" },
        { "lion", sizeof(struct zero_lion) / sizeof(double), 1, "lion-ema" },
        { "sgd", sizeof(struct zero_sgd) / sizeof(double), 0, "sgd-ema" },
        { "sgd-momentum", sizeof(struct zero_sgd) / sizeof(double), 1, "sgd-momentum-ema" },
        { "adam", sizeof(struct zero_adamw) / sizeof(double), 2, "adam-ema" },
};
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

int optimizer_message(const struct zero_set *set, struct optimizer_values *ret)
{
        uint32_t i = find(set->optimizer ? set->optimizer : optimizer_default());

        if (i == N_ROWS)
                return ZERO_EINVAL;
        zero__hyper_set__init(&ret->message);
        ret->message.optimizer =
                (char *)(set->ema_decay != 0 && rows[i].ema ? rows[i].ema : rows[i].name);
        /* where each of the union begins */
        memcpy(ret->values, &set->adamw, rows[i].n_values * sizeof(double));
        ret->values[rows[i].n_values] = set->ema_decay;
        ret->message.values = ret->values;
        ret->message.n_values = rows[i].n_values + 1;
        return 0;
}

enum zero_plane optimizer_plane(const struct layout_group *g, enum zero_plane plane)
{
        uint32_t i = find(g->optimizer);

        if (plane != ZERO_PLANE_EMA || !g->ema || i == N_ROWS)
                return plane;
        return (enum zero_plane)(ZERO_PLANE_MOMENT1 + rows[i].n_moments);
}
