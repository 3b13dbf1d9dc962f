/*
 * Stream order: messages of a rank that take effect when its GPU has reached a point.
 *
 * A trainer's calls run ahead of its GPU.  A release, a push and the end of a step name the event
 * that the client recorded behind the work that they must not overtake.  The message waits here
 * until that work is done.  Messages of one session take effect in the order in which they came,
 * even those that name no event, so that they mean the same as without a GPU.  Fetches are not
 * ordered.
 *
 * A release ends the rank's hold at once, so that the rank can fetch on, and ends the lease when it
 * takes effect.
 *
 * A message that has not taken effect by its deadline, or by the end of its attempt, never does.
 * But a release waits on without its request as long as the session lasts: nobody may refill a slab
 * that the GPU may still read.  After the end of a session none of its messages takes effect.
 */
#include "daemon/step/rank/local.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/step/rank/event_wait.h"
#include "proto/cleanup.h"

struct ordered {
        struct list link; /* rank.ordered */
        struct rank *rank;
        rank_call *call;
        uint32_t event;          /* 1 + its number; 0: nothing to wait for, or no longer */
        bool lost;               /* its event can no longer be polled: it never takes effect */
        bool void_;              /* has no effect, and stays until its event is done */
        struct request *request; /* NULL: the request has ended */
        Zero__Request *message;  /* a copy */
};

static bool ordered_is(const struct ordered *d, Zero__Request__BodyCase kind)
{
        return d->message->body_case == kind;
}

/* Whether it ends with its attempt. */
static bool ordered_of_attempt(const struct ordered *d)
{
        return !ordered_is(d, ZERO__REQUEST__BODY_RELEASE) &&
               !ordered_is(d, ZERO__REQUEST__BODY_STASH);
}

/* The message whose turn it is, or NULL. */
static struct ordered *ordered_first(const struct rank *rank)
{
        list_for_each (&rank->ordered, item) {
                struct ordered *d = CONTAINER_OF(item, struct ordered, link);

                if (!d->void_)
                        return d;
        }
        return NULL;
}

bool ordered_waits(const struct rank *rank, uint32_t event)
{
        return event || ordered_first(rank);
}

bool ordered_uses(const struct rank *rank, const Zero__Stash *stash)
{
        list_for_each (&rank->ordered, item) {
                const struct ordered *d = CONTAINER_OF(item, struct ordered, link);
                const Zero__Stash *m = d->message->stash;

                if (ordered_is(d, ZERO__REQUEST__BODY_STASH) && !d->void_ && m->key == stash->key &&
                    m->attempt == stash->attempt)
                        return true;
        }
        return false;
}

bool ordered_stashes(const struct rank *rank)
{
        list_for_each (&rank->ordered, item) {
                const struct ordered *d = CONTAINER_OF(item, struct ordered, link);

                if (ordered_is(d, ZERO__REQUEST__BODY_STASH) && d->event)
                        return true;
        }
        return false;
}

bool ordered_any(const struct rank *rank)
{
        list_for_each (&rank->ordered, item) {
                const struct ordered *d = CONTAINER_OF(item, struct ordered, link);

                if (!d->void_ && ordered_of_attempt(d))
                        return true;
        }
        return false;
}

/* ---- names ---------------------------------------------------------------- */

static void ordered_name(const struct ordered *d, struct wait_line *ret)
{
        const struct job *job = d->rank->job;
        const Zero__Request *m = d->message;
        bool push = ordered_is(d, ZERO__REQUEST__BODY_PUSH);

        snprintf(ret->who, sizeof ret->who, "the GPU of rank %u", d->rank->rank);
        if (push || ordered_is(d, ZERO__REQUEST__BODY_RELEASE))
                snprintf(ret->what, sizeof ret->what, "the work behind its %s of group '%.80s'",
                         push ? "push" : "release",
                         job->layout->groups[push ? m->push->group : m->release->group].name);
        else if (ordered_is(d, ZERO__REQUEST__BODY_STASH))
                snprintf(ret->what, sizeof ret->what,
                         "the work behind its use of entry %llu of the stash",
                         (unsigned long long)m->stash->key);
        else
                snprintf(ret->what, sizeof ret->what, "the work behind its step");
}

bool ordered_describe_first(const struct rank *rank, struct wait_line *ret)
{
        const struct ordered *first = ordered_first(rank);

        if (!first)
                return false;
        list_for_each (&rank->ordered, item) {
                const struct ordered *d = CONTAINER_OF(item, struct ordered, link);

                if (d->event) { /* the GPU has not reached the event */
                        first = d;
                        break;
                }
        }
        ordered_name(first, ret);
        return true;
}

/* Names the first message of the queue, which holds up all later ones. */
static int ordered_describe(const struct request *r, struct wait_line *ret)
{
        const struct ordered *d = r->subject;

        ordered_describe_first(d->rank, ret);
        return ZERO_EDEADLINE;
}

/* ---- ends ------------------------------------------------------------------- */

static void ordered_free(struct ordered *d)
{
        list_remove(&d->link);
        zero__request__free_unpacked(d->message, NULL);
        free(d);
}

/* Takes the request off the message. */
static struct request *ordered_take_request(struct ordered *d)
{
        struct request *r = STEAL(d->request);

        if (r) {
                r->subject = NULL;
                r->describe = NULL;
                r->forget = NULL;
        }
        return r;
}

/* The request ended before the message took effect. */
static void ordered_void(struct ordered *d)
{
        if (ordered_is(d, ZERO__REQUEST__BODY_RELEASE))
                return;
        if (ordered_is(d, ZERO__REQUEST__BODY_PUSH))
                rank_push_refused(d->rank, d->message->push->attempt);
        d->void_ = true;
        if (!d->event)
                ordered_free(d);
}

static void ordered_forget(struct request *r)
{
        struct ordered *d = r->subject;

        ordered_take_request(d);
        ordered_void(d);
}

static void ordered_refuse(struct ordered *d, int status, const char *text)
{
        struct request *r = ordered_take_request(d);

        ordered_void(d);
        if (r)
                request_end(r, status, "%s", text);
}

void ordered_fail(struct rank *rank, int status, const char *text)
{
        list_for_each (&rank->ordered, item) {
                struct ordered *d = CONTAINER_OF(item, struct ordered, link);

                if (ordered_of_attempt(d))
                        ordered_refuse(d, status, text);
        }
}

void ordered_drop(struct rank *rank)
{
        struct place_events *events = STEAL(rank->stream_events);

        if (events)
                event_waits_drop(rank->x->event_waits, events);
        while (!list_empty(&rank->ordered)) {
                struct ordered *d = CONTAINER_OF(rank->ordered.next, struct ordered, link);

                assert(!d->request); /* the session has ended its requests */
                if (ordered_is(d, ZERO__REQUEST__BODY_RELEASE))
                        lease_end(rank, d->message, NULL, NULL);
                ordered_free(d);
        }
}

/* ---- taking effect ------------------------------------------------------------------ */

static void ordered_take_effect(struct ordered *d)
{
        struct request *r = ordered_take_request(d);
        struct fault fault = { 0 };
        int status = d->call(d->rank, d->message, r, &fault);

        if (status)
                request_end(r, status, "%s", fault.text);
        ordered_free(d);
}

/* A message stays in the queue while it takes effect, so that no new message overtakes it. */
static void ordered_advance(struct rank *rank)
{
        struct ordered *d;

        while ((d = ordered_first(rank)) && !d->event && !d->lost)
                ordered_take_effect(d);
}

static int ordered_look(struct ordered *d, struct fault *fault);

/* The event cannot be polled: the GPU, or the trainer's context on it, is broken. */
static void ordered_broken(struct ordered *d, const char *why)
{
        struct rank *rank = d->rank;
        char text[300];

        snprintf(text, sizeof text, "a GPU event of rank %u cannot be polled: %s", rank->rank, why);
        d->event = 0;
        d->lost = true;
        if (d->void_)
                ordered_free(d);
        else
                ordered_refuse(d, ZERO_EGPU, text);
        ordered_advance(rank);
}

static void ordered_waited(void *arg, int status)
{
        struct ordered *d = arg;
        struct rank *rank = d->rank;
        struct fault fault = { 0 };

        if (status == -ETIMEDOUT) { /* the request's own deadline tells the client */
                if (ordered_look(d, &fault))
                        ordered_broken(d, fault.text);
                return;
        }
        if (status) {
                ordered_broken(d, strerror(-status));
                return;
        }
        d->event = 0;
        if (d->void_)
                ordered_free(d);
        ordered_advance(rank);
}

static int ordered_look(struct ordered *d, struct fault *fault)
{
        const struct rank *rank = d->rank;

        return event_wait(rank->x->event_waits, rank->stream_events, d->event - 1,
                          engine_now(rank->x) + rank->needs.timeout_ms, ordered_waited, d, fault);
}

/* ---- arrival ------------------------------------------------------------------- */

static struct ordered *ordered_new(struct rank *rank, rank_call *call, const Zero__Request *m,
                                   uint32_t event)
{
        struct ordered *d = calloc(1, sizeof *d);
        size_t n = zero__request__get_packed_size(m);
        CLEANUP(cleanup_free) uint8_t *packed = malloc(n ? n : 1);

        if (d && packed)
                d->message = zero__request__unpack(NULL, zero__request__pack(m, packed), packed);
        if (!d || !d->message) {
                free(d);
                return NULL;
        }
        d->rank = rank;
        d->call = call;
        d->event = event;
        list_insert(&rank->ordered, &d->link);
        return d;
}

int ordered_add(struct rank *rank, rank_call *call, const Zero__Request *m, uint32_t event,
                struct request *r, struct fault *fault)
{
        struct ordered *d;
        int status;

        if (event && !rank->stream_events)
                return fault_set(fault, ZERO_EINVAL, "the rank has attached without events");
        d = ordered_new(rank, call, m, event);
        if (!d)
                return fault_set(fault, ZERO_ENOMEM, "out of memory");
        status = event ? ordered_look(d, fault) : 0;
        if (status) {
                ordered_free(d);
                return status;
        }
        d->request = r;
        r->subject = d;
        r->describe = ordered_describe;
        r->forget = ordered_forget;
        return 0;
}

/* 1 + the number of the event that the call names; 0: none. */
static uint32_t event_of(const Zero__Request *m)
{
        return m->body_case == ZERO__REQUEST__BODY_PUSH      ? m->push->event
               : m->body_case == ZERO__REQUEST__BODY_STEP    ? m->step->event
               : m->body_case == ZERO__REQUEST__BODY_RELEASE ? m->release->event
                                                             : 0;
}

int ordered_run(struct rank *rank, rank_call *call, const Zero__Request *m, struct request *r,
                struct fault *fault)
{
        bool push = m->body_case == ZERO__REQUEST__BODY_PUSH;
        int status;

        if (!ordered_waits(rank, event_of(m)))
                return call(rank, m, r, fault);
        status = push ? group_check(rank, m->push->group, fault) : 0; /* it waits by that name */
        if (!status)
                status = ordered_add(rank, call, m, event_of(m), r, fault);
        if (status && push)
                rank_push_refused(rank, m->push->attempt);
        return status;
}
