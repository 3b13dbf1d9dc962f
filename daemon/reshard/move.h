/*
 * move.h - how far jobs are on their way from one owner list to another: told by their coordinator
 * to those who ask, and to all nodes that have the job.
 */
#pragma once

#include "daemon/core/job.h"

/*
 * Every job that this node coordinates and that moves.  wait.who is "" if nothing is waited for;
 * trouble: what a person has to mend, or "".
 */
typedef void move_each(void *arg, const char *job, const struct move *m,
                       const struct wait_line *wait, const char *trouble);
void moves_each(struct exchange *x, move_each *each, void *arg);

/* False: the job does not move, as far as this node knows. */
bool job_moves(const struct job *job, struct move *ret);
/* What the coordinator tells; m NULL: it stays where it is. */
void job_move_told(struct job *job, const Zero__Move *m);
