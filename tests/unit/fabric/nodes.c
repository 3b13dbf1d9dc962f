#include "nodes.h"

#include <criterion/criterion.h>
#include <signal.h>
#include <sodium.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { BASE_PORT = 7000 };

void make_key(uint8_t key[static CLUSTER_KEY], uint8_t seed)
{
        for (int i = 0; i < CLUSTER_KEY; i++)
                key[i] = (uint8_t)(seed * 31 + i * 7 + 1);
}

void make_cluster(struct cluster *cluster, uint32_t n, uint32_t self)
{
        unsigned id = (unsigned)getpid();
        cr_assert(sodium_init() >= 0);
        signal(SIGPIPE, SIG_IGN);
        memset(cluster, 0, sizeof *cluster);
        cluster->n_nodes = n;
        cluster->self = self;
        for (uint32_t i = 0; i < n; i++) {
                struct cluster_node *node = &cluster->nodes[i];
                snprintf(node->name, sizeof node->name, "%c", (char)('a' + i));
                snprintf(node->host, sizeof node->host, "127.%u.%u.%u", id >> 16 & 127,
                         id >> 8 & 255, id & 255);
                node->port = (uint16_t)(BASE_PORT + i);
                node->owners = 1;
        }
        memset(cluster->hash, 0x5a, sizeof cluster->hash);
        make_key(cluster->key, 1);
        cluster->has_key = true;
}

static void on_guard(uv_timer_t *timer)
{
}

static void on_guard_closed(uv_handle_t *handle)
{
        *(bool *)handle->data = true;
}

void run_until(uv_loop_t *loop, bool (*done)(void *arg), void *arg, uint64_t ms)
{
        uint64_t end = uv_hrtime() + ms * 1000000;
        bool closed = false, ok;
        uv_timer_t guard = { .data = &closed };
        uv_timer_init(loop, &guard);
        uv_timer_start(&guard, on_guard, 5, 5); /* done() may look at more than the loop */
        while (!(ok = done(arg)) && uv_hrtime() < end)
                uv_run(loop, UV_RUN_ONCE);
        uv_close((uv_handle_t *)&guard, on_guard_closed);
        while (!closed)
                uv_run(loop, UV_RUN_NOWAIT);
        cr_assert(ok, "it did not come true within %lu ms", (unsigned long)ms);
}

bool is_true(void *arg)
{
        return *(bool *)arg;
}

void set_true(void *arg)
{
        *(bool *)arg = true;
}

void end_loop(uv_loop_t *loop)
{
        uv_run(loop, UV_RUN_DEFAULT);
        cr_assert_eq(uv_loop_close(loop), 0);
}
