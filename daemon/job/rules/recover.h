/*
 * Where a job stands after nodes were lost: a pure function of its holders' records.
 *
 * A step is decided as soon as all holders have voted, and the decision is a pure function of the
 * votes.  So a decision that one holder has recorded holds for all, and votes that are all recorded
 * lead to the same decision again.  An attempt in which a holder has not voted is void.
 *
 * One copy of each owner's shards is enough.  If the lost copy's record had no vote in the last
 * attempt, nothing was decided, and deciding now what all others have voted for is as good as
 * voiding it.  If it had a vote, the vote equals the other copy's, because a step in which two
 * copies differ is refused.  So whichever copies are lost, the outcome is the decision that was
 * made, if one was.  An attempt that was refused because of a mirror may be decided after one of
 * the two copies is given up: then the other's vote is the only one.
 */
#pragma once

#include "daemon/job/rules/decide.h"
#include "daemon/job/rules/placement.h"

/* One holder's record. */
struct standing {
        uint64_t version; /* committed steps, including its last decision */
        /* The last decision that it knows. */
        uint64_t decided_attempt; /* 0: none */
        struct decision decision;
        uint32_t skipped; /* steps, in all */
        bool done;        /* it has carried the decision out */
        bool fresh;       /* no rank has worked on its state, and no client has put anything */
        /* Its vote in a later attempt. */
        uint64_t prepared_attempt; /* 0: none */
        struct votes vote;
        struct step_params params;
};

/* Where all holders have to get. */
struct recovery {
        uint64_t version;         /* after the last decision */
        uint64_t decided_attempt; /* 0: none */
        struct decision decision;
        uint32_t skipped;
};

/* The first owner with no copy of its shards, or NO_OWNER. standings: as in recover(). */
int32_t recover_lost(const struct standing *const *standings, const struct placement *placement);
/*
 * standings: [holder]; NULL: it has none, but each owner has one.  ZERO_ECONFLICT, with the holder
 * in *ret_odd: its record is of another run than the others', or its vote differs from its owner's
 * (then *ret_odd is the mirror).
 */
int recover(const struct standing *const *standings, const struct placement *placement,
            struct recovery *ret, uint32_t *ret_odd, struct fault *fault);
/*
 * Checks one holder that was away, while the others stand where `now` says.  *ret_behind: it has
 * voted for the last decision and not heard of it.
 */
int recover_one(const struct standing *s, const struct recovery *now, bool *ret_behind,
                struct fault *fault);
