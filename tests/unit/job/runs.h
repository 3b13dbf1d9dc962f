/*
 * Records that a run leaves when its nodes are lost, and where the job stands for an observer who
 * sees all votes and decisions.
 */
#pragma once

#include "daemon/job/rules/recover.h"

enum { OWNERS_MAX = 3, HOLDERS_MAX = 2 * OWNERS_MAX, VERSION = 10 };
enum { VOID_ATTEMPT = 6, ATTEMPT = 7, NEXT_ATTEMPT = 8 };

/* Up to ATTEMPT. */
struct run {
        struct placement placement;
        uint32_t n;  /* holders */
        bool finite; /* whether the gradient of ATTEMPT is finite */
        struct standing before, after;
};
/* How far a holder is. */
enum place { GONE, NOT_VOTED, VOTED_IN_VOID, VOTED, DECIDED, CARRIED_OUT, VOTED_NEXT, PLACES };
typedef void check_places(const struct run *run, const enum place *places);

/* decided: whether there was a step before. */
struct run run_of(uint32_t n_owners, bool mirror, bool finite, bool decided);
struct standing standing_of(const struct run *run, uint32_t holder, enum place place);
/* Calls recover() for holders in these places. */
int recover_places(const struct run *run, const enum place *places, struct recovery *ret,
                   uint32_t *ret_odd);
bool same_recovery(const struct recovery *a, const struct recovery *b);
/* Checks that recover() finds the truth. */
void check_truth(const struct run *run, const enum place *places);

/* Whether the places can occur: once one holder knows the decision, all have voted for it. */
bool can_be(const enum place *places, uint32_t n);
/* Visits all places of holders of which none is gone: those that can occur, or those that cannot.
 */
uint32_t each_place(const struct run *run, bool possible, check_places *check);
/* Two owners, three, and two with mirrors. */
uint32_t each_combination(bool possible, check_places *check);
/* Keeps some of the copies, bit h of left for holder h.  False: an owner has none. */
bool leave(const struct run *run, const enum place *places, uint32_t left, enum place *ret);
/* Checks that such places are refused and that a holder that has not voted is named. */
void check_refused(const struct run *run, const enum place *places);
