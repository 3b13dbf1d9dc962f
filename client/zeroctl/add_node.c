/* zeroctl add-node: a node of the cluster holds shards from now on; those of jobs move to it. */
#include "view.h"

static int run(struct ctl *ctl)
{
        return change_owners(ctl, "add-node", ctl->argument);
}

const struct command command_add_node = { "add-node", "NODE", "have a node hold shards",
                                          NULL,       run,    " --no-wait " };
