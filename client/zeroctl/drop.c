/* zeroctl drop: deletes a job and its state on all nodes, for good. */
#include "ctl.h"

static void show(const struct ctl *ctl, FILE *out, const json_t *answer)
{
        fprintf(out, "job %s: %s\n", field_text(answer, "job"),
                field_true(answer, "dropped") ? "dropped" : "not dropped");
}

const struct command command_drop = { "drop", "JOB", "delete a job and its state, for good", show,
                                      NULL };
