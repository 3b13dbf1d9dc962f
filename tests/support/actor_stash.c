/* What an actor stashes: bytes that follow from a seed, so that whoever reads them can tell. */
#include "actor.h"

#include <stdlib.h>

enum { RANKS = 64 };

/* "stash": {"ranks": [...], "bytes": N, "entry_bytes": N, "where": "host", "unchecked": true} */
bool actor_stash_needs(const json_t *command, struct zero_stash *ret)
{
        const json_t *stash = json_object_get(command, "stash"), *rank;
        uint32_t *ranks = (uint32_t *)ret->ranks;
        size_t i;

        json_array_foreach(json_object_get(stash, "ranks"), i, rank)
        {
                if (i < RANKS)
                        ranks[ret->n_ranks++] = (uint32_t)json_integer_value(rank);
        }
        ret->bytes = field_count(stash, "bytes", 0);
        ret->entry_bytes = field_count(stash, "entry_bytes", 0);
        if (json_object_get(stash, "where"))
                ret->where = ZERO_STASH_HOST;
        ret->unchecked = json_is_true(json_object_get(stash, "unchecked"));
        return json_is_object(stash);
}

static uint8_t stash_byte(uint64_t seed, uint64_t i)
{
        return (uint8_t)((seed + 1) * 0x9e37 + i * 31 + (i >> 12) * 7);
}

/* {"key", "bytes", "seed"} */
int do_stash_write(struct actor *actor, const json_t *command, json_t *ret)
{
        uint64_t bytes = field_count(command, "bytes", 1), seed = field_count(command, "seed", 0);
        uint8_t *p = malloc(bytes ? bytes : 1);
        int r;

        for (uint64_t i = 0; p && i < bytes; i++)
                p[i] = stash_byte(seed, i);
        r = p ? zero_stash_write(actor->client, field_count(command, "key", 0), p, bytes,
                                 actor_sync(actor, command))
              : ZERO_ENOMEM;
        free(p);
        return r;
}

/* {"key", "seed"}: says how many bytes there are, and at which one they differ from the seed's (-1:
 * none). */
int do_stash_read(struct actor *actor, const json_t *command, json_t *ret)
{
        uint64_t bytes = 0, seed = field_count(command, "seed", 0), i = 0;
        const void *view = NULL;
        void *copy = NULL;
        int r = zero_stash_read(actor->client, field_count(command, "key", 0), &view, &bytes);

        if (r)
                return r;
        view = actor_bring_down(actor, view, bytes, &copy);
        while (i < bytes && ((const uint8_t *)view)[i] == stash_byte(seed, i))
                i++;
        free(copy);
        json_object_set_new(ret, "bytes", json_integer((json_int_t)bytes));
        json_object_set_new(ret, "differs", json_integer(i < bytes ? (json_int_t)i : -1));
        return ZERO_OK;
}

/* {"key", "last"} */
int do_stash_release(struct actor *actor, const json_t *command, json_t *ret)
{
        return zero_stash_release(actor->client, field_count(command, "key", 0),
                                  json_is_true(json_object_get(command, "last")),
                                  actor_sync(actor, command));
}
