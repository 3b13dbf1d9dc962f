/*
 * Whole training steps, deterministic: a rank's gradients depend on the parameters it fetched
 * and on (seed, step, rank, micro-batch) alone.
 *
 * {"do": "train", "steps", "micro_batches", "seed", "first_step", "stage", "scale",
 * "pull", and those of
 * "step"}.  Stage 3 fetches each group for the forward and again for the backward pass and
 * releases it after use; the others keep every group for the whole step.  "own": true leaves out
 * the groups of other ranks, as a stage of a pipeline does.
 *
 * For runs that are disturbed:
 * "patient": true   replays a step that was aborted; the reply counts them as "aborts"
 * "until": FILE     instead of "steps": up to the version whose number the file holds, and
 *                   the file may be changed meanwhile
 * "ahead": true     says ahead of each step how it will end (zero_ahead())
 * "open": true      no push says that it is the last one of the step
 * "keep": true      keeps a text that tells the version with each step, and looks first that
 *                   what it was given at attach tells the version it begins at
 * "journal": FILE   appends "RANK VERSION HASH TIME" for each step that has ended: the
 *                   version before it, the hash of all it fetched, CLOCK_MONOTONIC in seconds
 */
#include "actor.h"

#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { KEPT_MAX = 2048 };

struct training {
        struct actor *actor;
        const json_t *command;
        struct noise noise;
        uint32_t stage, micro_batches;
        uint64_t first_step; /* of the noise, where the job is at version 0 */
        float pull;
        uint64_t hash, step_hash; /* of all that was fetched in forward passes; of this step's */
        bool patient, keep, own, ahead, open;
        uint64_t steps, done, aborts, skipped;
        int journal, until; /* -1: none */
        char kept[KEPT_MAX];
};

void step_params(const json_t *command, struct zero_set *sets, struct zero_step_options *ret)
{
        const json_t *list = json_object_get(command, "sets"), *item;
        size_t i;

        *ret = (struct zero_step_options){
                .sets = sets,
                .n_sets = 1,
                .clip_norm = field_number(command, "clip", 0),
                .loss_scale = field_number(command, "loss_scale", 0),
                .growth_interval = (uint32_t)field_count(command, "growth_interval", 0),
                .blob = field_text(command, "blob"),
        };
        ret->blob_bytes = ret->blob ? strlen(ret->blob) : 0;
        sets[0] = (struct zero_set){ .adamw = { field_number(command, "lr", 1e-3), 0.9, 0.999, 1e-8,
                                                0.01 } };
        if (list)
                ret->n_sets = (uint32_t)json_array_size(list);
        json_array_foreach(list, i, item)
        {
                struct zero_set *set = &sets[i % ZERO_SET_MAX];
                double *value = (double *)&set->adamw; /* where each of the union begins */
                const char *optimizer = json_string_value(json_array_get(item, 0));
                size_t named = optimizer ? 1 : 0; /* else AdamW's numbers alone */

                *set = (struct zero_set){ .optimizer = optimizer,
                                          .ema_decay = field_number(command, "ema_decay", 0) };
                for (size_t k = 0; k < sizeof(set->adamw) / sizeof(double); k++)
                        value[k] = json_number_value(json_array_get(item, named + k));
        }
}

static int hold(struct training *t, uint32_t group)
{
        struct actor *a = t->actor;

        if (a->views[group])
                return ZERO_OK;
        return actor_fetch(a, group, &a->views[group]);
}

static int let_go(struct training *t, uint32_t group)
{
        struct actor *a = t->actor;

        if (t->stage < 3 || !a->views[group])
                return ZERO_OK;
        a->views[group] = NULL;
        return zero_release(a->client, group, actor_sync(a, t->command));
}

/* The first group from `group` on that the rank works with. */
static uint32_t own_group(const struct training *t, uint32_t group)
{
        const struct actor *a = t->actor;

        while (t->own && group < a->n_groups && !actor_in_group(a, group))
                group++;
        return group;
}

static int forward(struct training *t)
{
        struct actor *a = t->actor;
        int r = ZERO_OK;

        for (uint32_t g = own_group(t, 0), next; !r && g < a->n_groups; g = next) {
                r = hold(t, g);
                next = own_group(t, g + 1);
                if (!r && next < a->n_groups)
                        r = zero_prefetch(a->client, next);
                if (r)
                        return r;
                t->step_hash = (t->step_hash ^ view_hash(a, g, a->views[g])) * TRAIN_HASH_PRIME;
                r = let_go(t, g);
        }
        return r;
}

static bool trainable(const struct actor *a, uint32_t group)
{
        const struct zero_layout *l = actor_known_layout(a);
        uint32_t first, n = zero_layout_group_tensors(l, group, &first);

        for (uint32_t i = first; i < first + n; i++)
                if (!zero_layout_tensor_frozen(l, i))
                        return true;
        return false;
}

static int backward_group(struct training *t, uint32_t group, bool last)
{
        struct actor *a = t->actor;
        void *grad = NULL;
        int r = hold(t, group);

        if (!r && trainable(a, group) && actor_in_group(a, group)) {
                r = actor_grad(a, group, &grad);
                if (!r) {
                        gradient_fill(a, &t->noise, group, a->views[group], t->pull, grad);
                        r = actor_push(a, group, NULL, last, t->command);
                }
        }
        return r ? r : let_go(t, group);
}

static int backward(struct training *t, bool last)
{
        int r = ZERO_OK;

        for (uint32_t g = t->actor->n_groups; !r && g-- > 0;)
                if (own_group(t, g) == g)
                        r = backward_group(t, g, last);
        return r;
}

/* ---- steps that others may take up ---------------------------------------------- */

/* What a rank keeps so that at `version` it knows where it stands; of many lengths. */
static size_t kept_make(uint32_t rank, uint64_t version, char ret[static KEPT_MAX])
{
        size_t n = 64 + version * 97 % (KEPT_MAX - 64);
        int used = snprintf(ret, KEPT_MAX, "rank %u stands at %" PRIu64 " ", rank, version);

        memset(ret + used, 'a' + (int)(version % 26), n - (size_t)used);
        return n;
}

static int kept_check(struct training *t, json_t *ret)
{
        struct zero_client *c = t->actor->client;
        size_t n = 0, expected = kept_make(t->actor->rank, zero_steps(c), t->kept);
        const void *blob = zero_blob(c, &n);
        char text[200];

        if (!t->keep || (zero_steps(c) == 0 && n == 0) ||
            (n == expected && memcmp(blob, t->kept, n) == 0))
                return ZERO_OK;
        snprintf(text, sizeof text, "at version %" PRIu64 " rank %u was given %zu bytes: '%.60s'",
                 zero_steps(c), t->actor->rank, n, n ? (const char *)blob : "");
        json_object_set_new(ret, "text", json_string(text));
        return ZERO_EIO;
}

static void journal_write(const struct training *t, uint64_t version)
{
        struct timespec now;
        char line[120];
        int n;

        if (t->journal < 0)
                return;
        clock_gettime(CLOCK_MONOTONIC, &now);
        n = snprintf(line, sizeof line, "%u %" PRIu64 " %016" PRIx64 " %lld.%06ld\n",
                     t->actor->rank, version, t->step_hash, (long long)now.tv_sec,
                     now.tv_nsec / 1000);
        if (write(t->journal, line, (size_t)n) != n)
                abort();
}

static bool goes_on(const struct training *t)
{
        char text[32] = "";

        if (t->until < 0)
                return t->done < t->steps;
        if (pread(t->until, text, sizeof text - 1, 0) < 0)
                abort();
        return zero_steps(t->actor->client) < strtoull(text, NULL, 10);
}

static int whole_step(struct training *t, struct zero_step_options *step,
                      struct zero_result *ret_result)
{
        struct actor *a = t->actor;
        uint64_t version = zero_steps(a->client);
        int r = ZERO_OK;

        t->noise.step = t->first_step + version;
        t->step_hash = TRAIN_HASH_BEGIN;
        if (t->ahead)
                r = zero_ahead(a->client, step);
        for (uint32_t m = 0; !r && m < t->micro_batches; m++) {
                t->noise.micro_batch = m;
                r = forward(t);
                if (!r)
                        r = backward(t, !t->open && m + 1 == t->micro_batches);
        }
        if (t->keep) {
                step->blob = t->kept;
                step->blob_bytes = kept_make(a->rank, version + 1, t->kept);
        }
        if (!r)
                r = zero_step(a->client, step, ret_result);
        for (uint32_t g = 0; g < a->n_groups; g++)
                a->views[g] = NULL;
        if (r)
                return r;
        journal_write(t, version);
        t->hash = (t->hash ^ t->step_hash) * TRAIN_HASH_PRIME;
        t->skipped += ret_result->skipped;
        t->done++;
        return ZERO_OK;
}

static int run(struct training *t, struct zero_step_options *step, struct zero_result *ret_result)
{
        int r = ZERO_OK;

        while (!r && goes_on(t)) {
                r = whole_step(t, step, ret_result);
                if (r != ZERO_EABORTED || !t->patient)
                        continue;
                t->aborts++;
                r = ZERO_OK;
        }
        return r;
}

static int open_named(const json_t *command, const char *field, int flags)
{
        const char *path = field_text(command, field);
        int fd = path ? open(path, flags | O_CLOEXEC, 0600) : -1;

        if (path && fd < 0)
                abort();
        return fd;
}

int actor_train(struct actor *actor, const json_t *command, json_t *ret)
{
        struct training t = {
                .actor = actor,
                .command = command,
                .noise = { field_count(command, "seed", 1), 0, actor->rank, 0,
                           field_number(command, "scale", 1) },
                .stage = (uint32_t)field_count(command, "stage", 3),
                .micro_batches = (uint32_t)field_count(command, "micro_batches", 1),
                .first_step = field_count(command, "first_step", 0),
                .pull = (float)field_number(command, "pull", 0.125),
                .hash = TRAIN_HASH_BEGIN,
                .patient = json_is_true(json_object_get(command, "patient")),
                .keep = json_is_true(json_object_get(command, "keep")),
                .own = json_is_true(json_object_get(command, "own")),
                .ahead = json_is_true(json_object_get(command, "ahead")),
                .open = json_is_true(json_object_get(command, "open")),
                .steps = field_count(command, "steps", 1),
                .journal = open_named(command, "journal", O_WRONLY | O_APPEND | O_CREAT),
                .until = open_named(command, "until", O_RDONLY),
        };
        struct zero_set sets[ZERO_SET_MAX];
        struct zero_result result = { 0 };
        struct zero_step_options step;
        char hex[17];
        int r;

        step_params(command, sets, &step);
        step.sync = actor_sync(actor, command);
        r = kept_check(&t, ret);
        if (!r)
                r = run(&t, &step, &result);
        snprintf(hex, sizeof hex, "%016" PRIx64, t.hash);
        json_object_set_new(ret, "hash", json_string(hex));
        json_object_set_new(ret, "version", json_integer((json_int_t)zero_steps(actor->client)));
        json_object_set_new(ret, "skipped", json_integer((json_int_t)t.skipped));
        json_object_set_new(ret, "aborts", json_integer((json_int_t)t.aborts));
        json_object_set_new(ret, "grad_norm", json_real(result.grad_norm));
        close(t.journal);
        close(t.until);
        return r;
}
