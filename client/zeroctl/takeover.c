/*
 * zeroctl takeover: the others go on without nodes that a person knows to be dead.  Their votes are
 * not waited for: if one of them lives, there may be two clusters.  Their shards are taken from
 * mirrors.
 */
#include "view.h"

static int run(struct ctl *ctl)
{
        return change_owners(ctl, "takeover", ctl->dead);
}

const struct command command_takeover = { "takeover", NULL, "go on without a dead node",
                                          NULL,       run,  " --node-is-dead --no-wait " };
