/* zeroctl plan --measure: how fast the nodes of a running cluster are, as their daemons measure it.
 */
#include "plan.h"

#include <string.h>

#include "table.h"

static const char *const rates[] = { "update", "copy", "link" };

enum { RATES = sizeof(rates) / sizeof(rates[0]) };

/* Adds what all nodes measured of one kind, and the slowest one's; null: a cluster of one node has
 * no links. */
static double add_rate(json_t *all, const char *what, const json_t *answer)
{
        json_t *nodes = json_object_get(all, "nodes"), *told;
        double slowest = 0;
        char name[32];
        size_t i;

        snprintf(name, sizeof(name), "%s_bytes_per_s", what);
        json_array_foreach(json_object_get(answer, "nodes"), i, told)
        {
                double rate = field_number(told, "bytes_per_s");
                json_t *node = json_array_get(nodes, i);

                if (!node) {
                        node = json_pack("{s:O}", "node", json_object_get(told, "node"));
                        json_array_append_new(nodes, node);
                }
                json_object_set(node, name, json_object_get(told, "bytes_per_s"));
                if (strcmp(what, "link") == 0)
                        json_object_set(node, "links", json_object_get(told, "links"));
                if (rate > 0 && (slowest <= 0 || rate < slowest))
                        slowest = rate;
        }
        json_object_set_new(all, name, slowest > 0 ? json_real(slowest) : json_null());
        return slowest;
}

int plan_measure(struct ctl *ctl, struct plan_cluster *c, json_t **ret)
{
        double *const given[RATES] = { &c->update, &c->copy, &c->link };
        json_t *all, *answer;
        int r = CTL_OK;

        if (!ctl->client && ctl_connect_again(ctl)) {
                ctl_error("%s", zero_error(NULL));
                return CTL_NO_CONNECTION;
        }
        all = json_pack("{s:[]}", "nodes");
        for (int i = 0; r == CTL_OK && i < RATES; i++) {
                if (*given[i] > 0)
                        continue;
                r = ctl_query(ctl, "measure", rates[i], &answer);
                if (r == CTL_OK) {
                        *given[i] = add_rate(all, rates[i], answer);
                        json_decref(answer);
                } else {
                        ctl_error("measure %s: %s (%s)", rates[i], zero_error(ctl->client),
                                  zero_status_name(r));
                        r = CTL_FAILED;
                }
        }
        if (r == CTL_OK)
                *ret = all;
        else
                json_decref(all);
        return r;
}

void plan_measure_show(const struct ctl *ctl, FILE *out, const json_t *answer)
{
        const json_t *list = json_object_get(json_object_get(answer, "measured"), "nodes");
        struct table t;
        json_t *node;
        char name[32];
        size_t i;

        if (!list)
                return;
        table_init(&t, "MEASURED NODE|>UPDATE|>COPY|>LINK");
        json_array_foreach(list, i, node)
        {
                table_add(&t, PAINT_NONE, "%s", field_text(node, "node"));
                for (int k = 0; k < RATES; k++) {
                        snprintf(name, sizeof(name), "%s_bytes_per_s", rates[k]);
                        if (field_number(node, name) > 0)
                                table_add(&t, PAINT_NONE, "%.2f GB/s",
                                          field_number(node, name) / 1e9);
                        else
                                table_add(&t, PAINT_NONE, "-");
                }
        }
        table_print(&t, out, ctl->colour);
        table_deinit(&t);
}
