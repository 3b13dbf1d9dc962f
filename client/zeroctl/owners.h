/*
 * zeroctl members, add-node, remove-node and takeover: the owners, and a change of them.
 *
 * The daemon that is asked restarts in its process when the owners change: zeroctl connects again,
 * and reads from the list of owners whether the change was made meanwhile.  The moves of jobs go on
 * without zeroctl.
 */
#pragma once

#include "ctl.h"

/* Epoch, owners, mirrors, which nodes are up, and whether they are enough for a change. */
void show_members(const struct ctl *ctl, FILE *out, const json_t *members);

extern bool owners_no_wait;
#define OWNERS_NO_WAIT                                                                     \
        {                                                                                  \
                "no-wait", NULL,                                                           \
                        "return when the new owners are chosen, not when jobs have moved", \
                        .flag = &owners_no_wait                                            \
        }

/*
 * Asks for a change, again and again while the cluster is busy with an earlier one, and follows
 * the jobs that move.  Gives up, and says for whom it waits, when nothing moves for as long as
 * the timeout.  argument: of the query.
 */
int owners_change(struct ctl *ctl, const char *what, const char *argument);
/* The same, and shows nothing. */
int owners_become(struct ctl *ctl, const char *what, const char *argument, json_t **ret_members);
/* Follows the moves to the owners of an epoch. */
int owners_settle(struct ctl *ctl, double epoch, json_t **ret_members);
/* How many of the "owners", a cluster's or a job's, are on the nodes, separated by commas. */
unsigned owners_count(const json_t *object, const char *nodes);
