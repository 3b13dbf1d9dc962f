/*
 * A reader of a job: whole versions of its parameters.
 *
 * {"do": "follow", "least", "most"}  holds a version, and answers with its hash, as a journal of
 *                                    "train" has it, and its copy
 * {"do": "rehash", "copy"}           hashes a version that is held once more
 * {"do": "unfollow", "copy"}
 * {"do": "read", "until": FILE, "journal": FILE}  each newer version that is the newest when it is
 *                                    asked for, up to the version whose number the file holds;
 *                                    appends "VERSION HASH TIME"
 */
#include "actor.h"

#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

enum { COPIES = 16 };
static struct zero_weights weights[COPIES];

static uint64_t weights_hash(const struct actor *a, const struct zero_weights *w)
{
        uint64_t hash = TRAIN_HASH_BEGIN;

        for (uint32_t g = 0; g < a->n_groups; g++)
                hash = (hash ^ view_hash(a, g, zero_weights_group(a->client, w, g))) *
                       TRAIN_HASH_PRIME;
        return hash;
}

static void tell(const struct actor *a, const struct zero_weights *w, json_t *ret)
{
        char hex[17];

        snprintf(hex, sizeof hex, "%016" PRIx64, weights_hash(a, w));
        json_object_set_new(ret, "hash", json_string(hex));
        json_object_set_new(ret, "version", json_integer((json_int_t)w->version));
        json_object_set_new(ret, "bytes", json_integer((json_int_t)w->bytes));
        json_object_set_new(ret, "copy", json_integer(w->copy));
}

int do_follow(struct actor *actor, const json_t *command, json_t *ret)
{
        struct zero_weights w;
        int r = zero_follow(actor->client, field_count(command, "least", 0),
                            field_count(command, "most", UINT64_MAX),
                            (uint32_t)field_count(command, "timeout_ms", 0), &w);

        if (r)
                return r;
        weights[w.copy] = w;
        tell(actor, &w, ret);
        return ZERO_OK;
}

int do_rehash(struct actor *actor, const json_t *command, json_t *ret)
{
        tell(actor, &weights[field_count(command, "copy", 0) % COPIES], ret);
        return ZERO_OK;
}

int do_unfollow(struct actor *actor, const json_t *command, json_t *ret)
{
        const struct zero_weights w = { .copy = (uint32_t)field_count(command, "copy", 0) };

        return zero_unfollow(actor->client, &w);
}

static uint64_t number_in(const char *path)
{
        FILE *f = fopen(path, "r");
        uint64_t n = UINT64_MAX;

        if (f && fscanf(f, "%" SCNu64, &n) != 1)
                n = UINT64_MAX;
        if (f)
                fclose(f);
        return n;
}

static void journal(int fd, uint64_t version, uint64_t hash)
{
        struct timespec now;
        char line[120];
        int n;

        clock_gettime(CLOCK_MONOTONIC, &now);
        n = snprintf(line, sizeof line, "%" PRIu64 " %016" PRIx64 " %lld.%06ld\n", version, hash,
                     (long long)now.tv_sec, now.tv_nsec / 1000);
        if (write(fd, line, (size_t)n) != n)
                abort();
}

int do_read(struct actor *actor, const json_t *command, json_t *ret)
{
        const char *until = field_text(command, "until");
        int fd = open(field_text(command, "journal"), O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC,
                      0600);
        uint64_t least = 0;
        int r = ZERO_OK;

        while (!r && least <= number_in(until)) {
                struct zero_weights w;

                r = zero_follow(actor->client, least, UINT64_MAX, 0, &w);
                if (r == ZERO_EDEADLINE) { /* the trainers may have been stopped */
                        r = ZERO_OK;
                        continue;
                }
                if (r)
                        break;
                journal(fd, w.version, weights_hash(actor, &w));
                least = w.version + 1;
                r = zero_unfollow(actor->client, &w);
        }
        json_object_set_new(ret, "version", json_integer((json_int_t)least - 1));
        close(fd);
        return r;
}
