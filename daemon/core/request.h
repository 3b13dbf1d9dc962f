/*
 * A client's call that waits for something: it has a deadline, and it can say
 * what it waits for.  It ends exactly once: completed, expired or cancelled.
 *
 * The session allocates it; whoever makes it wait sets describe and links it.
 * Ending unlinks it everywhere and hands it to finish(), which replies (unless the session
 * is gone) and frees it.  Loop thread.
 */
#pragma once

#include "proto/fault.h"
#include "proto/list.h"

/* Who keeps others waiting, for what. */
struct wait_line {
        char who[96], what[200];
        uint64_t since_ms; /* loop time of its last sign of progress */
        bool alive;        /* a rank that may come yet: it is worth more than one deadline */
        uint64_t
                until_ms; /* loop time: so long the wait may last; 0: no longer than its deadline */
};

struct requests {
        struct list all;
};

struct request {
        struct list wait;               /* where it waits, by what; or alone */
        struct list deadline;           /* in requests.all */
        uint64_t since_ms, deadline_ms; /* loop time */
        uint64_t timeout_ms;
        /* Who is being waited for, and for what; the status it ends with at its deadline. */
        int (*describe)(const struct request *r, struct wait_line *ret);
        void *subject;  /* for describe */
        uint32_t group; /* for describe */
        /* Called before an expired or cancelled request ends, to forget it; may be NULL. */
        void (*forget)(struct request *r);
        void (*finish)(struct request *r, int status, const char *text);
        /* Its deadline moves by so much, as a rank that is alive is waited for.  NULL: the caller
         * set the deadline itself, and no wait outlasts it. */
        void (*prolong)(struct request *r, uint64_t ms);
        bool gone; /* the session has ended: finish() replies nothing */
        union {
                struct {
                        bool serve;
                        uint64_t offset;
                } fetch;
                struct {
                        double norm;
                        bool finite;
                } norm;
                struct {
                        uint64_t version, attempt;
                        bool skipped;
                        double grad_norm, loss_scale;
                } step;
        } result;
};

void requests_init(struct requests *requests);
/* Starts its clock; wait is linked to itself. */
void request_begin(struct requests *requests, struct request *r, uint64_t now_ms,
                   uint64_t timeout_ms);
void request_end(struct request *r, int status, const char *format, ...)
        __attribute__((format(printf, 3, 4)));
/*
 * Ends what is past its deadline with ZERO_EDEADLINE and its description, or prolongs it by its
 * timeout, as long as the description has an until_ms to come.
 */
void requests_expire(struct requests *requests, uint64_t now_ms);
/* Ends all that wait in a list. */
void requests_end_all(struct list *waiting, int status, const char *text);
/* The session is gone: forget it, reply nothing. */
void request_cancel(struct request *r);
