/*
 * A client's call that waits.  It has a deadline and can say what it waits for.  It ends exactly
 * once: completed, expired or cancelled.
 *
 * The session allocates a request; the folder that lets it wait sets describe() and links it.  At
 * its end the request is unlinked everywhere and goes to finish(), which replies (unless the
 * session is gone) and frees it.  Loop thread.
 */
#pragma once

#include "proto/client.pb-c.h"
#include "proto/extents.h"
#include "proto/fault.h"
#include "proto/list.h"

/* Who keeps others waiting, and for what. */
struct wait_line {
        char who[96], what[200];
        uint64_t since_ms; /* loop time of the last sign of progress */
        bool alive;        /* a rank that may still come: worth more than one deadline */
        bool waits;        /* a rank that waits for others itself, and holds up the step */
        uint64_t until_ms; /* loop time when the wait ends at the latest; 0: its deadline */
};

struct job;

enum { REQUEST_TELL_MS = 10000 }; /* until a client is told whom it waits for, and again */

struct requests {
        struct list all;
};

struct request {
        struct list wait;               /* in the list of what it waits for; or alone */
        struct list deadline;           /* in requests.all */
        uint64_t since_ms, deadline_ms; /* loop time */
        uint64_t timeout_ms;
        /* Says who is being waited for, and for what; returns the status for the deadline. */
        int (*describe)(const struct request *r, struct wait_line *ret);
        void *subject;  /* for describe, forget and ended */
        uint32_t group; /* for describe and ended */
        /* Called before an expired or cancelled request ends, so that nobody completes it; may be
         * NULL. */
        void (*forget)(struct request *r);
        void (*ended)(struct request *r, bool ok); /* tells the subject before finish(); or NULL */
        void (*finish)(struct request *r, int status, const char *text);
        /* Moves the deadline on by ms while a living rank is being waited for.  NULL: the caller
         * set the deadline itself, and the wait ends with it. */
        void (*prolong)(struct request *r, uint64_t ms);
        /* Tells the client whom it waits for.  NULL: the client does not know that message. */
        void (*tell)(struct request *r, const struct wait_line *line);
        uint64_t tell_ms; /* loop time of the next */
        /* Tells the client that the GPU event which it named is done, though the answer takes
         * longer. NULL: the client does not know that message. */
        void (*noted)(struct request *r);
        bool gone; /* the session has ended: finish() replies nothing */
        /* Workers that use the client's memory, which is the client's again with the answer: the
         * deadline waits for them. */
        uint32_t borrowed;
        struct {
                const struct job *job;      /* NULL: traces leave the request out */
                uint32_t what, rank, group; /* enum wait_for; group: NO_GROUP if none */
                uint64_t begun_ns;
        } traced;
        bool passes; /* the answer has a descriptor, fd: until finish() returns */
        int fd;
        /* What the answer says if it is OK.  What it points to is there until finish() returns. */
        union {
                ProtobufCMessage message;
                Zero__HelloReply hello;
                Zero__Composed composed;
                Zero__BaseReply base;
                Zero__FetchReply fetch;
                Zero__FollowReply follow;
                Zero__NormReply norm;
                Zero__NormsReply norms;
                Zero__AllReduceReply reduced;
                Zero__StepReply step;
                Zero__QueryReply query;
                struct {
                        const struct extent *extents;
                        uint32_t n;
                        uint64_t skip, first, bytes; /* StashReply has them */
                } stash;
        } result;
};

void requests_init(struct requests *requests);
/* Starts the clock, and links wait to itself. */
void request_begin(struct requests *requests, struct request *r, uint64_t now_ms,
                   uint64_t timeout_ms);
/* Gives the request less time, if that is less. */
void request_shorten(struct request *r, uint64_t timeout_ms);
void request_end(struct request *r, int status, const char *format, ...)
        __attribute__((format(printf, 3, 4)));
/*
 * Tells those who wait, and ends requests past their deadline with ZERO_EDEADLINE and their
 * description.  A request whose description has an until_ms in the future is prolonged by its
 * timeout instead.
 */
void requests_expire(struct requests *requests, uint64_t now_ms);
/* Ends all that wait in a list. */
void requests_end_all(struct list *waiting, int status, const char *text);
/* The session is gone: nothing is replied. */
void request_cancel(struct request *r);
