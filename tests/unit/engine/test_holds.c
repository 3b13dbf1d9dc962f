/* Holds, in front of a window that only counts: never more than the limit, each lease returned
 * once. */
#include "daemon/step/gather/holds.c"

#include <criterion/criterion.h>
#include <stdio.h>

#include "proto/dtype.h"

enum { GROUPS = 7, LIMIT = 3, STEPS = 40000 };

static struct {
        uint32_t clients, leases[GROUPS];
        bool full;
} window;

/* What the client has, as this test has told it. */
static struct {
        enum hold of[GROUPS];
        uint32_t late[GROUPS]; /* leases that outlive their holds */
        struct request asks[GROUPS];
        int status; /* of the request that ended last */
} client;

static struct job job;
static struct holds holds;
static struct requests requests;
static uint64_t seed;

static uint32_t below(uint32_t n)
{
        seed = seed * 6364136223846793005u + 1442695040888963407u;
        return (uint32_t)(seed >> 33) % n;
}

/* ---- the window ---- */

int gather_admit(struct holds *h, uint32_t place, uint32_t n_local, struct fault *fault)
{
        if (window.full)
                return fault_set(fault, ZERO_EWINDOW, "full");
        window.clients++;
        return 0;
}

void gather_leave(const struct holds *h)
{
        window.clients--;
}

void gather_fetch(struct gather *g, uint32_t group, uint64_t version, struct request *r)
{
        cr_assert_eq(r, &client.asks[group]);
}

void holds_return(const struct holds *h, uint32_t group)
{
        cr_assert_gt(window.leases[group], 0, "group %u has no lease to return", group);
        window.leases[group]--;
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

static void fetch(uint32_t g)
{
        struct request *r = &client.asks[g];
        int expected = client.of[g] != HOLD_NONE            ? ZERO_EBUSY
                       : count(HOLD_NONE) <= GROUPS - LIMIT ? ZERO_EHELD
                                                            : 0;
        struct fault fault;

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
        window.leases[g] += ok;
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

static void hear(void)
{
        holds_aware(&holds);
        ended(HOLD_PAST);
}

static void release_all(void)
{
        struct fault fault;

        cr_assert_eq(holds_settled(&holds, &fault), count(HOLD_ASKED) ? ZERO_EORDER : 0);
        holds_release_all(&holds);
        ended(HOLD_HELD);
        ended(HOLD_PAST);
}

static void admit(void)
{
        struct fault fault;

        cr_assert_eq(holds_admit(&holds, &job, 0, LIMIT, 1, &fault), 0);
}

static void leave(void)
{
        for (uint32_t g = 0; g < GROUPS; g++) {
                answered(g, false);
                return_late(g);
        }
        holds_leave(&holds);
        cr_assert_eq(window.clients, 0);
        ended(HOLD_HELD);
        ended(HOLD_PAST);
        for (uint32_t g = 0; g < GROUPS; g++)
                cr_assert_eq(window.leases[g], 0, "a lease of group %u outlives its client", g);
}

static void check(void)
{
        cr_assert_eq(holds.n, GROUPS - count(HOLD_NONE));
        cr_assert_leq(holds.n, LIMIT);
        for (uint32_t g = 0; g < GROUPS; g++) {
                bool leased = client.of[g] == HOLD_HELD || client.of[g] == HOLD_PAST;

                cr_assert_eq(holds.of[g], client.of[g]);
                cr_assert_eq(window.leases[g], leased + client.late[g]);
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
        admit();
}

static void end(void)
{
        leave();
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
                else if (what < 58)
                        return_late(g);
                else if (what < 60)
                        abort_attempt();
                else if (what < 62)
                        hear();
                else if (what < 63)
                        release_all();
                else
                        leave(), admit();
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
        cr_assert_eq(window.leases[0], 1, "the client still computes with the slab");
        fetch(0);
        release(0);
        hear();
        cr_assert_eq(window.leases[0], 0);
        cr_assert_eq(window.leases[1], 1, "an answer of the present attempt stays");
        fetch(0);
        check();
}

Test(holds, a_client_without_room_is_in_no_window, .init = begin, .fini = end)
{
        struct holds other = { .job = NULL };
        struct fault fault;

        window.full = true;
        cr_assert_eq(holds_admit(&other, &job, 0, LIMIT, 1, &fault), ZERO_EWINDOW);
        cr_assert(!other.job && !other.of);
        holds_leave(&other);
        cr_assert_eq(window.clients, 1);
}
