/* zeroctl add-node: makes a node hold shards; shards of jobs move to it. */
#include "owners.h"

static const struct command_option options[] = { OWNERS_NO_WAIT, { 0 } };

static int run(struct ctl *ctl)
{
        return owners_change(ctl, "add-node", ctl->argument);
}

const struct command command_add_node = {
        .name = "add-node",
        .arguments = "NODE",
        .summary = "make a node hold shards",
        .description = "Makes <NODE>, one of *peers*, hold shards. Its daemon must be "
                       "reachable. Jobs move: see WHO HOLDS SHARDS in *zeroctl*(1).",
        .options = options,
        .run = run,
};
