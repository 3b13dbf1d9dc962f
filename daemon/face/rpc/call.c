/* The calls of a session: decodes requests, passes them on and sends their replies. */
#include "daemon/face/rpc/session.h"

#include <stdlib.h>
#include <string.h>
#include <sys/pidfd.h>

#include "daemon/cluster/coordinator/coordinator.h"
#include "daemon/floor/base/log.h"
#include "daemon/floor/base/process.h"
#include "daemon/job/core/progress.h"
#include "daemon/job/recorder/recorder.h"
#include "proto/cleanup.h"

/* ---- replies --------------------------------------------------------------- */

static void reply_stash(struct pending_call *call, Zero__Reply *reply)
{
        const struct request *r = &call->request;
        uint32_t n = r->result.stash.n;
        CLEANUP(cleanup_free) Zero__Extent *extents = calloc(n + 1, sizeof *extents);
        CLEANUP(cleanup_free) Zero__Extent **pointers = calloc(n + 1, sizeof(Zero__Extent *));
        Zero__StashReply stash = ZERO__STASH_REPLY__INIT;

        for (uint32_t i = 0; extents && pointers && i < n; i++) {
                zero__extent__init(&extents[i]);
                extents[i].offset = r->result.stash.extents[i].offset;
                extents[i].bytes = r->result.stash.extents[i].bytes;
                pointers[i] = &extents[i];
        }
        if (extents && pointers) { /* else the client finds the answer too short */
                stash.n_extents = n;
                stash.extents = pointers;
        }
        stash.skip = r->result.stash.skip;
        stash.first = r->result.stash.first;
        stash.bytes = r->result.stash.bytes;
        reply->body_case = ZERO__REPLY__BODY_STASH;
        reply->stash = &stash;
        session_reply(call->session, reply, NULL, 0);
}

static void reply_base(struct pending_call *call, Zero__Reply *reply)
{
        Zero__BaseReply base = ZERO__BASE_REPLY__INIT;

        base.fill = call->request.result.base.fill;
        base.gpu_bytes = call->request.result.base.gpu_bytes;
        reply->body_case = ZERO__REPLY__BODY_OPENED_BASE;
        reply->opened_base = &base;
        session_reply(call->session, reply, &call->request.result.base.fd, 1);
}

static void reply_step(struct pending_call *call, Zero__Reply *reply)
{
        const struct request *r = &call->request;
        Zero__StepReply step = ZERO__STEP_REPLY__INIT;

        step.version = r->result.step.version;
        step.attempt = r->result.step.attempt;
        step.skipped = r->result.step.skipped;
        step.grad_norm = r->result.step.grad_norm;
        step.loss_scale = r->result.step.loss_scale;
        reply->body_case = ZERO__REPLY__BODY_STEP;
        reply->step = &step;
        session_reply(call->session, reply, NULL, 0);
}

static void reply_norms(struct pending_call *call, Zero__Reply *reply)
{
        const struct request *r = &call->request;
        Zero__NormsReply norms = ZERO__NORMS_REPLY__INIT;

        norms.version = r->result.norms.version;
        norms.n_norms = r->result.norms.n;
        norms.norms = (double *)r->result.norms.values;
        reply->body_case = ZERO__REPLY__BODY_NORMS;
        reply->norms = &norms;
        session_reply(call->session, reply, NULL, 0);
}

static void reply_ok(struct pending_call *call, Zero__Reply *reply)
{
        const struct request *r = &call->request;
        Zero__FetchReply fetch = ZERO__FETCH_REPLY__INIT;
        Zero__NormReply norm = ZERO__NORM_REPLY__INIT;
        Zero__AllReduceReply reduced = ZERO__ALL_REDUCE_REPLY__INIT;
        Zero__QueryReply query = ZERO__QUERY_REPLY__INIT;
        Zero__Composed composed = ZERO__COMPOSED__INIT;

        switch (call->kind) {
        case ZERO__REQUEST__BODY_COMPOSE:
                composed.layout = r->result.composed;
                reply->body_case = ZERO__REPLY__BODY_COMPOSED;
                reply->composed = &composed;
                break;
        case ZERO__REQUEST__BODY_ATTACH:
                reply_attach(call, reply);
                return;
        case ZERO__REQUEST__BODY_FETCH:
                fetch.serve = r->result.fetch.serve;
                fetch.offset = r->result.fetch.offset;
                reply->body_case = ZERO__REPLY__BODY_FETCH;
                reply->fetch = &fetch;
                break;
        case ZERO__REQUEST__BODY_NORM:
                norm.norm = r->result.norm.norm;
                norm.finite = r->result.norm.finite;
                reply->body_case = ZERO__REPLY__BODY_NORM;
                reply->norm = &norm;
                break;
        case ZERO__REQUEST__BODY_ALL_REDUCE:
                reduced.n_values = r->result.reduced.n;
                reduced.values = (double *)r->result.reduced.values;
                reply->body_case = ZERO__REPLY__BODY_ALL_REDUCE;
                reply->all_reduce = &reduced;
                break;
        case ZERO__REQUEST__BODY_NORMS:
                reply_norms(call, reply);
                return;
        case ZERO__REQUEST__BODY_STEP:
                reply_step(call, reply);
                return;
        case ZERO__REQUEST__BODY_STASH:
                reply_stash(call, reply);
                return;
        case ZERO__REQUEST__BODY_OPEN_BASE:
                reply_base(call, reply);
                return;
        case ZERO__REQUEST__BODY_QUERY:
                query.json = call->json;
                reply->body_case = ZERO__REPLY__BODY_QUERY;
                reply->query = &query;
                break;
        default:
                break;
        }
        session_reply(call->session, reply, NULL, 0);
}

/* The client replays the step, and needs the number of the new attempt. */
static void reply_aborted(struct pending_call *call, Zero__Reply *reply)
{
        const struct job *job = call->session->rank ? call->session->rank->job : NULL;
        Zero__StepReply step = ZERO__STEP_REPLY__INIT;

        if (job) {
                step.version = job->version;
                step.attempt = job->attempt;
                step.loss_scale = job->last.loss_scale;
                reply->body_case = ZERO__REPLY__BODY_STEP;
                reply->step = &step;
        }
        session_reply(call->session, reply, NULL, 0);
}

static void call_reply(struct pending_call *call, int status, const char *text)
{
        Zero__Reply reply = ZERO__REPLY__INIT;

        reply.seq = call->seq;
        reply.status = (uint32_t)status;
        reply.text = (char *)text;
        if (status == ZERO_OK)
                reply_ok(call, &reply);
        else if (status == ZERO_EABORTED)
                reply_aborted(call, &reply);
        else
                session_reply(call->session, &reply, NULL, 0);
}

static void call_trace(struct pending_call *call, const Zero__Request *m)
{
        const struct call_kind *kind = call_kind(call->kind);
        const struct rank *rank = call->session->rank;
        struct request *r = &call->request;

        r->traced.group = m->body_case == ZERO__REQUEST__BODY_FETCH  ? m->fetch->group
                          : m->body_case == ZERO__REQUEST__BODY_PUSH ? m->push->group
                                                                     : NO_GROUP;
        r->traced.begun_ns = uv_hrtime();
        if (rank && kind->traced) {
                r->traced.what = kind->traced - 1;
                r->traced.rank = rank->rank;
                r->traced.job = rank->job;
        }
}

static void call_finish(struct request *r, int status, const char *text)
{
        struct pending_call *call = CONTAINER_OF(r, struct pending_call, request);
        struct session *s = call->session;

        list_remove(&call->link);
        s->n_pending--;
        if (call->kind == ZERO__REQUEST__BODY_FETCH && s->rank && s->rank->job)
                rank_fetched(s->rank, call->group, status == ZERO_OK);
        /* a call that was refused or lost has waited for nothing */
        if (status == ZERO_OK && r->traced.job && s->rank && s->rank->job)
                job_waited(s->rank->job, r->traced.what, r->traced.rank, r->traced.group,
                           r->traced.begun_ns);
        if (status == ZERO_EDEADLINE && r->traced.job && s->rank && s->rank->job)
                recorder_deadline(s->rank->job, r, text);
        if (!r->gone)
                call_reply(call, status, text);
        if (call->survey)
                user_answered(call->survey, call->large);
        free(call->json);
        free(call);
}

/* Tells the client that the call may take longer, so that the client waits longer too. */
static void call_prolong(struct request *r, uint64_t ms)
{
        struct pending_call *call = CONTAINER_OF(r, struct pending_call, request);
        Zero__Reply reply = ZERO__REPLY__INIT;
        Zero__Waiting waiting = ZERO__WAITING__INIT;

        waiting.ms = (uint32_t)ms;
        reply.seq = call->seq;
        reply.body_case = ZERO__REPLY__BODY_WAITING;
        reply.waiting = &waiting;
        session_reply(call->session, &reply, NULL, 0);
}

/* Of a rank's many calls one at a time: a rank that computes reads none of it. */
static void call_tell(struct request *r, const struct wait_line *line)
{
        struct pending_call *call = CONTAINER_OF(r, struct pending_call, request);
        struct session *s = call->session;
        uint64_t now = uv_now(s->rpc->x->loop);
        Zero__Reply reply = ZERO__REPLY__INIT;
        Zero__Waits waits = ZERO__WAITS__INIT;

        if (s->told_ms && now - s->told_ms < REQUEST_TELL_MS / 2)
                return;
        s->told_ms = now;
        waits.who = (char *)line->who;
        waits.what = (char *)line->what;
        reply.seq = call->seq;
        reply.body_case = ZERO__REPLY__BODY_WAITS;
        reply.waits = &waits;
        session_reply(s, &reply, NULL, 0);
}

static void call_noted(struct request *r)
{
        struct pending_call *call = CONTAINER_OF(r, struct pending_call, request);
        Zero__Reply reply = ZERO__REPLY__INIT;
        Zero__Noted noted = ZERO__NOTED__INIT;

        reply.seq = call->seq;
        reply.body_case = ZERO__REPLY__BODY_NOTED;
        reply.noted = &noted;
        session_reply(call->session, &reply, NULL, 0);
}

/* ---- requests ----------------------------------------------------------------- */

static int handle_hello(struct pending_call *call, const Zero__Hello *m, struct fault *fault)
{
        struct session *s = call->session;
        Zero__Reply reply = ZERO__REPLY__INIT;
        Zero__HelloReply hello = ZERO__HELLO_REPLY__INIT;
        struct engine *x = s->rpc->x;
        const uint32_t newest = ZERO__HELLO__PROTOCOL__VERSION,
                       oldest = ZERO__HELLO__PROTOCOL__OLDEST,
                       client_oldest = m->oldest ? m->oldest : m->protocol;

        hello.protocol = m->protocol < newest ? m->protocol : newest;
        if (hello.protocol < oldest || hello.protocol < client_oldest)
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
        s->protocol = hello.protocol;
        s->greeted = true;
        conn_limit(s->conn, FRAMES_MAX);
        hello.node = (char *)node_name(x, x->cluster->self);
        hello.version = (char *)ZEROD_VERSION;
        hello.timeout_ms = (uint32_t)s->timeout_ms;
        reply.seq = call->seq;
        reply.body_case = ZERO__REPLY__BODY_HELLO;
        reply.hello = &hello;
        session_reply(s, &reply, NULL, 0);
        call->request.gone = true;
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

static int handle_access(struct pending_call *call, const Zero__Access *m, bool put,
                         struct fault *fault)
{
        struct push_window *window;
        struct job *job = session_job(call->session, &window, fault);

        return job ? access_start(job, window, m, put, call->session->timeout_ms, &call->request,
                                  fault)
                   : fault->status;
}

/* Gradients are a rank's to ask for: an observer knows no attempt. */
static int handle_norms(struct pending_call *call, const Zero__Norms *m, struct fault *fault)
{
        struct rank *rank = call->session->rank;
        struct push_window *window;
        struct job *job;

        if (m->plane == ZERO_PLANE_GRAD && rank && rank->admitted)
                return rank_norms(rank, m, &call->request, fault);
        if (m->plane == ZERO_PLANE_GRAD)
                return fault_set(fault, ZERO_EPERM,
                                 "gradients are of a step, and an observer takes no part in it: a "
                                 "rank asks for their norms");
        job = session_job(call->session, &window, fault);
        return job ? norms_start(job, window, m, call->session->timeout_ms, &call->request, fault)
                   : fault->status;
}

static int handle_compose(struct pending_call *call, const Zero__Compose *m, struct fault *fault)
{
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

/* Requests of an attached rank. */
static int handle_rank(struct pending_call *call, const Zero__Request *m, struct fault *fault)
{
        struct rank *rank = call->session->rank;
        int r;

        if (!rank || !rank->admitted)
                return fault_set(fault, ZERO_ENOTATTACHED, "attach as a rank first");
        switch (m->body_case) {
        case ZERO__REQUEST__BODY_FETCH:
                call->group = m->fetch->group;
                r = rank_fetch(rank, m->fetch, &call->request, fault);
                if (r)
                        call->kind = ZERO__REQUEST__BODY__NOT_SET; /* as if it had never asked */
                return r;
        case ZERO__REQUEST__BODY_PREFETCH:
                rank_prefetch(rank, m->prefetch->group, m->prefetch->version);
                request_end(&call->request, ZERO_OK, NULL);
                return 0;
        case ZERO__REQUEST__BODY_RELEASE:
                return rank_release(rank, m->release, &call->request, fault);
        case ZERO__REQUEST__BODY_PUSH:
                return rank_push(rank, m->push, &call->request, fault);
        case ZERO__REQUEST__BODY_RECLAIM:
                return rank_reclaim(rank, m->reclaim, &call->request, fault);
        case ZERO__REQUEST__BODY_NORM:
                return rank_norm(rank, m->norm, &call->request, fault);
        case ZERO__REQUEST__BODY_ALL_REDUCE:
                return rank_all_reduce(rank, m->all_reduce, &call->request, fault);
        case ZERO__REQUEST__BODY_AHEAD:
                return rank_ahead(rank, m->ahead, &call->request, fault);
        case ZERO__REQUEST__BODY_STASH:
                return rank_stash(rank, m->stash, &call->request, fault);
        case ZERO__REQUEST__BODY_STEP:
                return rank_step(rank, m->step, &call->request, fault);
        default:
                return fault_set(fault, ZERO_EPROTO, "this daemon does not know the request");
        }
}

static int handle_base(struct pending_call *call, const Zero__Base *m, struct fault *fault)
{
        struct session *s = call->session;
        uint32_t place = 0;
        int r = m->gpu.len ? place_of_uuid(&m->gpu, &place, fault) : 0;

        return r ? r
                 : base_ask(s->rpc->x, s->uid, (uint32_t)s->pid, m, place, &s->base, &call->request,
                            fault);
}

/* What comes after the handler: measured, with 65,535 groups, and as much on the coordinator's
 * node. */
enum { LAYOUT_GROUP_NS = 4500 };

static void charge_layout(struct user *user, const Zero__Layout *l)
{
        budget_worked(&user->budget, l ? LAYOUT_GROUP_NS * (uint64_t)l->n_groups : 0);
}

static int handle(struct pending_call *call, const Zero__Request *m, struct fault *fault)
{
        if (m->body_case == ZERO__REQUEST__BODY_HELLO)
                return handle_hello(call, m->hello, fault);
        if (!call->session->greeted)
                return fault_set(fault, ZERO_EPROTO, "the first request must be hello");
        switch (m->body_case) {
        case ZERO__REQUEST__BODY_ATTACH:
                charge_layout(call->session->user, m->attach->layout);
                return handle_attach(call, m->attach, fault);
        case ZERO__REQUEST__BODY_COMPOSE:
                charge_layout(call->session->user, m->compose->part);
                return handle_compose(call, m->compose, fault);
        case ZERO__REQUEST__BODY_OPEN_BASE:
                return handle_base(call, m->open_base, fault);
        case ZERO__REQUEST__BODY_PUT:
                return handle_access(call, m->put, true, fault);
        case ZERO__REQUEST__BODY_GET:
                return handle_access(call, m->get, false, fault);
        case ZERO__REQUEST__BODY_NORMS:
                return handle_norms(call, m->norms, fault);
        case ZERO__REQUEST__BODY_BYE:
                call->session->orderly = true;
                if (call->session->rank)
                        rank_finish(call->session->rank, m->bye->finish);
                request_end(&call->request, ZERO_OK, NULL);
                return 0;
        case ZERO__REQUEST__BODY_QUERY:
                return query_start(call, m->query->what, m->query->argument, fault);
        default:
                if (call_kind(m->body_case)->cost == CALL_STEP)
                        return handle_rank(call, m, fault);
                return fault_set(fault, ZERO_EPROTO, "this daemon does not know the request");
        }
}

/* ---- the connection -------------------------------------------------------------- */

/* Two bytes of a message can become a hundred in memory, so memory for a message is limited. */
struct unpacked {
        size_t left;
};

enum { UNPACKED_MAX = 256 << 20 }; /* enough for the largest layout */

static void *unpacked_alloc(void *data, size_t n)
{
        struct unpacked *b = data;

        if (n > b->left)
                return NULL;
        b->left -= n;
        return malloc(n);
}

static void unpacked_free(void *data, void *p)
{
        free(p);
}

static int session_request(void *arg, const uint8_t *p, size_t n)
{
        struct session *s = arg;
        struct unpacked unpacked = { .left = UNPACKED_MAX + 4 * n };
        ProtobufCAllocator allocator = { unpacked_alloc, unpacked_free, &unpacked };
        Zero__Request *m = zero__request__unpack(&allocator, n, p);
        struct pending_call *call = m ? calloc(1, sizeof *call) : NULL;
        struct fault fault = { 0 };
        int r;

        if (!call || s->n_pending >= SESSION_PENDING_MAX) {
                if (m)
                        zero__request__free_unpacked(m, &allocator);
                free(call);
                return !m ? -EPROTO : s->n_pending >= SESSION_PENDING_MAX ? -EDQUOT : -ENOMEM;
        }
        call->session = s;
        call->seq = m->seq;
        call->kind = m->body_case;
        call_trace(call, m);
        call->request.finish = call_finish;
        call->request.prolong = s->patient ? call_prolong : NULL;
        call->request.tell = s->protocol >= KEEPS_SLOTS ? call_tell : NULL;
        call->request.noted = s->protocol >= KEEPS_SLOTS ? call_noted : NULL;
        if (s->rank)
                rank_called(s->rank, call_kind(call->kind)->name);
        list_insert(&s->pending, &call->link);
        s->n_pending++;
        request_begin(&s->rpc->x->requests, &call->request, uv_now(s->rpc->x->loop), s->timeout_ms);
        r = handle(call, m, &fault);
        zero__request__free_unpacked(m, &allocator);
        if (r) /* refused: nobody else ends the call */
                request_end(&call->request, r, "%s", fault.text);
        return !s->greeted ? -EACCES : 0;
}

static int session_start(struct rpc *rpc, int fd, struct user *user, pid_t pid)
{
        struct session *s = calloc(1, sizeof *s);
        struct conn_events events = { .frame = session_request, .ended = session_ended, .arg = s };
        int r;

        if (!s)
                return -ENOMEM;
        s->rpc = rpc;
        s->user = user;
        s->uid = user->uid;
        s->pid = pid;
        s->process_start = process_start((uint32_t)pid);
        s->process = pidfd_open(pid, 0);
        s->began_ms = uv_now(rpc->x->loop);
        s->timeout_ms = rpc->x->conf->wait_ms;
        s->rank_number = -1;
        list_init(&s->pending);
        r = conn_new(&rpc->conns, fd, user->uid, &user->budget, HELLO_BYTES, &events, &s->conn);
        if (r) {
                cleanup_close(&s->process);
                free(s);
                return r;
        }
        list_insert(&rpc->sessions, &s->link);
        return 0;
}

int session_new(struct rpc *rpc, int fd)
{
        uint64_t begin = uv_hrtime();
        struct user *user;
        uid_t uid;
        pid_t pid;
        int r = peer_credentials(fd, &uid, &pid);

        if (!r)
                r = user_enter(&rpc->users, uid, uv_now(rpc->x->loop), &user);
        if (r)
                return r;
        r = session_start(rpc, fd, user, pid);
        budget_worked(&user->budget, PRICE_OTHERS * (uv_hrtime() - begin));
        if (r)
                user_leave(&rpc->users, user);
        return r;
}
