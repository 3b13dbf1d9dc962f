/* record.h - the store's assertions on changes of a record (store/state.h), for both worlds. */
#pragma once

#include "daemon/job/rules/owner.h"
#include "search.h"

static inline bool record_may(const struct owner_record *from, const struct owner_action *a)
{
        switch (a->kind) {
        case OWNER_ABORT:
                return from->phase != OWNER_DECIDED && a->record.attempt > from->attempt;
        case OWNER_VOTE: /* after attempts that were aborted meanwhile */
                return from->phase != OWNER_DECIDED && a->record.attempt >= from->attempt;
        case OWNER_DECIDE:
                return from->phase == OWNER_PREPARED && a->record.attempt == from->attempt;
        case OWNER_FINISH:
                return from->phase == OWNER_DECIDED && a->record.attempt == from->attempt + 1;
        default:
                return false;
        }
}

/* A violation, unless the action may change the record. */
static inline void record_check(const struct owner_record *from, const struct owner_action *a)
{
        REQUIRE(record_may(from, a),
                "a record of attempt %u, phase %u becomes one of attempt %u, phase %u by action %u",
                (u8)from->attempt, from->phase, (u8)a->record.attempt, a->record.phase, a->kind);
}
