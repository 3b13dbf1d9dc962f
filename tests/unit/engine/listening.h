/* Training that notes failures of operations instead of ending the process. */
#pragma once

#include "training.h"

/* The last operation that failed. */
struct ears {
        int status;
        char text[480];
        uint32_t failures;
};

extern struct ears ears[RANKS_MAX]; /* [rank] */

/* session_open(); notes failures from then on. */
void open_listening(struct session *s, const struct training *t);
/* Runs that many turns of all programs, or until they end. */
void run_turns(struct session *s, uint32_t turns, uint64_t seed);
void forget_program(struct trainer *t);
/* Ends all sessions. */
void kill_all(struct session *s);
/* Runs a step and that many turns of the next one, then breaks the link between two nodes. Training
 * goes on and ends with the expected bits of three steps. */
void cut_behind(const struct training *t, uint32_t turns, const struct outcome *expected);
