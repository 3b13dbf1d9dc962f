/*
 * actor: a client of zerod that does as it is told.
 *
 * Reads one command a line on stdin, a JSON object {"do": NAME, ...}, and answers with one
 * JSON object a line on stdout: {"status": "OK" or a name of enum zero_status, "text": what
 * zero_error() says, ...}.  It ends with its input, without closing the client.
 */
#include "actor.h"

#include <inttypes.h>
#include <math.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "proto/dtype.h"

double field_number(const json_t *command, const char *name, double otherwise)
{
        const json_t *value = json_object_get(command, name);

        return json_is_number(value) ? json_number_value(value) : otherwise;
}

uint64_t field_count(const json_t *command, const char *name, uint64_t otherwise)
{
        const json_t *value = json_object_get(command, name);

        return json_is_integer(value) ? (uint64_t)json_integer_value(value) : otherwise;
}

const char *field_text(const json_t *command, const char *name)
{
        return json_string_value(json_object_get(command, name));
}

enum zero_dtype field_dtype(const json_t *command, const char *name)
{
        const char *text = field_text(command, name);

#define X(dtype, code, bytes, word)          \
        if (text && strcmp(text, word) == 0) \
                return ZERO_##dtype;
        ZERO_DTYPE_MAP(X)
#undef X
#define X(dtype, code, word)                 \
        if (text && strcmp(text, word) == 0) \
                return ZERO_##dtype;
        ZERO_BYTES_MAP(X)
#undef X
        return ZERO_FP32;
}

const struct zero_layout *actor_known_layout(const struct actor *actor)
{
        const struct zero_layout *l = actor->client ? zero_client_layout(actor->client) : NULL;

        return l ? l : actor->layout;
}

/* ---- connection ------------------------------------------------------------ */

/* {"user": uid}: goes on as that user, for good. */
static int do_user(struct actor *actor, const json_t *command, json_t *ret)
{
        uid_t uid = (uid_t)field_count(command, "uid", 65534);

        return setgid(uid) || setuid(uid) ? ZERO_EPERM : ZERO_OK;
}

static int do_connect(struct actor *actor, const json_t *command, json_t *ret)
{
        struct zero_options o = {
                .socket = field_text(command, "socket"),
                .job = field_text(command, "job"),
                .rank = (int32_t)field_number(command, "rank", 0),
                .world_size = (uint32_t)field_count(command, "world", 1),
                .local_world_size = (uint32_t)field_count(command, "local", 0),
                .timeout_ms = (uint32_t)field_count(command, "timeout_ms", 0),
                .incarnation = (uint32_t)field_count(command, "incarnation", 0),
        };

        actor->rank = (uint32_t)o.rank;
        return zero_connect(&o, &actor->client);
}

/* A child that does nothing and outlives this process: it keeps the connection open. */
static int do_fork(struct actor *actor, const json_t *command, json_t *ret)
{
        pid_t child = fork();

        if (child == 0) {
                close(STDIN_FILENO);
                close(STDOUT_FILENO);
                poll(NULL, 0, -1);
                _exit(0);
        }
        json_object_set_new(ret, "pid", json_integer(child));
        return child < 0 ? ZERO_ENOMEM : ZERO_OK;
}

static int do_close(struct actor *actor, const json_t *command, json_t *ret)
{
        zero_close(actor->client);
        actor->client = NULL;
        actor_gpu_close(actor);
        return ZERO_OK;
}

static int do_finish(struct actor *actor, const json_t *command, json_t *ret)
{
        return zero_finish(actor->client, json_is_true(json_object_get(command, "keep")));
}

static int do_layout(struct actor *actor, const json_t *command, json_t *ret)
{
        const char *text = NULL;
        int r = actor_layout(actor, command, &text);

        if (r)
                json_object_set_new(ret, "text", json_string(text));
        return r;
}

static int groups_alloc(struct actor *actor)
{
        uint32_t n = zero_layout_groups(actor_known_layout(actor));

        free(actor->views);
        free(actor->grads);
        actor->views = calloc(n + 1, sizeof *actor->views);
        actor->grads = calloc(n + 1, sizeof *actor->grads);
        actor->n_groups = n;
        return actor->views && actor->grads ? ZERO_OK : ZERO_ENOMEM;
}

/* -1: ZERO_ALL, -2: ZERO_AUTO */
static uint32_t how_many(const json_t *command, const char *name)
{
        return (uint32_t)(int64_t)field_number(command, name, 0);
}

/* Where the client stands: its version, what it was given with that version, and the pushes that
 * were accepted before.
 */
static int do_version(struct actor *actor, const json_t *command, json_t *ret)
{
        size_t n = 0;
        const char *blob = zero_blob(actor->client, &n);
        json_t *accepted = json_array();

        for (uint32_t g = 0; g < actor->n_groups; g++)
                json_array_append_new(accepted, json_integer(zero_accepted(actor->client, g)));
        json_object_set_new(ret, "version", json_integer((json_int_t)zero_steps(actor->client)));
        json_object_set_new(ret, "loss_scale", json_real(zero_loss_scale(actor->client)));
        json_object_set_new(ret, "blob", json_stringn(n ? blob : "", n));
        json_object_set_new(ret, "accepted", accepted);
        return ZERO_OK;
}

/* The layout is a part; from then on it is that of all ranks. */
static int do_compose(struct actor *actor, const json_t *command, json_t *ret)
{
        json_t *groups = json_array();
        struct zero_layout *whole = NULL;
        int r = zero_compose(actor->client, actor->layout,
                             (uint32_t)field_count(command, "stage", 0), &whole);

        for (uint32_t g = 0; !r && g < zero_layout_groups(whole); g++)
                json_array_append_new(groups, json_string(zero_layout_group_name(whole, g)));
        json_object_set_new(ret, "groups", groups);
        if (r)
                return r;
        zero_layout_free(actor->layout);
        actor->layout = whole;
        return ZERO_OK;
}

static int do_attach(struct actor *actor, const json_t *command, json_t *ret)
{
        const char *lost = field_text(command, "on_lost");
        const char *wire = field_text(command, "accumulate");
        struct zero_needs needs = {
                how_many(command, "hold"),
                how_many(command, "push"),
                field_dtype(command, "grad"),
                field_dtype(command, "reduce"),
                wire && strcmp(wire, "wire") == 0 ? ZERO_ACCUMULATE_WIRE : ZERO_ACCUMULATE_FP32,
                json_is_true(json_object_get(command, "private")),
                lost && strcmp(lost, "fail") == 0 ? ZERO_LOST_FAIL : ZERO_LOST_WAIT,
                field_text(command, "device")
        };
        uint32_t ranks[64];
        struct zero_stash stash = { .ranks = ranks };
        bool observer = json_is_true(json_object_get(command, "observer"));
        int r;

        if (actor_stash_needs(command, &stash))
                needs.stash = &stash;
        r = zero_attach(actor->client, observer ? NULL : actor->layout, observer ? NULL : &needs);

        actor->grad_dtype = needs.grad_dtype;
        if (!r)
                r = groups_alloc(actor);
        if (!r)
                actor_gpu_open(actor, observer ? NULL : needs.device);
        return r || observer ? r : do_version(actor, command, ret);
}

/* Connects and disconnects "count" times; attaches in between if a layout is described. */
static int do_churn(struct actor *actor, const json_t *command, json_t *ret)
{
        uint64_t count = field_count(command, "count", 1);
        int r = ZERO_OK;

        for (uint64_t i = 0; !r && i < count; i++) {
                r = do_connect(actor, command, ret);
                if (!r && actor->layout)
                        r = do_attach(actor, command, ret);
                if (!r)
                        do_close(actor, command, ret);
        }
        return r;
}

static int do_query(struct actor *actor, const json_t *command, json_t *ret)
{
        char *text = NULL;
        int r = zero_query(actor->client, field_text(command, "what"),
                           field_text(command, "argument"), &text);

        if (!r)
                json_object_set_new(ret, "answer", json_loads(text, 0, NULL));
        free(text);
        return r;
}

/* ---- one step ---------------------------------------------------------------- */

static void forget_views(struct actor *actor)
{
        for (uint32_t g = 0; g < actor->n_groups; g++)
                actor->views[g] = NULL;
}

static uint32_t group_of(const json_t *command)
{
        return (uint32_t)field_count(command, "group", 0);
}

static int do_fetch(struct actor *actor, const json_t *command, json_t *ret)
{
        const void *view = NULL;
        uint32_t group = group_of(command);
        int r = actor_fetch(actor, group, &view);

        if (!r)
                actor->views[group] = view;
        return r;
}

static int do_prefetch(struct actor *actor, const json_t *command, json_t *ret)
{
        return zero_prefetch(actor->client, group_of(command));
}

static int do_release(struct actor *actor, const json_t *command, json_t *ret)
{
        uint32_t group = group_of(command);
        int r = zero_release(actor->client, group, actor_sync(actor, command));

        if (!r)
                actor->views[group] = NULL;
        return r;
}

/* Writes over a held group's view, which only a private view allows. */
static int do_scribble(struct actor *actor, const json_t *command, json_t *ret)
{
        uint32_t group = group_of(command);
        const struct zero_layout *l = actor_known_layout(actor);
        const void *view = group < actor->n_groups ? actor->views[group] : NULL;

        if (!view)
                return ZERO_ENOTHELD;
        memset((void *)view, 0x55,
               zero_layout_group_elements(l, group) *
                       zero_dtype_size(zero_layout_group_dtype(l, group)));
        return ZERO_OK;
}

/* A held group's hash, and its elements if "values" is asked for. */
static int do_view(struct actor *actor, const json_t *command, json_t *ret)
{
        uint32_t group = group_of(command);
        const struct zero_layout *l = actor_known_layout(actor);
        const void *view = group < actor->n_groups ? actor->views[group] : NULL;
        json_t *values = json_array();
        char hex[17];

        if (!view) {
                json_decref(values);
                return ZERO_ENOTHELD;
        }
        snprintf(hex, sizeof hex, "%016" PRIx64, view_hash(actor, group, view));
        json_object_set_new(ret, "hash", json_string(hex));
        for (uint64_t i = 0; json_is_true(json_object_get(command, "values")) &&
                             i < zero_layout_group_elements(l, group);
             i++)
                json_array_append_new(values, json_real((double)dtype_load(
                                                      zero_layout_group_dtype(l, group), view, i)));
        json_object_set_new(ret, "values", values);
        return ZERO_OK;
}

static float bad_value(const char *what)
{
        return strtof(what, NULL); /* "nan", "inf" or a number */
}

static int do_grad(struct actor *actor, const json_t *command, json_t *ret)
{
        struct noise noise = { field_count(command, "seed", 1), field_count(command, "step", 0),
                               field_count(command, "rank", actor->rank),
                               field_count(command, "micro_batch", 0),
                               field_number(command, "scale", 1) };
        const char *bad = field_text(command, "bad");
        uint32_t group = group_of(command);
        void *grad = NULL;
        int r = actor_grad(actor, group, &grad);

        if (r)
                return r;
        gradient_fill(actor, &noise, group, NULL, 0, grad);
        if (bad)
                dtype_store(actor->grad_dtype, grad, field_count(command, "at", 0), bad_value(bad));
        actor->grads[group] = grad;
        return ZERO_OK;
}

/* Writes over all memory of gradients it was given and has not pushed, without asking. */
static int do_smear(struct actor *actor, const json_t *command, json_t *ret)
{
        const struct zero_layout *l = actor_known_layout(actor);

        for (uint32_t g = 0; g < actor->n_groups; g++)
                if (actor->grads[g])
                        memset(actor->grads[g], 0x55,
                               zero_layout_group_elements(l, g) *
                                       zero_dtype_size(actor->grad_dtype));
        return ZERO_OK;
}

static int do_push(struct actor *actor, const json_t *command, json_t *ret)
{
        const json_t *mask = json_object_get(command, "present"), *bit;
        bool last = !json_is_false(json_object_get(command, "last"));
        uint8_t present[256] = { 0 };
        uint32_t group = group_of(command);
        size_t i;

        json_array_foreach(mask, i, bit) present[i % sizeof present] =
                (uint8_t)json_integer_value(bit);
        if (group < actor->n_groups)
                actor->grads[group] = NULL;
        return actor_push(actor, group, mask ? present : NULL, last, command);
}

static int do_norm(struct actor *actor, const json_t *command, json_t *ret)
{
        double norm;
        bool finite;
        int r = zero_norm(actor->client, &norm, &finite);

        if (r)
                return r;
        json_object_set_new(ret, "norm", isfinite(norm) ? json_real(norm) : json_null());
        json_object_set_new(ret, "finite", json_boolean(finite));
        return ZERO_OK;
}

static int do_ahead(struct actor *actor, const json_t *command, json_t *ret)
{
        struct zero_set sets[ZERO_SET_MAX];
        struct zero_step_options step;

        step_params(command, sets, &step);
        return zero_ahead(actor->client, &step);
}

static int do_step(struct actor *actor, const json_t *command, json_t *ret)
{
        struct zero_set sets[ZERO_SET_MAX];
        struct zero_step_options step;
        struct zero_result result;
        int r;

        step_params(command, sets, &step);
        step.sync = actor_sync(actor, command);
        r = zero_step(actor->client, &step, &result);
        if (r)
                return r;
        forget_views(actor);
        json_object_set_new(ret, "version", json_integer((json_int_t)result.version));
        json_object_set_new(ret, "skipped", json_boolean(result.skipped));
        json_object_set_new(ret, "skips", json_integer(result.skips));
        json_object_set_new(ret, "grad_norm",
                            isfinite(result.grad_norm) ? json_real(result.grad_norm) : json_null());
        json_object_set_new(ret, "loss_scale", json_real(result.loss_scale));
        return ZERO_OK;
}

/* ---- planes ------------------------------------------------------------------- */

static enum zero_plane plane_of(const json_t *command)
{
        const char *text = field_text(command, "plane");

#define X(plane, code, word)                 \
        if (text && strcmp(text, word) == 0) \
                return ZERO_PLANE_##plane;
        ZERO_PLANE_MAP(X)
#undef X
        if (text && strcmp(text, "exp_avg") == 0)
                return ZERO_PLANE_EXP_AVG;
        if (text && strcmp(text, "exp_avg_sq") == 0)
                return ZERO_PLANE_EXP_AVG_SQ;
        return (enum zero_plane)field_count(command, "plane", 0);
}

/* STEP and SET have one whole number a tensor. */
static bool plane_counts(enum zero_plane plane)
{
        return plane == ZERO_PLANE_STEP || plane == ZERO_PLANE_SET;
}

/* The type of the other planes' elements. */
static enum zero_dtype plane_dtype(const struct actor *actor, uint32_t tensor,
                                   enum zero_plane plane)
{
        const struct zero_layout *l = actor_known_layout(actor);

        return plane == ZERO_PLANE_SERVE
                       ? zero_layout_group_dtype(l, zero_layout_tensor_group(l, tensor))
                       : ZERO_FP32;
}

static int do_put(struct actor *actor, const json_t *command, json_t *ret)
{
        uint32_t tensor = (uint32_t)field_count(command, "tensor", 0);
        const json_t *values = json_object_get(command, "values"), *value;
        enum zero_plane plane = plane_of(command);
        double *data = calloc(json_array_size(values) + 1, sizeof *data);
        size_t i;
        int r = ZERO_ENOMEM;

        json_array_foreach(values, i, value)
        {
                if (data && plane_counts(plane))
                        ((uint64_t *)data)[i] = (uint64_t)json_integer_value(value);
                else if (data)
                        dtype_store(ZERO_FP32, data, i, (float)json_number_value(value));
        }
        if (data)
                r = zero_put(actor->client, tensor, plane, field_count(command, "first", 0),
                             field_count(command, "count", json_array_size(values)), data);
        free(data);
        return r;
}

static int do_get(struct actor *actor, const json_t *command, json_t *ret)
{
        uint32_t tensor = (uint32_t)field_count(command, "tensor", 0);
        enum zero_plane plane = plane_of(command);
        uint64_t count = field_count(command, "count", 1);
        json_t *values = json_array();
        uint64_t *data = calloc(count + 1, sizeof *data);
        int r = data ? zero_get(actor->client, tensor, plane, field_count(command, "first", 0),
                                count, data)
                     : ZERO_ENOMEM;

        for (uint64_t i = 0; !r && i < count; i++)
                json_array_append_new(
                        values, plane_counts(plane)
                                        ? json_integer((json_int_t)data[i])
                                        : json_real((double)dtype_load(
                                                  plane_dtype(actor, tensor, plane), data, i)));
        json_object_set_new(ret, "values", values);
        free(data);
        return r;
}

static int do_norms(struct actor *actor, const json_t *command, json_t *ret)
{
        uint32_t first = (uint32_t)field_count(command, "first", 0);
        uint32_t count = (uint32_t)field_count(command, "count", 0);
        double *norms = calloc(count + 1, sizeof *norms);
        json_t *list = json_array();
        int r = zero_tensor_norms(actor->client, plane_of(command), first, count, norms);

        for (uint32_t i = 0; r == ZERO_OK && i < count; i++)
                json_array_append_new(list, isfinite(norms[i]) ? json_real(norms[i]) : json_null());
        free(norms);
        json_object_set_new(ret, "norms", list);
        return r;
}

/* ---- commands ------------------------------------------------------------------ */

static const struct deed {
        const char *name;
        int (*run)(struct actor *actor, const json_t *command, json_t *ret);
        bool connected; /* needs a client */
} deeds[] = {
        { "user", do_user, false },
        { "connect", do_connect, false },
        { "layout", do_layout, false },
        { "close", do_close, true },
        { "compose", do_compose, true },
        { "attach", do_attach, true },
        { "version", do_version, true },
        { "query", do_query, true },
        { "fetch", do_fetch, true },
        { "prefetch", do_prefetch, true },
        { "release", do_release, true },
        { "view", do_view, true },
        { "scribble", do_scribble, true },
        { "grad", do_grad, true },
        { "push", do_push, true },
        { "ahead", do_ahead, true },
        { "norm", do_norm, true },
        { "norms", do_norms, true },
        { "step", do_step, true },
        { "put", do_put, true },
        { "get", do_get, true },
        { "train", actor_train, true },
        { "smear", do_smear, true },
        { "churn", do_churn, false },
        { "fork", do_fork, true },
        { "finish", do_finish, true },
        { "form", do_form, true },
        { "follow", do_follow, true },
        { "rehash", do_rehash, true },
        { "unfollow", do_unfollow, true },
        { "read", do_read, true },
        { "stash_write", do_stash_write, true },
        { "stash_read", do_stash_read, true },
        { "stash_release", do_stash_release, true },
};

static int perform(struct actor *actor, const json_t *command, json_t *ret)
{
        const char *name = field_text(command, "do");
        int r;

        for (size_t i = 0; name && i < sizeof deeds / sizeof deeds[0]; i++) {
                if (strcmp(deeds[i].name, name) != 0)
                        continue;
                if (deeds[i].connected && !actor->client)
                        return ZERO_ECLOSED;
                r = deeds[i].run(actor, command, ret);
                if (r == ZERO_EABORTED)
                        forget_views(actor);
                return r;
        }
        return ZERO_EINVAL;
}

static void answer(const struct actor *actor, int status, json_t *ret)
{
        const char *text = zero_error(actor->client);

        json_object_set_new(ret, "status", json_string(zero_status_name(status)));
        if (!json_object_get(ret, "text"))
                json_object_set_new(ret, "text", json_string(status && text ? text : ""));
        json_dumpf(ret, stdout, JSON_COMPACT | JSON_REAL_PRECISION(17));
        putchar('\n');
        fflush(stdout);
}

int main(void)
{
        struct actor actor = { .grad_dtype = ZERO_FP32 };
        char *line = NULL;
        size_t size = 0;

        while (getline(&line, &size, stdin) > 0) {
                json_t *command = json_loads(line, 0, NULL), *ret = json_object();

                answer(&actor, perform(&actor, command, ret), ret);
                json_decref(command);
                json_decref(ret);
        }
        free(line);
        actor_gpu_close(&actor);
        zero_layout_free(actor.layout);
        json_decref(actor.groups);
        free(actor.views);
        free(actor.grads);
        return 0;
}
