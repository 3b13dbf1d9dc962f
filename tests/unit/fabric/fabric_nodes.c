/* The fabric between nodes: real ones on loopback by each bulk path, and in process. */
#include <criterion/criterion.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "fabric_world.h"
#include "nodes.h"

static struct world world;

static void path_is(uint32_t node, uint32_t peer, const char *path)
{
        struct fabric_info info;

        fabric_info(world.nodes[node].fabric, peer, &info);
        cr_assert_str_eq(info.bulk, path);
}

/* ---- alone ---- */

static bool heard_ten(void *arg)
{
        return world.nodes[0].n_heard[0] == 10;
}

Test(fabric, a_node_is_its_own_peer)
{
        world_open(&world, "a", 0);
        world.nodes[0].cluster.has_key = false;
        for (uint64_t i = 0; i < 10; i++)
                cr_assert_eq(world_send(&world, 0, 0, i), 0);
        world_wait(&world, heard_ten, NULL);
        for (uint64_t i = 0; i < 10; i++)
                cr_assert_eq(world.nodes[0].heard[0][i], i);
        cr_assert_eq(world.nodes[0].ups[0], 1);
        path_is(0, 0, "self");
        world_close(&world);
}

Test(fabric, closing_with_messages_to_self_on_their_way)
{
        world_open(&world, "a", 50);
        for (uint64_t i = 0; i < 10; i++)
                cr_assert_eq(world_send(&world, 0, 0, i), 0);
        world_close(&world);
        cr_assert_eq(world.nodes[0].n_heard[0], 0);
}

/* ---- what every way of reaching a node does ---- */

static bool heard_all(void *arg)
{
        const int *each = arg;

        for (uint32_t i = 0; i < world.n; i++) {
                for (uint32_t j = 0; j < world.n; j++) {
                        if (world.nodes[i].n_heard[j] < *each)
                                return false;
                }
        }
        return true;
}

/* Everybody to everybody, self included. */
static void messages_in_order(const char *bulk, uint32_t delay_ms)
{
        int each = 200;

        world_open(&world, bulk, delay_ms);
        world_all_up(&world);
        for (uint64_t k = 0; k < (uint64_t)each; k++) {
                for (uint32_t i = 0; i < world.n; i++) {
                        for (uint32_t j = 0; j < world.n; j++)
                                cr_assert_eq(world_send(&world, i, j, k << 8 | i), 0);
                }
                if (k % 16 == 0)
                        uv_run(&world.loop, UV_RUN_NOWAIT);
        }
        world_wait(&world, heard_all, &each);
        for (uint32_t i = 0; i < world.n; i++) {
                for (uint32_t j = 0; j < world.n; j++) {
                        for (uint64_t k = 0; k < (uint64_t)each; k++)
                                cr_assert_eq(world.nodes[i].heard[j][k], k << 8 | j);
                }
        }
        world_close(&world);
}

static void payloads_are_counted(const char *bulk, const char *path)
{
        static const size_t sizes[] = { 0, 1, 5000, 100000, 3 << 20 };
        struct fabric_info to, from;

        world_open(&world, bulk, 0);
        world_all_up(&world);
        path_is(0, 1, path);
        path_is(1, 0, path);
        for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
                world_payload(&world, 0, 1, sizes[i], TRAFFIC_GATHER);
                world_payload(&world, 1, 0, sizes[i], TRAFFIC_REDUCE);
        }
        fabric_info(world.nodes[0].fabric, 1, &to);
        fabric_info(world.nodes[1].fabric, 0, &from);
        cr_assert_eq(to.sent[TRAFFIC_GATHER], 5001 + 100000 + (3 << 20));
        cr_assert_eq(from.received[TRAFFIC_GATHER], to.sent[TRAFFIC_GATHER]);
        cr_assert_eq(to.received[TRAFFIC_REDUCE], to.sent[TRAFFIC_GATHER]);
        cr_assert_eq(to.sent[TRAFFIC_REDUCE], 0);
        cr_assert_eq(to.sent[TRAFFIC_STATE], 0);
        world_close(&world);
}

static int cancelled;
static void on_cancelled(void *arg, int status)
{
        cr_assert_eq(status, -ECANCELED);
        cr_assert_eq(world.nodes[0].downs[1], 0, "cancelled before it is told");
        cancelled++;
}

static bool is_down_and_up_again(void *arg)
{
        return world.nodes[0].ups[1] == 2 && world.nodes[1].ups[0] == 2;
}

/* Pending payloads are cancelled, then the peer is down; then the two agree on a path again. */
static void a_cut_heals(const char *bulk, const char *path)
{
        static uint8_t in[1000];

        world_open(&world, bulk, 0);
        world_all_up(&world);
        cr_assert_eq(fabric_expect(world.nodes[0].fabric, 1,
                                   fabric_transfer(world.nodes[0].fabric, 1), TRAFFIC_STATE, in,
                                   sizeof in, on_cancelled, NULL),
                     0);
        world.inside++;
        fabric_cut(world.nodes[0].fabric, 1, "a test");
        world.inside--;
        world_wait(&world, is_down_and_up_again, NULL);
        cr_assert_eq(cancelled, 1);
        cr_assert_eq(world.nodes[0].downs[1], 1);
        cr_assert_eq(world.nodes[1].downs[0], 1);
        path_is(0, 1, path);
        world_payload(&world, 0, 1, 70000, TRAFFIC_STATE);
        world_close(&world);
}

/* A payload that nobody expects breaks the bulk path, and the link with it. */
static void on_any(void *arg, int status)
{
}

static void a_broken_path_cuts_the_link(const char *bulk)
{
        static uint8_t out[100000];

        world_open(&world, bulk, 0);
        world_all_up(&world);
        cr_assert_eq(fabric_payload(world.nodes[0].fabric, 1, 999, TRAFFIC_STATE, out, sizeof out,
                                    on_any, NULL),
                     0);
        world_wait(&world, is_down_and_up_again, NULL);
        world_payload(&world, 1, 0, 70000, TRAFFIC_STATE);
        world_close(&world);
}

static bool second_is_lost(void *arg)
{
        return world.nodes[0].downs[1] == 1;
}

static void a_node_leaves_and_comes_back(const char *bulk)
{
        world_open(&world, bulk, 0);
        world_all_up(&world);
        world_stop(&world, 1);
        world_wait(&world, second_is_lost, NULL);
        cr_assert_eq(world_send(&world, 0, 1, 1), -ENOTCONN);
        cr_assert_eq(
                fabric_payload(world.nodes[0].fabric, 1, 5, TRAFFIC_STATE, "", 1, on_any, NULL),
                -ENOTCONN);
        world_start(&world, 1, bulk[1], 0, NULL);
        world_all_up(&world);
        world_payload(&world, 0, 1, 70000, TRAFFIC_STATE);
        world_close(&world);
}

static void closing_under_load(const char *bulk)
{
        static uint8_t buffer[4 << 20];

        world_open(&world, bulk, 0);
        world_all_up(&world);
        for (uint64_t i = 100; i < 120; i++) {
                cr_assert_eq(fabric_expect(world.nodes[1].fabric, 0, i, TRAFFIC_STATE, buffer,
                                           sizeof buffer, on_any, NULL),
                             0);
                cr_assert_eq(fabric_payload(world.nodes[0].fabric, 1, i, TRAFFIC_STATE, buffer,
                                            sizeof buffer, on_any, NULL),
                             0);
        }
        uv_run(&world.loop, UV_RUN_NOWAIT);
        world_close(&world);
}

#define EACH_PATH(name, letters, path)                 \
        Test(name, messages_in_order)                  \
        {                                              \
                messages_in_order(letters letters, 0); \
        }                                              \
        Test(name, messages_in_order_with_delay)       \
        {                                              \
                messages_in_order(letters, 30);        \
        }                                              \
        Test(name, payloads_are_counted)               \
        {                                              \
                payloads_are_counted(letters, path);   \
        }                                              \
        Test(name, a_cut_heals)                        \
        {                                              \
                a_cut_heals(letters, path);            \
        }                                              \
        Test(name, a_broken_path_cuts_the_link)        \
        {                                              \
                a_broken_path_cuts_the_link(letters);  \
        }                                              \
        Test(name, a_node_leaves_and_comes_back)       \
        {                                              \
                a_node_leaves_and_comes_back(letters); \
        }                                              \
        Test(name, closing_under_load)                 \
        {                                              \
                closing_under_load(letters);           \
        }

EACH_PATH(fabric_ucx, "ua", "ucx")
EACH_PATH(fabric_tcp, "ta", "tcp")
EACH_PATH(fabric_inproc, "ii", "inproc")

/* ---- the choice of the path ---- */

Test(fabric, tcp_if_either_side_wants_it)
{
        world_open(&world, "ata", 0);
        world_all_up(&world);
        path_is(0, 1, "tcp");
        path_is(1, 0, "tcp");
        path_is(1, 2, "tcp");
        path_is(0, 2, "ucx");
        world_close(&world);
}

/* Both have UCX, but no transport in common. */
Test(fabric, tcp_where_ucx_does_not_reach)
{
        struct fabric_info info;

        world_open_empty(&world, 2, false);
        world_start(&world, 0, 'a', 0, "posix,self");
        world_start(&world, 1, 'a', 0, "sysv,self");
        world_all_up(&world);
        path_is(0, 1, "tcp");
        fabric_info(world.nodes[0].fabric, 1, &info);
        cr_assert(strstr(info.bulk_detail, "UCX"), "says why: '%s'", info.bulk_detail);
        world_payload(&world, 0, 1, 70000, TRAFFIC_STATE);
        world_close(&world);
}

Test(fabric, transports_that_would_open_tcp_are_refused)
{
        const struct fabric_events events = { 0 };
        struct cluster cluster;
        struct fabric_options options = { &cluster, "auto", "all", "authenticated", 0 };
        struct fault fault = { 0 };
        struct fabric *fabric;
        uv_loop_t loop;

        uv_loop_init(&loop);
        make_cluster(&cluster, 2, 0);
        cr_assert_eq(fabric_new(&loop, &options, &events, &fabric, &fault), ZERO_EINVAL);
        cr_assert(strstr(fault.text, "tcp"));
        end_loop(&loop);
}
