/* Gradients and sums that travel in parts, between host memory and GPUs. */
#include <errno.h>
#include <string.h>

#include "cases.h"
#include "check.h"
#include "daemon/step/reduce/accumulator.h"
#include "daemon/step/reduce/node_gradient.h"
#include "listening.h"
#include "proto/cleanup.h"
#include "stream.h"

enum {
        BOTH = 3,
        TINY_PARTS = 1024,                   /* many more than may be in flight */
        SMALL_PARTS = 16 << 10,              /* no path takes them from a GPU */
        LARGE_PARTS = BULK_AWAY_MIN + 32768, /* this one does */
};

static void same_in_parts_of(struct training t, uint32_t bytes, const char *what)
{
        struct outcome whole = training_run(&t), o;

        t.net.part_bytes = bytes;
        t.net.delay_ms = 1;
        t.seed = 5;
        o = training_run(&t);
        outcome_same(&whole, &o, what);
}

static void parts_of_any_size(void)
{
        struct training t = training_default();

        same_in_parts_of(t, SMALL_PARTS, "small parts");
        t.net.mirror = true;
        t.masks = t.uneven = true;
        same_in_parts_of(t, LARGE_PARTS, "large parts, mirrored");
        t.net.nodes = t.net.owners = 3;
        t.grad_dtype = t.reduce_dtype = ZERO_BF16;
        t.net.reduce_buffers = 1;
        same_in_parts_of(t, TINY_PARTS, "tiny parts, no more room than must be");
}

/* Windows and states on GPUs, or the states alone. */
static void parts_that_land_on_gpus(void)
{
        static const uint32_t sizes[] = { SMALL_PARTS, LARGE_PARTS };
        struct training t = training_default();
        struct outcome host, o;
        uint64_t before;

        stream_gpus_open(1);
        before = stream_gpus_left();
        host = training_run(&t);
        t.net.gpu_states = t.net.mirror = true;
        for (uint32_t i = 0; i < 4; i++) {
                t.net.part_bytes = sizes[i % 2];
                t.gpu_nodes = i < 2 ? BOTH : 0;
                t.net.reduce_buffers = i == 3;
                t.net.delay_ms = i;
                t.seed = 40 + i;
                o = training_run(&t);
                outcome_same(&host, &o, "on GPUs");
                CHECK(stream_gpus_left() == before, "memory of the GPU is left over");
        }
}

static struct accumulator *accumulator_on(struct session *s, uint32_t node)
{
        return net_own(net_job(&s->net, node, "zoo"))->accumulator;
}

/* Returns the bytes that the GPU has without the session. */
static uint64_t open_on_gpus(struct session *s, struct training *t, uint32_t gpu_nodes)
{
        uint64_t total;

        stream_gpus_open(1);
        total = stream_gpus_left();
        t->net.gpu_states = true;
        t->gpu_nodes = gpu_nodes;
        open_listening(s, t);
        session_attach(s);
        return total;
}

/* Leaves less memory on the GPU than pulls of the largest group take. */
static void leave_little(uint64_t total)
{
        char bytes[24];

        snprintf(bytes, sizeof bytes, "%llu",
                 (unsigned long long)(total - stream_gpus_left() + 200000));
        setenv("FAKE_GPU_BYTES", bytes, 1);
}

/* Another thread asks the GPU. */
static void wait_for_receive_buffers(struct session *s)
{
        for (uint32_t i = 0; i < 2; i++)
                while (!list_empty(&accumulator_on(s, i)->pool.asking))
                        uv_run(&s->net.loop, UV_RUN_ONCE);
}

/* A gradient that has landed on a GPU leaves its receive buffer to the next; without a buffer a
 * gradient lands in host memory. */
static void receive_buffers_on_a_gpu_are_kept_while_there_are_ranks(void)
{
        struct training t = training_default();
        struct outcome expected = training_run(&t);
        struct session s;
        uint64_t total;

        total = open_on_gpus(&s, &t, 0);
        for (uint32_t step = 1; step <= t.steps; step++) {
                if (step == 1)
                        leave_little(total);
                session_program(&s, step);
                session_run(&s);
                wait_for_receive_buffers(&s);
                unsetenv("FAKE_GPU_BYTES");
                for (uint32_t i = 0; i < 2; i++) {
                        const struct pool *pool = &accumulator_on(&s, i)->pool;

                        CHECK(pool->used == 0 && (step == 1) == list_empty(&pool->kept),
                              "step %u: receive buffers are %skept", step,
                              list_empty(&pool->kept) ? "not " : "");
                }
        }
        s.outcome.sum = net_checksum(&s.net, "zoo");
        CHECK(memcmp(&s.outcome.sum, &expected.sum, sizeof expected.sum) == 0);
        kill_all(&s);
        for (uint32_t i = 0; i < 2; i++)
                CHECK(list_empty(&accumulator_on(&s, i)->pool.kept));
        session_close(&s);
}

static void sums_without_room_on_a_gpu_are_made_on_the_host(void)
{
        struct training t = training_default();
        struct outcome expected = training_run(&t);
        struct session s;

        leave_little(open_on_gpus(&s, &t, BOTH));
        for (uint32_t step = 1; step <= t.steps; step++) {
                session_program(&s, step);
                session_run(&s);
        }
        for (uint32_t i = 0; i < 2; i++)
                CHECK(list_empty(&net_job(&s.net, i, "zoo")->reduce->pool.kept));
        unsetenv("FAKE_GPU_BYTES");
        s.outcome.sum = net_checksum(&s.net, "zoo");
        CHECK(memcmp(&s.outcome.sum, &expected.sum, sizeof expected.sum) == 0);
        session_close(&s);
}

static struct pool *sums_on(struct session *s, uint32_t node)
{
        return &net_job(&s->net, node, "zoo")->reduce->pool;
}

static bool node_1_keeps_nothing(void *arg)
{
        return list_empty(&accumulator_on(arg, 1)->pool.kept) && list_empty(&sums_on(arg, 1)->kept);
}

/* As a sum does whose ranks move to another node meanwhile. */
static void take_memory_for_a_sum(struct session *s, uint32_t node)
{
        uint32_t place = net_own(net_job(&s->net, node, "zoo"))->state->id.place;
        struct pool *sums = sums_on(s, node);
        struct pool_block *block = NULL;

        CHECK(pool_take(sums, place, 4096, 4096, &block) == BLOCK_ASKED);
        while (!list_empty(&sums->asking))
                uv_run(&s->net.loop, UV_RUN_ONCE);
        CHECK(!list_empty(&sums->kept));
}

/* On a node without ranks nobody says when ranks leave, so memory is freed after a while. */
static void memory_where_no_ranks_are_is_kept_for_a_while(void)
{
        struct training t = training_default();
        struct session s;

        stream_gpus_open(1);
        t.net.gpu_states = true;
        memset(t.node_of_rank, 0, sizeof t.node_of_rank);
        open_listening(&s, &t);
        session_attach(&s);
        session_program(&s, 1);
        session_run(&s);
        wait_for_receive_buffers(&s);
        CHECK(!list_empty(&accumulator_on(&s, 1)->pool.kept));
        take_memory_for_a_sum(&s, 1);
        kill_all(&s);
        net_wait(&s.net, node_1_keeps_nothing, &s, "memory that nobody uses to be given back");
        session_close(&s);
}

static struct training in_flight(uint32_t turns)
{
        struct training t = training_default();

        t.net.mirror = t.net.gpu_states = true;
        t.net.delay_ms = turns % 2;
        t.net.part_bytes = turns % 4 < 2 ? SMALL_PARTS : LARGE_PARTS;
        t.gpu_nodes = turns % 3 ? BOTH : 0;
        return t;
}

/* Dropped, or stopped. */
static void nothing_is_left_of_parts_in_flight(void)
{
        uint64_t before;

        stream_gpus_open(1);
        before = stream_gpus_left();
        for (uint32_t turns = 10; turns < 150; turns += 13) {
                struct training t = in_flight(turns);
                struct session s;

                open_listening(&s, &t);
                session_attach(&s);
                session_program(&s, 1);
                run_turns(&s, turns, turns);
                if (turns % 2) {
                        net_drop(&s.net, "zoo");
                        session_run(&s);
                }
                kill_all(&s);
                session_close(&s);
                CHECK(stream_gpus_left() == before, "after %u turns", turns);
        }
}

static void a_link_that_ends_between_parts_loses_nothing(void)
{
        struct training t = training_default();
        struct outcome expected;

        stream_gpus_open(1);
        expected = training_run(&t);
        for (uint32_t turns = 10; turns < 150; turns += 27) {
                t = in_flight(turns);
                t.gpu_nodes = 0;
                cut_behind(&t, turns, &expected);
        }
}

/* ---- what a node may ask for ---- */

struct asked {
        struct ask ask;
        bool ended;
        int status;
        float *bytes;
};

static void note_end(struct ask *ask, int status)
{
        struct asked *a = (struct asked *)ask; /* ask is its first member */

        a->ended = true;
        a->status = status;
}

static void asked_free(struct asked *a)
{
        free(a->bytes);
}

static bool has_ended(void *arg)
{
        return ((struct asked *)arg)->ended;
}

/* A node gradient of node 0 that some owners have not completely taken. */
static const struct node_gradient *node_gradient_on_offer(struct session *s)
{
        list_for_each (&net_job(&s->net, 0, "zoo")->reduce->node_gradients, item) {
                struct node_gradient *p = CONTAINER_OF(item, struct node_gradient, link);

                if (p->offered && !p->void_ && p->group == ZOO_BIG)
                        return p;
        }
        return NULL;
}

/* Node 1 asks node 0 for n elements of its owner's range, from the given element on. */
static void ask_for(struct session *s, struct asked *a, uint64_t at, uint64_t n)
{
        struct job *job = net_job(&s->net, 1, "zoo");
        uint32_t owner = net_own(job)->owner;
        size_t room = n < 1 << 20 ? n : 0; /* a refused range needs no buffer */
        Zero__Pull pull = ZERO__PULL__INIT;

        *a = (struct asked){ .ask.done = note_end, .bytes = calloc(room + 1, sizeof(float)) };
        pull.kind = ZERO__PULL__KIND__GRAD;
        pull.group = ZOO_BIG;
        pull.owner = owner;
        pull.attempt = job->attempt;
        pull.first = partition_range(job->partition, ZOO_BIG, owner).first + at;
        pull.count = n;
        CHECK(ask_send(&a->ask, job, 0, TRAFFIC_REDUCE, &pull, a->bytes, room * sizeof(float)) ==
              0);
}

/* Runs a step until node 0 offers its node gradient of the group; node 1 has taken nothing yet.
 */
static void until_offered(struct session *s, struct training *t)
{
        uint64_t seed = 1;

        t->net.reduce_buffers = 1; /* nothing is pulled before its turn */
        open_listening(s, t);
        session_attach(s);
        accumulator_on(s, 1)->groups[ZOO_BIG].readers++;
        session_program(s, 1);
        for (uint32_t turns = 0; !node_gradient_on_offer(s); turns++) {
                CHECK(turns < 2000);
                trainers_turn(s->trainers, t->ranks, &seed);
        }
}

static void take_what_is_offered(struct session *s)
{
        accumulator_on(s, 1)->groups[ZOO_BIG].readers--;
        accumulator_advance(net_own(net_job(&s->net, 1, "zoo")), ZOO_BIG);
}

static void parts_outside_an_owners_range_are_refused(void)
{
        struct training t = training_default();
        struct outcome expected = training_run(&t);
        struct asked a[6];
        struct session s;
        struct range r;

        until_offered(&s, &t);
        r = partition_range(net_job(&s.net, 1, "zoo")->partition, ZOO_BIG,
                            net_own(net_job(&s.net, 1, "zoo"))->owner);
        ask_for(&s, &a[0], 0, r.count + 1);
        ask_for(&s, &a[1], 1, r.count);
        ask_for(&s, &a[2], r.count, 1);
        ask_for(&s, &a[3], 0, 0);
        ask_for(&s, &a[4], 2, UINT64_MAX);
        ask_for(&s, &a[5], UINT64_MAX, 2); /* from the element before it */
        for (size_t i = 0; i < 6; i++) {
                net_wait(&s.net, has_ended, &a[i], "a refusal");
                CHECK(a[i].status == -ECANCELED && a[i].ask.status == ZERO_EPROTO, "%zu: %d", i,
                      a[i].ask.status);
        }
        for (size_t i = 0; i < 6; i++)
                asked_free(&a[i]);
        take_what_is_offered(&s);
        session_run(&s);
        for (uint32_t step = 2; step <= t.steps; step++) {
                session_program(&s, step);
                session_run(&s);
        }
        CHECK(ears[0].failures == 0 && ears[2].failures == 0, "%s", ears[0].text);
        s.outcome.sum = net_checksum(&s.net, "zoo");
        CHECK(memcmp(&s.outcome.sum, &expected.sum, sizeof expected.sum) == 0);
        session_close(&s);
}

/* The owner has taken everything then; payloads in progress stay until they are sent. */
static void a_range_that_is_asked_for_many_times(void)
{
        struct training t = training_default();
        struct asked a[8];
        struct session s;
        struct job *job;
        struct range r;

        t.ranks = 1;
        until_offered(&s, &t);
        job = net_job(&s.net, 1, "zoo");
        r = partition_range(job->partition, ZOO_BIG, net_own(job)->owner);
        for (size_t i = 0; i < 8; i++)
                ask_for(&s, &a[i], 0, r.count);
        for (size_t i = 0; i < 8; i++)
                net_wait(&s.net, has_ended, &a[i], "all of the range, or a refusal");
        for (size_t i = 0; i < 8; i++)
                asked_free(&a[i]);
        take_what_is_offered(&s);
        net_drop(&s.net, "zoo");
        session_run(&s);
        kill_all(&s);
        net_gone(&s.net);
        session_close(&s);
}

const struct test_case part_cases[] = {
        { "parts-of-any-size", parts_of_any_size },
        { "parts-that-land-on-gpus", parts_that_land_on_gpus },
        { "receive-buffers-on-a-gpu-are-kept-while-there-are-ranks",
          receive_buffers_on_a_gpu_are_kept_while_there_are_ranks },
        { "sums-without-room-on-a-gpu-are-made-on-the-host",
          sums_without_room_on_a_gpu_are_made_on_the_host },
        { "memory-where-no-ranks-are-is-kept-for-a-while",
          memory_where_no_ranks_are_is_kept_for_a_while },
        { "nothing-is-left-of-parts-in-flight", nothing_is_left_of_parts_in_flight },
        { "a-link-that-ends-between-parts-loses-nothing",
          a_link_that_ends_between_parts_loses_nothing },
        { "parts-outside-an-owners-range-are-refused", parts_outside_an_owners_range_are_refused },
        { "a-range-that-is-asked-for-many-times", a_range_that_is_asked_for_many_times },
        { 0 },
};
