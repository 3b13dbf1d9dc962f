/*
 * local.h - shared by attaching (attach.c), what attached ranks do (rank.c), and messages that wait
 * for a rank's GPU (due.c).
 */
#pragma once

#include "daemon/exchange/exchange.h"

/* Ends all leases of a rank, but not those of releases that wait for its GPU. */
void rank_release_all(struct rank *rank);

/* What a message does when it counts; not 0: it is refused, and r is still to be ended. */
int rank_push_now(struct rank *rank, const Zero__Push *push, struct request *r,
                  struct fault *fault);
int rank_norm_now(struct rank *rank, const Zero__Norm *norm, struct request *r,
                  struct fault *fault);
int rank_step_now(struct rank *rank, const Zero__Step *step, struct request *r,
                  struct fault *fault);
/* The attempt, if it is the one that counts, must not end without that gradient. */
void rank_push_refused(struct rank *rank, uint64_t attempt);

/* ---- due.c ---- */

enum due_kind { DUE_RELEASE, DUE_PUSH, DUE_NORM, DUE_STEP };

/* A message that names this event (1 + its number; 0: none) is not to count at once. */
bool due_later(const struct rank *rank, uint32_t event);
/* Has it counted, and its request ended, when its turn has come; m is copied. */
int due_add(struct rank *rank, enum due_kind kind, const ProtobufCMessage *m, uint32_t event,
            struct request *r, struct fault *fault);
/* Is something of the rank's waited for, and for what? */
bool due_waits(const struct rank *rank, struct wait_line *ret);
/* The session has ended: nothing of it counts any more, its leases and its events end. */
void due_drop(struct rank *rank);
