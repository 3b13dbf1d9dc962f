/* A node that holds the key but does not keep to the rules of agreeing on a bulk path. */
#include <criterion/criterion.h>
#include <string.h>

#include "fabric_world.h"
#include "nodes.h"

static struct world world;

/* Node 1 runs members alone, so that it can send anything. */
static struct liar {
        struct members *members;
        struct cluster cluster;
        int ups, downs;
        void (*lie)(void);
        bool closed;
} liar;

static void say_hello(uint64_t token, size_t address, size_t host)
{
        static uint8_t zeros[1 << 16];
        Zero__LinkMessage m = ZERO__LINK_MESSAGE__INIT;
        Zero__BulkHello hello = ZERO__BULK_HELLO__INIT;

        hello.ucx_address.data = hello.host.data = zeros;
        hello.ucx_address.len = address;
        hello.host.len = host;
        hello.token = token;
        m.body_case = ZERO__LINK_MESSAGE__BODY_BULK_HELLO;
        m.bulk_hello = &hello;
        members_send(liar.members, 0, &m);
}

static void say_choice(const char *path, bool ok)
{
        Zero__LinkMessage m = ZERO__LINK_MESSAGE__INIT;
        Zero__BulkChoice choice = ZERO__BULK_CHOICE__INIT;

        choice.path = (char *)path;
        choice.ok = ok;
        m.body_case = ZERO__LINK_MESSAGE__BODY_BULK_CHOICE;
        m.bulk_choice = &choice;
        members_send(liar.members, 0, &m);
}

static void on_up(void *arg, uint32_t node)
{
        liar.ups++;
        liar.lie();
}

static void on_down(void *arg, uint32_t node, const char *why)
{
        liar.downs++;
}

static void on_message(void *arg, uint32_t node, const Zero__LinkMessage *m)
{
}

static void on_channel(void *arg, struct channel *channel)
{
        channel_close(channel);
}

static bool was_cut(void *arg)
{
        return liar.downs >= 1;
}

/* Checks that the liar's link is cut, that the liar never comes up, and that the node lives on. */
static void is_cut_for(void (*lie)(void))
{
        const struct members_events events = { on_up, on_down, on_message, on_channel, NULL };

        liar.lie = lie;
        world_open_empty(&world, 2, false);
        world_start(&world, 0, 'a', 0, NULL);
        make_cluster(&liar.cluster, 2, 1);
        cr_assert_eq(members_new(&world.loop, &liar.cluster, &events, &liar.members, NULL), 0);
        world_wait(&world, was_cut, NULL);
        cr_assert_eq(world.nodes[0].ups[1], 0);
        members_close(liar.members, set_true, &liar.closed);
        world_wait(&world, is_true, &liar.closed);
        cr_assert_eq(world_send(&world, 0, 0, 1), 0);
        world_close(&world);
}

static void speaks_at_once(void)
{
        Zero__LinkMessage m = ZERO__LINK_MESSAGE__INIT;

        members_send(liar.members, 0, &m);
}

static void says_hello_twice(void)
{
        say_hello(0, 0, 32);
        say_hello(0, 0, 32);
}

static void names_a_token_of_its_own(void)
{
        say_hello(5, 0, 32);
}

static void has_a_huge_address(void)
{
        say_hello(0, 5000, 32);
}

static void has_a_short_host(void)
{
        say_hello(0, 0, 31);
}

static void names_an_unknown_path(void)
{
        say_hello(0, 0, 32);
        say_choice("smoke", true);
}

static void claims_ucx_unasked(void)
{
        say_hello(0, 0, 32);
        say_choice("tcp", true);
        say_choice("ucx", true);
}

static void chooses_before_hello(void)
{
        say_choice("tcp", true);
}

#define LIE(name)                 \
        Test(liar, name)          \
        {                         \
                is_cut_for(name); \
        }
LIE(speaks_at_once)
LIE(says_hello_twice)
LIE(names_a_token_of_its_own)
LIE(has_a_huge_address)
LIE(has_a_short_host)
LIE(names_an_unknown_path)
LIE(claims_ucx_unasked)
LIE(chooses_before_hello)
