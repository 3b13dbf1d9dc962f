/* Waiting requests: each ends once; at its deadline the text names what it waited for. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>

#include "daemon/job/core/request.h"
#include "proto/cleanup.h"

struct call {
        struct request request;
        uint32_t ends, forgotten, told;
        uint64_t prolonged_ms; /* in all */
        uint64_t until_ms;     /* the awaited rank may come until then */
        int status;
        bool gone;
        char text[480];
        struct call *ends_too;      /* when this one ends */
        struct requests *begins_in; /* a further one, when this one ends */
        struct call *begun;
};

static void finish(struct request *r, int status, const char *text)
{
        struct call *c = CONTAINER_OF(r, struct call, request);

        c->ends++;
        c->status = status;
        c->gone = r->gone;
        snprintf(c->text, sizeof c->text, "%s", text);
        if (c->ends_too)
                request_end(&STEAL(c->ends_too)->request, ZERO_EABORTED, "with another");
        if (c->begins_in)
                request_begin(STEAL(c->begins_in), &c->begun->request, 1000, 0);
}

static void forget(struct request *r)
{
        CONTAINER_OF(r, struct call, request)->forgotten++;
}

static int describe(const struct request *r, struct wait_line *ret)
{
        snprintf(ret->who, sizeof ret->who, "rank 3");
        snprintf(ret->what, sizeof ret->what, "group 'h.2'");
        return ZERO_ELOSTRANK;
}

static void begin(struct requests *all, struct call *c, uint64_t timeout)
{
        *c = (struct call){ .request = { .finish = finish, .forget = forget } };
        request_begin(all, &c->request, 100, timeout);
}

Test(request, a_deadline_ends_it_with_its_description)
{
        struct requests all;
        struct call c;

        requests_init(&all);
        begin(&all, &c, 2500);
        c.request.describe = describe;
        requests_expire(&all, 2599);
        cr_assert_eq(c.ends, 0);
        requests_expire(&all, 2600);
        cr_assert_eq(c.ends, 1);
        cr_assert_eq(c.forgotten, 1);
        cr_assert_eq(c.status, ZERO_ELOSTRANK);
        cr_assert_str_eq(c.text, "no answer within 2.5 s: waiting for rank 3: group 'h.2'");
        cr_assert(list_empty(&all.all));
}

static void prolong(struct request *r, uint64_t ms)
{
        CONTAINER_OF(r, struct call, request)->prolonged_ms += ms;
}

static void tell(struct request *r, const struct wait_line *line)
{
        struct call *c = CONTAINER_OF(r, struct call, request);

        c->told++;
        snprintf(c->text, sizeof c->text, "%s: %s", line->who, line->what);
}

Test(request, who_waits_hears_for_whom_now_and_then)
{
        struct requests all;
        struct call c;

        requests_init(&all);
        begin(&all, &c, 60000);
        c.request.describe = describe;
        c.request.tell = tell;
        requests_expire(&all, 100 + REQUEST_TELL_MS - 1);
        cr_assert_eq(c.told, 0);
        requests_expire(&all, 100 + REQUEST_TELL_MS);
        cr_assert_eq(c.told, 1);
        cr_assert_str_eq(c.text, "rank 3: group 'h.2'");
        requests_expire(&all, 100 + 2 * REQUEST_TELL_MS - 1);
        cr_assert_eq(c.told, 1);
        requests_expire(&all, 100 + 2 * REQUEST_TELL_MS);
        cr_assert_eq(c.told, 2);
        cr_assert_eq(c.ends, 0);
        requests_expire(&all, 60100);
        cr_assert_eq(c.told, 2);
        cr_assert_eq(c.ends, 1);
}

Test(request, who_waits_for_nobody_hears_nothing)
{
        struct requests all;
        struct call c;

        requests_init(&all);
        begin(&all, &c, 60000);
        c.request.tell = tell;
        requests_expire(&all, 30000);
        cr_assert_eq(c.told, 0);
        request_cancel(&c.request);
}

static int describe_late(const struct request *r, struct wait_line *ret)
{
        snprintf(ret->who, sizeof ret->who, "rank 3");
        ret->until_ms = CONTAINER_OF(r, struct call, request)->until_ms;
        return ZERO_EDEADLINE;
}

Test(request, a_wait_for_who_may_come_is_prolonged_by_its_timeout_until_then)
{
        struct requests all;
        struct call c;

        requests_init(&all);
        begin(&all, &c, 1000);
        c.until_ms = 2600;
        c.request.describe = describe_late;
        c.request.prolong = prolong;
        requests_expire(&all, 1100);
        cr_assert_eq(c.prolonged_ms, 1000);
        requests_expire(&all, 2099);
        cr_assert_eq(c.prolonged_ms, 1000);
        requests_expire(&all, 2100);
        cr_assert_eq(c.prolonged_ms, 1500);
        cr_assert_eq(c.ends, 0);
        requests_expire(&all, 2600);
        cr_assert_eq(c.status, ZERO_EDEADLINE);
        cr_assert(strstr(c.text, "2.5 s") && strstr(c.text, "rank 3"), "%s", c.text);
}

Test(request, a_wait_ends_when_who_is_waited_for_is_gone)
{
        struct requests all;
        struct call c;

        requests_init(&all);
        begin(&all, &c, 1000);
        c.until_ms = 100000;
        c.request.describe = describe_late;
        c.request.prolong = prolong;
        requests_expire(&all, 1100);
        c.until_ms = 0;
        requests_expire(&all, 2100);
        cr_assert_eq(c.ends, 1);
}

Test(request, a_callers_own_deadline_is_not_prolonged)
{
        struct requests all;
        struct call c;

        requests_init(&all);
        begin(&all, &c, 1000);
        c.until_ms = 100000;
        c.request.describe = describe_late;
        requests_expire(&all, 1100);
        cr_assert_eq(c.ends, 1);
}

Test(request, a_deadline_without_description_is_just_that)
{
        struct requests all;
        struct call c;

        requests_init(&all);
        begin(&all, &c, 1000);
        requests_expire(&all, 5000);
        cr_assert_eq(c.status, ZERO_EDEADLINE);
        cr_assert(strstr(c.text, "1.0 s"));
}

Test(request, cancelled_it_says_that_nobody_listens)
{
        struct requests all;
        struct call c;

        requests_init(&all);
        begin(&all, &c, 1000);
        request_cancel(&c.request);
        cr_assert(c.gone);
        cr_assert_eq(c.ends, 1);
        cr_assert_eq(c.forgotten, 1);
        requests_expire(&all, 5000);
        cr_assert_eq(c.ends, 1);
}

Test(request, an_end_takes_it_from_where_it_waits)
{
        struct requests all;
        struct list waiting;
        struct call a, b;

        requests_init(&all);
        list_init(&waiting);
        begin(&all, &a, 1000);
        begin(&all, &b, 1000);
        list_insert(&waiting, &a.request.wait);
        list_insert(&waiting, &b.request.wait);
        request_end(&a.request, ZERO_OK, NULL);
        cr_assert_eq(waiting.next, &b.request.wait);
        requests_end_all(&waiting, ZERO_EPEER, "gone");
        cr_assert(list_empty(&waiting) && list_empty(&all.all));
        cr_assert_eq(a.ends + b.ends, 2);
        cr_assert_str_eq(b.text, "gone");
        cr_assert_eq(a.forgotten + b.forgotten, 0);
}

Test(request, one_that_ends_another_at_its_deadline_ends_both_once)
{
        struct requests all;
        struct call a, b, c;

        requests_init(&all);
        begin(&all, &a, 10);
        begin(&all, &b, 10);
        begin(&all, &c, 10);
        a.ends_too = &b;
        requests_expire(&all, 1000);
        cr_assert_eq(a.ends, 1);
        cr_assert_eq(b.ends, 1);
        cr_assert_eq(b.status, ZERO_EABORTED);
        cr_assert_eq(c.ends, 1);
        cr_assert(list_empty(&all.all));
}

Test(request, one_that_ends_the_next_of_a_list_ends_both_once)
{
        struct requests all;
        struct list waiting;
        struct call a, b;

        requests_init(&all);
        list_init(&waiting);
        begin(&all, &a, 10);
        begin(&all, &b, 10);
        list_insert(&waiting, &a.request.wait);
        list_insert(&waiting, &b.request.wait);
        a.ends_too = &b;
        requests_end_all(&waiting, ZERO_EPEER, NULL);
        cr_assert_eq(a.ends, 1);
        cr_assert_eq(b.ends, 1);
        cr_assert_eq(b.status, ZERO_EABORTED);
}

Test(request, one_that_begins_another_does_not_lose_it)
{
        struct requests all;
        struct call a, b = { .request = { .finish = finish } };

        requests_init(&all);
        begin(&all, &a, 10);
        a.begins_in = &all;
        a.begun = &b;
        requests_expire(&all, 1000);
        cr_assert_eq(a.ends, 1);
        cr_assert_eq(b.ends, 1);
        cr_assert(list_empty(&all.all));
}

Test(request, a_long_description_is_cut)
{
        struct requests all;
        struct call c;

        requests_init(&all);
        begin(&all, &c, 10);
        request_end(&c.request, ZERO_EIO, "%0600d", 7);
        cr_assert_eq(strlen(c.text), sizeof c.text - 1);
}

Test(request, a_deadline_waits_for_workers_that_use_the_clients_memory)
{
        struct requests all;
        struct call c;

        requests_init(&all);
        begin(&all, &c, 1000);
        c.request.borrowed = 1;
        requests_expire(&all, 5000);
        cr_assert_eq(c.forgotten, 0);
        c.request.borrowed = 0;
        requests_expire(&all, 5000);
        cr_assert_eq(c.status, ZERO_EDEADLINE);
}
