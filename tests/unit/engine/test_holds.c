/* Holds, in front of a window that only counts: never more than the limit, each lease returned
 * once. */
#include "daemon/step/gather/holds.c"

#include <criterion/criterion.h>
#include <stdio.h>

#include "proto/dtype.h"

enum { GROUPS = 7, LIMIT = 3, STEPS = 40000 };

static uint32_t leases[GROUPS]; /* what the window has granted, and not yet got back */

/* What the client has, as this test has told it. */
static struct {
        enum hold of[GROUPS];
        uint32_t late[GROUPS]; /* leases that outlive their holds */
        struct request asks[GROUPS];
        int status; /* of the request that ended last */
} client;

static struct job job;
static enum hold of[GROUPS];
static struct holds holds = { .job = &job, .limit = LIMIT };
static struct requests requests;
static uint64_t seed;

static uint32_t below(uint32_t n)
{
        seed = seed * 6364136223846793005u + 1442695040888963407u;
        return (uint32_t)(seed >> 33) % n;
}

/* ---- the window ---- */

void gather_fetch(struct gather *g, uint32_t group, uint64_t version, struct request *r)
{
        cr_assert_eq(r, &client.asks[group]);
}

void holds_return(const struct holds *h, uint32_t group)
{
        cr_assert_gt(leases[group], 0, "group %u has no lease to return", group);
        leases[group]--;
}

/* ---- the client ---- */

/* A session replies here, so the hold stands by now. */
static void finish(struct request *r, int status, const char *text)
{
        client.status = status;
        cr_assert_eq(holds.of[r->group], status == ZERO_OK ? HOLD_HELD : HOLD_NONE);
}

static uint32_t count(enum hold kind)
{
        uint32_t n = 0;

        for (uint32_t g = 0; g < GROUPS; g++)
                n += client.of[g] == kind;
        return n;
}

static void ended(enum hold kind)
{
        for (uint32_t g = 0; g < GROUPS; g++)
                if (client.of[g] == kind)
                        client.of[g] = HOLD_NONE;
}

/* A client that fetches has heard of aborts. */
static void fetch(uint32_t g)
{
        struct request *r = &client.asks[g];
        struct fault fault;
        int expected;

        ended(HOLD_PAST);
        expected = client.of[g] != HOLD_NONE            ? ZERO_EBUSY
                   : count(HOLD_NONE) <= GROUPS - LIMIT ? ZERO_EHELD
                                                        : 0;
        if (client.of[g] == HOLD_NONE) {
                *r = (struct request){ .finish = finish };
                request_begin(&requests, r, 0, 1);
        }
        cr_assert_eq(holds_fetch(&holds, g, 1, r, &fault), expected);
        if (!expected)
                client.of[g] = HOLD_ASKED;
        else if (expected == ZERO_EHELD)
                list_remove(&r->deadline);
}

static void answered(uint32_t g, bool ok)
{
        if (client.of[g] != HOLD_ASKED)
                return;
        leases[g] += ok;
        request_end(&client.asks[g], ok ? ZERO_OK : ZERO_EABORTED, NULL);
        cr_assert_eq(client.status, ok ? ZERO_OK : ZERO_EABORTED);
        client.of[g] = ok ? HOLD_HELD : HOLD_NONE;
}

/* Ends the hold; the lease ends later, as behind a GPU. */
static void release(uint32_t g)
{
        struct fault fault;

        cr_assert_eq(holds_check(&holds, g, &fault), client.of[g] == HOLD_HELD ? 0 : ZERO_ENOTHELD);
        if (client.of[g] != HOLD_HELD)
                return;
        holds_release(&holds, g);
        client.of[g] = HOLD_NONE;
        client.late[g]++;
}

static void return_late(uint32_t g)
{
        for (; client.late[g]; client.late[g]--)
                holds_return(&holds, g);
}

static void abort_attempt(void)
{
        holds_abort(&holds);
        for (uint32_t g = 0; g < GROUPS; g++)
                if (client.of[g] == HOLD_HELD)
                        client.of[g] = HOLD_PAST;
}

static void release_all(void)
{
        struct fault fault;

        cr_assert_eq(holds_settled(&holds, &fault), count(HOLD_ASKED) ? ZERO_EORDER : 0);
        holds_end(&holds, HOLD_HELD);
        ended(HOLD_HELD);
        ended(HOLD_PAST);
}

static void check(void)
{
        cr_assert_eq(holds.n, GROUPS - count(HOLD_NONE));
        cr_assert_leq(holds.n, LIMIT);
        for (uint32_t g = 0; g < GROUPS; g++) {
                bool leased = client.of[g] == HOLD_HELD || client.of[g] == HOLD_PAST;

                cr_assert_eq(holds.of[g], client.of[g]);
                cr_assert_eq(leases[g], leased + client.late[g]);
        }
}

static void begin(void)
{
        cr_assert_eq(layout_new(&job.layout), 0);
        requests_init(&requests);
        for (uint32_t g = 0; g < GROUPS; g++) {
                char name[8];
                uint32_t index;

                snprintf(name, sizeof name, "g%u", g);
                cr_assert_eq(
                        layout_add_group(job.layout, name, ZERO_FP32, NULL, 0, 0, &index, NULL), 0);
        }
        holds.of = of;
}

/* The client leaves. */
static void end(void)
{
        for (uint32_t g = 0; g < GROUPS; g++) {
                answered(g, false);
                return_late(g);
        }
        release_all();
        for (uint32_t g = 0; g < GROUPS; g++)
                cr_assert_eq(leases[g], 0, "a lease of group %u outlives its client", g);
        layout_free(job.layout);
}

Test(holds, whatever_a_client_does_leases_and_limit_are_right, .init = begin, .fini = end)
{
        for (uint32_t i = 0; i < STEPS; i++) {
                uint32_t g = below(GROUPS), what = below(64);

                if (what < 24)
                        fetch(g);
                else if (what < 44)
                        answered(g, below(4));
                else if (what < 54)
                        release(g);
                else if (what < 60)
                        return_late(g);
                else if (what < 63)
                        abort_attempt();
                else
                        release_all();
                check();
        }
}

Test(holds, a_hold_of_an_aborted_attempt_ends_when_the_client_hears_of_that, .init = begin,
     .fini = end)
{
        fetch(0);
        fetch(1);
        answered(0, true);
        abort_attempt();
        answered(1, true); /* asked before the abort, answered after it */
        cr_assert_eq(leases[0], 1, "the client still computes with the slab");
        release(0);
        fetch(2);
        cr_assert_eq(leases[0], 0);
        cr_assert_eq(leases[1], 1, "an answer of the present attempt stays");
        fetch(0);
        check();
}
