/* Activation checkpoints: written, read, released. */
#include "client.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "proto/cleanup.h"

static int copy_failed(struct zero_client *c, int error)
{
        return client_fail(c, ZERO_EGPU, "cuda:%d cannot copy an entry of the stash: %s",
                           c->gpu->ordinal, strerror(-error));
}

/* A daemon that is lost has nothing to order; the next call that waits resumes. */
static int record(struct zero_client *c, const struct zero_sync *sync, uint64_t key,
                  uint32_t *ret_event)
{
        char what[60];
        int r;

        snprintf(what, sizeof(what), "the use of entry %llu of the stash", (unsigned long long)key);
        r = client_record(c, sync, what, ret_event);
        return r == CLIENT_LOST ? 0 : r;
}

static int begin(struct zero_client *c)
{
        int r = client_begin(c);

        if (r == 0)
                r = client_check_group(c, 0);
        if (r == 0 && !c->stash)
                r = client_fail(c, ZERO_EORDER,
                                "the rank has no stash: declare one in zero_needs.stash");
        return r;
}

static Zero__Stash stash_message(const struct zero_client *c, Zero__Stash__Op op, uint64_t key)
{
        Zero__Stash stash = ZERO__STASH__INIT;

        stash.op = op;
        stash.key = key;
        stash.attempt = c->attempt;
        stash.unpinned = stash_waits(c->stash);
        return stash;
}

/* The reply's bytes as extents, which the caller frees; they are where zerod says, and complete. */
static int take_extents(struct zero_client *c, const Zero__StashReply *reply, bool cut,
                        struct extent **ret, uint32_t *ret_n)
{
        uint32_t n = (uint32_t)reply->n_extents;
        CLEANUP(cleanup_free) struct extent *all = calloc(n + 1, sizeof(*all));
        CLEANUP(cleanup_free) struct extent *some = calloc(n + 1, sizeof(*some));
        uint64_t bytes = 0;

        if (!all || !some)
                return client_fail(c, ZERO_ENOMEM, "out of memory");
        for (uint32_t i = 0; i < n; i++)
                all[i] = (struct extent){ reply->extents[i]->offset, reply->extents[i]->bytes };
        *ret_n = extents_cut(all, n, reply->skip, reply->bytes, some);
        for (uint32_t i = 0; i < *ret_n; i++)
                bytes += some[i].bytes;
        if (bytes != reply->bytes)
                return client_shut(c, "zerod named %llu bytes of the stash instead of %llu",
                                   (unsigned long long)bytes, (unsigned long long)reply->bytes);
        if (!cut) /* whole pages, to be mapped */
                *ret_n = n;
        *ret = cut ? STEAL(some) : STEAL(all);
        return 0;
}

/* Whose hash other ranks compare; 0: nobody's. */
static int hash_of(struct zero_client *c, const void *src, uint64_t bytes,
                   const struct zero_sync *sync, uint64_t *ret)
{
        CLEANUP(cleanup_free) void *copy = NULL;
        int r = 0;

        if (!c->stash->compares || c->stash->compared)
                return 0;
        if (c->gpu) {
                copy = malloc(bytes);
                r = copy ? gpu_copy(c->gpu, copy, src, bytes, sync->stream) : -ENOMEM;
        }
        if (r)
                return copy_failed(c, r);
        if (c->gpu)
                r = client_wait_for_stream(c, sync, "the hash of an entry of the stash");
        if (r == 0)
                *ret = stash_hash(copy ? copy : src, bytes);
        return r;
}

static int write_part(struct zero_client *c, const Zero__StashReply *reply, const uint8_t *src,
                      uint64_t bytes, void *stream)
{
        CLEANUP(cleanup_free) struct extent *extents = NULL;
        uint32_t n;
        int r = take_extents(c, reply, true, &extents, &n);

        if (r)
                return r;
        if (reply->first > bytes || reply->bytes > bytes - reply->first)
                return client_shut(c, "zerod wants a part beyond the entry's %llu bytes",
                                   (unsigned long long)bytes);
        r = stash_put(c->stash, extents, n, src + reply->first, stream);
        return r ? client_shut(c, "cannot write to the stash: %s", strerror(-r)) : 0;
}

int zero_stash_write(struct zero_client *client, uint64_t key, const void *src, uint64_t bytes,
                     struct zero_sync *sync)
{
        struct zero_sync done = { 0 };
        const Zero__Reply *reply;
        Zero__Stash stash;
        int r = client_given(client, begin(client), src);

        if (r)
                return r;
        if (bytes == 0 || bytes > STASH_BYTES_MAX) /* they are read before zerod is asked */
                return client_fail(client, ZERO_EINVAL,
                                   "entry %llu of a stash has 1 to 2^50 bytes, not %llu",
                                   (unsigned long long)key, (unsigned long long)bytes);
        stash = stash_message(client, ZERO__STASH__OP__WRITE, key);
        stash.bytes = bytes;
        sync = sync ? sync : &done;
        r = hash_of(client, src, bytes, sync, &stash.hash);
        if (r == 0 || (r = client_go_on(client, r)) == 0) /* lost: it is not compared */
                r = client_call(client, REQUEST(STASH, stash, &stash), &reply);
        if (r)
                return r;
        client->stash->used = true;
        r = write_part(client, reply->stash, src, bytes, sync->stream);
        if (r)
                return r;
        stash = stash_message(client, ZERO__STASH__OP__WRITTEN, key);
        r = record(client, sync, key, &stash.event);
        return r ? r : client_send(client, REQUEST(STASH, stash, &stash), PUSH_NONE);
}

int zero_stash_read(struct zero_client *client, uint64_t key, const void **ret_view,
                    uint64_t *ret_bytes)
{
        struct extent *extents = NULL;
        const Zero__Reply *reply;
        Zero__Stash stash;
        void *view;
        uint32_t n;
        int r = begin(client);

        r = client_given(client, r, ret_view);
        r = client_given(client, r, ret_bytes);
        if (r)
                return r;
        stash = stash_message(client, ZERO__STASH__OP__READ, key);
        r = client_call(client, REQUEST(STASH, stash, &stash), &reply);
        if (r == 0)
                r = take_extents(client, reply->stash, false, &extents, &n);
        if (r)
                return r;
        r = stash_view(client->stash, key, extents, n, &view);
        if (r)
                return client_shut(client, "cannot map entry %llu of the stash: %s",
                                   (unsigned long long)key, strerror(-r));
        *ret_view = view;
        *ret_bytes = reply->stash->bytes;
        return 0;
}

int zero_stash_release(struct zero_client *client, uint64_t key, bool last, struct zero_sync *sync)
{
        Zero__Stash stash;
        int r = client_begin_aborted(client);

        if (r == 0)
                r = client_check_group(client, 0);
        if (r)
                return r;
        stash = stash_message(client, ZERO__STASH__OP__RELEASE, key);
        stash.last = last;
        r = record(client, sync, key, &stash.event);
        if (r)
                return r;
        if (!client->stash || (!stash_unview(client->stash, key) && !last))
                return client_fail(client, ZERO_ENOTHELD, "entry %llu of the stash is not read",
                                   (unsigned long long)key);
        return client_send(client, REQUEST(STASH, stash, &stash), PUSH_NONE);
}
