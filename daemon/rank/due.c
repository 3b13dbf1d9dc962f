/*
 * Messages of a rank that count when its GPU has come to a point.
 *
 * The calls of a trainer run ahead of its GPU.  A release, a push and the end of a step name the
 * event that was recorded behind the work which they must not overtake; until that work is done,
 * the message waits here.  Those of one session count in the order in which they came, also such
 * as name no event, so that they mean what they would without a GPU.  Fetches are not among them.
 *
 * A release ends the rank's hold at once, so that it may fetch on, and the lease when it counts.
 *
 * What has not counted at its deadline, or when its attempt ends, never will; but a release goes on
 * waiting without its request, for as long as the session lasts: a slab that may still be read is
 * not filled anew.  Nothing of a session that has ended counts.
 */
#include "daemon/rank/local.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/rank/gpu_wait.h"
#include "proto/cleanup.h"

struct due {
        struct list link; /* rank.due */
        struct rank *rank;
        enum due_kind kind;
        uint32_t event;            /* 1 + its number; 0: there is nothing to wait for, any more */
        bool lost;                 /* its event cannot be looked at any more: never counts */
        bool void_;                /* counts for nothing: here until its event is done */
        struct request *request;   /* NULL: it was ended already */
        ProtobufCMessage *message; /* a copy */
};

/* The one whose turn it is; NULL: none. */
static struct due *due_first(const struct rank *rank)
{
        list_for_each (&rank->due, item) {
                struct due *d = CONTAINER_OF(item, struct due, link);

                if (!d->void_)
                        return d;
        }
        return NULL;
}

bool due_later(const struct rank *rank, uint32_t event)
{
        return event || due_first(rank);
}

bool due_any(const struct rank *rank)
{
        list_for_each (&rank->due, item) {
                const struct due *d = CONTAINER_OF(item, struct due, link);

                if (!d->void_ && d->kind != DUE_RELEASE)
                        return true;
        }
        return false;
}

/* ---- names ---------------------------------------------------------------- */

static uint32_t due_group(const struct due *d)
{
        return d->kind == DUE_RELEASE ? ((const Zero__Release *)d->message)->group
                                      : ((const Zero__Push *)d->message)->group;
}

static void due_name(const struct due *d, struct wait_line *ret)
{
        const struct job *job = d->rank->job;
        bool push = d->kind == DUE_PUSH;

        snprintf(ret->who, sizeof ret->who, "the GPU of rank %u", d->rank->rank);
        if (push || d->kind == DUE_RELEASE)
                snprintf(ret->what, sizeof ret->what, "the work behind its %s of group '%.80s'",
                         push ? "push" : "release", job->layout->groups[due_group(d)].name);
        else
                snprintf(ret->what, sizeof ret->what, "the work behind its step");
}

bool due_waits(const struct rank *rank, struct wait_line *ret)
{
        const struct due *first = due_first(rank);

        if (!first)
                return false;
        list_for_each (&rank->due, item) {
                const struct due *d = CONTAINER_OF(item, struct due, link);

                if (d->event) { /* the GPU has not come further, whether it counts or not */
                        first = d;
                        break;
                }
        }
        due_name(first, ret);
        return true;
}

/* Whatever it waits for itself, the first in the queue is what keeps it. */
static int due_describe(const struct request *r, struct wait_line *ret)
{
        const struct due *d = r->subject;

        due_waits(d->rank, ret);
        return ZERO_EDEADLINE;
}

/* ---- ends ------------------------------------------------------------------- */

static void due_free(struct due *d)
{
        list_remove(&d->link);
        protobuf_c_message_free_unpacked(d->message, NULL);
        free(d);
}

/* The request is not this one's any more. */
static struct request *due_take_request(struct due *d)
{
        struct request *r = STEAL(d->request);

        if (r) {
                r->subject = NULL;
                r->describe = NULL;
                r->forget = NULL;
        }
        return r;
}

/* The request, which was ended, had not counted. */
static void due_void(struct due *d)
{
        if (d->kind == DUE_RELEASE)
                return;
        if (d->kind == DUE_PUSH)
                rank_push_refused(d->rank, ((const Zero__Push *)d->message)->attempt);
        d->void_ = true;
        if (!d->event)
                due_free(d);
}

static void due_forget(struct request *r)
{
        struct due *d = r->subject;

        due_take_request(d);
        due_void(d);
}

static void due_refuse(struct due *d, int status, const char *text)
{
        struct request *r = due_take_request(d);

        due_void(d);
        if (r)
                request_end(r, status, "%s", text);
}

void due_fail(struct rank *rank, int status, const char *text)
{
        list_for_each (&rank->due, item) {
                struct due *d = CONTAINER_OF(item, struct due, link);

                if (d->kind != DUE_RELEASE)
                        due_refuse(d, status, text);
        }
}

static void lease_end(const struct due *d)
{
        if (!d->rank->job->dead) /* else what it held may be gone */
                gather_release(d->rank->gather, due_group(d));
}

void due_drop(struct rank *rank)
{
        struct gpu_events *events = STEAL(rank->gpu_events);

        if (events)
                gpu_waits_drop(rank->x->gpu_waits, events);
        while (!list_empty(&rank->due)) {
                struct due *d = CONTAINER_OF(rank->due.next, struct due, link);

                assert(!d->request); /* the session has ended its requests */
                if (d->kind == DUE_RELEASE)
                        lease_end(d);
                due_free(d);
        }
}

/* ---- counting ------------------------------------------------------------------ */

static int message_count(const struct due *d, struct request *r, struct fault *fault)
{
        switch (d->kind) {
        case DUE_PUSH:
                return rank_push_now(d->rank, (const Zero__Push *)d->message, r, fault);
        case DUE_NORM:
                return rank_norm_now(d->rank, (const Zero__Norm *)d->message, r, fault);
        case DUE_STEP:
                return rank_step_now(d->rank, (const Zero__Step *)d->message, r, fault);
        case DUE_RELEASE:
                break;
        }
        lease_end(d);
        if (r)
                request_end(r, ZERO_OK, NULL);
        return 0;
}

static void due_count(struct due *d)
{
        struct request *r = due_take_request(d);
        struct fault fault = { 0 };
        int status = message_count(d, r, &fault);

        if (status)
                request_end(r, status, "%s", fault.text);
        due_free(d);
}

/* It stays in the queue meanwhile, so that nothing that comes in overtakes it. */
static void due_advance(struct rank *rank)
{
        struct due *d;

        while ((d = due_first(rank)) && !d->event && !d->lost)
                due_count(d);
}

static int due_look(struct due *d, struct fault *fault);

/* The event cannot be looked at: the GPU, or the trainer's part of it, is broken. */
static void due_broken(struct due *d, const char *why)
{
        struct rank *rank = d->rank;
        char text[300];

        snprintf(text, sizeof text, "an event of rank %u cannot be looked at: %s", rank->rank, why);
        d->event = 0;
        d->lost = true;
        if (d->void_)
                due_free(d);
        else
                due_refuse(d, ZERO_EGPU, text);
        due_advance(rank);
}

static void due_waited(void *arg, int status)
{
        struct due *d = arg;
        struct rank *rank = d->rank;
        struct fault fault = { 0 };

        if (status == -ETIMEDOUT) { /* the request's own deadline tells the client */
                if (due_look(d, &fault))
                        due_broken(d, fault.text);
                return;
        }
        if (status) {
                due_broken(d, strerror(-status));
                return;
        }
        d->event = 0;
        if (d->void_)
                due_free(d);
        due_advance(rank);
}

static int due_look(struct due *d, struct fault *fault)
{
        const struct rank *rank = d->rank;

        return gpu_wait(rank->x->gpu_waits, rank->gpu_events, d->event - 1,
                        exchange_now(rank->x) + rank->needs.timeout_ms, due_waited, d, fault);
}

/* ---- coming in ------------------------------------------------------------------- */

static ProtobufCMessage *message_copy(const ProtobufCMessage *m)
{
        size_t n = protobuf_c_message_get_packed_size(m);
        CLEANUP(cleanup_free) uint8_t *packed = malloc(n ? n : 1);

        if (!packed)
                return NULL;
        protobuf_c_message_pack(m, packed);
        return protobuf_c_message_unpack(m->descriptor, NULL, n, packed);
}

int due_add(struct rank *rank, enum due_kind kind, const ProtobufCMessage *m, uint32_t event,
            struct request *r, struct fault *fault)
{
        struct due *d = calloc(1, sizeof *d);
        int status = 0;

        if (event && !rank->gpu_events) {
                free(d);
                return fault_set(fault, ZERO_EINVAL, "the rank has attached without events");
        }
        if (d)
                d->message = message_copy(m);
        if (!d || !d->message) {
                free(d);
                return fault_set(fault, ZERO_ENOMEM, "out of memory");
        }
        d->rank = rank;
        d->kind = kind;
        d->event = event;
        list_insert(&rank->due, &d->link);
        if (event)
                status = due_look(d, fault);
        if (status) {
                due_free(d);
                return status;
        }
        d->request = r;
        r->subject = d;
        r->describe = due_describe;
        r->forget = due_forget;
        return 0;
}
