/*
 * Nodes of two GPUs: ranks, windows and owners on both.
 */
#include <string.h>

#include "cases.h"
#include "check.h"
#include "stream.h"
#include "training.h"

enum { BOTH = 3, ALL = 15 };

/* Four ranks: where each runs and has its windows. */
static const struct places {
        const char *what;
        uint32_t node[RANKS_MAX], gpu[RANKS_MAX], on_host; /* on_host: a bit a rank */
} places[] = {
        { "a rank on each GPU", { 0, 0, 1, 1 }, { 0, 1, 0, 1 }, 0 },
        { "two ranks on each of one node's GPUs", { 0, 0, 0, 0 }, { 0, 1, 1, 0 }, 0 },
        { "one of two GPUs", { 0, 0, 1, 1 }, { 1, 1, 0, 1 }, 0 },
        { "a rank of each node in host memory", { 0, 0, 1, 1 }, { 0, 1, 1, 0 }, 1 | 8 },
        { "all but one in host memory", { 0, 0, 0, 1 }, { 0, 0, 1, 1 }, 1 | 2 },
};

/* The bits are those of host memory, for any number of owners, with states on GPUs or not. */
static void same_in(struct training t, const struct places *p)
{
        struct outcome host, o;

        memcpy(t.node_of_rank, p->node, sizeof t.node_of_rank);
        t.host_ranks = ALL;
        host = training_run(&t);
        t.host_ranks = p->on_host;
        memcpy(t.gpu_of_rank, p->gpu, sizeof t.gpu_of_rank);
        t.gpu_nodes = BOTH;
        for (uint32_t i = 0; i < 2; i++) {
                uint64_t before = stream_gpus_left();

                t.net.gpu_states = i == 1;
                t.net.owners_a_node = 1 + 2 * i;
                t.net.delay_ms = i;
                t.seed = 20 + i;
                o = training_run(&t);
                outcome_same(&host, &o, p->what);
                CHECK(stream_gpus_left() == before, "%s: memory of a GPU is left over", p->what);
        }
}

static void ranks_on_several_gpus_get_the_same_bits(void)
{
        struct training t = training_default();

        stream_gpus_open(2);
        for (size_t i = 0; i < sizeof places / sizeof places[0]; i++)
                same_in(t, &places[i]);
        t.grad_dtype = t.reduce_dtype = ZERO_BF16;
        t.masks = t.norm = true;
        same_in(t, &places[0]);
}

/* The smallest windows, and orders in which each rank waits for the other's groups. */
static void several_gpus_and_small_windows(void)
{
        struct training t = training_default();

        stream_gpus_open(2);
        t.opposite = t.prefetch = t.crossed = t.uneven = true;
        t.hold_groups = 2;
        t.push_groups = 1;
        t.net.reduce_buffers = 1;
        same_in(t, &places[1]);
        same_in(t, &places[3]);
}

/* However many windows the node has. */
static void a_node_gets_each_group_once(void)
{
        struct training t = training_default();
        struct outcome host, o;

        stream_gpus_open(2);
        t.hold_groups = t.push_groups = ZOO_GROUPS;
        host = training_run(&t);
        CHECK(host.received > 0);
        t.gpu_nodes = BOTH;
        t.gpu_of_rank[1] = t.gpu_of_rank[3] = 1;
        for (uint32_t i = 0; i < 3; i++) {
                t.host_ranks = i == 2 ? 1 | 4 : 0;
                t.net.delay_ms = i;
                t.seed = 30 + i;
                o = training_run(&t);
                outcome_same(&host, &o, "all held on two GPUs");
                CHECK(o.received == host.received, "%llu elements, not %llu",
                      (unsigned long long)o.received, (unsigned long long)host.received);
        }
}

/* The ranks share a window while it has room; others get a second window on the same GPU. */
static void more_ranks_on_a_gpu_than_were_expected(void)
{
        struct training t = training_default();
        struct gather_info info;
        struct session s;

        stream_gpus_open(2);
        memset(t.node_of_rank, 0, sizeof t.node_of_rank);
        t.gpu_nodes = BOTH;
        t.hold_groups = 1;
        t.net = (struct net_options){ .nodes = 1, .owners = 1, .gpu_states = true };
        session_open(&s, &t);
        session_attach(&s);
        gather_info(net_job(&s.net, 0, "zoo"), &info);
        CHECK(strcmp(info.places, "GPU 0, GPU 0") == 0 && info.slots == 4, "%s, %u slots",
              info.places, info.slots);
        session_program(&s, 1);
        session_run(&s);
        CHECK(s.trainers[0].version == 1);
        session_close(&s);
}

const struct test_case gpus_cases[] = {
        { "ranks-on-several-gpus-get-the-same-bits", ranks_on_several_gpus_get_the_same_bits },
        { "several-gpus-and-small-windows", several_gpus_and_small_windows },
        { "a-node-gets-each-group-once", a_node_gets_each_group_once },
        { "more-ranks-on-a-gpu-than-were-expected", more_ranks_on_a_gpu_than_were_expected },
        { NULL, NULL },
};
