/* zeroctl checkpoint: writes a job's state to files, now or every N steps. */
#include "operation.h"

static long keep = -1, every = -1; /* -1: not given */

static const struct command_option options[] = {
        { "keep", "N",
          "once the checkpoint is on disk, delete all of the job's in DIR but the newest N; 0 "
          "(the default) keeps all",
          .count = &keep },
        { "every", "N", "take a checkpoint every N steps from now on; 0: no more",
          .count = &every },
        { 0 },
};

static void show_schedule(const struct ctl *ctl, FILE *out, const json_t *answer)
{
        if (every == 0)
                fprintf(out, "job %s: no more periodic checkpoints\n", field_text(answer, "job"));
        else
                fprintf(out,
                        "job %s: a checkpoint in %s every %ld steps, the next at version %.0f\n",
                        field_text(answer, "job"), field_text(answer, "directory"), every,
                        field_number(answer, "next_version"));
}

static int run(struct ctl *ctl)
{
        const struct operation_more more[] = { { "keep", keep, NULL },
                                               { "every", every, NULL },
                                               { 0 } };
        json_t *answer = NULL;
        int r;

        if (every < 0)
                return operation_carry_out(ctl, "checkpoint", more);
        r = operation_begin(ctl, "checkpoint", more, &answer);
        return r == CTL_OK ? ctl_show(ctl, answer, show_schedule) : r;
}

const struct command command_checkpoint = {
        .name = "checkpoint",
        .arguments = "JOB DIR",
        .summary = "write a job's state to DIR/JOB-VERSION while it trains",
        .description =
                "Writes the job's state to <DIR>/<JOB>-<VERSION>, while the job trains. "
                "<DIR> is a directory that all nodes see, or one of the same name on each "
                "node's own disk. If <DIR> is missing it is made, but nothing above it is. "
                "Refused is a <DIR> that the node's daemon does not see as this command does, "
                "such as the daemon's own /tmp under systemd, and one in the memory of the "
                "states.\n"
                "Each node copies its part between two steps, or saves it while the next "
                "step updates it, and then writes it. Before that the command says how "
                "much longer a step may take (with less memory than the state has, or "
                "from a GPU: how long an update may have to wait; see *checkpoint_memory* "
                "in *zerod.conf*(5)). A checkpoint has the state after one step; nobody may "
                "*import* or put values while it is taken.\n"
                "A checkpoint appears as a whole or not at all. While it is written, and if "
                "it is interrupted, its name is .<JOB>-<VERSION>.partial; nothing reads such "
                "a directory, and the next checkpoint deletes it.\n"
                "With *--every* the job's coordinator takes the checkpoints while ranks train, "
                "also another node after a change of owners, until *--every 0* or the job's drop. "
                "*zeroctl status* says how old the newest is.",
        .options = options,
        .run = run,
};
