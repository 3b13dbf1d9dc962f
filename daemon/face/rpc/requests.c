/*
 * Every request that a client can send, with what its work costs others and who bounds that; those
 * of queries are in query.c.  The time of the handler itself is always charged to the user, as it
 * passes (conn.c).
 */
#include "daemon/face/rpc/session.h"
#include "daemon/job/core/progress.h"

/* 0: ends a wait for nobody, so traces leave it out. */
#define TRACED(what) (WAIT_##what + 1)

static const struct call_kind kinds[] = {
        [ZERO__REQUEST__BODY_HELLO] = { "zero_connect", CALL_LOOP },
        [ZERO__REQUEST__BODY_BYE] = { "zero_close", CALL_LOOP },
        [ZERO__REQUEST__BODY_ATTACH] = { "zero_attach", CALL_LAYOUT },
        [ZERO__REQUEST__BODY_COMPOSE] = { "zero_compose", CALL_LAYOUT },
        [ZERO__REQUEST__BODY_OPEN_BASE] = { "zero_base", CALL_DISK },
        [ZERO__REQUEST__BODY_FETCH] = { "zero_fetch", CALL_STEP, TRACED(fetch) },
        [ZERO__REQUEST__BODY_PREFETCH] = { "zero_prefetch", CALL_STEP },
        [ZERO__REQUEST__BODY_RELEASE] = { "zero_release", CALL_STEP },
        [ZERO__REQUEST__BODY_RECLAIM] = { "zero_grad", CALL_STEP },
        [ZERO__REQUEST__BODY_PUSH] = { "zero_push", CALL_STEP, TRACED(push) },
        [ZERO__REQUEST__BODY_NORM] = { "zero_norm", CALL_STEP, TRACED(norm) },
        [ZERO__REQUEST__BODY_ALL_REDUCE] = { "zero_all_reduce", CALL_STEP, TRACED(all_reduce) },
        [ZERO__REQUEST__BODY_AHEAD] = { "zero_ahead", CALL_STEP },
        [ZERO__REQUEST__BODY_STASH] = { "zero_stash_*", CALL_STEP, TRACED(stash) },
        [ZERO__REQUEST__BODY_STEP] = { "zero_step", CALL_STEP, TRACED(step) },
        [ZERO__REQUEST__BODY_PUT] = { "zero_put", CALL_PLANES },
        [ZERO__REQUEST__BODY_GET] = { "zero_get", CALL_PLANES },
        [ZERO__REQUEST__BODY_NORMS] = { "zero_tensor_norms", CALL_PLANES },
        [ZERO__REQUEST__BODY_QUERY] = { "zero_query", CALL_QUERY },
};

const struct call_kind *call_kind(uint32_t body)
{
        static const struct call_kind unknown = { "a request", CALL_UNKNOWN };

        return body < sizeof kinds / sizeof kinds[0] && kinds[body].name ? &kinds[body] : &unknown;
}
