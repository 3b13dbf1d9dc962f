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

const struct command command_drop = {
        .name = "drop",
        .arguments = "JOB",
        .summary = "delete a job and its state, for good",
        .description = "Deletes the job and its state on all nodes, for good. The answer comes "
                       "when the files are gone and their memory is free. A trainer that still "
                       "computes on fp32 parameters may end by SIGBUS. If a node is away, the "
                       "answer names it, and the node deletes what it has of the job when it "
                       "comes up: a node that holds shards remembers to tell it, even after a "
                       "restart. Until then no new job of that name can be made. A drop is refused "
                       "while 1024 dropped jobs of one user, or 4096 of all, wait for such nodes.",
        .show = show,
};
