/*
 * Where a job stands after nodes were lost: a pure function of what its owners' records say.
 *
 * A step is decided as soon as all owners have voted, and the decision is a pure function of the
 * votes; so what one owner has recorded holds for all, and votes that are all recorded are
 * decided again, the same way.  An attempt in which an owner has not voted is void.
 */
#pragma once

#include "daemon/job/decide.h"

/* One owner's record. */
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

/* What all owners have to come to. */
struct recovery {
        uint64_t version;         /* after the last decision */
        uint64_t decided_attempt; /* 0: none */
        struct decision decision;
        uint32_t skipped;
};

/*
 * standings of all owners, in their order.  ZERO_ECONFLICT, which names the owner by its index in
 * *ret_odd: its record is not of the same run as the others'.
 */
int recover(const struct standing *const *standings, uint32_t n, struct recovery *ret,
            uint32_t *ret_odd, struct fault *fault);
/*
 * One owner that was away, while the others stand where `now` says.  *ret_behind: it voted for
 * the last decision and has not heard of it.
 */
int recover_one(const struct standing *s, const struct recovery *now, bool *ret_behind,
                struct fault *fault);
