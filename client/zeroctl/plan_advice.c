/*
 * What to change if a model does not fit, and the largest model that does: other plans, tried one
 * after the other.
 */
#include "plan.h"

#include <stdlib.h>

/* False also if there is no plan. */
static bool fits(const struct plan_model *m, const struct plan_cluster *c, int64_t *ret_parameters)
{
        struct plan *p = malloc(sizeof(*p));
        const char *flaw;
        bool ok = p && plan_make(m, c, p, &flaw) == CTL_OK && plan_fits(c, p);

        if (ok && ret_parameters)
                *ret_parameters = p->parameters;
        free(p);
        return ok;
}

/* ---- the largest model ----------------------------------------------------------- */

static bool layers_fit(const struct plan_model *m, const struct plan_cluster *c, int64_t layers,
                       int64_t *ret_parameters)
{
        struct plan_model other;
        bool ok = plan_model_layers(m, layers, &other) == CTL_OK && fits(&other, c, ret_parameters);

        plan_model_free(&other);
        return ok;
}

/* Other layers of the same size: as many as fit. */
static json_t *largest_by_layers(const struct plan_model *m, const struct plan_cluster *c)
{
        int64_t most = 0, too_many = 1, parameters = 0;

        while (layers_fit(m, c, too_many, &parameters)) {
                most = too_many;
                too_many *= 2;
        }
        while (too_many - most > 1) {
                int64_t middle = most + (too_many - most) / 2;

                if (layers_fit(m, c, middle, &parameters))
                        most = middle;
                else
                        too_many = middle;
        }
        return json_pack("{s:I, s:I}", "layers", (json_int_t)most, "parameters",
                         (json_int_t)parameters);
}

/* Every tensor larger or smaller by the same factor. */
static json_t *largest_by_factor(const struct plan_cluster *c, const struct plan *p)
{
        double factor = -1;

        if (c->host_memory && p->host)
                factor = (double)c->host_memory / (double)p->host;
        if (c->gpu_memory && p->gpu &&
            (factor < 0 || (double)c->gpu_memory / (double)p->gpu < factor))
                factor = (double)c->gpu_memory / (double)p->gpu;
        return factor < 0 ? json_null()
                          : json_pack("{s:n, s:I}", "layers", "parameters",
                                      (json_int_t)((double)p->parameters * factor));
}

json_t *plan_largest(const struct plan_model *m, const struct plan_cluster *c, const struct plan *p)
{
        if (!c->host_memory && !c->gpu_memory)
                return json_null();
        return plan_layers(m) ? largest_by_layers(m, c) : largest_by_factor(c, p);
}

/* ---- what to change -------------------------------------------------------------- */

static void try(json_t *list, const struct plan_model *m, const struct plan_cluster *c,
                const char *change)
{
        if (fits(m, c, NULL))
                json_array_append_new(list, json_string(change));
}

/* The fewest nodes that the model fits, all of them owners. */
static void try_nodes(json_t *list, const struct plan_model *m, const struct plan_cluster *c)
{
        struct plan_cluster other = *c;
        char text[80];

        for (other.nodes++; other.nodes * other.devices <= ZERO_NODE_MAX; other.nodes++) {
                other.owners = other.nodes;
                if (other.nodes * other.ranks > ZERO_RANK_MAX || !fits(m, &other, NULL))
                        continue;
                snprintf(text, sizeof(text), "--nodes %lld --owners %lld", (long long)other.nodes,
                         (long long)other.nodes);
                json_array_append_new(list, json_string(text));
                return;
        }
}

json_t *plan_advice(const struct plan_model *m, const struct plan_cluster *c)
{
        json_t *list = json_array();
        struct plan_cluster other = *c;

        if (c->owners < c->nodes) {
                char text[64];

                other.owners = c->nodes;
                snprintf(text, sizeof(text), "--owners %lld", (long long)c->nodes);
                if (other.owners * other.devices <= ZERO_NODE_MAX)
                        try(list, m, &other, text);
        }
        other = *c;
        other.stage = 3;
        if (c->stage != 3)
                try(list, m, &other, "--stage 3");
        other = *c;
        other.dtype = other.grad_dtype = other.reduce_dtype = ZERO_BF16;
        try(list, m, &other, "--dtype bf16 --grad-dtype bf16 --reduce-dtype bf16");
        other = *c;
        other.wire = true;
        if (!c->wire && !c->states_on_gpu)
                try(list, m, &other, "--accumulate wire");
        other = *c;
        other.state = "8bit";
        if (!c->states_on_gpu && fits(m, &other, NULL)) {
                try(list, m, &other, "--state 8bit");
        } else if (!c->states_on_gpu) {
                other.master = "bf16+8";
                try(list, m, &other, "--state 8bit --master bf16+8");
        }
        other = *c;
        other.hold = 1;
        if (c->stage == 3 && c->hold != 1)
                try(list, m, &other, "--hold 1");
        other = *c;
        other.states_on_gpu = false;
        if (c->states_on_gpu)
                try(list, m, &other, "--states host");
        other = *c;
        other.mirror = false;
        if (c->mirror)
                try(list, m, &other, "no --mirror");
        try_nodes(list, m, c);
        return list;
}
