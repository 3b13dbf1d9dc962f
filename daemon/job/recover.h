/*
 * Where a job stands after nodes were lost: a pure function of what its holders' records say.
 *
 * A step is decided as soon as all holders have voted, and the decision is a pure function of the
 * votes; so what one holder has recorded holds for all, and votes that are all recorded are
 * decided again, the same way.  An attempt in which a holder has not voted is void.
 *
 * One copy of each owner's shards is enough.  The record of a copy that is gone had either no vote
 * in the last attempt: then nothing was decided, and deciding now what all the others have
 * voted for is as good as voiding it.  Or it had its vote: then it was that of its twin, for a
 * step in which twins differ is refused and not decided.  So with any copies gone the decision is
 * the one that was made, if one was.  An attempt that was refused because of a mirror may be
 * decided when one of the two copies was given up: the vote of the other is then the only one.
 */
#pragma once

#include "daemon/job/decide.h"
#include "daemon/job/placement.h"

/* One holder's record. */
struct standing {
        uint64_t version; /* committed steps, those of its last decision included */
        /* The last decision it knows. */
        uint64_t decided_attempt; /* 0: none */
        struct decision decision;
        uint32_t skipped; /* steps, in all */
        bool done;        /* it has carried the decision out */
        /* Its vote in a later attempt. */
        uint64_t prepared_attempt; /* 0: none */
        struct votes vote;
        struct step_params params;
};

/* What all holders have to come to. */
struct recovery {
        uint64_t version;         /* after the last decision */
        uint64_t decided_attempt; /* 0: none */
        struct decision decision;
        uint32_t skipped;
};

/* The first owner of whose shards no copy is there, or NO_OWNER.  standings: as in recover(). */
int32_t recover_lost(const struct standing *const *standings, const struct placement *view);
/*
 * standings: [holder]; NULL where it has none, but one of each owner.  ZERO_ECONFLICT, which names
 * the holder in *ret_odd: its record is not of the same run as the others', or has another vote
 * than its owner's (then it is the mirror that is named).
 */
int recover(const struct standing *const *standings, const struct placement *view,
            struct recovery *ret, uint32_t *ret_odd, struct fault *fault);
/*
 * One holder that was away, while the others stand where `now` says.  *ret_behind: it voted for
 * the last decision and has not heard of it.
 */
int recover_one(const struct standing *s, const struct recovery *now, bool *ret_behind,
                struct fault *fault);
