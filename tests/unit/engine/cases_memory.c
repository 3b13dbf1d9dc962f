/*
 * No allocation that fails ends the daemon, and none loses anything without a word: a life of two
 * nodes goes on, or whoever asked hears why not and asks again, and it ends with the same bits.
 *
 * One life counts from where in the code the daemon allocates.  Then each of these places fails in
 * the first, the middle and the last of its calls, each time in a life, and in a process, of its
 * own.  $TESTS_SHARE=N: each N-th place.
 */
#include <limits.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "cases.h"
#include "check.h"
#include "daemon/cluster/checkpoint/operation.h"
#include "daemon/step/tensors/access.h"
#include "listening.h"
#include "proto/cleanup.h"
#include "tests/support/refusing.h"

enum { TRIES = 20, WAIT_TURNS = 30, LIVES = 4, LIFE_TIMEOUT_MS = 20000 };

/* ---- ranks ---- */

static char last[sizeof ears[0].text];

static bool some_failed(const struct session *s)
{
        bool some = false;

        for (uint32_t r = 0; r < s->training->ranks; r++) {
                CHECK(ears[r].status != ZERO_EDEADLINE, "rank %u: %s", r, ears[r].text);
                if (ears[r].failures)
                        snprintf(last, sizeof last, "%s", ears[r].text);
                some = some || ears[r].failures;
        }
        return some;
}

/* Whoever is told to try again waits a while. */
static void wait_a_while(struct net *net)
{
        for (int i = 0; i < WAIT_TURNS; i++)
                net_turn(net);
}

/* The programs end, or a rank hears of a failure: then all leave, like processes that end by it,
 * and their attempt ends: no rank's place waits for what another one still has to push. */
static void run_or_leave(struct session *s)
{
        uint64_t seed = 1;

        while (!some_failed(s) && trainers_turn(s->trainers, s->training->ranks, &seed))
                ;
        if (some_failed(s)) {
                kill_all(s);
                fabric_cut(s->net.nodes[0].x.fabric, 1, "for a new attempt");
                wait_a_while(&s->net);
        } else
                for (uint32_t r = 0; r < s->training->ranks; r++)
                        forget_program(&s->trainers[r]);
        memset(ears, 0, sizeof ears);
}

static void train(struct session *s, uint64_t version)
{
        for (int tries = 0; tries < TRIES; tries++) {
                if (s->trainers[0].rank && s->trainers[0].rank->job->version == version)
                        return;
                if (s->trainers[0].rank) {
                        session_program(s, (uint32_t)s->trainers[0].rank->job->version + 1);
                } else {
                        net_up(&s->net);
                        for (uint32_t r = 0; r < s->training->ranks; r++)
                                trainer_add(&s->trainers[r], (struct op){ .kind = OP_ATTACH });
                }
                run_or_leave(s);
        }
        CHECK(false, "the ranks do not come to version %llu: %s", (unsigned long long)version,
              last);
}

/* ---- checkpoints ---- */

struct given {
        struct engine *x;
        const char *job;
};

static bool is_over(void *arg)
{
        const struct given *g = arg;
        const struct operation *op = operation_find(g->x, g->job);

        return !op || op->phase == OPERATION_DONE || op->phase == OPERATION_FAILED;
}

/* Gives the order until it is carried out. */
static void carry_out(struct net *net, const char *job, const char *directory,
                      int (*order)(struct engine *, const struct order *, uint64_t *,
                                   struct fault *))
{
        const struct order what = { .job = job, .directory = directory };

        for (int tries = 0; tries < TRIES; tries++) {
                struct given g = { &net->nodes[coordinator_of(&net->nodes[0].x, job)].x, job };
                struct fault fault = { 0 };
                const struct operation *op;
                uint64_t id;

                net_up(net);
                if (order(g.x, &what, &id, &fault)) {
                        wait_a_while(net);
                        continue;
                }
                net_wait(net, is_over, &g, "a checkpoint or a restore");
                op = operation_find(g.x, job);
                if (op && op->phase == OPERATION_DONE)
                        return;
                wait_a_while(net);
        }
        CHECK(false, "job %s: the order is not carried out", job);
}

/* ---- a client that puts ---- */

struct putting {
        struct request request;
        bool done;
        int status;
};

static void put_finish(struct request *r, int status, const char *text)
{
        struct putting *p = CONTAINER_OF(r, struct putting, request);

        p->done = true;
        p->status = status;
}

static bool put_done(void *arg)
{
        return ((struct putting *)arg)->done;
}

static int put_once(struct net *net, struct push_window *window)
{
        struct putting p = { .request = { .finish = put_finish } };
        struct engine *x = &net->nodes[0].x;
        Zero__Access m = ZERO__ACCESS__INIT;
        struct fault fault;
        int r;

        m.plane = ZERO_PLANE_MASTER;
        m.count = 100;
        for (uint32_t i = 0; i < m.count; i++)
                ((float *)window->segment.data)[i] = (float)i;
        request_begin(&x->requests, &p.request, uv_now(x->loop), LIFE_TIMEOUT_MS);
        r = access_start(net_job(net, 0, "zoo"), window, &m, true, LIFE_TIMEOUT_MS, &p.request,
                         &fault);
        if (r)
                request_end(&p.request, r, "%s", fault.text);
        net_wait(net, put_done, &p, "a put");
        CHECK(p.status != ZERO_EDEADLINE);
        return p.status;
}

static void put(struct net *net)
{
        struct push_window *window = NULL;
        struct fault fault;

        for (int tries = 0; tries < TRIES; tries++) {
                net_up(net);
                if (!window && push_window_new(&window, &fault))
                        window = NULL;
                else if (put_once(net, window) == 0)
                        break;
                CHECK(tries + 1 < TRIES);
                wait_a_while(net);
        }
        push_window_unref(window);
}

/* ---- lives ---- */

/* at NULL: counts. */
static struct checksum live(const void *at, unsigned nth)
{
        struct training t = training_default();
        char directory[PATH_MAX];
        struct checksum sum;
        struct session s;

        t.part = 3; /* a life takes half of the time; groups with whole tensors stay divided */
        t.net.mirror = t.norm = t.masks = t.prefetch = true;
        open_listening(&s, &t);
        if (at)
                allocations_refuse(at, nth);
        else
                allocations_count();
        for (uint32_t r = 0; r < t.ranks; r++)
                s.trainers[r].needs.timeout_ms = LIFE_TIMEOUT_MS;
        train(&s, 1);
        snprintf(directory, sizeof directory, "%s/checkpoints", s.net.root);
        carry_out(&s.net, "zoo", directory, checkpoint_order);
        put(&s.net);
        train(&s, 2);
        snprintf(directory, sizeof directory, "%s/checkpoints/zoo-1", s.net.root);
        carry_out(&s.net, "other", directory, restore_order);
        net_checksum(&s.net, "other");
        sum = net_checksum(&s.net, "zoo");
        session_close(&s);
        return sum;
}

/* Lives in processes of their own: they wait more than they work. */
static struct life {
        pid_t process; /* 0: none */
        const void *at;
        unsigned nth;
} lives[LIVES];

static void life_begin(struct life *l, const struct checksum *expected)
{
        struct checksum sum;

        fflush(stdout);
        l->process = fork();
        CHECK(l->process >= 0);
        if (l->process)
                return;
        sum = live(l->at, l->nth);
        CHECK(memcmp(&sum, expected, sizeof sum) == 0, "the bits are others");
        fflush(NULL);
        _exit(0); /* a leak checker waits for threads of the process before the fork */
}

/* Waits for the end of a life; whether it was a good one. */
static bool life_end(void)
{
        int status;
        pid_t process = wait(&status);
        struct life *l = lives;

        CHECK(process > 0);
        while (l->process != process)
                l++;
        l->process = 0;
        if (status == 0)
                return true;
        fprintf(stderr, "status %x: call %u of the allocation before this address fails\n",
                (unsigned)status, l->nth);
        allocations_name(l->at);
        return false;
}

static void any_allocation_may_fail(void)
{
        static struct sites sites;
        struct checksum expected;
        unsigned begun = 0, over = 0, bad = 0;
        const char *share = getenv("TESTS_SHARE");

        allocations_count();
        expected = live(NULL, 0);
        allocations_counted(&sites);
        for (unsigned i = 0; i < sites.n; i += share ? (unsigned)atoi(share) : 1) {
                const unsigned n = sites.site[i].n, nth[] = { 1, (n + 1) / 2, n };

                for (int k = 0; k < 3; k++) {
                        struct life *l = lives;

                        if (k && nth[k] == nth[k - 1])
                                continue;
                        for (; begun - over == LIVES; over++)
                                bad += !life_end();
                        while (l->process)
                                l++;
                        *l = (struct life){ .at = sites.site[i].at, .nth = nth[k] };
                        life_begin(l, &expected);
                        begun++;
                }
        }
        for (; over < begun; over++)
                bad += !life_end();
        printf("  %u places, %u lives\n", sites.n, begun);
        CHECK(sites.n > 100 && bad == 0, "%u of %u lives", bad, begun);
}

const struct test_case memory_cases[] = {
        { "any-allocation-may-fail", any_allocation_may_fail },
        { 0 },
};
