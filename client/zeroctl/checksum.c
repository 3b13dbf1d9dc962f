/* zeroctl checksum: a hash of a job's state that does not depend on its partition. */
#include "ctl.h"

#include "table.h"

static void show(const struct ctl *ctl, FILE *out, const json_t *answer)
{
        json_t *sum;
        const char *plane;
        struct table t;

        fprintf(out, "job %s at version %.0f\n", field_text(answer, "job"),
                field_number(answer, "version"));
        table_init(&t, "PLANE|CHECKSUM");
        table_add(&t, PAINT_NONE, "all");
        table_add(&t, PAINT_NONE, "%s", field_text(answer, "checksum"));
        json_object_foreach(json_object_get(answer, "planes"), plane, sum)
        {
                table_add(&t, PAINT_NONE, "%s", plane);
                table_add(&t, PAINT_NONE, "%s", json_is_string(sum) ? json_string_value(sum) : "?");
        }
        table_print(&t, out, ctl->colour);
        table_deinit(&t);
        if (json_is_false(json_object_get(answer, "mirrors_agree")))
                fputs("the mirrors differ from what they mirror: --json shows them\n", out);
}

const struct command command_checksum = {
        .name = "checksum",
        .arguments = "JOB",
        .summary = "hash of a job's state, however it is partitioned",
        .description = "Prints a hash of the job's state at one version: parameters, moments, and "
                       "each tensor's step and hyperparameter set. The hash does not depend on the "
                       "number of owners. Mirrors, if there are any, are hashed too and compared. "
                       "If the job steps faster than its nodes answer, the command fails after "
                       "some tries.",
        .show = show,
};
