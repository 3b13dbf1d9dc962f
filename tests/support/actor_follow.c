/*
 * A reader of a job: whole versions of its parameters.
 *
 * {"do": "follow", "least", "most"}  holds a version, and answers with its hash, as a journal of
 *                                    "train" has it, and its copy
 * {"do": "form", "groups", "dtypes"} numbers for zero_follow_form(); the hash is then of that
 * {"do": "rehash", "copy", "as"}     hashes a version that is held once more; as: converted here,
 *                                    [group] is a dtype, or 0: left out
 * {"do": "unfollow", "copy"}
 * {"do": "read", "until": FILE, "journal": FILE}  each newer version that is the newest when it is
 *                                    asked for, up to the version whose number the file holds;
 *                                    appends "VERSION HASH TIME"
 */
#include "actor.h"
#include "proto/dtype.h"

#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

enum { COPIES = 16 };
static struct zero_weights weights[COPIES];

static enum zero_dtype in_form[64]; /* [group]; 0: the group's own */

static enum zero_dtype group_dtype(const struct actor *a, uint32_t g)
{
        return g < sizeof in_form / sizeof *in_form && in_form[g]
                       ? in_form[g]
                       : zero_layout_group_dtype(actor_known_layout(a), g);
}

static uint64_t converted_hash(const struct actor *a, uint32_t g, enum zero_dtype to,
                               const void *values)
{
        uint64_t n = zero_layout_group_elements(actor_known_layout(a), g);
        void *as = malloc(n * sizeof(float));
        uint64_t hash;

        if (!as)
                abort();
        for (uint64_t i = 0; i < n; i++)
                dtype_store(to, as, i, dtype_load(group_dtype(a, g), values, i));
        hash = values_hash(a, g, to, as);
        free(as);
        return hash;
}

/* as: NULL, or the dtypes to convert to. */
static uint64_t weights_hash(const struct actor *a, const struct zero_weights *w, const json_t *as)
{
        uint64_t hash = TRAIN_HASH_BEGIN;

        for (uint32_t g = 0; g < a->n_groups; g++) {
                const void *values = zero_weights_group(a->client, w, g);
                enum zero_dtype from = group_dtype(a, g);
                enum zero_dtype to = (enum zero_dtype)json_integer_value(json_array_get(as, g));

                if (values && (!as || to))
                        hash = (hash ^ (!as || to == from ? values_hash(a, g, from, values)
                                                          : converted_hash(a, g, to, values))) *
                               TRAIN_HASH_PRIME;
        }
        return hash;
}

static void tell(const struct actor *a, const struct zero_weights *w, const json_t *as, json_t *ret)
{
        char hex[17];

        snprintf(hex, sizeof hex, "%016" PRIx64, weights_hash(a, w, as));
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
        tell(actor, &w, NULL, ret);
        return ZERO_OK;
}

int do_form(struct actor *actor, const json_t *command, json_t *ret)
{
        const json_t *groups = json_object_get(command, "groups");
        const json_t *dtypes = json_object_get(command, "dtypes");
        uint32_t n = (uint32_t)json_array_size(groups);
        struct zero_form *form = calloc(n + 1, sizeof *form);
        int r;

        for (uint32_t i = 0; i < n; i++) {
                form[i].group = (uint32_t)json_integer_value(json_array_get(groups, i));
                form[i].dtype = (enum zero_dtype)json_integer_value(json_array_get(dtypes, i));
        }
        r = zero_follow_form(actor->client, form, n);
        for (uint32_t i = 0; !r && i < n; i++)
                in_form[form[i].group] = form[i].dtype;
        free(form);
        return r;
}

int do_rehash(struct actor *actor, const json_t *command, json_t *ret)
{
        tell(actor, &weights[field_count(command, "copy", 0) % COPIES],
             json_object_get(command, "as"), ret);
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
                journal(fd, w.version, weights_hash(actor, &w, NULL));
                least = w.version + 1;
                r = zero_unfollow(actor->client, &w);
        }
        json_object_set_new(ret, "version", json_integer((json_int_t)least - 1));
        close(fd);
        return r;
}
