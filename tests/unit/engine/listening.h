/* Training whose failures are noted rather than fatal. */
#pragma once

#include "training.h"

/* The last end of an operation that was not a success. */
struct ears {
        int status;
        char text[480];
        uint32_t failures;
};

extern struct ears ears[RANKS_MAX]; /* [rank] */

/* session_open(), with deaf ears. */
void open_listening(struct session *s, const struct training *t);
/* So many turns of all programs, or until they end. */
void run_turns(struct session *s, uint32_t turns, uint64_t seed);
void forget_program(struct trainer *t);
/* All sessions end. */
void kill_all(struct session *s);
/* A step, then so many turns of the next one, then the link between two nodes is lost: training
 * goes on to what is expected of three steps. */
void cut_behind(const struct training *t, uint32_t turns, const struct outcome *expected);
