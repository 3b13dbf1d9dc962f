/* Following a job: whole versions of its parameters, in memory that the node's readers share. */
#include "follow.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include "client.h"
#include "proto/cleanup.h"
#include "proto/slots.h"

/* A copy's memory stays mapped from the first version there to the next memory of that number. */
struct copy_memory {
        struct mapping mapping;
        uint64_t serial;
        bool known;
};

struct follow {
        struct slots *slots; /* where groups lie in a copy */
        struct copy_memory copies[FOLLOW_COPIES];
};

void follow_free(struct follow *f)
{
        if (!f)
                return;
        slots_free(f->slots);
        for (uint32_t i = 0; i < FOLLOW_COPIES; i++)
                mapping_deinit(&f->copies[i].mapping);
        free(f);
}

static int follow_new(struct zero_client *c)
{
        struct follow *f = calloc(1, sizeof(*f));

        if (!f || slots_new(c->layout, c->layout->n_groups, 0, NULL, &f->slots) < 0) {
                follow_free(f);
                return client_fail(c, ZERO_ENOMEM, "out of memory");
        }
        c->follow = f;
        return 0;
}

/* Maps the copy's memory unless it is mapped already. */
static int copy_map(struct zero_client *c, int fd, const Zero__FollowReply *reply)
{
        struct copy_memory *m = &c->follow->copies[reply->copy];
        struct stat st;
        int r;

        if (reply->bytes == 0 || (m->known && m->serial == reply->serial))
                return 0;
        if (fd < 0 || fstat(fd, &st) < 0 || (uint64_t)st.st_size < reply->bytes)
                return client_shut(c, "zerod did not pass the memory of version %llu",
                                   (unsigned long long)reply->version);
        mapping_deinit(&m->mapping);
        m->known = false;
        r = mapping_open(fd, reply->bytes, PROT_READ, true, &m->mapping);
        if (r)
                return client_shut(c, "cannot map %llu bytes of version %llu: %s",
                                   (unsigned long long)reply->bytes,
                                   (unsigned long long)reply->version, strerror(-r));
        m->known = true;
        m->serial = reply->serial;
        return 0;
}

static int take(struct zero_client *c, const Zero__FollowReply *reply, struct zero_weights *ret)
{
        CLEANUP(cleanup_close) int fd = wire_take_fd(&c->wire, 0);
        int r;

        if (reply->copy >= FOLLOW_COPIES || reply->bytes != c->follow->slots->bytes)
                return client_shut(c, "zerod gave a copy of %llu bytes, and the layout has %llu",
                                   (unsigned long long)reply->bytes,
                                   (unsigned long long)c->follow->slots->bytes);
        r = copy_map(c, fd, reply);
        if (r)
                return r;
        *ret = (struct zero_weights){ .version = reply->version,
                                      .bytes = reply->bytes,
                                      .data = c->follow->copies[reply->copy].mapping.base,
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
        return c->follow ? 0 : follow_new(c);
}

int zero_follow(struct zero_client *client, uint64_t least, uint64_t most,
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
