/*
 * Payloads from and to GPU memory.  The GPU is the fake one: a CPU that touches its memory dies.
 * Over real paths a build for tests has copied.c stand in for a UCX that knows CUDA.
 */
#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/compute/device/gpu/gpu.h"
#include "daemon/compute/device/host.h"
#include "daemon/fabric/bulk/common.h"
#include "fabric_world.h"
#include "nodes.h"

enum { MOST = 3 << 20 };

static struct world world;
static uint8_t *gpu_out, *gpu_in;

static void *memory(const char *what)
{
        struct fault fault;
        void *p;

        cr_assert_eq(gpu_alloc(0, MOST, what, &p, &fault), 0, "%s", fault.text);
        return p;
}

static void gpu_open(const char *way)
{
        struct fault fault;

        setenv("BULK_GPU", way, 1);
        setenv("FAKE_GPU_COPIES_ON_LOOP", "1", 1);
        cr_assert_eq(gpus_open(FAKE_GPU, device_host("scalar"), &fault), 0, "%s", fault.text);
        gpu_out = memory("out");
        gpu_in = memory("in");
}

static void gpu_close(void)
{
        gpu_free(gpu_out);
        gpu_free(gpu_in);
        gpus_close(); /* asserts that nobody kept any */
}

/* Payloads between host and GPU memory, in every combination, arrive byte for byte. */
static void passes(uint32_t from, uint32_t to, size_t n)
{
        uint8_t *out = malloc(n), *in = malloc(n);

        for (size_t i = 0; i < n; i++)
                out[i] = (uint8_t)(i * 7 + (i >> 9) + n);
        gpu_ops()->copy(gpu_out, out, n);
        for (int way = 0; way < 4; way++) {
                memset(in, 0, n);
                gpu_ops()->zero(gpu_in, n);
                world_pass(&world, from, to, way & 1 ? gpu_out : out, way & 2 ? gpu_in : in, n,
                           TRAFFIC_GATHER);
                if (way & 2)
                        gpu_ops()->copy(in, gpu_in, n);
                cr_assert_eq(memcmp(in, out, n), 0, "%zu bytes, way %d", n, way);
        }
        free(out);
        free(in);
}

static void goes(const char *gpu)
{
        bool direct = strcmp(gpu, "direct") == 0;
        struct fabric_info info;

        for (uint32_t i = 0; i < 2; i++) {
                fabric_info(world.nodes[i].fabric, !i, &info);
                cr_assert_str_eq(info.gpu, gpu, "node %u: %s", i, info.gpu);
                cr_assert_eq(fabric_takes(world.nodes[i].fabric, !i, 1, BULK_AWAY_MIN), direct);
                cr_assert_not(fabric_takes(world.nodes[i].fabric, !i, 1, BULK_AWAY_MIN - 1));
                cr_assert_not(fabric_takes(world.nodes[i].fabric, i, 1, MOST));
        }
}

static void passes_directly(const char *bulk)
{
        world_open(&world, bulk, 0);
        world_all_up(&world);
        goes("direct");
        for (uint32_t from = 0; from < 2; from++) {
                passes(from, !from, BULK_AWAY_MIN);
                passes(from, !from, BULK_AWAY_MIN + 1234);
                passes(from, !from, MOST);
        }
        world_payload(&world, 0, 1, 1000, TRAFFIC_STATE);
}

Test(gpu, in_process)
{
        gpu_open("");
        passes_directly("ii");
        world_close(&world);
        gpu_close();
}

Test(gpu, a_ucx_that_knows_no_cuda_is_not_given_gpu_memory)
{
        gpu_open("");
        world_open(&world, "uu", 0);
        world_all_up(&world);
        goes("staged");
        world_payload(&world, 0, 1, MOST, TRAFFIC_STATE);
        world_close(&world);
        gpu_close();
}

Test(gpu, tcp_is_not_given_gpu_memory)
{
        gpu_open("");
        world_open(&world, "tt", 0);
        world_all_up(&world);
        goes("staged");
        world_close(&world);
        gpu_close();
}

static void on_any(void *arg, int status)
{
}

/* The other side may send anything. */
Test(gpu, pieces_do_not_land_in_gpu_memory)
{
        static const struct bulk_ops ops = { .name = "none" };
        static uint8_t bytes[BULK_AWAY_MIN];
        struct bulk_queue queue;
        struct bulk_base base;
        uv_loop_t loop;

        gpu_open("");
        uv_loop_init(&loop);
        bulk_queue_init(&queue, &loop);
        bulk_base_init(&base, &ops, &queue, NULL, NULL);
        base.peer.gpu = true;
        cr_assert_eq(bulk_base_expect(&base.peer, 1, gpu_in, sizeof bytes, on_any, NULL), 0);
        bulk_base_piece(&base, 1, sizeof bytes, 0, bytes, 1000);
        cr_assert(base.broken);
        bulk_base_begin_close(&base, NULL, NULL);
        bulk_queue_drain(&queue);
        bulk_base_deinit(&base);
        uv_close((uv_handle_t *)&queue.idle, NULL);
        end_loop(&loop);
        gpu_close();
}

/* ---- between nodes, in a build for tests ---- */

static void need_copied(const char *way)
{
        gpu_open(way);
        if (bulk_copied_wanted())
                return;
        gpu_close();
        cr_skip_test("the build has no path that copies");
}

Test(gpu_nodes, gpu_memory_that_both_ends_take_goes_directly)
{
        need_copied("copied");
        passes_directly("uu");
        world_close(&world);
        gpu_close();
}

static bool both_up_again(void *arg)
{
        int more = *(int *)arg;

        return world.nodes[0].ups[1] >= more && world.nodes[1].ups[0] >= more;
}

Test(gpu_nodes, gpu_memory_is_agreed_on_anew_with_each_link)
{
        int twice = 2;

        need_copied("copied");
        passes_directly("uu");
        world.inside++;
        fabric_cut(world.nodes[1].fabric, 0, "a test");
        world.inside--;
        world_wait(&world, both_up_again, &twice);
        goes("direct");
        passes(0, 1, MOST);
        world_close(&world);
        gpu_close();
}

static void staged_by(uint32_t node)
{
        need_copied("copied");
        world_open_empty(&world, 2, false);
        world.staged[node] = true;
        for (uint32_t i = 0; i < 2; i++)
                world_start(&world, i, 'u', 0, NULL);
        world_all_up(&world);
        goes("staged");
        world_payload(&world, 0, 1, MOST, TRAFFIC_STATE);
        world_payload(&world, 1, 0, MOST, TRAFFIC_STATE);
        world_close(&world);
        gpu_close();
}

Test(gpu_nodes, gpu_memory_is_staged_where_the_lower_node_does_not_take_it)
{
        staged_by(0);
}

Test(gpu_nodes, gpu_memory_is_staged_where_the_higher_node_does_not_take_it)
{
        staged_by(1);
}

Test(gpu_nodes, gpu_memory_is_staged_over_tcp)
{
        need_copied("copied");
        world_open(&world, "tt", 0);
        world_all_up(&world);
        goes("staged");
        world_close(&world);
        gpu_close();
}

/* The path stays in use for host memory. */
Test(gpu_nodes, gpu_memory_that_does_not_pass_is_staged)
{
        struct fabric_info info;

        need_copied("spoilt");
        world_open(&world, "uu", 0);
        world_all_up(&world);
        goes("staged");
        fabric_info(world.nodes[0].fabric, 1, &info);
        cr_assert_str_eq(info.bulk, "ucx");
        world_payload(&world, 0, 1, MOST, TRAFFIC_STATE);
        world_close(&world);
        gpu_close();
}
