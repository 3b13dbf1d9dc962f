/* zeroctl versions: who follows a job, and which versions are in memory for that. */
#include <string.h>

#include "table.h"
#include "units.h"
#include "users.h"

static void add_reader(struct table *t, const char *node, const json_t *reader)
{
        char holds[256] = "-";
        size_t i, at = 0;
        json_t *version;

        json_array_foreach(json_object_get(reader, "versions"), i, version)
        {
                if (at < sizeof holds)
                        at += (size_t)snprintf(holds + at, sizeof holds - at, "%s%.0f",
                                               i ? ", " : "", json_number_value(version));
        }
        table_add(t, PAINT_NONE, "%s", node);
        table_add(t, PAINT_NONE, "%s", user_name(field_number(reader, "uid")).text);
        if (*field_text(reader, "address"))
                table_add(t, PAINT_NONE, "http %s", field_text(reader, "address"));
        else
                table_add(t, PAINT_NONE, "%.0f", field_number(reader, "pid"));
        table_add(t, PAINT_NONE, "%s", holds);
        table_add(t, PAINT_NONE, "%s", field_true(reader, "waits") ? "yes" : "-");
}

static void add_copy(struct table *t, const char *node, const json_t *copy)
{
        const json_t *version = json_object_get(copy, "version");

        table_add(t, PAINT_NONE, "%s", node);
        if (json_is_number(version))
                table_add(t, PAINT_NONE, "%.0f", json_number_value(version));
        else
                table_add(t, PAINT_NONE, "-");
        table_add(t, PAINT_NONE, "%s", unit_bytes(field_number(copy, "bytes")).text);
        table_add(t, PAINT_NONE, "%.0f", field_number(copy, "readers"));
        table_add(t, PAINT_NONE, "%s",
                  json_is_string(json_object_get(copy, "form")) ? field_text(copy, "form") : "-");
}

static void show_part(const struct ctl *ctl, FILE *out, const json_t *answer, const char *headers,
                      const char *key,
                      void (*add)(struct table *t, const char *node, const json_t *item))
{
        json_t *node, *item;
        struct table t;
        size_t i, k;

        table_init(&t, headers);
        json_array_foreach(json_object_get(answer, "nodes"), i, node)
        {
                json_array_foreach(json_object_get(node, key), k, item)
                        add(&t, field_text(node, "node"), item);
        }
        table_print(&t, out, ctl->colour);
        table_deinit(&t);
}

static void show(const struct ctl *ctl, FILE *out, const json_t *answer)
{
        json_t *node;
        size_t i;

        fprintf(out, "job %s at version %.0f\n", field_text(answer, "job"),
                field_number(answer, "version"));
        show_grants(ctl, out, answer);
        show_part(ctl, out, answer, "NODE|USER|>READER|HOLDS|WAITS", "readers", add_reader);
        show_part(ctl, out, answer, "NODE|>VERSION|>BYTES|>READERS|FORM", "copies", add_copy);
        json_array_foreach(json_object_get(answer, "nodes"), i, node)
        {
                double left_out = field_number(node, "left_out");

                if (left_out > 0)
                        fprintf(out, "node %s has %.0f more readers\n", field_text(node, "node"),
                                left_out);
        }
        json_array_foreach(json_object_get(answer, "away"), i, node)
                fprintf(out, "node %s is not up, and may have readers\n", json_string_value(node));
}

const struct command command_versions = {
        .name = "versions",
        .arguments = "JOB",
        .summary = "who follows a job, and which versions are in memory for that",
        .description =
                "Prints on each of the job's nodes the processes that follow the job, the versions "
                "that each holds, and the copies of versions that are in memory for them. A "
                "version is the number of committed steps. *READER* is the process, or the address "
                "of a download over HTTP. A copy without a version is empty, or its version is on "
                "its way. *FORM* is what readers have asked for, if that is not all groups as the "
                "ranks fetch them. Only the job's owner "
                "and root may ask.",
        .show = show,
};
