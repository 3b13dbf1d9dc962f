/* Checksums: who hears one, what it waits for, and what it takes. */
#include <pthread.h>
#include <string.h>

#include "daemon/step/tensors/access.h"
#include "cases.h"
#include "check.h"
#include "proto/cleanup.h"
#include "tests/support/refusing.h"
#include "training.h"

struct asker {
        struct checksum_asker asker;
        struct checksum sum;
        uint32_t done;
};

static void asker_done(struct checksum_asker *a, int status, const struct checksum *sum)
{
        struct asker *asker = CONTAINER_OF(a, struct asker, asker);

        CHECK(status == ZERO_OK);
        asker->sum = *sum;
        asker->done++;
}

static void ask_checksum(struct replica *h, uint64_t version, struct asker *asker)
{
        *asker = (struct asker){ .asker.done = asker_done };
        CHECK(checksum_ask(h, version, &asker->asker) == 0);
}

static uint32_t n_summings(const struct replica *h)
{
        uint32_t n = 0;

        list_for_each (&h->job->x->tensors->summings, item) {
                n++;
        }
        return n;
}

static bool no_summings(void *arg)
{
        return n_summings(arg) == 0;
}

static void pass_put(struct replica *h, uint64_t what)
{
        state_put_begin(h->state);
        state_put_end(h->state, what);
}

/* Whoever asks for values that a checksum already reads hears its result; so does whoever asks
 * while one waits.  A put makes other values. */
static void askers_hear_one_checksum(void)
{
        struct training t = training_default();
        struct session s;
        struct asker askers[50], late[2], waiting[50];
        struct replica *h;

        t.net = (struct net_options){ .nodes = 2, .owners = 1 };
        session_open(&s, &t);
        session_attach(&s);
        h = net_own(net_job(&s.net, 0, "zoo"));
        for (int i = 0; i < 50; i++)
                ask_checksum(h, 0, &askers[i]);
        CHECK(n_summings(h) == 1 && offload_pending(h->job->x->offload) == 1);
        pass_put(h, 1);
        for (int i = 0; i < 2; i++)
                ask_checksum(h, 0, &late[i]);
        CHECK(n_summings(h) == 2);
        pass_put(h, 2);
        h->updating = true;
        for (int i = 0; i < 50; i++)
                ask_checksum(h, i == 25 ? 1 : 0, &waiting[i]);
        CHECK(n_summings(h) == 3 && offload_pending(h->job->x->offload) == 2);
        h->job->version = 1;
        h->updating = false;
        shard_settled(h->job);
        net_wait(&s.net, no_summings, h, "the checksums");
        for (int i = 0; i < 50; i++) {
                CHECK(askers[i].done == 1 && askers[i].sum.version == 0);
                CHECK(waiting[i].done == 1 && waiting[i].sum.version == 1);
                CHECK(memcmp(askers[i].sum.sum, waiting[i].sum.sum, sizeof late[0].sum.sum) == 0);
        }
        CHECK(late[0].done == 1 && late[1].done == 1 && late[0].sum.version == 0);
        h->job->version = 0;
        session_close(&s);
}

struct blocker {
        struct offload_task task;
        pthread_mutex_t gate;
        bool done;
};

static void blocker_run(struct offload_task *task, uint32_t worker)
{
        struct blocker *b = CONTAINER_OF(task, struct blocker, task);

        pthread_mutex_lock(&b->gate);
        pthread_mutex_unlock(&b->gate);
}

static void blocker_done(struct offload_task *task)
{
        CONTAINER_OF(task, struct blocker, task)->done = true;
}

static bool is_through(void *arg)
{
        return ((struct blocker *)arg)->done;
}

/* Keeps the only thread of reads until its gate opens. */
static void block_reads(struct replica *h, struct blocker *b)
{
        *b = (struct blocker){ { .run = blocker_run, .done = blocker_done } };
        CHECK(pthread_mutex_init(&b->gate, NULL) == 0 && pthread_mutex_lock(&b->gate) == 0);
        offload_submit(h->job->x->offload, OFFLOAD_READ, OFFLOAD_NODE, &b->task);
}

static void open_gate(struct session *s, struct blocker *b)
{
        CHECK(pthread_mutex_unlock(&b->gate) == 0);
        net_wait(&s->net, is_through, b, "the thread of reads");
        pthread_mutex_destroy(&b->gate);
}

/* Its first piece is a read.  Others' reads, which come next, then keep their thread for good. */
static void a_checksum_that_an_update_waits_for_waits_for_no_reads(void)
{
        struct training t = training_default();
        struct blocker before, behind;
        struct session s;
        struct asker asker;
        struct replica *h;

        t.net = (struct net_options){ .nodes = 2, .owners = 1, .threads = 1 };
        session_open(&s, &t);
        session_attach(&s);
        h = net_own(net_job(&s.net, 0, "zoo"));
        block_reads(h, &before);
        ask_checksum(h, 0, &asker);
        block_reads(h, &behind);
        h->updating = true;
        open_gate(&s, &before);
        net_wait(&s.net, no_summings, h, "the checksum that the update waits for");
        CHECK(asker.done == 1 && !behind.done);
        open_gate(&s, &behind);
        h->updating = false;
        session_close(&s);
}

static void a_checksum_without_memory_is_refused(void)
{
        struct training t = training_default();
        struct session s;
        struct asker asker = { .asker.done = asker_done };
        struct replica *h;

        t.net = (struct net_options){ .nodes = 2, .owners = 1 };
        session_open(&s, &t);
        session_attach(&s);
        h = net_own(net_job(&s.net, 0, "zoo"));
        allocations_refuse_bytes(1 << 20);
        CHECK(checksum_ask(h, 0, &asker.asker) == ZERO_ENOMEM);
        allocations_refuse_bytes(SIZE_MAX);
        CHECK(n_summings(h) == 0 && !asker.done);
        ask_checksum(h, 0, &asker);
        net_wait(&s.net, no_summings, h, "the checksum");
        CHECK(asker.done == 1);
        session_close(&s);
}

const struct test_case checksum_cases[] = {
        { "askers-hear-one-checksum", askers_hear_one_checksum },
        { "a-checksum-that-an-update-waits-for-waits-for-no-reads",
          a_checksum_that_an_update_waits_for_waits_for_no_reads },
        { "a-checksum-without-memory-is-refused", a_checksum_without_memory_is_refused },
        { 0 },
};
