/*
 * Every request that a client can send: one row and one handler.  A row says what the request's
 * work costs others and who bounds that, who takes it, and what its answer has; the costs of
 * queries are in query.c.  The time of the handler itself is always charged to the user, as it
 * passes (conn.c).
 */
#include "daemon/face/rpc/session.h"

#include <errno.h>
#include <stdlib.h>

#include "daemon/cluster/coordinator/coordinator.h"
#include "daemon/job/core/progress.h"
#include "proto/cleanup.h"

static void reply_stash(struct pending_call *call, Zero__Reply *reply)
{
        const struct request *r = &call->request;
        uint32_t n = r->result.stash.n;
        CLEANUP(cleanup_free) Zero__Extent *extents = calloc(n + 1, sizeof *extents);
        CLEANUP(cleanup_free) Zero__Extent **pointers = calloc(n + 1, sizeof(Zero__Extent *));
        Zero__StashReply stash = ZERO__STASH_REPLY__INIT;

        if (!extents || !pointers) { /* a client would wait for the reply */
                conn_shutdown(call->session->conn, -ENOMEM);
                return;
        }
        for (uint32_t i = 0; i < n; i++) {
                zero__extent__init(&extents[i]);
                extents[i].offset = r->result.stash.extents[i].offset;
                extents[i].bytes = r->result.stash.extents[i].bytes;
                pointers[i] = &extents[i];
        }
        stash.n_extents = n;
        stash.extents = pointers;
        stash.skip = r->result.stash.skip;
        stash.first = r->result.stash.first;
        stash.bytes = r->result.stash.bytes;
        reply->body_case = ZERO__REPLY__BODY_STASH;
        reply->stash = &stash;
        session_reply(call->session, reply, NULL, 0);
}

/* ---- what a session does with a call ------------------------------------------ */

static int handle_hello(struct pending_call *call, const Zero__Request *request,
                        struct fault *fault)
{
        struct session *s = call->session;
        const Zero__Hello *m = request->hello;
        Zero__HelloReply *hello = &call->request.result.hello;
        struct engine *x = s->rpc->x;
        const uint32_t newest = ZERO__HELLO__PROTOCOL__VERSION,
                       oldest = ZERO__HELLO__PROTOCOL__OLDEST,
                       client_oldest = m->oldest ? m->oldest : m->protocol;

        hello->protocol = m->protocol < newest ? m->protocol : newest;
        if (hello->protocol < oldest || hello->protocol < client_oldest)
                return fault_set(fault, ZERO_EVERSION,
                                 "this daemon speaks protocols %u to %u, the client's libzero %u "
                                 "to %u: they may be one release apart",
                                 oldest, newest, client_oldest, m->protocol);
        if (s->greeted)
                return fault_set(fault, ZERO_EORDER, "the session has sent hello already");
        if (m->job[0] && !job_name_valid(m->job))
                return fault_set(
                        fault, ZERO_EINVAL,
                        "a job's name has 1 to %d characters of [A-Za-z0-9._-] and does not begin "
                        "with a dot",
                        ZERO_NAME_MAX);
        snprintf(s->job_name, sizeof s->job_name, "%s", m->job);
        s->rank_number = m->rank;
        s->world_size = m->world_size;
        s->local_world_size = m->local_world_size ? m->local_world_size : m->world_size;
        s->patient = m->timeout_ms == 0;
        s->timeout_ms = s->patient ? x->conf->wait_ms : m->timeout_ms;
        if (s->timeout_ms > SESSION_TIMEOUT_MAX_MS)
                s->timeout_ms = SESSION_TIMEOUT_MAX_MS;
        s->protocol = hello->protocol;
        s->greeted = true;
        conn_limit(s->conn, FRAMES_MAX);
        hello->node = (char *)node_name(x, x->cluster->self);
        hello->version = (char *)ZEROD_VERSION;
        hello->timeout_ms = (uint32_t)s->timeout_ms;
        request_end(&call->request, ZERO_OK, NULL);
        return 0;
}

/* The session's job; NULL: fault says why not. */
static struct job *session_job(const struct session *s, struct push_window **ret_window,
                               struct fault *fault)
{
        struct job *job = s->rank && s->rank->job ? s->rank->job : s->job;

        *ret_window = s->rank && s->rank->job ? s->rank->window : s->window;
        if (!job)
                fault_set(fault, ZERO_ENOTATTACHED, "attach first");
        else if (job->dead)
                fault_set(fault, ZERO_ENOJOB, "job '%s' was dropped", job->name);
        return job && !job->dead ? job : NULL;
}

static int handle_access(struct pending_call *call, const Zero__Request *m, struct fault *fault)
{
        bool put = m->body_case == ZERO__REQUEST__BODY_PUT;
        struct push_window *window;
        struct job *job = session_job(call->session, &window, fault);

        return job ? access_start(job, window, put ? m->put : m->get, put,
                                  call->session->timeout_ms, &call->request, fault)
                   : fault->status;
}

/* Gradients are a rank's to ask for: an observer knows no attempt. */
static int handle_norms(struct pending_call *call, const Zero__Request *m, struct fault *fault)
{
        bool grad = plane_from(m->norms->plane).kind == PLANE_GRAD;
        struct rank *rank = call->session->rank;
        struct push_window *window;
        struct job *job;

        if (grad && rank && rank->admitted)
                return ordered_run(rank, rank_norms, m, &call->request, fault);
        if (grad)
                return fault_set(fault, ZERO_EPERM,
                                 "gradients are of a step, and an observer takes no part in it: a "
                                 "rank asks for their norms");
        job = session_job(call->session, &window, fault);
        return job ? norms_start(job, window, m->norms, call->session->timeout_ms, &call->request,
                                 fault)
                   : fault->status;
}

/* A rank fetches what it reads. */
static int handle_follow(struct pending_call *call, const Zero__Request *m, struct fault *fault)
{
        struct session *s = call->session;
        struct push_window *window;
        struct job *job = session_job(s, &window, fault);

        if (s->rank)
                return fault_set(fault, ZERO_EPERM,
                                 "a rank follows no job: connect as an observer");
        if (m->follow->timeout_ms)
                request_shorten(&call->request, m->follow->timeout_ms);
        s->reader.uid = s->uid;
        s->reader.pid = (uint32_t)s->pid;
        return job ? follow_wait(&s->reader, job, m->follow, &call->request, fault) : fault->status;
}

static int handle_unfollow(struct pending_call *call, const Zero__Request *m, struct fault *fault)
{
        struct push_window *window;

        if (!session_job(call->session, &window, fault) ||
            follow_release(&call->session->reader, m->unfollow->copy, fault))
                return fault->status;
        request_end(&call->request, ZERO_OK, NULL);
        return 0;
}

static int handle_compose(struct pending_call *call, const Zero__Request *request,
                          struct fault *fault)
{
        const Zero__Compose *m = request->compose;
        struct session *s = call->session;
        struct compose_needs needs = { .uid = s->uid,
                                       .rank = (uint32_t)s->rank_number,
                                       .world_size = s->world_size,
                                       .stage = m->stage };

        if (s->job_name[0] == '\0' || s->rank_number < 0)
                return fault_set(fault, ZERO_EINVAL, "only a rank of a job brings a part");
        if (s->rank)
                return fault_set(fault, ZERO_EORDER, "attached already");
        if (refuse_drained(s->rpc->x, fault))
                return fault->status;
        if (!m->part)
                return fault_set(fault, ZERO_EINVAL, "a rank must send its part");
        return compose_start(s->rpc->x, s->job_name, &needs, m->part, &call->request, fault);
}

static int handle_base(struct pending_call *call, const Zero__Request *m, struct fault *fault)
{
        struct session *s = call->session;
        const Zero__Base *base = m->open_base;
        uint32_t place = 0;
        int r = base->gpu.len ? place_of_uuid(&base->gpu, &place, fault) : 0;

        return r ? r
                 : base_ask(s->rpc->x, s->uid, (uint32_t)s->pid, base, place, &s->base,
                            &call->request, fault);
}

/* A query asks for its job by name, whatever the session's. */
static int handle_query(struct pending_call *call, const Zero__Request *m, struct fault *fault)
{
        return query_start(call, m->query->what, m->query->argument, fault);
}

static int handle_bye(struct pending_call *call, const Zero__Request *m, struct fault *fault)
{
        call->session->orderly = true;
        if (call->session->rank)
                rank_finish(call->session->rank, m->bye->finish);
        request_end(&call->request, ZERO_OK, NULL);
        return 0;
}

/* ---- the rows ------------------------------------------------------------------ */

/* 0: ends a wait for nobody, so traces leave it out. */
#define TRACED(what) (WAIT_##what + 1)
#define REPLY(body) .reply = ZERO__REPLY__BODY_##body

static const struct call_kind kinds[] = {
        [ZERO__REQUEST__BODY_HELLO] = { "zero_connect", CALL_LOOP, .handle = handle_hello,
                                        REPLY(HELLO) },
        [ZERO__REQUEST__BODY_BYE] = { "zero_close", CALL_LOOP, .handle = handle_bye,
                                      .guests = true },
        [ZERO__REQUEST__BODY_ATTACH] = { "zero_attach", CALL_LAYOUT, .handle = handle_attach,
                                         .write = reply_attach },
        [ZERO__REQUEST__BODY_COMPOSE] = { "zero_compose", CALL_LAYOUT, .handle = handle_compose,
                                          REPLY(COMPOSED) },
        [ZERO__REQUEST__BODY_OPEN_BASE] = { "zero_base", CALL_DISK, .handle = handle_base,
                                            REPLY(OPENED_BASE) },
        [ZERO__REQUEST__BODY_FETCH] = { "zero_fetch", CALL_STEP, TRACED(fetch), .rank = rank_fetch,
                                        REPLY(FETCH) },
        [ZERO__REQUEST__BODY_PREFETCH] = { "zero_prefetch", CALL_STEP, .rank = rank_prefetch },
        [ZERO__REQUEST__BODY_RELEASE] = { "zero_release", CALL_STEP, .rank = rank_release },
        [ZERO__REQUEST__BODY_RECLAIM] = { "zero_grad", CALL_STEP, .rank = rank_reclaim },
        [ZERO__REQUEST__BODY_PUSH] = { "zero_push", CALL_STEP, TRACED(push), .ordered = rank_push },
        [ZERO__REQUEST__BODY_NORM] = { "zero_norm", CALL_STEP, TRACED(norm), .ordered = rank_norm,
                                       REPLY(NORM) },
        [ZERO__REQUEST__BODY_ALL_REDUCE] = { "zero_all_reduce", CALL_STEP, TRACED(all_reduce),
                                             .rank = rank_all_reduce, REPLY(ALL_REDUCE) },
        [ZERO__REQUEST__BODY_AHEAD] = { "zero_ahead", CALL_STEP, .rank = rank_ahead },
        [ZERO__REQUEST__BODY_STASH] = { "zero_stash_*", CALL_STEP, TRACED(stash),
                                        .rank = rank_stash, .write = reply_stash },
        [ZERO__REQUEST__BODY_STEP] = { "zero_step", CALL_STEP, TRACED(step), .ordered = rank_step,
                                       REPLY(STEP) },
        [ZERO__REQUEST__BODY_PUT] = { "zero_put", CALL_PLANES, .handle = handle_access },
        [ZERO__REQUEST__BODY_GET] = { "zero_get", CALL_PLANES, .handle = handle_access },
        [ZERO__REQUEST__BODY_NORMS] = { "zero_tensor_norms", CALL_PLANES, .handle = handle_norms,
                                        REPLY(NORMS) },
        [ZERO__REQUEST__BODY_FOLLOW] = { "zero_follow", CALL_STEP, .handle = handle_follow,
                                         .guests = true, REPLY(FOLLOW) },
        [ZERO__REQUEST__BODY_UNFOLLOW] = { "zero_unfollow", CALL_STEP, .handle = handle_unfollow,
                                           .guests = true },
        [ZERO__REQUEST__BODY_QUERY] = { "zero_query", CALL_QUERY, .handle = handle_query,
                                        .guests = true, REPLY(QUERY) },
};

const struct call_kind *call_kind(uint32_t body)
{
        static const struct call_kind unknown = { "a request", CALL_UNKNOWN };

        return body < sizeof kinds / sizeof kinds[0] && kinds[body].name ? &kinds[body] : &unknown;
}
