/*
 * move.h - how far jobs are on their way from one owner list to another: told by their coordinator
 * to those who ask, and to all nodes that have the job.
 */
#pragma once

#include "daemon/core/request.h"
#include "daemon/job/placement.h"
#include "proto/zero.pb-c.h"

struct exchange;
struct job;

struct move {
        uint64_t from, to;     /* epochs; the same where holders get back what they lost */
        uint64_t bytes, total; /* in their place, of all; total 0: not known */
};

/* A change that this node had taken back, since a job could not be moved for it. */
struct taken_back {
        uint64_t epoch; /* that was given up; 0: none was */
        char why[400];
};

/*
 * Every job that this node coordinates and that moves.  wait.who is "" if nothing is waited for;
 * trouble: what a person has to mend, or "".
 */
typedef void move_each(void *arg, const char *job, const struct move *m,
                       const struct wait_line *wait, const char *trouble);
void moves_each(struct exchange *x, move_each *each, void *arg);

/*
 * A job cannot be moved: owners as they were before, in a new epoch.  Goes on by itself until
 * another list is chosen.
 */
void view_take_back(struct exchange *x, const struct placement *before, const char *why);

/* False: the job does not move, as far as this node knows. */
bool job_moves(const struct job *job, struct move *ret);
/* What the coordinator tells; m NULL: it stays where it is. */
void job_move_told(struct job *job, const Zero__Move *m);
