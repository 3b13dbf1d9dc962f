/* zeroctl drop: deletes a job and its state on all nodes, for good. */
#include "ctl.h"

static void show(const struct ctl *ctl, FILE *out, const json_t *answer)
{
        const json_t *untold = json_object_get(answer, "untold");

        fprintf(out, "job %s: %s\n", field_text(answer, "job"),
                field_true(answer, "dropped") ? "dropped" : "not dropped");
        for (size_t i = 0; i < json_array_size(untold); i++)
                fprintf(out, "node %s is away: it drops what it has of the job when it comes up\n",
                        json_string_value(json_array_get(untold, i)));
}

const struct command command_drop = { "drop", "JOB", "delete a job and its state, for good", show,
                                      NULL };
