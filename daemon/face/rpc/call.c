/* A session begins; its calls: decodes requests, passes them on by their rows (requests.c) and
 * sends their replies. */
#include "daemon/face/rpc/session.h"

#include <stdlib.h>
#include <sys/pidfd.h>

#include "daemon/floor/base/process.h"
#include "daemon/job/core/progress.h"
#include "daemon/job/recorder/recorder.h"
#include "proto/cleanup.h"

/* ---- replies --------------------------------------------------------------- */

static void reply_ok(struct pending_call *call, Zero__Reply *reply)
{
        struct request *r = &call->request;
        const ProtobufCFieldDescriptor *body = protobuf_c_message_descriptor_get_field(
                &zero__reply__descriptor, call->kind->reply);

        if (call->kind->write) {
                call->kind->write(call, reply);
                return;
        }
        if (body) {
                r->result.message.descriptor = body->descriptor;
                reply->body_case = call->kind->reply;
                reply->hello = &r->result.hello; /* whichever it is */
        }
        session_reply(call->session, reply, &r->fd, r->passes);
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
        const struct rank *rank = call->session->rank;
        struct request *r = &call->request;

        r->traced.group = m->body_case == ZERO__REQUEST__BODY_FETCH  ? m->fetch->group
                          : m->body_case == ZERO__REQUEST__BODY_PUSH ? m->push->group
                                                                     : NO_GROUP;
        r->traced.begun_ns = uv_hrtime();
        if (rank && call->kind->traced) {
                r->traced.what = call->kind->traced - 1;
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

/* Sends a message before the answer. */
static void call_note(struct request *r, Zero__Reply__BodyCase kind, const void *body)
{
        struct pending_call *call = CONTAINER_OF(r, struct pending_call, request);
        Zero__Reply reply = ZERO__REPLY__INIT;

        reply.seq = call->seq;
        reply.body_case = kind;
        reply.hello = (void *)body; /* whichever it is */
        session_reply(call->session, &reply, NULL, 0);
}

/* Tells the client that the call may take longer, so that the client waits longer too. */
static void call_prolong(struct request *r, uint64_t ms)
{
        Zero__Waiting waiting = ZERO__WAITING__INIT;

        waiting.ms = (uint32_t)ms;
        call_note(r, ZERO__REPLY__BODY_WAITING, &waiting);
}

/* Of a rank's many calls one at a time: a rank that computes reads none of it. */
static void call_tell(struct request *r, const struct wait_line *line)
{
        struct session *s = CONTAINER_OF(r, struct pending_call, request)->session;
        uint64_t now = uv_now(s->rpc->x->loop);
        Zero__Waits waits = ZERO__WAITS__INIT;

        if (s->told_ms && now - s->told_ms < REQUEST_TELL_MS / 2)
                return;
        s->told_ms = now;
        waits.who = (char *)line->who;
        waits.what = (char *)line->what;
        call_note(r, ZERO__REPLY__BODY_WAITS, &waits);
}

static void call_noted(struct request *r)
{
        Zero__Noted noted = ZERO__NOTED__INIT;

        call_note(r, ZERO__REPLY__BODY_NOTED, &noted);
}

/* ---- requests ----------------------------------------------------------------- */

/* What comes after the handler: measured, with 65,535 groups, and as much on the coordinator's
 * node.  For each owner: to deal slices of groups with whole tensors (proto/partition.c). */
enum { LAYOUT_GROUP_NS = 4500, LAYOUT_OWNER_NS = 150 };

static void charge_layout(const struct session *s, const Zero__Layout *l)
{
        uint64_t each = LAYOUT_GROUP_NS + LAYOUT_OWNER_NS * s->rpc->x->placement.n_owners;

        budget_worked(&s->user->budget, l ? each * l->n_groups : 0);
}

static int handle(struct pending_call *call, const Zero__Request *m, struct fault *fault)
{
        const struct call_kind *kind = call->kind;
        const struct session *s = call->session;
        struct rank *rank = s->rank;

        if (!s->greeted && m->body_case != ZERO__REQUEST__BODY_HELLO)
                return fault_set(fault, ZERO_EPROTO, "the first request must be hello");
        if (kind->cost == CALL_LAYOUT)
                charge_layout(s, m->body_case == ZERO__REQUEST__BODY_ATTACH ? m->attach->layout
                                                                            : m->compose->part);
        if (s->job && !kind->guests && !job_is_for(s->job, s->uid))
                return fault_set(fault, ZERO_EPERM,
                                 "job '%s' belongs to user %u, whose grant lets user %u follow it "
                                 "and no more: %s is not allowed",
                                 s->job->name, s->job->uid, s->uid, kind->name);
        if (kind->handle)
                return kind->handle(call, m, fault);
        if (!kind->rank && !kind->ordered)
                return fault_set(fault, ZERO_EPROTO, "this daemon does not know the request");
        if (!rank || !rank->admitted)
                return fault_set(fault, ZERO_ENOTATTACHED, "attach as a rank first");
        return kind->rank ? kind->rank(rank, m, &call->request, fault)
                          : ordered_run(rank, kind->ordered, m, &call->request, fault);
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
        call->kind = call_kind(m->body_case);
        call_trace(call, m);
        call->request.finish = call_finish;
        call->request.prolong = s->patient ? call_prolong : NULL;
        call->request.tell = s->protocol >= KEEPS_SLOTS ? call_tell : NULL;
        call->request.noted = s->protocol >= KEEPS_SLOTS ? call_noted : NULL;
        if (s->rank)
                rank_called(s->rank, call->kind->name);
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
