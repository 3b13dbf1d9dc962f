/* Waiting requests: deadlines and names. */
#include "daemon/job/core/request.h"

#include <stdarg.h>
#include <stdio.h>

#include "proto/cleanup.h"

void requests_init(struct requests *requests)
{
        list_init(&requests->all);
}

void request_begin(struct requests *requests, struct request *r, uint64_t now_ms,
                   uint64_t timeout_ms)
{
        r->since_ms = now_ms;
        r->timeout_ms = timeout_ms;
        r->deadline_ms = now_ms + timeout_ms;
        r->tell_ms = now_ms + REQUEST_TELL_MS;
        list_init(&r->wait);
        list_insert(&requests->all, &r->deadline);
}

void request_shorten(struct request *r, uint64_t timeout_ms)
{
        if (timeout_ms >= r->timeout_ms)
                return;
        r->timeout_ms = timeout_ms;
        r->deadline_ms = r->since_ms + timeout_ms;
}

void request_end(struct request *r, int status, const char *format, ...)
{
        char text[480] = "";

        if (format) {
                va_list arguments;

                va_start(arguments, format);
                vsnprintf(text, sizeof text, format, arguments);
                va_end(arguments);
        }
        list_remove(&r->wait);
        list_remove(&r->deadline);
        if (r->ended)
                r->ended(r, status == ZERO_OK);
        r->finish(r, status, text);
}

static void request_expire(struct request *r, uint64_t now_ms)
{
        struct wait_line line = { .who = "the daemon" };
        int status = r->describe ? r->describe(r, &line) : ZERO_EDEADLINE;

        if (r->prolong && line.until_ms > now_ms) {
                uint64_t left = line.until_ms - now_ms;
                uint64_t ms = left < r->timeout_ms ? left : r->timeout_ms;

                r->deadline_ms = now_ms + ms;
                r->prolong(r, ms);
                return;
        }
        if (r->forget)
                r->forget(r);
        request_end(r, status, "no answer within %.1f s: waiting for %s%s%s",
                    (double)(r->deadline_ms - r->since_ms) / 1000, line.who,
                    line.what[0] ? ": " : "", line.what);
}

static void request_tell(struct request *r, uint64_t now_ms)
{
        struct wait_line line = { .who = "" };

        r->tell_ms = now_ms + REQUEST_TELL_MS;
        if (r->describe)
                r->describe(r, &line);
        if (line.who[0])
                r->tell(r, &line);
}

/* Ending a request may end others, but never the mark, which stands behind the requests already
 * looked at. */
void requests_expire(struct requests *requests, uint64_t now_ms)
{
        struct request mark = { .deadline_ms = UINT64_MAX };

        list_insert(requests->all.next, &mark.deadline);
        while (mark.deadline.next != &requests->all) {
                struct request *r = CONTAINER_OF(mark.deadline.next, struct request, deadline);

                list_remove(&mark.deadline);
                list_insert(r->deadline.next, &mark.deadline);
                if (r->deadline_ms <= now_ms && !r->borrowed)
                        request_expire(r, now_ms);
                else if (r->tell && r->tell_ms <= now_ms)
                        request_tell(r, now_ms);
        }
        list_remove(&mark.deadline);
}

void requests_end_all(struct list *waiting, int status, const char *text)
{
        struct list ending; /* an end may let a new request wait */

        list_init(&ending);
        while (!list_empty(waiting)) {
                struct list *item = waiting->next;

                list_remove(item);
                list_insert(&ending, item);
        }
        while (!list_empty(&ending))
                request_end(CONTAINER_OF(ending.next, struct request, wait), status, "%s",
                            text ? text : "");
}

void request_cancel(struct request *r)
{
        r->gone = true;
        if (r->forget)
                r->forget(r);
        request_end(r, ZERO_ECLOSED, NULL);
}
