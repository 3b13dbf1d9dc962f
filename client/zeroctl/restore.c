/* zeroctl restore: replaces a job's state with a checkpoint's. */
#include "operation.h"

static int run(struct ctl *ctl)
{
        return operation_carry_out(ctl, "restore", NULL);
}

const struct command command_restore = {
        .name = "restore",
        .arguments = "JOB DIR",
        .summary = "replace a job's state with checkpoint DIR",
        .description =
                "Replaces the job's state with the checkpoint <DIR>, on any number of nodes: "
                "the version, master weights, moments, steps of tensors, and what ranks "
                "kept. If there is no job of that name it is made; the name need not be "
                "the checkpoint's. Otherwise the job's ranks must have ended.\n"
                "zerod reads and checks the whole checkpoint before it changes anything; "
                "meanwhile both states need memory. If the nodes wrote to disks of their "
                "own, copy the files of all nodes into one directory first.",
        .run = run,
};
