/*
 * The conversation: numbered requests out, replies in, in whatever order.
 *
 * Invariants: the client holds at most one reply, the one that a call waits for, and releases
 * it before it unpacks the next.  A slot of the ring is free exactly when its request was
 * answered, or the connection was lost.  A loss is only returned, as CLIENT_LOST: session.c acts on
 * it.
 */
#include "client.h"

#include <errno.h>
#include <string.h>

/* ---- replies ----------------------------------------------------------- */

static Zero__Reply__BodyCase expected_body(Zero__Request__BodyCase what)
{
        switch (what) {
        case ZERO__REQUEST__BODY_HELLO:
                return ZERO__REPLY__BODY_HELLO;
        case ZERO__REQUEST__BODY_ATTACH:
                return ZERO__REPLY__BODY_ATTACH;
        case ZERO__REQUEST__BODY_FETCH:
                return ZERO__REPLY__BODY_FETCH;
        case ZERO__REQUEST__BODY_FOLLOW:
                return ZERO__REPLY__BODY_FOLLOW;
        case ZERO__REQUEST__BODY_NORM:
                return ZERO__REPLY__BODY_NORM;
        case ZERO__REQUEST__BODY_ALL_REDUCE:
                return ZERO__REPLY__BODY_ALL_REDUCE;
        case ZERO__REQUEST__BODY_NORMS:
                return ZERO__REPLY__BODY_NORMS;
        case ZERO__REQUEST__BODY_STEP:
                return ZERO__REPLY__BODY_STEP;
        case ZERO__REQUEST__BODY_STASH:
                return ZERO__REPLY__BODY_STASH;
        case ZERO__REQUEST__BODY_QUERY:
                return ZERO__REPLY__BODY_QUERY;
        case ZERO__REQUEST__BODY_COMPOSE:
                return ZERO__REPLY__BODY_COMPOSED;
        case ZERO__REQUEST__BODY_OPEN_BASE:
                return ZERO__REPLY__BODY_OPENED_BASE;
        default:
                return ZERO__REPLY__BODY__NOT_SET;
        }
}

enum {
        STATUSES = 0
#define X(name, code, text) +1
        ZERO_STATUS_MAP(X)
#undef X
};

static int status_of(const Zero__Reply *reply, struct fault *fault)
{
        if (reply->status == ZERO_OK)
                return ZERO_OK;
        if (reply->status >= STATUSES)
                return fault_set(fault, ZERO_EINTERNAL, "zerod answered with status %u: %s",
                                 (unsigned)reply->status, reply->text);
        return fault_set(fault, (int)reply->status, "%s",
                         reply->text[0] ? reply->text : zero_status_text((int)reply->status));
}

/* The client knows already that this attempt is over. */
static bool is_stale_abort(const struct zero_client *c, const struct pending *p, int status)
{
        return status == ZERO_EABORTED && p->attempt != c->attempt;
}

static void adopt_abort(struct zero_client *c, const Zero__Reply *reply)
{
        const Zero__StepReply *step = NULL;

        if (reply->body_case == ZERO__REPLY__BODY_STEP)
                step = reply->step;
        if (c->groups && !(step && step->attempt <= c->attempt))
                client_new_attempt(c, step);
}

/* Keeps the refusal of a request that nobody waits for, for the next call; an abort goes first. */
static void defer(struct zero_client *c, const struct pending *p, const struct fault *fault)
{
        /* a prefetch is a hint: the fetch will report what hinders it */
        bool hint = p->what == ZERO__REQUEST__BODY_PREFETCH && fault->status != ZERO_EABORTED;

        if (!hint && (c->deferred.status == ZERO_OK || fault->status == ZERO_EABORTED))
                c->deferred = *fault;
}

/* A put may be one of many of a call. */
static void name_tensor(const struct zero_client *c, const struct pending *p, struct fault *fault)
{
        struct fault plain = *fault;

        fault_set(fault, plain.status, "tensor '%.200s': %s", c->layout->tensors[p->tensor].name,
                  plain.text);
}

/* The daemon has read the gradient. */
static void take_slot_back(struct zero_client *c, const struct pending *p)
{
        push_done(&c->push, p->slot);
        if (!c->gpu)
                push_give_back(&c->push, c->session.base + c->transfer_bytes, p->slot,
                               slots_group_bytes(c->layout, p->group, c->needs.grad_dtype));
}

static void take_unwaited(struct zero_client *c, const struct pending *p, const Zero__Reply *reply)
{
        struct fault fault = { 0 };

        if (p->what == ZERO__REQUEST__BODY_PUSH && p->slot != PUSH_NONE)
                take_slot_back(c, p);
        if (status_of(reply, &fault) == ZERO_OK) {
                if (p->what == ZERO__REQUEST__BODY_PUSH && p->attempt == c->attempt)
                        c->groups[p->group].accepted++;
                return;
        }
        if (is_stale_abort(c, p, fault.status))
                return;
        if (fault.status == ZERO_EABORTED)
                adopt_abort(c, reply);
        else if (p->what == ZERO__REQUEST__BODY_PUT)
                name_tensor(c, p, &fault);
        defer(c, p, &fault);
}

static int take_reply(struct zero_client *c)
{
        const Zero__Reply *reply = c->reply;
        struct pending *slot = &c->pending[reply->seq % CLIENT_PENDING], p = *slot;

        if (reply->seq == 0 && reply->status != ZERO_OK) {
                client_shut(c, "%s", reply->text);
                /* a fenced rank learns that once; later calls get ZERO_ECLOSED */
                return reply->status == ZERO_ERANK ? status_of(reply, &c->error) : ZERO_ECLOSED;
        }
        if (reply->seq == 0 || p.seq != reply->seq)
                return client_shut(c, "zerod answered request %llu, which was not made",
                                   (unsigned long long)reply->seq);
        if (reply->body_case == ZERO__REPLY__BODY_WAITING) {
                c->granted_ms = wire_now() + reply->waiting->ms + CLIENT_GRACE_MS;
                client_forget_reply(c);
                return 0;
        }
        if (reply->body_case == ZERO__REPLY__BODY_WAITS) {
                client_tell(c, reply->waits->who, reply->waits->what);
                client_forget_reply(c);
                return 0;
        }
        if (reply->body_case == ZERO__REPLY__BODY_NOTED) {
                gpu_answered(c->gpu, p.event);
                slot->event = 0;
                client_forget_reply(c);
                return 0;
        }
        if (reply->status == ZERO_OK && reply->body_case != expected_body(p.what))
                return client_shut(c, "zerod's answer does not fit the request");
        if (reply->status == ZERO_ECLOSED)
                return client_lose(c, "%s", reply->text[0] ? reply->text : "the daemon stops");
        slot->seq = 0;
        gpu_answered(c->gpu, p.event);
        if (p.seq == c->call_seq) {
                c->call_seq = 0;
                return 0;
        }
        take_unwaited(c, &p, reply);
        client_forget_reply(c);
        return 0;
}

/* The daemon closed its end of the socket, or a system call failed. */
static int failed(struct zero_client *c, int error, const char *what)
{
        if (error == -EPIPE || error == -ECONNRESET)
                return client_lose(c, "zerod ended the connection");
        if (error == -ECANCELED)
                return client_shut(c, "a call was interrupted");
        return client_shut(c, "%s: %s", what, strerror(-error));
}

/* Takes in the frames that are in the buffer, up to the reply that the call waits for. */
static int take_frames(struct zero_client *c)
{
        const uint8_t *payload;
        size_t size;
        int r = 0;

        while (!c->reply && (r = wire_next(&c->wire, &payload, &size)) == 1) {
                c->reply = zero__reply__unpack(&c->arena.allocator, size, payload);
                if (!c->reply)
                        return client_shut(c, "zerod sent a message that cannot be decoded");
                r = take_reply(c);
                if (r)
                        return r;
        }
        if (r == -EMSGSIZE)
                return client_shut(c, "zerod announced a message above the size limit");
        return r < 0 ? client_shut(c, "receiving: %s", strerror(-r)) : 0;
}

static int read_frames(struct zero_client *c, bool *ret_more)
{
        int r = wire_read(&c->wire);

        *ret_more = r == 0;
        return r < 0 ? failed(c, r, "receiving") : take_frames(c);
}

int client_poll(struct zero_client *c)
{
        bool more = true;
        int r = take_frames(c);

        while (r == 0 && more && !c->reply)
                r = read_frames(c, &more);
        return r;
}

/* The daemon may have sent the reason before it closed: read that first. */
static int send_failed(struct zero_client *c, int error)
{
        int r = client_poll(c);

        return r ? r : failed(c, error, "sending");
}

int client_pump(struct zero_client *c, int64_t deadline_ms)
{
        int r = client_waiting(
                c, wire_wait(&c->wire, c->interrupt_fd,
                             deadline_ms > c->granted_ms ? deadline_ms : c->granted_ms));

        if (r == -ETIMEDOUT)
                return client_fail(c, ZERO_EDEADLINE, "the daemon did not answer in time");
        if (r < 0)
                return failed(c, r, "waiting");
        r = wire_flush(&c->wire);
        if (r < 0)
                return send_failed(c, r);
        return client_poll(c);
}

/* ---- requests ---------------------------------------------------------- */

/*
 * Gives the connection up when the daemon is past its own deadline.  A rank learns what the daemon
 * did meanwhile when it attaches again; for other clients the connection is closed.
 */
static int pump_or_drop(struct zero_client *c, int64_t deadline_ms)
{
        int r = client_pump(c, deadline_ms);

        if (r == ZERO_EDEADLINE) {
                client_lose(c, "the daemon did not answer within %u ms",
                            (unsigned)(c->timeout_ms + CLIENT_GRACE_MS));
                return client_fail(c, ZERO_EDEADLINE, "%s", c->cause.text);
        }
        return r;
}

static int queue_failed(struct zero_client *c, int error)
{
        if (error == -EMSGSIZE)
                return client_fail(c, ZERO_EINVAL, "the request is larger than %d MiB",
                                   WIRE_FRAME_MAX >> 20);
        return client_fail(c, ZERO_ENOMEM, "out of memory");
}

static int transmit(struct zero_client *c, int64_t deadline_ms)
{
        int r;

        while ((r = wire_flush(&c->wire)) == 1) {
                r = pump_or_drop(c, deadline_ms);
                if (r)
                        return r;
        }
        return r < 0 ? send_failed(c, r) : 0;
}

static uint32_t event_of(const Zero__Request *request)
{
        switch (request->body_case) {
        case ZERO__REQUEST__BODY_RELEASE:
                return request->release->event;
        case ZERO__REQUEST__BODY_PUSH:
                return request->push->event;
        case ZERO__REQUEST__BODY_STEP:
                return request->step->event;
        case ZERO__REQUEST__BODY_STASH:
                return request->stash->event;
        default:
                return 0;
        }
}

/* Where the next request is remembered, by its number.  A push may keep its place until the step
 * ends: numbers pass over it.  NULL: all places are taken. */
static struct pending *next_place(struct zero_client *c)
{
        for (uint32_t i = 1; i <= CLIENT_PENDING; i++) {
                struct pending *p = &c->pending[(c->last_seq + i) % CLIENT_PENDING];

                if (p->seq != 0)
                        continue;
                c->last_seq += i - 1;
                return p;
        }
        return NULL;
}

static int post(struct zero_client *c, Zero__Request *request, uint32_t slot, int64_t deadline_ms)
{
        struct pending *p;
        int r;

        while (!(p = next_place(c))) {
                r = pump_or_drop(c, deadline_ms);
                if (r)
                        return r;
        }
        request->seq = c->last_seq + 1;
        r = wire_queue(&c->wire, &request->base);
        if (r < 0)
                return queue_failed(c, r);
        c->last_seq++;
        *p = (struct pending){
                .seq = request->seq,
                .attempt = c->attempt,
                .what = request->body_case,
                .slot = slot,
                .event = event_of(request),
        };
        gpu_name(c->gpu, p->event);
        if (request->body_case == ZERO__REQUEST__BODY_PUSH)
                p->group = request->push->group;
        if (request->body_case == ZERO__REQUEST__BODY_PUT)
                p->tensor = request->put->tensor;
        return 0;
}

int client_send(struct zero_client *c, Zero__Request *request, uint32_t slot)
{
        int64_t deadline_ms = client_deadline(c);
        int r;

        if (c->lost)
                return 0;
        client_forget_reply(c);
        r = post(c, request, slot, deadline_ms);
        if (r == 0)
                r = transmit(c, deadline_ms);
        return r == CLIENT_LOST ? 0 : r;
}

int client_await(struct zero_client *c, uint64_t seq)
{
        int64_t deadline_ms = client_deadline(c);
        int r = 0;

        while (r == 0 && seq != 0 && c->pending[seq % CLIENT_PENDING].seq == seq)
                r = pump_or_drop(c, deadline_ms);
        return r;
}

/*
 * The end of a call: the reply's status.  One call reports an abort, whichever reply brought
 * it; a query is no part of the step and does not report it.
 */
static int settle(struct zero_client *c, Zero__Request__BodyCase what, uint64_t attempt)
{
        int status = status_of(c->reply, &c->error);

        if (c->deferred.status == ZERO_EABORTED && what != ZERO__REQUEST__BODY_QUERY)
                return client_report_deferred(c);
        if (status == ZERO_EABORTED && attempt == c->attempt)
                adopt_abort(c, c->reply);
        return status;
}

int client_ask(struct zero_client *c, Zero__Request *request, const Zero__Reply **ret_reply)
{
        int64_t deadline_ms = client_deadline(c);
        uint64_t attempt = c->attempt;
        int r;

        client_forget_reply(c);
        r = post(c, request, PUSH_NONE, deadline_ms);
        if (r)
                return r;
        c->call_seq = c->last_seq;
        r = transmit(c, deadline_ms);
        while (r == 0 && !c->reply)
                r = pump_or_drop(c, deadline_ms);
        c->call_seq = 0;
        if (r)
                return r;
        r = settle(c, request->body_case, attempt);
        if (r == 0)
                *ret_reply = c->reply;
        return r;
}

/* ---- the beginning of a call ------------------------------------------- */

int client_check_caller(struct zero_client *c)
{
        if (!c)
                return client_missing();
        if (client_forked(c))
                return client_fail(c, ZERO_ECLOSED,
                                   "the connection to zerod is that of process %d, from which this "
                                   "one was forked: zero_connect() makes another one",
                                   (int)c->pid);
        if (c->waits) /* the thread that waits may write the client's error */
                return fault_set(&client_thread_fault, ZERO_EBUSY,
                                 "another thread waits in a call of this client: one thread at a "
                                 "time may use a client, and each thread may have its own");
        return 0;
}

int client_open(struct zero_client *c)
{
        int r = client_check_caller(c);

        if (r)
                return r;
        c->began_ms = wire_now();
        c->granted_ms = c->tell_ms = 0;
        if (c->closed)
                return client_gone(c);
        client_forget_reply(c);
        r = c->lost ? 0 : take_frames(c);
        return r == CLIENT_LOST ? 0 : r;
}
