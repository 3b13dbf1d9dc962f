/* The answer of zeroctl simulate, for people. */
#include "simulate.h"

#include "table.h"
#include "units.h"

static void add_count(struct table *t, double n)
{
        table_add(t, PAINT_NONE, "%s", unit_count(n).text);
}

static void add_bytes(struct table *t, const json_t *memory, const char *name)
{
        table_add(t, PAINT_NONE, "%s", unit_bytes(field_number(memory, name)).text);
}

static double sum(const json_t *counts)
{
        const char *name;
        json_t *n;
        double all = 0;

        json_object_foreach((json_t *)counts, name, n) all += json_number_value(n);
        return all;
}

static void show_messages(const struct ctl *ctl, FILE *out, const json_t *sizes)
{
        struct table t;
        json_t *size;
        size_t i;

        fputs("messages of a step, between nodes\n", out);
        table_init(&t, ">NODES|>RANKS|>LINKS|>ALL|>EACH NODE|>BUSIEST SENDS|>RECEIVES|>OPENING|>"
                       "INCAST|OF");
        json_array_foreach(sizes, i, size)
        {
                const json_t *step = json_object_get(size, "step");
                const json_t *most = json_object_get(step, "most");
                const json_t *incast = json_object_get(size, "incast");

                table_add(&t, PAINT_NONE, "%.0f", field_number(size, "nodes"));
                table_add(&t, PAINT_NONE, "%.0f", field_number(size, "ranks"));
                add_count(&t, field_number(json_object_get(size, "links"), "total"));
                add_count(&t, field_number(step, "total"));
                add_count(&t, field_number(step, "per_node"));
                add_count(&t, sum(json_object_get(most, "sent")));
                add_count(&t, sum(json_object_get(most, "received")));
                add_count(&t, field_number(json_object_get(size, "opening"), "total"));
                table_add(&t, PAINT_NONE, "%.0f", field_number(incast, "senders"));
                table_add(&t, PAINT_NONE, "%s", field_text(incast, "kind"));
        }
        table_print(&t, out, ctl->colour);
        table_deinit(&t);
}

static void show_kinds(FILE *out, const json_t *sizes)
{
        const char *name;
        json_t *size, *n;
        size_t i;

        fputs("\nby kind, on all nodes\n", out);
        json_array_foreach(sizes, i, size)
        {
                fprintf(out, "%5.0f nodes:", field_number(size, "nodes"));
                json_object_foreach(json_object_get(json_object_get(size, "step"), "kinds"), name,
                                    n)
                        fprintf(out, " %s %s", name, unit_count(json_number_value(n)).text);
                fputc('\n', out);
        }
}

static void show_memory_of(const struct ctl *ctl, FILE *out, const json_t *sizes)
{
        static const char *const names[] = { "planes", "windows", "buffers", "peers",
                                             "queues", "host",    "gpu" };
        struct table t;
        json_t *size;
        size_t i;

        fputs("\nmemory of the node that has most to hold\n", out);
        table_init(&t, ">NODES|>PLANES|>WINDOWS|>BUFFERS|>PEERS|>QUEUES|>HOST|>EACH GPU");
        json_array_foreach(sizes, i, size)
        {
                table_add(&t, PAINT_NONE, "%.0f", field_number(size, "nodes"));
                for (size_t k = 0; k < sizeof(names) / sizeof(names[0]); k++)
                        add_bytes(&t, json_object_get(size, "memory"), names[k]);
        }
        table_print(&t, out, ctl->colour);
        table_deinit(&t);
}

static void show_times(const struct ctl *ctl, FILE *out, const json_t *sizes)
{
        static const char *const names[] = { "link_s",    "loop_s",     "update_s",  "copy_s",
                                             "compute_s", "decision_s", "at_least_s" };
        struct table t;
        json_t *size, *limit;
        size_t i, k;

        fputs("\ntime of a step, at least\n", out);
        table_init(&t, ">NODES|>LINK|>LOOP|>UPDATE|>COPY|>COMPUTE|>DECISION|>STEP|BOUND BY");
        json_array_foreach(sizes, i, size)
        {
                const json_t *time = json_object_get(size, "time");

                table_add(&t, PAINT_NONE, "%.0f", field_number(size, "nodes"));
                for (k = 0; k < sizeof(names) / sizeof(names[0]); k++)
                        table_add(&t, PAINT_NONE, "%s",
                                  json_is_null(json_object_get(time, names[k]))
                                          ? "-"
                                          : unit_seconds(field_number(time, names[k])).text);
                table_add(&t, PAINT_NONE, "%s", field_text(time, "bound_by"));
        }
        table_print(&t, out, ctl->colour);
        table_deinit(&t);
        json_array_foreach(sizes, i, size)
                json_array_foreach(json_object_get(size, "limits"), k, limit)
                        fprintf(out, "%.0f nodes are beyond a limit: %s\n",
                                field_number(size, "nodes"), json_string_value(limit));
}

void simulate_show(const struct ctl *ctl, FILE *out, const json_t *answer)
{
        const json_t *sizes = json_object_get(answer, "sizes");

        fprintf(out, "model: %s parameters in %.0f groups; seed %.0f\n\n",
                unit_count(field_number(answer, "parameters")).text, field_number(answer, "groups"),
                field_number(answer, "seed"));
        show_messages(ctl, out, sizes);
        show_kinds(out, sizes);
        show_memory_of(ctl, out, sizes);
        show_times(ctl, out, sizes);
}
