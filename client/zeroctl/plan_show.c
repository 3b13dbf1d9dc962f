/* The answer of zeroctl plan, for people. */
#include "plan.h"

#include "table.h"
#include "units.h"

static void add_bytes(struct table *t, double bytes)
{
        table_add(t, PAINT_NONE, "%s", unit_bytes(bytes).text);
}

static void show_nodes(const struct ctl *ctl, FILE *out, const json_t *list)
{
        json_t *node, *plane;
        const char *name;
        struct table t;
        size_t i;

        table_init(&t,
                   ">NODE|>PLANES|>GATHER WINDOW|>PUSH WINDOWS|>BUFFERS|>HOST|>EACH GPU|>GATHER "
                   "SENT|>RECEIVED|>REDUCE SENT|>RECEIVED");
        json_array_foreach(list, i, node)
        {
                const json_t *buffers = json_object_get(node, "buffers");
                double planes = 0;

                json_object_foreach(json_object_get(node, "planes"), name, plane) planes +=
                        json_number_value(plane);
                table_add(&t, PAINT_NONE, "%.0f", field_number(node, "node"));
                add_bytes(&t, planes);
                add_bytes(&t, field_number(json_object_get(node, "gather"), "window_bytes"));
                add_bytes(&t, field_number(node, "push_windows"));
                add_bytes(&t, field_number(buffers, "sums") + field_number(buffers, "receive"));
                add_bytes(&t, field_number(node, "host_bytes"));
                add_bytes(&t, field_number(node, "gpu_bytes"));
                add_bytes(&t, field_number(json_object_get(node, "sent"), "gather"));
                add_bytes(&t, field_number(json_object_get(node, "received"), "gather"));
                add_bytes(&t, field_number(json_object_get(node, "sent"), "reduce"));
                add_bytes(&t, field_number(json_object_get(node, "received"), "reduce"));
        }
        table_print(&t, out, ctl->colour);
        table_deinit(&t);
        fputs("planes of node 0:", out);
        json_object_foreach(json_object_get(json_array_get(list, 0), "planes"), name, plane)
                fprintf(out, " %s %s", name, unit_bytes(json_number_value(plane)).text);
        fputc('\n', out);
}

static void show_step(FILE *out, const json_t *step)
{
        static const char *const names[] = { "link_s", "update_s", "copy_s", "compute_s" };
        const char *bound = field_text(step, "bound_by");

        if (!*bound) {
                fputs("a step takes: not known without --link, --update, --copy or --compute\n",
                      out);
                return;
        }
        fprintf(out, "a step takes at least %s, bound by %s:",
                unit_seconds(field_number(step, "at_least_s")).text, bound);
        for (int i = 0; i < PLAN_BOUNDS; i++)
                fprintf(out, " %s %s%s", plan_bounds[i],
                        json_is_null(json_object_get(step, names[i]))
                                ? "not given"
                                : unit_seconds(field_number(step, names[i])).text,
                        i + 1 < PLAN_BOUNDS ? "," : "\n");
        if (json_is_null(json_object_get(step, "estimate_s")))
                fputs("an estimate of a step needs all of these\n", out);
        else
                fprintf(out, "a step probably takes %s\n",
                        unit_seconds(field_number(step, "estimate_s")).text);
}

static void show_fit(FILE *out, const json_t *answer)
{
        const json_t *largest = json_object_get(answer, "largest");
        const json_t *layers_fit = json_object_get(largest, "layers");
        json_t *change;
        size_t i;

        if (json_is_null(json_object_get(answer, "fits"))) {
                fputs("whether it fits: not known without --host-memory or --gpu-memory\n", out);
                return;
        }
        fprintf(out, "the model %s; the largest that does has %s parameters",
                field_true(answer, "fits") ? "fits" : "does not fit",
                unit_count(field_number(largest, "parameters")).text);
        if (json_is_integer(layers_fit))
                fprintf(out, " (%.0f layers)", json_number_value(layers_fit));
        fputs(json_is_integer(layers_fit) ? "\n" : ", with all tensors in proportion\n", out);
        json_array_foreach(json_object_get(answer, "advice"), i, change)
                fprintf(out, "it fits with %s\n", json_string_value(change));
        if (i == 0 && !field_true(answer, "fits"))
                fputs("no single change makes it fit: change several, or take a smaller model\n",
                      out);
}

void plan_show(const struct ctl *ctl, FILE *out, const json_t *answer)
{
        const json_t *m = json_object_get(answer, "model"), *rank = json_object_get(answer, "rank");
        const json_t *zero = json_object_get(answer, "zero_formula");
        const json_t *node = json_array_get(json_object_get(answer, "nodes"), 0);
        double left_out = field_number(m, "tensors_left_out"), stash = field_number(rank, "stash");

        show_fit(out, answer);
        fprintf(out, "model: %s parameters in %.0f groups, the largest of %s\n",
                unit_count(field_number(m, "parameters")).text, field_number(m, "groups"),
                unit_count(field_number(m, "largest_group")).text);
        if (left_out > 0)
                fprintf(out, "%.0f tensors of whole numbers are left out\n", left_out);
        fprintf(out, "each rank: push window %s, activations %s\n",
                unit_bytes(field_number(rank, "push_window")).text,
                field_number(rank, "activations") > 0
                        ? unit_bytes(field_number(rank, "activations")).text
                : stash > 0 ? "in the stash"
                            : "not known");
        if (stash > 0)
                fprintf(out, "stash: %s of each rank; node 0 reserves %s and receives %s a step\n",
                        unit_bytes(stash).text, unit_bytes(field_number(node, "stash")).text,
                        unit_bytes(field_number(json_object_get(node, "received"), "stash")).text);
        fprintf(out,
                "ZeRO stage %.0f, for each of its ranks: %s of model states, %s elements a "
                "step\n\n",
                field_number(rank, "stage"), unit_bytes(field_number(zero, "rank_bytes")).text,
                unit_count(field_number(zero, "rank_elements")).text);
        if (field_number(answer, "largest_share") > 1.01)
                fprintf(out, "the owner with most has %.2f times the mean of all owners\n",
                        field_number(answer, "largest_share"));
        if (json_is_object(json_object_get(answer, "newton_schulz"))) {
                const json_t *muon = json_object_get(answer, "newton_schulz");

                fprintf(out,
                        "Newton-Schulz: %.3g operations a step, which no time below has; the owner "
                        "with most has %.2f times the mean\n",
                        field_number(muon, "flops"), field_number(muon, "largest_share"));
        }
        show_nodes(ctl, out, json_object_get(answer, "nodes"));
        plan_measure_show(ctl, out, answer);
        show_step(out, json_object_get(answer, "step"));
}
