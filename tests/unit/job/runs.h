/*
 * Records that a run leaves when its nodes are lost, and where it stands for one who sees all that
 * was voted and decided.
 */
#pragma once

#include "daemon/job/recover.h"

enum { OWNERS_MAX = 3, HOLDERS_MAX = 2 * OWNERS_MAX, VERSION = 10 };
enum { VOID_ATTEMPT = 6, ATTEMPT = 7, NEXT_ATTEMPT = 8 };

/* Up to ATTEMPT. */
struct run {
        struct placement placement;
        uint32_t n;  /* holders */
        bool finite; /* the gradient of ATTEMPT */
        struct standing before, after;
};
/* How far a holder has come. */
enum place { GONE, NOT_VOTED, VOTED_IN_VOID, VOTED, DECIDED, CARRIED_OUT, VOTED_NEXT, PLACES };
typedef void check_places(const struct run *run, const enum place *places);

/* decided: whether there was a step before. */
struct run run_of(uint32_t n_owners, bool mirror, bool finite, bool decided);
struct standing standing_of(const struct run *run, uint32_t holder, enum place place);
/* recover() of holders in these places. */
int recover_places(const struct run *run, const enum place *places, struct recovery *ret,
                   uint32_t *ret_odd);
struct recovery truth(const struct run *run, const enum place *places);
bool same_recovery(const struct recovery *a, const struct recovery *b);
/* recover() finds the truth. */
void check_truth(const struct run *run, const enum place *places);

/* Once one holder knows the decision all have voted for it. */
bool can_be(const enum place *places, uint32_t n);
/* All places of all holders, none of which is gone; those that can be, or those that cannot. */
uint32_t each_place(const struct run *run, bool possible, check_places *check);
/* Two owners, three, and two with mirrors. */
uint32_t each_combination(bool possible, check_places *check);
/* Some of the copies, bit h of left for holder h.  False: not one of each owner. */
bool leave(const struct run *run, const enum place *places, uint32_t left, enum place *ret);
/* Such places are refused, and one that has not voted is named. */
void check_refused(const struct run *run, const enum place *places);
