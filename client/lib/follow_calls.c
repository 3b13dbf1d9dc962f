/* Following a job: whole versions of its parameters, in memory that the node's readers share. */
#include <string.h>

#include "client.h"
#include "proto/cleanup.h"
#include "proto/dtype.h"

static int take(struct zero_client *c, const Zero__FollowReply *reply, struct zero_weights *ret)
{
        CLEANUP(cleanup_close) int fd = wire_take_fd(&c->wire, 0);
        struct follow *f = c->follow;
        int r;

        if (reply->copy >= FOLLOW_COPIES || reply->bytes != f->slots->bytes)
                return client_shut(c, "zerod gave a copy of %llu bytes, and its form has %llu",
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

static int form_add(struct zero_client *c, const struct zero_form *of, uint8_t *form)
{
        const layout *l = c->layout;
        const char *name;
        enum zero_dtype own;

        if (of->group >= l->n_groups)
                return client_fail(c, ZERO_ENOGROUP, "no group %u: the layout has %u", of->group,
                                   l->n_groups);
        name = l->groups[of->group].name;
        own = l->groups[of->group].dtype;
        if (form[of->group])
                return client_fail(c, ZERO_EINVAL, "the form has group '%s' twice", name);
        if (of->dtype && !dtype_converts(own, of->dtype))
                return client_fail(c, ZERO_EINVAL,
                                   "group '%s' is in %s: a form may have it in %s, not in %s (%d)",
                                   name, dtype_name(own),
                                   own == ZERO_FP32   ? ZERO_DTYPES
                                   : dtype_valid(own) ? "that or fp32"
                                                      : "that alone",
                                   dtype_name(of->dtype), (int)of->dtype);
        form[of->group] = (uint8_t)(of->dtype ? of->dtype : own);
        return 0;
}

int zero_follow_form(struct zero_client *client, const struct zero_form *groups, uint32_t n)
{
        int r = client_given(client, client_begin_unwaited(client), groups);
        CLEANUP(cleanup_free) uint8_t *form = NULL;

        if (r == 0)
                r = check_reader(client);
        if (r)
                return r;
        if (client->follow->slots)
                return client_fail(client, ZERO_EORDER,
                                   "the client has followed the job: connect another one for "
                                   "another form");
        if (n == 0)
                return client_fail(client, ZERO_EINVAL, "the form has no group");
        form = calloc(client->layout->n_groups, sizeof(*form));
        if (!form)
                return client_fail(client, ZERO_ENOMEM, "out of memory");
        for (uint32_t i = 0; i < n && r == 0; i++)
                r = form_add(client, &groups[i], form);
        if (r == 0)
                memcpy(client->follow->form, form, client->layout->n_groups);
        return r;
}

int zero_follow(struct zero_client *client, uint64_t least, uint64_t most, uint32_t timeout_ms,
                struct zero_weights *ret_weights)
{
        Zero__Follow follow = ZERO__FOLLOW__INIT;
        const Zero__Reply *reply;
        struct follow *f;
        int r = client_given(client, client_begin(client), ret_weights);

        if (r == 0)
                r = check_reader(client);
        if (r)
                return r;
        f = client->follow;
        if (!f->slots && slots_new_form(client->layout, f->form, &f->slots))
                return client_fail(client, ZERO_ENOMEM, "out of memory");
        follow.form = (ProtobufCBinaryData){ client->layout->n_groups, f->form };
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
        if (!client || !weights || !client->follow || group >= client->layout->n_groups ||
            !client->follow->form[group] || !client->follow->slots)
                return NULL;
        return (const uint8_t *)weights->data + slots_offset(client->follow->slots, group);
}
