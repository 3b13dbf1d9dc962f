/*
 * Each place of the fabric that allocates fails, in the first and in the last of its calls: nodes
 * meet all the same, and whatever is lost with a link was refused, or the link is told to be down.
 */
#include <criterion/criterion.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "fabric_world.h"
#include "nodes.h"
#include "tests/support/refusing.h"

enum { MESSAGES = 20, BYTES = 300000, LAST = 1000 };

static struct world world;

static bool heard_last(void *arg)
{
        for (uint32_t i = 0; i < 2; i++) {
                const struct world_node *node = &world.nodes[i];
                int n = node->n_heard[!i];

                if (n == 0 || node->heard[!i][n - 1] < LAST)
                        return false;
        }
        return true;
}

/* Messages both ways, of which some may be refused, or lost with their link. */
static void send_some(void)
{
        for (uint64_t k = 1; k <= MESSAGES; k++) {
                for (uint32_t i = 0; i < 2; i++) {
                        int r = world_send(&world, i, !i, k);

                        cr_assert(r == 0 || r == -ENOTCONN || r == -ENOMEM, "message: %d", r);
                }
                uv_run(&world.loop, UV_RUN_NOWAIT);
        }
}

static void on_ended(void *arg, int status)
{
        ++*(int *)arg;
}

/* A payload each way, likewise; each op ends once. */
static void pass_some(void)
{
        static uint8_t out[BYTES], in[2][BYTES];
        int ended = 0, begun = 0;

        for (uint32_t i = 0; i < 2; i++) {
                struct fabric *from = world.nodes[i].fabric, *to = world.nodes[!i].fabric;
                uint64_t transfer = fabric_transfer(to, i);

                world.inside++;
                if (fabric_expect(to, i, transfer, TRAFFIC_GATHER, in[i], BYTES, on_ended,
                                  &ended) == 0) {
                        begun++;
                        if (fabric_payload(from, !i, transfer, TRAFFIC_GATHER, out, BYTES, on_ended,
                                           &ended) == 0)
                                begun++;
                        else
                                fabric_forget(to, i, transfer);
                }
                world.inside--;
        }
        while (ended < begun)
                uv_run(&world.loop, UV_RUN_ONCE);
}

static void live(char bulk, const void *refused_at, unsigned nth)
{
        world_open(&world, (char[]){ bulk, bulk, 0 }, 0);
        if (refused_at)
                allocations_refuse(refused_at, nth);
        else
                allocations_count();
        world_all_up(&world);
        send_some();
        pass_some();
        for (int i = 0; i < 100; i++)
                uv_run(&world.loop, UV_RUN_NOWAIT);
        allocations_refuse(NULL, 0);
        world_all_up(&world);
        for (uint32_t i = 0; i < 2; i++)
                cr_assert_eq(world_send(&world, i, !i, LAST), 0);
        world_wait(&world, heard_last, NULL);
        for (uint32_t i = 0; i < 2; i++) {
                const struct world_node *node = &world.nodes[i];

                for (int k = 1; k < node->n_heard[!i]; k++)
                        cr_assert_lt(node->heard[!i][k - 1], node->heard[!i][k]);
                cr_assert(node->n_heard[!i] == MESSAGES + 1 || refused_at);
                world_payload(&world, i, !i, BYTES, TRAFFIC_REDUCE);
        }
        world_close(&world);
}

static void any_allocation_may_fail(char bulk)
{
        static struct sites sites;

        live(bulk, NULL, 0);
        allocations_counted(&sites);
        cr_assert_gt(sites.n, 0);
        for (unsigned i = 0; i < sites.n; i++) {
                allocations_name(sites.site[i].at); /* for whoever reads why it has failed */
                live(bulk, sites.site[i].at, 1);
                live(bulk, sites.site[i].at, sites.site[i].n);
        }
}

Test(memory, any_allocation_over_tcp_may_fail)
{
        any_allocation_may_fail('t');
}

Test(memory, any_allocation_over_ucx_may_fail)
{
        any_allocation_may_fail('u');
}
