/* One step of a rank: fetch, release, push, norm, step. */
#include "client.h"
#include "optimizers.h"

#include <stdio.h>
#include <string.h>

#include "proto/dtype.h"

enum { KEEPS_SLOTS = 7 }; /* the first protocol whose daemon may */

static const char *group_name(const struct zero_client *c, uint32_t group)
{
        return c->layout->groups[group].name;
}

/* ---- parameters -------------------------------------------------------- */

static int private_view(struct zero_client *c, uint32_t group, int fd, uint64_t offset,
                        const void **ret_view)
{
        int r = views_map(&c->views, group, fd, offset, ret_view);

        return r ? client_shut(c, "cannot map group '%s': %s", group_name(c, group), strerror(-r))
                 : 0;
}

static int view_of(struct zero_client *c, uint32_t group, const Zero__FetchReply *fetch,
                   const void **ret_view)
{
        static const uint8_t nothing;
        const struct mapping *m = fetch->serve ? &c->serve : &c->gather;
        const struct layout_group *g = &c->layout->groups[group];
        uint64_t bytes = layout_group_bytes(g, g->elements);

        c->groups[group].served = fetch->serve;
        if (bytes == 0) {
                *ret_view = &nothing;
                return 0;
        }
        if (fetch->offset > m->bytes || bytes > m->bytes - fetch->offset)
                return client_shut(c, "zerod placed group '%s' outside its window", g->name);
        if (c->views.space)
                return private_view(c, group, m->fd, fetch->offset, ret_view);
        *ret_view = (const uint8_t *)m->base + fetch->offset;
        return 0;
}

static int ask_fetch(struct zero_client *c, uint32_t group, const void **ret_view)
{
        Zero__Fetch fetch = ZERO__FETCH__INIT;
        const Zero__Reply *reply;
        int r;

        fetch.group = group;
        fetch.version = c->version;
        fetch.attempt = c->attempt;
        r = client_call(c, REQUEST(FETCH, fetch, &fetch), &reply);
        return r ? r : view_of(c, group, reply->fetch, ret_view);
}

int zero_fetch(struct zero_client *client, uint32_t group, const void **ret_view)
{
        struct group_use *use;
        int r = client_given(client, client_begin(client), ret_view);

        if (r == 0)
                r = client_check_group(client, group);
        if (r)
                return r;
        use = &client->groups[group];
        if (use->held == 0) {
                r = ask_fetch(client, group, &use->view);
                if (r)
                        return r;
        }
        use->held++;
        *ret_view = use->view;
        return 0;
}

int zero_prefetch(struct zero_client *client, uint32_t group)
{
        Zero__Prefetch prefetch = ZERO__PREFETCH__INIT;
        int r = client_begin_aborted(client);

        if (r == 0)
                r = client_check_group(client, group);
        if (r || client->groups[group].held > 0 || client->groups[group].served)
                return r;
        prefetch.group = group;
        prefetch.version = client->version;
        return client_send(client, REQUEST(PREFETCH, prefetch, &prefetch), PUSH_NONE);
}

/* For requests that do not wait: if the daemon is lost there is nothing to order. */
static int record(struct zero_client *c, const struct zero_sync *sync, const char *what,
                  uint32_t group, uint32_t *ret_event)
{
        char behind[ZERO_NAME_MAX + 40];
        int r;

        snprintf(behind, sizeof(behind), "the %s of group '%s'", what, group_name(c, group));
        r = client_record(c, sync, behind, ret_event);
        return r == CLIENT_LOST ? 0 : r;
}

int zero_release(struct zero_client *client, uint32_t group, struct zero_sync *sync)
{
        Zero__Release release = ZERO__RELEASE__INIT;
        int r = client_begin_aborted(client);

        if (r == 0)
                r = client_check_group(client, group);
        if (r)
                return r;
        if (client->groups[group].held == 0)
                return client_fail(client, ZERO_ENOTHELD,
                                   "group %u '%s' is not held: it was not "
                                   "fetched, or is released already",
                                   (unsigned)group, group_name(client, group));
        if (client->groups[group].held == 1)
                r = record(client, sync, "release", group, &release.event);
        if (r)
                return r;
        if (--client->groups[group].held > 0)
                return 0;
        r = client_drop_view(client, group); /* before the window gets other bytes there */
        if (r)
                return r;
        release.group = group;
        release.attempt = client->attempt;
        return client_send(client, REQUEST(RELEASE, release, &release), PUSH_NONE);
}

/* ---- gradients --------------------------------------------------------- */

static int check_pushes(struct zero_client *c, uint32_t group)
{
        int r = client_check_group(c, group);

        if (r)
                return r;
        if (!layout_group_trainable(c->layout, group))
                return client_fail(c, ZERO_EINVAL, "group %u '%s' has no trainable tensor",
                                   (unsigned)group, group_name(c, group));
        if (!layout_group_has_rank(&c->layout->groups[group], (uint32_t)c->rank))
                return client_fail(c, ZERO_ERANK,
                                   "rank %d is not among the ranks that push group "
                                   "%u '%s'",
                                   (int)c->rank, (unsigned)group, group_name(c, group));
        if (c->groups[group].ended)
                return client_fail(c, ZERO_EORDER,
                                   "group %u '%s': the last micro-batch of this "
                                   "step was pushed already",
                                   (unsigned)group, group_name(c, group));
        return 0;
}

/* The daemon may keep the slot until it knows whether another micro-batch follows.  It gives the
 * slots of the last step back by itself. */
static int reclaim(struct zero_client *c, uint32_t group)
{
        Zero__Reclaim reclaim = ZERO__RECLAIM__INIT;

        if (!c->gpu || c->protocol < KEEPS_SLOTS || !c->push.slots->whole || !c->push.busy[group] ||
            c->groups[group].micro_batches == 0)
                return 0;
        reclaim.group = group;
        reclaim.attempt = c->attempt;
        return client_send(c, REQUEST(RECLAIM, reclaim, &reclaim), PUSH_NONE);
}

static int wait_for_slot(struct zero_client *c, uint32_t group, uint32_t *ret_slot)
{
        int64_t deadline_ms = client_deadline(c);
        uint32_t slot;
        int r = reclaim(c, group);

        if (r)
                return r;
        while ((slot = push_take(&c->push, group)) == PUSH_NONE) {
                if (!push_may_wait(&c->push, group))
                        return client_fail(c, ZERO_EORDER,
                                           "all %u slots for gradients, as many as push_groups "
                                           "allows, were given out and not pushed yet: push one "
                                           "first, or attach with more",
                                           (unsigned)c->push.n);
                r = client_pump(c, deadline_ms);
                if (r == ZERO_EDEADLINE)
                        return client_fail(c, r,
                                           "no slot for the gradient of group '%s' became "
                                           "free: zerod has not taken earlier pushes",
                                           group_name(c, group));
                r = client_go_on(c, r);
                if (r)
                        return r;
        }
        *ret_slot = slot;
        return 0;
}

static uint8_t *slots_base(const struct zero_client *c)
{
        return c->gpu ? c->slots.base : c->session.base + c->transfer_bytes;
}

int zero_grad(struct zero_client *client, uint32_t group, void **ret_grad)
{
        uint32_t slot = PUSH_NONE;
        int r = client_given(client, client_begin(client), ret_grad);

        if (r == 0)
                r = check_pushes(client, group);
        if (r == 0)
                r = wait_for_slot(client, group, &slot);
        if (r)
                return r;
        *ret_grad = slots_base(client) + slots_offset(client->push.slots, slot);
        return 0;
}

/*
 * Sets one byte a tensor, 0 or 1; frozen tensors have no gradient whatever the caller passes.
 * False if no tensor has one.
 */
static bool set_present(struct zero_client *c, uint32_t group, const uint8_t *present,
                        ProtobufCBinaryData *ret)
{
        const struct layout_group *g = &c->layout->groups[group];
        bool some = false;

        for (uint32_t i = 0; i < g->n_tensors; i++) {
                c->present[i] = present[i] && !c->layout->tensors[g->first_tensor + i].frozen;
                some = some || c->present[i];
        }
        *ret = (ProtobufCBinaryData){ g->n_tensors, c->present };
        return some;
}

/* The service has this micro-batch already, from the rank's predecessor. */
static bool skip_accepted(struct zero_client *c, uint32_t group, bool last)
{
        struct group_use *use = &c->groups[group];

        if (use->micro_batches >= use->accepted)
                return false;
        push_drop(&c->push, group);
        use->micro_batches++;
        use->ended = last;
        return true;
}

static int send_push(struct zero_client *c, uint32_t group, Zero__Push *push)
{
        struct group_use *use = &c->groups[group];
        uint32_t slot = PUSH_NONE;

        push->group = group;
        push->attempt = c->attempt;
        push->micro_batch = use->micro_batches++;
        use->ended = push->last;
        if (push->empty)
                push_drop(&c->push, group);
        else
                slot = push->slot = push_send(&c->push, group);
        return client_send(c, REQUEST(PUSH, push, push), slot);
}

int zero_push(struct zero_client *client, uint32_t group, const uint8_t *present, bool last,
              struct zero_sync *sync)
{
        Zero__Push push = ZERO__PUSH__INIT;
        int r = client_begin_unwaited(client);

        if (r == 0)
                r = check_pushes(client, group);
        if (r)
                return r;
        push.last = last;
        push.empty = present && !set_present(client, group, present, &push.present);
        if (!push.empty && client->push.of_group[group] == PUSH_NONE)
                return client_fail(client, ZERO_EORDER,
                                   "group %u '%s' has no gradient memory: "
                                   "zero_grad() comes before zero_push()",
                                   (unsigned)group, group_name(client, group));
        if (skip_accepted(client, group, last))
                return 0;
        if (!push.empty)
                r = record(client, sync, "push", group, &push.event);
        return r ? r : send_push(client, group, &push);
}

/* ---- the end of a step ------------------------------------------------- */

/* For calls that need no group: the client is a rank, and no refusal is left to report. */
static int begin_step(struct zero_client *c)
{
        int r = client_begin(c);

        if (r == 0)
                r = client_check_group(c, 0);
        return r ? r : client_go_on(c, client_poll(c));
}

/* A gradient that was written and not pushed would be lost silently. */
static int check_pushed(struct zero_client *c)
{
        for (uint32_t g = 0; g < c->layout->n_groups; g++)
                if (c->push.of_group[g] != PUSH_NONE)
                        return client_fail(c, ZERO_EORDER,
                                           "group %u '%s': zero_grad() gave memory for a gradient "
                                           "that was not pushed; zero_push() comes before the end "
                                           "of the step, with present all 0 where there is none",
                                           (unsigned)g, group_name(c, g));
        return 0;
}

int zero_norm(struct zero_client *client, double *ret_norm, bool *ret_finite)
{
        Zero__Norm norm = ZERO__NORM__INIT;
        const Zero__Reply *reply;
        int r = begin_step(client);

        r = client_given(client, r, ret_norm);
        r = client_given(client, r, ret_finite);
        if (r == 0)
                r = check_pushed(client);
        if (r)
                return r;
        norm.attempt = client->attempt;
        r = client_call(client, REQUEST(NORM, norm, &norm), &reply);
        if (r)
                return r;
        *ret_norm = reply->norm->norm;
        *ret_finite = reply->norm->finite;
        return 0;
}

enum { NORMS_TRIES = 8 };

static int check_norms(struct zero_client *c, uint32_t first, uint32_t count)
{
        if (!c->layout)
                return client_fail(c, ZERO_ENOTATTACHED, "zero_attach() was not called yet");
        if (first > c->layout->n_tensors || count > c->layout->n_tensors - first)
                return client_fail(c, ZERO_ERANGE, "tensors %u+%u: the layout has %u",
                                   (unsigned)first, (unsigned)count,
                                   (unsigned)c->layout->n_tensors);
        return 0;
}

static int ask_norms(struct zero_client *c, Zero__Norms *of, double *norms, uint64_t *ret_version)
{
        const Zero__Reply *reply;
        int r;

        r = client_call(c, REQUEST(NORMS, norms, of), &reply);
        if (r)
                return r;
        if (reply->norms->n_norms != of->count)
                return client_shut(c, "zerod answered %zu norms of %u tensors",
                                   reply->norms->n_norms, (unsigned)of->count);
        memcpy(norms, reply->norms->norms, of->count * sizeof *norms);
        *ret_version = reply->norms->version;
        return 0;
}

/* A step may come between two pieces: then all begin again. */
static int ask_all_norms(struct zero_client *c, uint32_t plane, uint32_t first, uint32_t count,
                         double *norms)
{
        uint64_t version = 0, of_first = 0;
        uint32_t tries = 0;

        for (uint32_t done = 0; done < count;) {
                Zero__Norms of = ZERO__NORMS__INIT;
                uint32_t left = count - done;
                int r;

                of.plane = plane;
                of.first = first + done;
                of.count = left < LAYOUT_NORMS ? left : LAYOUT_NORMS;
                of.attempt = c->attempt;
                r = ask_norms(c, &of, norms + done, &version);
                if (r)
                        return r;
                if (done == 0)
                        of_first = version;
                done = version == of_first ? done + of.count : 0;
                if (done == 0 && ++tries == NORMS_TRIES)
                        return client_fail(c, ZERO_EBUSY,
                                           "a step ended in each of %d tries to read %u norms of "
                                           "one version: ask for fewer, or between steps",
                                           NORMS_TRIES, (unsigned)count);
        }
        return 0;
}

int zero_tensor_norms(struct zero_client *client, enum zero_plane plane, uint32_t first,
                      uint32_t count, double *ret_norms)
{
        bool grad = client && plane == ZERO_PLANE_GRAD && client->groups;
        int r = grad ? begin_step(client) : client_begin(client);

        if (count > 0)
                r = client_given(client, r, ret_norms);
        if (r == 0)
                r = check_norms(client, first, count);
        if (r == 0 && grad)
                r = check_pushed(client);
        return r ? r : ask_all_norms(client, plane, first, count, ret_norms);
}

static int check_reduction(struct zero_client *c, uint32_t n)
{
        if (n == 0 || n > ZERO_VALUES_MAX)
                return client_fail(c, ZERO_EINVAL, "a reduction has 1 to %d numbers, not %u",
                                   ZERO_VALUES_MAX, (unsigned)n);
        return 0;
}

int zero_all_reduce(struct zero_client *client, const char *name, enum zero_reduction op,
                    uint32_t n, const double *values, double *ret_values)
{
        Zero__AllReduce message = ZERO__ALL_REDUCE__INIT;
        const Zero__Reply *reply;
        int r = begin_step(client);

        r = client_given(client, r, name);
        r = client_given(client, r, values);
        r = client_given(client, r, ret_values);
        if (r == 0)
                r = check_reduction(client, n);
        if (r)
                return r;
        if (client->reductions.attempt != client->attempt)
                client->reductions.done = 0;
        client->reductions.attempt = client->attempt;
        message.attempt = client->attempt;
        message.number = client->reductions.done;
        message.name = (char *)name;
        message.op = (uint32_t)op;
        message.n_values = n;
        message.values = (double *)values;
        r = client_call(client, REQUEST(ALL_REDUCE, all_reduce, &message), &reply);
        if (r)
                return r;
        if (reply->all_reduce->n_values != n)
                return client_shut(client, "zerod answered %u numbers with %zu", (unsigned)n,
                                   reply->all_reduce->n_values);
        client->reductions.done++;
        memcpy(ret_values, reply->all_reduce->values, n * sizeof *ret_values);
        return 0;
}

static int check_step(struct zero_client *c, const struct zero_step_options *step)
{
        if (step->n_sets > ZERO_SET_MAX)
                return client_fail(c, ZERO_EINVAL, "a step has 0 to %d hyperparameter sets, not %u",
                                   ZERO_SET_MAX, (unsigned)step->n_sets);
        if (step->n_sets > 0 && !step->sets)
                return client_fail(c, ZERO_EINVAL, "sets is NULL, and n_sets is %u",
                                   (unsigned)step->n_sets);
        if (step->blob && step->blob_bytes > ZERO_BLOB_MAX)
                return client_fail(c, ZERO_EINVAL, "a rank keeps at most %d bytes, not %zu",
                                   ZERO_BLOB_MAX, step->blob_bytes);
        return 0;
}

struct params_message {
        struct optimizer_values sets[ZERO_SET_MAX];
        Zero__HyperSet *list[ZERO_SET_MAX];
        Zero__StepParams params;
};

static int params_message(struct zero_client *c, const struct zero_step_options *step,
                          struct params_message *ret)
{
        struct fault fault;

        if (optimizer_messages(c->layout, step->sets, step->n_sets, ret->sets, &fault))
                return client_fail(c, fault.status, "%s", fault.text);
        for (uint32_t i = 0; i < step->n_sets; i++)
                ret->list[i] = &ret->sets[i].message;
        ret->params = (Zero__StepParams)ZERO__STEP_PARAMS__INIT;
        ret->params.n_sets = step->n_sets;
        ret->params.sets = ret->list;
        ret->params.clip_norm = step->clip_norm;
        ret->params.loss_scale = step->loss_scale == 0 ? 1 : step->loss_scale;
        ret->params.growth_interval = step->growth_interval;
        return 0;
}

int zero_ahead(struct zero_client *client, const struct zero_step_options *step)
{
        struct params_message params;
        Zero__Ahead ahead = ZERO__AHEAD__INIT;
        const Zero__Reply *reply;
        int r = client_given(client, begin_step(client), step);

        if (r == 0)
                r = check_step(client, step);
        if (r == 0)
                r = params_message(client, step, &params);
        if (r)
                return r;
        ahead.attempt = client->attempt;
        ahead.params = &params.params;
        return client_call(client, REQUEST(AHEAD, ahead, &ahead), &reply);
}

/* A daemon that was lost and found meanwhile knows of no held group, so it gets no event. */
static int ask_step(struct zero_client *c, const struct zero_step_options *step,
                    const Zero__Reply **ret_reply)
{
        struct params_message params;
        Zero__Step message = ZERO__STEP__INIT;
        int r = params_message(c, step, &params);

        r = r ? r
              : client_go_on(c,
                             client_record(c, step->sync, "the end of the step", &message.event));
        if (r)
                return r;
        message.attempt = c->attempt;
        message.params = &params.params;
        if (step->blob)
                message.blob = (ProtobufCBinaryData){ step->blob_bytes, (uint8_t *)step->blob };
        return client_call(c, REQUEST(STEP, step, &message), ret_reply);
}

/* The blob may be the one that zero_blob() gave out. */
static void keep_blob(struct zero_client *c, const struct zero_step_options *step)
{
        c->blob_bytes = step->blob ? step->blob_bytes : 0;
        if (c->blob_bytes > 0)
                memmove(c->blob, step->blob, c->blob_bytes);
}

int zero_step(struct zero_client *client, const struct zero_step_options *step,
              struct zero_result *ret_result)
{
        uint64_t attempt = client ? client->attempt : 0;
        const Zero__Reply *reply;
        struct zero_result result;
        int r = client_given(client, begin_step(client), step);

        if (r == 0)
                r = check_pushed(client);
        if (r == 0)
                r = check_step(client, step);
        if (r == 0)
                r = ask_step(client, step, &reply);
        if (r == ZERO_OK) {
                result = client_result(reply->step);
                if (client->stash)
                        client->stash->compared = client->stash->compared || client->stash->used;
                client_new_attempt(client, reply->step);
                keep_blob(client, step);
        } else if (r == ZERO_EABORTED && client->last_attempt == attempt) {
                result = client->last; /* decided before the client attached again */
        } else {
                return r;
        }
        if (step->n_sets > 0) /* otherwise the caller wanted no update */
                client->skips = result.skipped ? client->skips + 1 : 0;
        result.skips = client->skips;
        if (ret_result)
                *ret_result = result;
        return ZERO_OK;
}
