/*
 * The request to attach, and what its reply brings: windows, and where the first attempt starts.
 * A client is attached exactly when it has a layout.
 *
 * If this side fails after the daemon has accepted the rank, it closes the connection.  Nothing
 * else tells the daemon that the rank did not attach.
 */
#include "client.h"

#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include "proto/cleanup.h"
#include "proto/text.h"

enum { SLOTS_AUTO = 2 }; /* one is filled while the other is read */

/* ---- windows ----------------------------------------------------------- */

struct windows {
        struct mapping session, slots, gather, serve;
        struct stash *stash;
};

static void windows_deinit(struct windows *w)
{
        mapping_deinit(&w->session);
        mapping_deinit(&w->slots);
        mapping_deinit(&w->gather);
        mapping_deinit(&w->serve);
        stash_free(w->stash);
}

static int map_failed(struct zero_client *c, int error, uint64_t bytes, const char *what)
{
        return client_shut(c, "cannot map the %s of %llu bytes: %s", what,
                           (unsigned long long)bytes, strerror(-error));
}

/* protection, lazy: as mapping_open() has them. */
static int map_window(struct zero_client *c, unsigned index, uint64_t bytes, int protection,
                      bool lazy, const char *what, struct mapping *ret)
{
        CLEANUP(cleanup_close) int fd = wire_take_fd(&c->wire, index);
        struct stat st;
        int r;

        if (fd < 0 || fstat(fd, &st) < 0 || st.st_size < 0)
                return client_shut(c, "zerod did not pass the %s", what);
        if ((uint64_t)st.st_size < bytes)
                return client_shut(c, "the %s has %llu bytes, not the %llu that zerod says", what,
                                   (unsigned long long)st.st_size, (unsigned long long)bytes);
        r = mapping_open(fd, bytes, protection, lazy, ret);
        return r ? map_failed(c, r, bytes, what) : 0;
}

/* index: of the next descriptor; counts up if the window comes by descriptor. */
static int map_on_gpu(struct zero_client *c, unsigned *index, const ProtobufCBinaryData *handle,
                      uint64_t bytes, const char *what, struct mapping *ret)
{
        CLEANUP(cleanup_close) int fd = -1;
        int r;

        if (bytes == 0)
                return 0;
        if (handle->len == 0)
                fd = wire_take_fd(&c->wire, (*index)++);
        if (handle->len == 0 ? fd < 0 : handle->len != ZERO_GPU_HANDLE)
                return client_shut(c, "zerod did not pass the %s", what);
        r = gpu_map(c->gpu, fd, handle->data, bytes, ret);
        return r ? map_failed(c, r, bytes, what) : 0;
}

static int map_all_on_gpu(struct zero_client *c, const Zero__AttachReply *a, struct windows *ret)
{
        unsigned index = 1;
        int r;

        if (a->push_bytes == 0 && a->session_bytes > a->transfer_bytes)
                return client_shut(c, "zerod has its windows in host memory and not on cuda:%d",
                                   c->gpu->ordinal);
        r = map_on_gpu(c, &index, &a->push_handle, a->push_bytes, "push window", &ret->slots);
        if (r == 0)
                r = map_on_gpu(c, &index, &a->gather_handle, a->gather_bytes, "gather window",
                               &ret->gather);
        if (r == 0)
                r = map_on_gpu(c, &index, &a->serve_handle, a->serve_bytes, "serve segment",
                               &ret->serve);
        return r;
}

static int map_all_in_host_memory(struct zero_client *c, const Zero__AttachReply *a,
                                  bool private_views, struct windows *ret)
{
        int read = private_views ? PROT_NONE : PROT_READ;
        unsigned index = 1;
        int r = 0;

        if (a->gather_bytes > 0)
                r = map_window(c, index++, a->gather_bytes, read, true, "gather window",
                               &ret->gather);
        if (r == 0 && a->serve_bytes > 0)
                r = map_window(c, index, a->serve_bytes, read, false, "serve segment", &ret->serve);
        return r;
}

static int open_stash_on_gpu(struct zero_client *c, const Zero__AttachReply *a, struct stash **ret)
{
        unsigned index = c->wire.n_fds - 1; /* of the last one */
        struct mapping memory = { 0 };
        int r = map_on_gpu(c, &index, &a->stash_handle, a->stash_bytes, "stash", &memory);

        if (r)
                return r;
        r = stash_take(&memory, c->gpu, ret);
        return r ? map_failed(c, r, a->stash_bytes, "stash") : 0;
}

static int open_stash(struct zero_client *c, unsigned index, uint64_t bytes, struct stash **ret)
{
        int fd = wire_take_fd(&c->wire, index), r;
        struct stat st;

        if (fd < 0 || fstat(fd, &st) < 0 || (uint64_t)st.st_size < bytes) {
                cleanup_close(&fd);
                return client_shut(c, "zerod did not pass the stash of %llu bytes",
                                   (unsigned long long)bytes);
        }
        r = stash_open(fd, bytes, c->gpu, ret);
        return r ? map_failed(c, r, bytes, "stash") : 0;
}

/* How many descriptors come with the reply. */
static unsigned descriptors(const Zero__AttachReply *a)
{
        return 1u + (a->push_bytes > 0 && a->push_handle.len == 0) +
               (a->gather_bytes > 0 && a->gather_handle.len == 0) +
               (a->serve_bytes > 0 && a->serve_handle.len == 0) +
               (a->stash_bytes > 0 && a->stash_handle.len == 0);
}

/* needs NULL: an observer's. */
static int map_windows(struct zero_client *c, const Zero__AttachReply *a,
                       const struct zero_needs *needs, struct windows *ret)
{
        bool private_views = needs && needs->private_views;
        unsigned n = descriptors(a);
        int r;

        if (c->wire.n_fds != n)
                return client_shut(c, "zerod passed %u descriptors instead of %u", c->wire.n_fds,
                                   n);
        if (a->transfer_bytes < CLIENT_SLOTS * sizeof(uint64_t) ||
            a->session_bytes < a->transfer_bytes)
                return client_shut(c, "zerod gave a session window without a transfer area");
        if (!c->gpu && (a->push_bytes > 0 || a->gather_handle.len > 0 || a->serve_handle.len > 0))
                return client_shut(c, "zerod has its windows on a GPU and not in host memory");
        r = map_window(c, 0, a->session_bytes, PROT_READ | PROT_WRITE, true, "session window",
                       &ret->session);
        if (r)
                return r;
        r = c->gpu ? map_all_on_gpu(c, a, ret) : map_all_in_host_memory(c, a, private_views, ret);
        if (r || a->stash_bytes == 0)
                return r;
        if (c->gpu && needs && needs->stash && needs->stash->where == ZERO_STASH_WINDOWS)
                return open_stash_on_gpu(c, a, &ret->stash);
        return open_stash(c, n - 1, a->stash_bytes, &ret->stash);
}

static int take_windows(struct zero_client *c, struct windows *w)
{
        int r = mapping_replace(&c->session, &w->session);

        if (r == 0)
                r = mapping_replace(&c->slots, &w->slots);
        if (r == 0)
                r = mapping_replace(&c->gather, &w->gather);
        if (r == 0)
                r = mapping_replace(&c->serve, &w->serve);
        if (r == 0)
                r = stash_replace(&c->stash, &w->stash);
        return r ? client_shut(c, "cannot map a window: %s", strerror(-r)) : 0;
}

/* ---- what the client keeps --------------------------------------------- */

/* At least. */
static uint32_t slots_wanted(const struct zero_needs *needs)
{
        if (needs->push_groups == ZERO_AUTO)
                return SLOTS_AUTO;
        return needs->push_groups ? needs->push_groups : 1;
}

static int out_of_memory(struct zero_client *c, int r)
{
        return client_shut(c, "attaching: %s", strerror(-r));
}

static int keep_groups(struct zero_client *c, const layout *l)
{
        uint32_t most = 1;

        for (uint32_t g = 0; g < l->n_groups; g++)
                most = l->groups[g].n_tensors > most ? l->groups[g].n_tensors : most;
        c->groups = calloc(l->n_groups, sizeof(*c->groups));
        c->present = calloc(most, sizeof(*c->present));
        return c->groups && c->present ? 0 : -ENOMEM;
}

static int keep_stash_needs(struct zero_client *c, const struct zero_stash *stash)
{
        uint32_t *ranks = calloc(stash->n_ranks + 1, sizeof(*ranks));

        if (!ranks)
                return out_of_memory(c, -ENOMEM);
        if (stash->n_ranks)
                memcpy(ranks, stash->ranks, stash->n_ranks * sizeof(*ranks));
        c->stash_needs = *stash;
        c->stash_needs.ranks = ranks;
        c->needs.stash = &c->stash_needs;
        return 0;
}

/* As many slots as the service has chosen, if the caller leaves that to it. */
static int keep_push(struct zero_client *c, const layout *l, const struct zero_needs *needs,
                     const Zero__AttachReply *a)
{
        push_deinit(&c->push);
        return push_init(&c->push, l, a->push_groups ? a->push_groups : slots_wanted(needs),
                         needs->grad_dtype);
}

static int keep_rank(struct zero_client *c, const layout *l, const struct zero_needs *needs,
                     const Zero__AttachReply *a)
{
        int r = keep_push(c, l, needs, a);

        if (r == 0)
                r = keep_groups(c, l);
        if (r == 0)
                r = layout_copy(l, &c->layout);
        if (r == 0 && needs->private_views)
                r = views_init(&c->views, l);
        if (r < 0)
                return out_of_memory(c, r);
        c->needs = *needs;
        c->needs.device = NULL; /* the string is the caller's, and the device is open */
        return needs->stash ? keep_stash_needs(c, needs->stash) : 0;
}

static int keep_observer(struct zero_client *c, const Zero__AttachReply *a)
{
        struct fault fault = { 0 };
        int r;

        if (!a->layout)
                return client_shut(c, "zerod did not pass the job's layout");
        r = layout_from_message(a->layout, &c->layout, &fault);
        if (r < 0)
                return out_of_memory(c, r);
        return r ? client_shut(c, "zerod passed a bad layout: %s", fault.text) : 0;
}

/* Whether the reply fits what the client keeps. */
static int check_reply(struct zero_client *c, const Zero__AttachReply *a)
{
        uint64_t push_bytes = c->gpu ? a->push_bytes : a->session_bytes - a->transfer_bytes;

        if (c->groups && push_bytes < c->push.slots->bytes)
                return client_shut(c, "zerod gave a push window of %llu bytes instead of %llu",
                                   (unsigned long long)push_bytes,
                                   (unsigned long long)c->push.slots->bytes);
        if (a->blob.len > ZERO_BLOB_MAX)
                return client_shut(c, "zerod gave %zu bytes that a rank kept; %d are the most",
                                   a->blob.len, ZERO_BLOB_MAX);
        if (a->n_accepted > 0 && (!c->groups || a->n_accepted != c->layout->n_groups))
                return client_shut(c, "zerod counted the micro-batches of %zu groups",
                                   a->n_accepted);
        if (a->last && (a->last_attempt == 0 || a->last_attempt >= a->attempt))
                return client_shut(c, "zerod told the result of attempt %llu in attempt %llu",
                                   (unsigned long long)a->last_attempt,
                                   (unsigned long long)a->attempt);
        return 0;
}

static void adopt(struct zero_client *c, const Zero__AttachReply *a)
{
        c->version = a->version;
        c->attempt = a->attempt;
        c->loss_scale = a->loss_scale > 0 ? a->loss_scale : 1;
        c->transfer_bytes = a->transfer_bytes;
        if (c->gpu)
                c->gpu->no_events = a->no_events || c->gpu->events->alone;
        c->last_attempt = a->last ? a->last_attempt : 0;
        if (a->last)
                c->last = client_result(a->last);
        c->blob_bytes = a->blob.len;
        if (a->blob.len > 0)
                memcpy(c->blob, a->blob.data, a->blob.len);
        if (c->stash)
                c->stash->compares = !c->stash_needs.unchecked;
        for (size_t g = 0; g < a->n_accepted; g++)
                c->groups[g].accepted = a->accepted[g];
}

static int keep(struct zero_client *c, const layout *l, const struct zero_needs *needs,
                const Zero__AttachReply *a)
{
        CLEANUP(windows_deinit) struct windows windows = { 0 };
        int r = map_windows(c, a, needs, &windows);

        if (r == 0)
                r = l ? keep_rank(c, l, needs, a) : keep_observer(c, a);
        if (r == 0)
                r = check_reply(c, a);
        if (r == 0)
                r = take_windows(c, &windows);
        if (r)
                client_detach(c);
        else
                adopt(c, a);
        return r;
}

/*
 * Whether something of the attempt was lost with the connection, so that the caller has to begin
 * the attempt again.  If nothing was, the caller need not know.
 */
static bool lost_something(const struct zero_client *c, const Zero__AttachReply *a)
{
        if (c->void_attempt || push_in_use(&c->push) || (c->stash && c->stash->used))
                return true;
        for (uint32_t g = 0; g < c->layout->n_groups; g++)
                if (c->groups[g].held > 0 || c->groups[g].micro_batches > 0)
                        return true;
        return a->version != c->version || (a->last && a->last_attempt == c->attempt) ||
               a->transfer_bytes < c->transfer_bytes;
}

/* After attaching again: all but the addresses is as after an abort. */
static int renew(struct zero_client *c, const Zero__AttachReply *a)
{
        CLEANUP(windows_deinit) struct windows windows = { 0 };
        int r = map_windows(c, a, &c->needs, &windows);
        bool lost = lost_something(c, a);

        if (r == 0 && keep_push(c, c->layout, &c->needs, a))
                r = out_of_memory(c, -ENOMEM);
        if (r == 0)
                r = check_reply(c, a);
        if (r == 0)
                r = take_windows(c, &windows);
        if (r)
                return r;
        client_new_attempt(c, NULL);
        adopt(c, a);
        c->void_attempt = false;
        if (lost)
                fault_set(&c->deferred, ZERO_EABORTED, CLIENT_RESUMED,
                          (unsigned long long)c->version);
        return c->closed ? client_gone(c) : 0;
}

void client_detach(struct zero_client *c)
{
        layout_free(c->layout);
        c->layout = NULL;
        push_deinit(&c->push);
        views_deinit(&c->views);
        free(c->groups);
        c->groups = NULL;
        free(c->present);
        c->present = NULL;
        mapping_deinit(&c->session);
        mapping_deinit(&c->slots);
        mapping_deinit(&c->gather);
        mapping_deinit(&c->serve);
        stash_free(STEAL(c->stash));
        follow_free(STEAL(c->follow));
        free((uint32_t *)STEAL(c->stash_needs.ranks));
}

/* ---- asking ------------------------------------------------------------ */

/* stash: room for its part of the message. */
static int make_message(struct zero_client *c, const layout *l, const struct zero_needs *needs,
                        Zero__StashNeeds *stash, Zero__Attach *message)
{
        message->incarnation = c->incarnation;
        if (!l)
                return 0;
        message->hold_groups = needs->hold_groups ? needs->hold_groups : 1;
        message->push_groups = slots_wanted(needs);
        message->push_auto = needs->push_groups == ZERO_AUTO;
        message->grad_dtype = needs->grad_dtype;
        message->reduce_dtype = needs->reduce_dtype;
        message->accumulate = needs->reduce_dtype == ZERO_FP32 ? 0 : needs->accumulate;
        if (message->accumulate && c->protocol < CLIENT_ACCUMULATES)
                return client_fail(c, ZERO_EVERSION,
                                   "zerod is of a release that accumulates in fp32 only: attach "
                                   "with ZERO_ACCUMULATE_FP32");
        message->on_lost_rank = needs->on_lost_rank;
        if (needs->stash) {
                stash->ranks = (uint32_t *)needs->stash->ranks;
                stash->n_ranks = needs->stash->n_ranks;
                stash->bytes = needs->stash->bytes;
                stash->entry_bytes = needs->stash->entry_bytes;
                stash->where = needs->stash->where;
                message->stash = stash;
        }
        if (layout_to_message(l, &message->layout) < 0 || client_name_base(c, message->layout) < 0)
                return client_fail(c, ZERO_ENOMEM, "out of memory");
        return 0;
}

static void name_gpu(const struct gpu *gpu, ProtobufCBinaryData events[static ZERO_GPU_EVENTS],
                     Zero__Attach *message)
{
        message->gpu = (ProtobufCBinaryData){ sizeof(gpu->uuid), (uint8_t *)gpu->uuid };
        message->n_events = gpu->events->alone ? 0 : ZERO_GPU_EVENTS;
        message->events = events;
        for (uint32_t i = 0; i < message->n_events; i++)
                events[i] = (ProtobufCBinaryData){ ZERO_GPU_HANDLE, gpu->events->handle[i] };
}

/* The variable's value if it may stand in /metrics, else "". */
static char *origin(const char *variable)
{
        char *value = getenv(variable);
        size_t n = value ? strspn(value, ORIGIN_CHARACTERS) : 0;

        return value && n <= ORIGIN_MAX && !value[n] ? value : "";
}

int client_join(struct zero_client *c, const layout *l, const struct zero_needs *needs, bool resume)
{
        ProtobufCBinaryData events[ZERO_GPU_EVENTS];
        Zero__StashNeeds stash = ZERO__STASH_NEEDS__INIT;
        Zero__Attach attach = ZERO__ATTACH__INIT;
        const Zero__Reply *reply;
        int r = make_message(c, l, needs, &stash, &attach);

        if (r) {
                if (attach.layout)
                        zero__layout__free_unpacked(attach.layout, NULL);
                return r;
        }
        if (c->gpu)
                name_gpu(c->gpu, events, &attach);
        attach.resume = resume;
        attach.slurm_job = origin("SLURM_JOB_ID");
        attach.pod = origin("POD_NAME");
        wire_expect_fds(&c->wire, true);
        r = client_ask(c, REQUEST(ATTACH, attach, &attach), &reply);
        if (attach.layout)
                zero__layout__free_unpacked(attach.layout, NULL);
        if (r == 0)
                r = resume ? renew(c, reply->attach) : keep(c, l, needs, reply->attach);
        wire_expect_fds(&c->wire, false);
        return r;
}
