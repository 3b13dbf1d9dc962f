/* Following a job: whole versions of its parameters, in memory that the node's readers share. */
#include <string.h>

#include "client.h"
#include "proto/cleanup.h"

static int take(struct zero_client *c, const Zero__FollowReply *reply, struct zero_weights *ret)
{
        CLEANUP(cleanup_close) int fd = wire_take_fd(&c->wire, 0);
        struct follow *f = c->follow;
        int r;

        if (reply->copy >= FOLLOW_COPIES || reply->bytes != f->slots->bytes)
                return client_shut(c, "zerod gave a copy of %llu bytes, and the layout has %llu",
                                   (unsigned long long)reply->bytes,
                                   (unsigned long long)f->slots->bytes);
        r = follow_map(f, reply->copy, reply->serial, fd);
        if (r)
                return client_shut(c, "cannot map %llu bytes of version %llu: %s",
                                   (unsigned long long)reply->bytes,
                                   (unsigned long long)reply->version, strerror(-r));
        *ret = (struct zero_weights){ .version = reply->version,
                                      .bytes = reply->bytes,
                                      .data = f->copies[reply->copy].mapping.base,
                                      .copy = reply->copy };
        return 0;
}

static int check_reader(struct zero_client *c)
{
        if (!c->layout)
                return client_fail(c, ZERO_ENOTATTACHED, "zero_attach() was not called yet");
        if (c->rank != ZERO_OBSERVER)
                return client_fail(c, ZERO_EPERM,
                                   "a rank follows no job: connect as ZERO_OBSERVER");
        if (c->protocol < CLIENT_FOLLOWS)
                return client_fail(c, ZERO_EVERSION,
                                   "zerod is of a release that lets nobody follow a job");
        if (!c->follow && follow_new(c->layout, &c->follow))
                return client_fail(c, ZERO_ENOMEM, "out of memory");
        return 0;
}

int zero_follow(struct zero_client *client, uint64_t least, uint64_t most, uint32_t timeout_ms,
                struct zero_weights *ret_weights)
{
        Zero__Follow follow = ZERO__FOLLOW__INIT;
        const Zero__Reply *reply;
        int r = client_given(client, client_begin(client), ret_weights);

        if (r == 0)
                r = check_reader(client);
        if (r)
                return r;
        follow.least = least;
        follow.most = most;
        follow.timeout_ms = timeout_ms;
        wire_expect_fds(&client->wire, true);
        r = client_call(client, REQUEST(FOLLOW, follow, &follow), &reply);
        if (r == 0)
                r = take(client, reply->follow, ret_weights);
        wire_expect_fds(&client->wire, false);
        return r;
}

int zero_unfollow(struct zero_client *client, const struct zero_weights *weights)
{
        Zero__Unfollow unfollow = ZERO__UNFOLLOW__INIT;
        const Zero__Reply *reply;
        int r = client_given(client, client_begin(client), weights);

        if (r == 0)
                r = check_reader(client);
        if (r)
                return r;
        unfollow.copy = weights->copy;
        return client_call(client, REQUEST(UNFOLLOW, unfollow, &unfollow), &reply);
}

const void *zero_weights_group(const struct zero_client *client, const struct zero_weights *weights,
                               uint32_t group)
{
        if (!client || !weights || !client->follow || group >= client->layout->n_groups)
                return NULL;
        return (const uint8_t *)weights->data + slots_offset(client->follow->slots, group);
}
