/* zeroctl remove-node: a node holds shards no more; those of jobs move to the others. */
#include "view.h"

static int run(struct ctl *ctl)
{
        return change_owners(ctl, "remove-node", ctl->argument);
}

const struct command command_remove_node = {
        "remove-node", "NODE", "have a node hold shards no more", NULL, run, " --no-wait "
};
