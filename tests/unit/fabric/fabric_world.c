#include "fabric_world.h"

#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

#include "nodes.h"

enum { WAIT_MS = 20000 };

static void on_up(void *arg, uint32_t node)
{
        struct world_node *self = arg;
        struct fabric_info info;

        cr_assert_eq(self->world->inside, 0, "no callback inside a call");
        cr_assert(!self->up[node]);
        self->up[node] = true;
        self->ups[node]++;
        fabric_info(self->fabric, node, &info);
        cr_assert(info.up);
}

static void on_down(void *arg, uint32_t node, const char *why)
{
        struct world_node *self = arg;

        cr_assert_eq(self->world->inside, 0, "no callback inside a call");
        cr_assert(self->up[node]);
        cr_assert(why && *why);
        self->up[node] = false;
        self->downs[node]++;
}

static void on_message(void *arg, uint32_t node, const Zero__LinkMessage *m)
{
        struct world_node *self = arg;

        cr_assert_eq(self->world->inside, 0, "no callback inside a call");
        cr_assert(self->up[node]);
        cr_assert_lt(self->n_heard[node], WORLD_MESSAGES);
        cr_assert_str_eq(m->job, "job");
        self->heard[node][self->n_heard[node]++] = m->call;
}

static const char *bulk_name(char letter)
{
        return letter == 't' ? "tcp" : letter == 'u' ? "ucx" : "auto";
}

void world_start(struct world *world, uint32_t i, char bulk, uint32_t delay_ms, const char *tls)
{
        struct world_node *node = &world->nodes[i];
        const struct fabric_events events = { on_up, on_down, on_message, node };
        const struct fabric_options options = {
                &node->cluster, bulk_name(bulk), tls, "authenticated", delay_ms, world->staged[i]
        };
        struct fault fault = { 0 };

        memset(node->up, 0, sizeof node->up);
        node->closed = false;
        world->inside++;
        if (world->net)
                cr_assert_eq(fabric_new_inproc(world->net, i, delay_ms, &events, &node->fabric), 0);
        else
                cr_assert_eq(fabric_new(&world->loop, &options, &events, &node->fabric, &fault), 0,
                             "%s", fault.text);
        world->inside--;
}

void world_open_empty(struct world *world, uint32_t n, bool inproc)
{
        memset(world, 0, sizeof *world);
        cr_assert_eq(uv_loop_init(&world->loop), 0);
        world->n = n;
        if (inproc)
                cr_assert_eq(inproc_net_new(&world->loop, n, &world->net), 0);
        for (uint32_t i = 0; i < n; i++) {
                world->nodes[i].world = world;
                world->nodes[i].self = i;
                make_cluster(&world->nodes[i].cluster, n, i);
        }
}

void world_open(struct world *world, const char *bulk, uint32_t delay_ms)
{
        world_open_empty(world, (uint32_t)strlen(bulk), bulk[0] == 'i');
        for (uint32_t i = 0; i < world->n; i++)
                world_start(world, i, bulk[i], delay_ms, NULL);
}

void world_wait(struct world *world, bool (*done)(void *arg), void *arg)
{
        run_until(&world->loop, done, arg, WAIT_MS);
}

static bool all_up(void *arg)
{
        struct world *world = arg;

        for (uint32_t i = 0; i < world->n; i++) {
                for (uint32_t j = 0; j < world->n; j++) {
                        if (world->nodes[i].fabric && world->nodes[j].fabric &&
                            !world->nodes[i].up[j])
                                return false;
                }
        }
        return true;
}

void world_all_up(struct world *world)
{
        world_wait(world, all_up, world);
}

void world_stop(struct world *world, uint32_t i)
{
        struct world_node *node = &world->nodes[i];

        if (!node->fabric)
                return;
        world->inside++;
        fabric_close(node->fabric, set_true, &node->closed);
        world->inside--;
        world_wait(world, is_true, &node->closed);
        node->fabric = NULL;
}

void world_close(struct world *world)
{
        for (uint32_t i = 0; i < world->n; i++)
                world_stop(world, i);
        inproc_net_free(world->net);
        end_loop(&world->loop);
}

int world_send(struct world *world, uint32_t from, uint32_t to, uint64_t call)
{
        Zero__LinkMessage m = ZERO__LINK_MESSAGE__INIT;
        char job[] = "job";
        int r;

        m.call = call;
        m.job = job;
        world->inside++;
        r = fabric_send(world->nodes[from].fabric, to, &m);
        world->inside--;
        memset(job, 'x', sizeof job - 1); /* the message was packed */
        return r;
}

struct payload {
        int landed, sent;
};

static void on_ended(void *arg, int status)
{
        cr_assert_eq(status, 0);
        ++*(int *)arg;
}

static bool both_ended(void *arg)
{
        struct payload *payload = arg;

        return payload->landed && payload->sent;
}

void world_pass(struct world *world, uint32_t from, uint32_t to, const void *out, void *in,
                size_t n, enum traffic kind)
{
        struct fabric *source = world->nodes[from].fabric, *target = world->nodes[to].fabric;
        struct payload payload = { 0 };
        uint64_t transfer = fabric_transfer(target, from);

        world->inside++;
        cr_assert_eq(fabric_expect(target, from, transfer, kind, in, n, on_ended, &payload.landed),
                     0);
        cr_assert_eq(fabric_payload(source, to, transfer, kind, out, n, on_ended, &payload.sent),
                     0);
        world->inside--;
        world_wait(world, both_ended, &payload);
}

void world_payload(struct world *world, uint32_t from, uint32_t to, size_t n, enum traffic kind)
{
        uint8_t *out = calloc(1, n + 1), *in = calloc(1, n + 1);

        for (size_t i = 0; i < n; i++)
                out[i] = (uint8_t)(i * 31 + (i >> 8));
        world_pass(world, from, to, out, in, n, kind);
        cr_assert_eq(memcmp(in, out, n), 0);
        free(in);
        free(out);
}
