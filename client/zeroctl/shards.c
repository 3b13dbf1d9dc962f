/* zeroctl shards: which node holds which part of every group, and in how many bytes. */
#include "ctl.h"

#include "table.h"
#include "units.h"

static void add_version(struct table *t, const json_t *version)
{
        if (json_is_number(version))
                table_add(t, PAINT_NONE, "%.0f", json_number_value(version));
        else
                table_add(t, PAINT_NONE, "-");
}

static void add_shard(struct table *t, const json_t *group, const json_t *shard)
{
        json_t *bytes = json_object_get(shard, "bytes"), *plane;
        double master = field_number(bytes, "master"), grad = field_number(bytes, "grad");
        double serve = field_number(bytes, "serve"), all = 0;
        const char *name;
        const char *place = field_text(shard, "place");
        double first = field_number(shard, "first"), count = field_number(shard, "count");
        double device = field_number(shard, "device");

        table_add(t, PAINT_NONE, "%.0f", field_number(group, "index"));
        table_add(t, PAINT_NONE, "%s", field_text(group, "group"));
        table_add(t, PAINT_NONE, "%s", field_text(group, "dtype"));
        table_add(t, PAINT_NONE, "%s%s", field_text(group, "optimizer"),
                  json_is_true(json_object_get(group, "ema")) ? " (ema)" : "");
        table_add(t, PAINT_NONE, "%s,%s", field_text(group, "state"), field_text(group, "master"));
        if (device > 0)
                table_add(t, PAINT_NONE, "%s/%.0f", field_text(shard, "owner"), device);
        else
                table_add(t, PAINT_NONE, "%s", field_text(shard, "owner"));
        table_add(t, PAINT_NONE, "%s", place[0] ? place : "-");
        table_add(t, PAINT_NONE, "%.0f-%.0f", first, first + count);
        json_object_foreach(bytes, name, plane) all += json_number_value(plane);
        table_add(t, PAINT_NONE, "%s", unit_bytes(master).text);
        table_add(t, PAINT_NONE, "%s", unit_bytes(all - master - grad - serve).text);
        table_add(t, PAINT_NONE, "%s", unit_bytes(grad).text);
        table_add(t, PAINT_NONE, "%s", unit_bytes(serve).text);
        add_version(t, json_object_get(shard, "version"));
        add_version(t, json_object_get(shard, "last_updated"));
}

/* A line for each group that has any. */
static void show_whole(FILE *out, const json_t *groups)
{
        const json_t *group, *tensor;
        size_t i, k;

        json_array_foreach(groups, i, group)
        {
                json_array_foreach(json_object_get(group, "whole"), k, tensor)
                {
                        if (k == 0)
                                fprintf(out, "whole in group %s:", field_text(group, "group"));
                        fprintf(out, " %s", json_string_value(tensor));
                }
                if (k)
                        fputc('\n', out);
        }
}

static void show_job(const struct ctl *ctl, FILE *out, const json_t *job)
{
        struct table t;
        json_t *group, *shard;
        size_t i, k;

        fprintf(out, "%sjob %s%s\n", paint_begin(PAINT_HEAD, ctl->colour), field_text(job, "job"),
                paint_end(PAINT_HEAD, ctl->colour));
        table_init(&t, ">GROUP|NAME|DTYPE|OPTIMIZER|FORMATS|OWNER|PLACE|>ELEMENTS|>MASTER|>MOMENTS|"
                       ">GRAD|>SERVE|"
                       ">VERSION|>LAST UPDATED");
        json_array_foreach(json_object_get(job, "groups"), i, group)
        {
                json_array_foreach(json_object_get(group, "shards"), k, shard)
                        add_shard(&t, group, shard);
        }
        table_print(&t, out, ctl->colour);
        table_deinit(&t);
        show_whole(out, json_object_get(job, "groups"));
}

static void show(const struct ctl *ctl, FILE *out, const json_t *answer)
{
        const json_t *jobs = json_object_get(answer, "jobs");
        json_t *job;
        size_t i;

        if (json_array_size(jobs) == 0)
                fputs("no jobs\n", out);
        json_array_foreach(jobs, i, job)
        {
                if (i > 0)
                        fputc('\n', out);
                show_job(ctl, out, job);
        }
}

const struct command command_shards = {
        .name = "shards",
        .arguments = "[JOB]",
        .summary = "who holds which part of every group",
        .description = "For every group and owner: the formats of moments and master weights "
                       "(*zero_layout_state*(3)), the shard's place (host memory or a GPU), range, "
                       "bytes by plane, and version.",
        .show = show,
};
