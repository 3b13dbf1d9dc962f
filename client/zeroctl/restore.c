/* zeroctl restore: makes a job's state what a checkpoint holds. */
#include "operation.h"

static int run(struct ctl *ctl)
{
        return operation_carry_out(ctl, "restore", NULL);
}

const struct command command_restore = {
        .name = "restore",
        .arguments = "JOB DIR",
        .summary = "make a job's state what checkpoint DIR holds",
        .description = "Makes the job what the checkpoint <DIR> holds, on any number of nodes: "
                       "the version, master weights, moments, steps of tensors, and what ranks "
                       "kept. The job is made if there is none of that name, which need not be "
                       "the checkpoint's; otherwise its ranks must have ended, and its state is "
                       "replaced.\n"
                       "All of the checkpoint is read and checked before anything is changed; "
                       "both states need memory at once meanwhile. If the nodes wrote to disks "
                       "of their own, bring the files of all of them into one directory first.",
        .run = run,
};
