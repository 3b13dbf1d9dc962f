/* The optimizers: each struct of zero.h is an array of doubles, in the order of the daemon's row.
 */
#include "optimizers.h"

#include <string.h>

static const struct {
        const char *name;
        size_t n_values;
} rows[] = {
        { "adamw", sizeof(struct zero_adamw) / sizeof(double) },
        { "lion", sizeof(struct zero_lion) / sizeof(double) },
        { "sgd", sizeof(struct zero_sgd) / sizeof(double) },
        { "sgd-momentum", sizeof(struct zero_sgd) / sizeof(double) },
        { "adam", sizeof(struct zero_adamw) / sizeof(double) },
        { "adamw-ema", sizeof(struct zero_adamw) / sizeof(double) },
        { "adam-ema", sizeof(struct zero_adamw) / sizeof(double) },
        { "lion-ema", sizeof(struct zero_lion) / sizeof(double) },
        { "sgd-ema", sizeof(struct zero_sgd) / sizeof(double) },
        { "sgd-momentum-ema", sizeof(struct zero_sgd) / sizeof(double) },
};

const char *optimizer_default(void)
{
        return rows[0].name;
}

int optimizer_message(const struct zero_set *set, Zero__HyperSet *ret)
{
        const char *name = set->optimizer ? set->optimizer : optimizer_default();

        for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
                if (strcmp(name, rows[i].name) != 0)
                        continue;
                zero__hyper_set__init(ret);
                ret->optimizer = (char *)rows[i].name;
                ret->n_values = rows[i].n_values;
                ret->values = (double *)&set->adamw; /* where each of the union begins */
                return 0;
        }
        return ZERO_EINVAL;
}
