/*
 * zerod has the model states: the trainer fetches and pushes groups through libzero.
 *
 * The ZeRO stage is the trainer's habit only; the daemon does not know it.
 *   1  fetches every group at its first use in the step and holds it; pushes all gradients when the
 *      backward has ended (with group 0)
 *   2  as 1, but pushes a gradient as soon as it is ready
 *   3  also releases a group after use, fetches it again for the backward, and prefetches the next
 *      group meanwhile
 * The trainer computes on fp32 groups in shared memory, and writes their gradients there.  For bf16
 * and fp16, and with a device, both pass through an fp32 buffer, one for each group in use.
 *
 * With each step a rank keeps the number of those that were decided.  That something is kept also
 * says, before the first commit, that the first values were put.
 *
 * Invariant: groups[].view is set exactly while this process holds the group.
 */
#include "backend.h"

#include <errno.h>
#include <stdlib.h>

#include "buffers.h"
#include "device.h"
#include "proto/cleanup.h"
#include "proto/dtype.h"

enum {
        HOLD_GROUPS = 3, /* at stage 3: the current one, the one prefetched, one to spare */
        PUSH_GROUPS = 4, /* at stages 2 and 3: groups that reduction may lag behind */
};

struct group {
        const void *view;   /* from zero_fetch() */
        real *params, *sum; /* fp32 buffers: of the view, of the gradient so far */
        bool started;       /* this step has begun the gradient and not pushed it */
};

struct remote {
        struct backend backend;
        const struct gpt_spec *spec;
        struct backend_zero_options options;
        struct zero_client *client;
        struct device *device; /* where views and gradients are; NULL: in host memory */
        struct group *groups;
        struct buffers buffers;
};

static struct remote *remote_of(const struct seam *seam)
{
        return (struct remote *)(void *)seam;
}

/* zero_release() or zero_step() ends the views; this forgets them. */
static void forget(struct remote *remote, struct group *group)
{
        group->view = NULL;
        buffers_give(&remote->buffers, STEAL(group->params));
}

/* After a step, also an aborted one, no view and no gradient is left. */
static void forget_all(struct remote *remote)
{
        for (uint32_t i = 0; i < remote->spec->n_groups; i++) {
                struct group *group = &remote->groups[i];
                forget(remote, group);
                buffers_give(&remote->buffers, STEAL(group->sum));
                group->started = false;
        }
}

/* Keeps libzero's error sentence. */
static int settle(struct remote *remote, int status)
{
        if (status)
                fault_set(&remote->backend.fault, status, "%s: %s", zero_status_name(status),
                          zero_error(remote->client));
        if (status == ZERO_EABORTED)
                forget_all(remote);
        return status;
}

static uint64_t elements(const struct remote *remote, uint32_t group)
{
        return zero_layout_group_elements(remote->spec->layout, group);
}

static bool buffered(const struct remote *remote)
{
        return remote->options.dtype != ZERO_FP32 || remote->options.device;
}

static struct zero_sync *sync_of(const struct remote *remote)
{
        return remote->device ? device_sync(remote->device) : NULL;
}

/* Converts between the group in the window, in its own dtype, and fp32. */
static int load(struct remote *remote, uint32_t index, const void *view, real *to)
{
        enum zero_dtype dtype = remote->options.dtype;
        uint64_t n = elements(remote, index);
        int r = 0;
        if (remote->device) {
                void *copy = dtype == ZERO_FP32 ? (void *)to : device_staging(remote->device);
                r = device_copy(remote->device, copy, view, dtype_bytes(dtype, n),
                                &remote->backend.fault);
                view = copy;
        }
        for (uint64_t i = 0; !r && dtype != ZERO_FP32 && i < n; i++)
                to[i] = dtype_load(dtype, view, i);
        return r;
}

static int store(struct remote *remote, uint32_t index, const real *from, void *memory)
{
        enum zero_dtype dtype = remote->options.dtype;
        uint64_t n = elements(remote, index);
        void *narrowed = remote->device ? device_staging(remote->device) : memory;
        for (uint64_t i = 0; dtype != ZERO_FP32 && i < n; i++)
                dtype_store(dtype, narrowed, i, from[i]);
        if (!remote->device)
                return 0;
        return device_copy(remote->device, memory, dtype == ZERO_FP32 ? from : narrowed,
                           dtype_bytes(dtype, n), &remote->backend.fault);
}

static int take_buffer(struct remote *remote, real **ret_buffer)
{
        int r = buffers_take(&remote->buffers, ret_buffer);
        return r ? fault_errno(&remote->backend.fault, r, "fp32 copy of a group") : 0;
}

static int fetch(struct remote *remote, uint32_t index)
{
        struct group *group = &remote->groups[index];
        const void *view;
        int r = settle(remote, zero_fetch(remote->client, index, &view));
        if (r)
                return r;
        group->view = view;
        if (!buffered(remote))
                return 0;
        r = take_buffer(remote, &group->params);
        return r ? r : load(remote, index, view, group->params);
}

static int fetch_all(struct remote *remote)
{
        int r = 0;
        for (uint32_t i = 0; !r && i < remote->spec->n_groups; i++)
                r = zero_prefetch(remote->client, i);
        r = settle(remote, r);
        for (uint32_t i = 0; !r && i < remote->spec->n_groups; i++)
                r = fetch(remote, i);
        return r;
}

static int remote_acquire(struct seam *seam, uint32_t group, uint32_t next, const real **ret_params)
{
        struct remote *remote = remote_of(seam);
        const struct group *g = &remote->groups[group];
        int r = 0;
        if (!g->view && remote->options.stage < 3)
                r = fetch_all(remote);
        else if (!g->view)
                r = fetch(remote, group);
        if (!r && next != GPT_NO_GROUP && !remote->groups[next].view)
                r = settle(remote, zero_prefetch(remote->client, next));
        if (!r)
                *ret_params = buffered(remote) ? g->params : g->view;
        return r;
}

static int remote_release(struct seam *seam, uint32_t group)
{
        struct remote *remote = remote_of(seam);
        if (remote->options.stage < 3)
                return 0;
        forget(remote, &remote->groups[group]);
        return settle(remote, zero_release(remote->client, group, sync_of(remote)));
}

static int gradient_memory(struct remote *remote, uint32_t index, real **ret_grad)
{
        struct group *group = &remote->groups[index];
        void *memory;
        if (!buffered(remote)) {
                int r = settle(remote, zero_grad(remote->client, index, &memory));
                if (!r)
                        *ret_grad = memory;
                return r;
        }
        int r = group->sum ? 0 : take_buffer(remote, &group->sum);
        if (!r)
                *ret_grad = group->sum;
        return r;
}

static int remote_grad(struct seam *seam, uint32_t group, real **ret_grad)
{
        struct remote *remote = remote_of(seam);
        real *grad;
        int r = gradient_memory(remote, group, &grad);
        if (r)
                return r;
        if (!remote->groups[group].started)
                memset(grad, 0, elements(remote, group) * sizeof(*grad));
        remote->groups[group].started = true;
        *ret_grad = grad;
        return 0;
}

static int hand_over(struct remote *remote, uint32_t index, bool last)
{
        struct group *group = &remote->groups[index];
        if (buffered(remote)) {
                void *memory;
                int r = settle(remote, zero_grad(remote->client, index, &memory));
                if (!r)
                        r = store(remote, index, group->sum, memory);
                if (r)
                        return r;
                buffers_give(&remote->buffers, STEAL(group->sum));
        }
        group->started = false;
        return settle(remote, zero_push(remote->client, index, NULL, last, sync_of(remote)));
}

static int remote_push(struct seam *seam, uint32_t group, bool last)
{
        struct remote *remote = remote_of(seam);
        if (remote->options.accumulate && !last)
                return 0;
        if (remote->options.stage > 1)
                return hand_over(remote, group, last);
        int r = 0;
        for (uint32_t i = remote->spec->n_groups; group == 0 && !r && i > 0; i--)
                r = hand_over(remote, i - 1, last);
        return r;
}

static int remote_keep(struct seam *seam, uint64_t key, const real *values, size_t n)
{
        struct remote *remote = remote_of(seam);
        return settle(remote,
                      zero_stash_write(remote->client, key, values, n * sizeof(*values), NULL));
}

static int remote_kept(struct seam *seam, uint64_t key, const real **ret_values)
{
        struct remote *remote = remote_of(seam);
        const void *view;
        uint64_t bytes;
        int r = settle(remote, zero_stash_read(remote->client, key, &view, &bytes));
        if (!r)
                *ret_values = view;
        return r;
}

static int remote_let_go(struct seam *seam, uint64_t key)
{
        struct remote *remote = remote_of(seam);
        return settle(remote, zero_stash_release(remote->client, key, true, NULL));
}

static bool keeps(const struct remote *remote, uint64_t *ret_decided)
{
        size_t bytes;
        const void *blob = zero_blob(remote->client, &bytes);
        if (bytes != sizeof(*ret_decided))
                return false;
        memcpy(ret_decided, blob, sizeof(*ret_decided));
        return true;
}

static uint64_t remote_decided(const struct backend *backend)
{
        const struct remote *remote = remote_of(&backend->seam);
        uint64_t decided = 0, version = zero_steps(remote->client);
        return keeps(remote, &decided) && decided > version ? decided : version;
}

static int end_step(struct remote *remote, struct zero_step_options step, uint64_t decided,
                    struct zero_result *ret_result)
{
        step.blob = &decided;
        step.blob_bytes = sizeof(decided);
        step.sync = sync_of(remote);
        return settle(remote, zero_step(remote->client, &step, ret_result));
}

static int remote_step(struct backend *backend, const struct zero_step_options *step,
                       struct zero_result *ret_result)
{
        struct remote *remote = remote_of(&backend->seam);
        int r = end_step(remote, *step, remote_decided(backend) + 1, ret_result);
        forget_all(remote);
        return r;
}

static uint64_t remote_version(const struct backend *backend)
{
        return zero_steps(remote_of(&backend->seam)->client);
}

static double remote_loss_scale(const struct backend *backend)
{
        return zero_loss_scale(remote_of(&backend->seam)->client);
}

static void remote_free(struct backend *backend)
{
        struct remote *remote = remote_of(&backend->seam);
        if (remote->groups)
                forget_all(remote);
        free(remote->groups);
        buffers_deinit(&remote->buffers);
        zero_close(remote->client);
        device_free(remote->device);
        free(remote);
}

/* Room for all that is kept, each rounded up to the stash's unit: 4096 bytes, or a part in 32768 of
 * the whole. */
static struct zero_stash stash_of(const struct backend_zero_options *options)
{
        uint64_t unit = 4096 + options->kept * (options->kept_bytes + 4096) / 16384;
        return (struct zero_stash){ .bytes = options->kept * (options->kept_bytes + unit),
                                    .entry_bytes = options->kept_bytes,
                                    .where = ZERO_STASH_HOST }; /* which this trainer reads */
}

static struct zero_needs needs_of(const struct backend_zero_options *options,
                                  const struct zero_stash *stash)
{
        bool keeps_gradients =
                options->stage == 1 ||
                (options->accumulate && options->dtype == ZERO_FP32 && !options->device);
        return (struct zero_needs){
                .hold_groups = options->stage == 3 ? HOLD_GROUPS : ZERO_ALL,
                .push_groups = keeps_gradients ? ZERO_ALL : PUSH_GROUPS,
                .grad_dtype = options->dtype,
                .reduce_dtype = options->dtype == ZERO_BF16 ? ZERO_BF16 : ZERO_FP32,
                .accumulate = options->sums,
                .on_lost_rank = options->on_lost_rank,
                .device = options->device,
                .stash = options->kept ? stash : NULL,
        };
}

static int put_values(struct remote *remote)
{
        real *values;
        int r = take_buffer(remote, &values);
        if (r)
                return r;
        for (uint32_t tensor = 0; !r && tensor < remote->spec->n_tensors; tensor++) {
                gpt_spec_values(remote->spec, tensor, remote->options.seed, values);
                r = settle(remote,
                           zero_put(remote->client, tensor, ZERO_PLANE_MASTER, 0,
                                    zero_layout_tensor_elements(remote->spec->layout, tensor),
                                    values));
        }
        buffers_give(&remote->buffers, values);
        return r;
}

static bool has_begun(const struct remote *remote)
{
        uint64_t decided;
        return zero_steps(remote->client) > 0 || keeps(remote, &decided);
}

/* Rank 0 writes the values; a step without update, which ends only when all ranks have called,
 * keeps the others from reading before that. */
static int start(struct remote *remote)
{
        struct zero_step_options none = { 0 };
        struct zero_result result;
        int r;
        do {
                if (!remote->options.put || has_begun(remote))
                        return 0;
                r = remote->options.connection.rank == 0 ? put_values(remote) : 0;
                if (!r)
                        r = end_step(remote, none, 0, &result);
        } while (r == ZERO_EABORTED);
        return r;
}

static int join(struct remote *remote)
{
        struct zero_stash stash = stash_of(&remote->options);
        struct zero_needs needs = needs_of(&remote->options, &stash);
        int r = zero_connect(&remote->options.connection, &remote->client);
        if (r)
                return fault_set(&remote->backend.fault, r, "%s: %s", zero_status_name(r),
                                 zero_error(NULL));
        r = settle(remote, zero_attach(remote->client, remote->spec->layout, &needs));
        if (!r && remote->options.device)
                r = device_new(remote->options.device,
                               gpt_spec_largest(remote->spec) * sizeof(float),
                               &remote->backend.fault, &remote->device);
        return r ? r : start(remote);
}

static const struct seam_ops seam_ops = {
        .acquire = remote_acquire,
        .release = remote_release,
        .grad = remote_grad,
        .push = remote_push,
        .keep = remote_keep,
        .kept = remote_kept,
        .let_go = remote_let_go,
};

static const struct backend_ops backend_ops = {
        .step = remote_step,
        .version = remote_version,
        .decided = remote_decided,
        .loss_scale = remote_loss_scale,
        .free = remote_free,
};

DEFINE_CLEANUP(struct backend *, backend_free)

int backend_zero_new(const struct gpt_spec *spec, const struct backend_zero_options *options,
                     struct fault *fault, struct backend **ret_backend)
{
        struct remote *remote = calloc(1, sizeof(*remote));
        if (!remote)
                return fault_errno(fault, -ENOMEM, "trainer");
        remote->backend = (struct backend){ .seam.ops = &seam_ops, .ops = &backend_ops };
        remote->spec = spec;
        remote->options = *options;
        buffers_init(&remote->buffers, gpt_spec_largest(spec));
        CLEANUP(cleanup_backend_free) struct backend *backend = &remote->backend;
        remote->groups = calloc(spec->n_groups, sizeof(*remote->groups));
        if (!remote->groups)
                return fault_errno(fault, -ENOMEM, "trainer");
        int r = join(remote);
        if (r) {
                *fault = remote->backend.fault;
                return r;
        }
        *ret_backend = STEAL(backend);
        return 0;
}
