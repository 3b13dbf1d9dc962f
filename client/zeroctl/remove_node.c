/* zeroctl remove-node: makes a node stop holding shards, which move to the other owners. */
#include "owners.h"

static const struct command_option options[] = { OWNERS_NO_WAIT, { 0 } };

static int run(struct ctl *ctl)
{
        return owners_change(ctl, "remove-node", ctl->argument);
}

const struct command command_remove_node = {
        .name = "remove-node",
        .arguments = "NODE",
        .summary = "make a node stop holding shards",
        .description = "Makes <NODE> stop holding shards, which move to the other owners. It "
                       "may be dead if the others are a majority. See WHO HOLDS SHARDS in "
                       "*zeroctl*(1).",
        .options = options,
        .run = run,
};
