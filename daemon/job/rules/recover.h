/*
 * Where a job stands after nodes were lost: a pure function of its holders' records.
 *
 * A step is decided as soon as all holders have voted, and the decision is a pure function of the
 * votes.  So a decision that one holder has recorded holds for all, and votes that are all recorded
 * lead to the same decision again.  An attempt in which a holder has not voted is void.
 *
 * One copy of each owner's shards is enough.  If the lost copy had not voted in the last attempt,
 * nothing was decided.  To decide now what all others have voted for is as good as to void it.  If
 * it had voted, its vote equals the other copy's, because a step in which two copies differ is
 * refused.  So whichever copies are lost, a decision that was made is the outcome.
 *
 * An attempt that was refused because of a mirror may be decided after one of the two copies is
 * given up.  Then the other copy's vote is the only one.
 */
#pragma once

#include "daemon/job/rules/decide.h"
#include "daemon/job/rules/placement.h"

/* One holder's record. */
struct standing {
        uint64_t version; /* committed steps, including its last decision */
        /* The last decision that the holder knows. */
        uint64_t decided_attempt; /* 0: none */
        struct decision decision;
        uint32_t skipped; /* steps, in all */
        bool done;        /* the decision is carried out */
        bool fresh;       /* no rank has worked on its state, and no client has put anything */
        /* The holder's vote in a later attempt. */
        uint64_t prepared_attempt; /* 0: none */
        struct votes vote;
        struct step_params params;
};

/* The point at which all holders have to arrive. */
struct recovery {
        uint64_t version;         /* after the last decision */
        uint64_t decided_attempt; /* 0: none */
        struct decision decision;
        uint32_t skipped;
};

/* The first owner with no copy of its shards, or NO_OWNER.  standings: as for recover(). */
int32_t recover_lost(const struct standing *const *standings, const struct placement *placement);
/*
 * standings: [holder]; NULL: the holder has none, but each owner has one.  ZERO_ECONFLICT: the
 * record of holder *ret_odd belongs to another run, or *ret_odd is a mirror whose vote differs from
 * its owner's.
 */
int recover(const struct standing *const *standings, const struct placement *placement,
            struct recovery *ret, uint32_t *ret_odd, struct fault *fault);
/*
 * Checks one holder that was away, while the others stand where `now` says.  *ret_behind: the
 * holder has voted for the last decision and has not heard of it.
 */
int recover_one(const struct standing *s, const struct recovery *now, bool *ret_behind,
                struct fault *fault);
