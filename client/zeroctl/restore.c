/* zeroctl restore: replaces a job's state with a checkpoint's. */
#include "operation.h"

static const char *convert;

static const struct command_option options[] = {
        { "convert", "FORMATS",
          "convert moments and master weights: 'job', to the formats of the job that is there, or "
          "STATE[,MASTER], as 8bit,bf16+8",
          .text = &convert },
        { 0 },
};

static int run(struct ctl *ctl)
{
        const struct operation_more more[] = { { "convert", -1, convert }, { 0 } };

        return operation_carry_out(ctl, "restore", more);
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
                "own, copy the files of all nodes into one directory first.\n"
                "The formats of moments and master weights (*zero_layout_state*(3)) stay those of "
                "the checkpoint. A job that is there with others is refused. With *--convert* job "
                "the job keeps its own. *--convert* <STATE>[,<MASTER>] names them for all groups "
                "that are trained: <STATE> is fp32, bf16 or 8bit. <MASTER> is fp32, bf16+16 or "
                "bf16+8, of groups that are served in bf16 and not eager; without <MASTER> "
                "master weights keep their formats. Conversions to fp32, and of master weights "
                "to bf16+16, are exact; any "
                "other one rounds values once.",
        .options = options,
        .run = run,
};
