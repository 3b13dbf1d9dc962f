/*
 * An actor whose windows are on a GPU: it computes in host memory and copies.
 *
 * {"do": "attach", "device": "cuda:0"}: as zero_needs.device.  From then on the actor's views and
 * gradients are copies of its own; a fetch copies a group down, a push copies it up.  Release,
 * push and step name the stream of these copies, unless they say "sync": false.
 * {"do": "push", "late": MS} writes the gradient only MS after the push began: a daemon that does
 * not wait for the event reads the old memory.
 *
 * The copies go through the plugin that libzero has loaded.
 */
#include "actor.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cuda/zero_cuda.h"

struct actor_gpu {
        const struct zero_cuda_plugin *plugin;
        struct zero_sync sync;
        int ordinal;
        uint32_t n;
        uint8_t **views, **grads; /* [group], in host memory; NULL: none yet */
        void **memory;            /* [group], of zero_grad() */
};

static size_t group_bytes(const struct actor *actor, uint32_t group, enum zero_dtype dtype)
{
        return zero_layout_group_elements(actor_known_layout(actor), group) *
               zero_dtype_size(dtype);
}

static size_t view_bytes(const struct actor *actor, uint32_t group)
{
        return group_bytes(actor, group, zero_layout_group_dtype(actor_known_layout(actor), group));
}

/* A failure here is the test machine's. */
static void must(int r, const char *what)
{
        if (r == 0)
                return;
        fprintf(stderr, "actor: %s: %s\n", what, strerror(-r));
        abort();
}

static void copy(const struct actor_gpu *gpu, void *dst, const void *src, size_t n)
{
        must(gpu->plugin->copy(dst, src, n, gpu->sync.stream), "copying");
        must(gpu->plugin->stream_wait(gpu->sync.stream), "waiting for a copy");
}

static void *carve(uint8_t **at, size_t n)
{
        if (!*at)
                *at = calloc(1, n + 1);
        if (!*at)
                abort();
        return *at;
}

static const struct zero_cuda_plugin *load(void)
{
        const char *path = getenv("ZEROD_CUDA_PLUGIN");
        void *library = path ? dlopen(path, RTLD_NOW) : NULL;
        zero_cuda_plugin_fn *table =
                library ? (zero_cuda_plugin_fn *)dlsym(library, ZERO_CUDA_PLUGIN_SYMBOL) : NULL;

        must(table ? 0 : -2, "ZEROD_CUDA_PLUGIN");
        return table();
}

void actor_gpu_open(struct actor *actor, const char *device)
{
        struct actor_gpu *gpu;

        actor_gpu_close(actor);
        if (!device)
                return;
        gpu = calloc(1, sizeof *gpu);
        if (!gpu)
                abort();
        gpu->plugin = load();
        gpu->n = actor->n_groups;
        gpu->views = calloc(gpu->n + 1, sizeof *gpu->views);
        gpu->grads = calloc(gpu->n + 1, sizeof *gpu->grads);
        gpu->memory = calloc(gpu->n + 1, sizeof *gpu->memory);
        if (!gpu->views || !gpu->grads || !gpu->memory)
                abort();
        gpu->ordinal = atoi(device + strlen("cuda:"));
        must(gpu->plugin->use(gpu->ordinal), device);
        must(gpu->plugin->stream_new(&gpu->sync.stream), "a stream");
        actor->gpu = gpu;
}

void actor_gpu_close(struct actor *actor)
{
        struct actor_gpu *gpu = actor->gpu;

        actor->gpu = NULL;
        if (!gpu)
                return;
        gpu->plugin->stream_free(gpu->sync.stream);
        for (uint32_t g = 0; g < gpu->n; g++) {
                free(gpu->views[g]);
                free(gpu->grads[g]);
        }
        free(gpu->views);
        free(gpu->grads);
        free(gpu->memory);
        free(gpu);
}

struct zero_sync *actor_sync(const struct actor *actor, const json_t *command)
{
        if (!actor->gpu || json_is_false(json_object_get(command, "sync")))
                return NULL;
        return &actor->gpu->sync;
}

const void *actor_bring_down(const struct actor *actor, const void *p, size_t n, void **ret_copy)
{
        if (!actor->gpu || !p)
                return p;
        *ret_copy = malloc(n + 1);
        if (!*ret_copy)
                abort();
        copy(actor->gpu, *ret_copy, p, n);
        return *ret_copy;
}

int actor_fetch(struct actor *actor, uint32_t group, const void **ret_view)
{
        const struct actor_gpu *gpu = actor->gpu;
        const void *view = NULL;
        int r = zero_fetch(actor->client, group, &view);

        if (r)
                return r;
        if (gpu) {
                size_t n = view_bytes(actor, group);
                void *there = carve(&gpu->views[group], n);

                copy(gpu, there, view, n);
                view = there;
        }
        *ret_view = view;
        return ZERO_OK;
}

int actor_grad(struct actor *actor, uint32_t group, void **ret_grad)
{
        const struct actor_gpu *gpu = actor->gpu;
        void *grad = NULL;
        int r = zero_grad(actor->client, group, &grad);

        if (r)
                return r;
        if (gpu) {
                gpu->memory[group] = grad;
                grad = carve(&gpu->grads[group], group_bytes(actor, group, actor->grad_dtype));
        }
        *ret_grad = grad;
        return ZERO_OK;
}

static void bring_up(const struct actor *actor, uint32_t group)
{
        const struct actor_gpu *gpu = actor->gpu;

        copy(gpu, gpu->memory[group], gpu->grads[group],
             group_bytes(actor, group, actor->grad_dtype));
}

struct late {
        pthread_t thread;
        const struct actor *actor;
        uint32_t group;
        uint64_t ms;
};

static void *bring_up_late(void *arg)
{
        const struct late *late = arg;

        usleep((useconds_t)(late->ms * 1000));
        must(late->actor->gpu->plugin->use(late->actor->gpu->ordinal), "the GPU of another thread");
        bring_up(late->actor, late->group);
        return NULL;
}

int actor_push(struct actor *actor, uint32_t group, const uint8_t *present, bool last,
               const json_t *command)
{
        struct late late = { .actor = actor, .group = group };
        bool written = actor->gpu && group < actor->gpu->n && actor->gpu->memory[group];
        int r;

        late.ms = written ? field_count(command, "late", 0) : 0;
        if (late.ms)
                must(-pthread_create(&late.thread, NULL, bring_up_late, &late), "a thread");
        else if (written)
                bring_up(actor, group);
        r = zero_push(actor->client, group, present, last, actor_sync(actor, command));
        if (late.ms)
                pthread_join(late.thread, NULL);
        if (written)
                actor->gpu->memory[group] = NULL;
        return r;
}
