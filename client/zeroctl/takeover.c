/*
 * zeroctl takeover: the other nodes go on without nodes that a person knows to be dead, and do not
 * wait for their votes.  If such a node is alive, there may be two clusters.  Shards of dead nodes
 * come from mirrors.
 */
#include "owners.h"

static const char *dead;

static const struct command_option options[] = {
        { "node-is-dead", "NODE[,NODE]...",
          "the dead nodes; only a person can know that they are dead", .text = &dead },
        OWNERS_NO_WAIT,
        { 0 },
};

static int check(const struct ctl *ctl)
{
        if (dead)
                return CTL_OK;
        ctl_error("takeover: name the node that you know to be dead: --node-is-dead NODE");
        return CTL_USAGE;
}

static int run(struct ctl *ctl)
{
        return owners_change(ctl, "takeover", dead);
}

const struct command command_takeover = {
        .name = "takeover",
        .summary = "go on without a dead node",
        .description = "The other nodes go on without those that *--node-is-dead* names, and do "
                       "not wait for their votes. Only a person can know that a node is dead: "
                       "see WHO HOLDS SHARDS in *zeroctl*(1).",
        .options = options,
        .check = check,
        .run = run,
};
