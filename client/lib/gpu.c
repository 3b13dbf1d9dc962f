/* See gpu.h. */
#include "gpu.h"

#include <assert.h>
#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <string.h>

#include "proto/cleanup.h"

DEFINE_CLEANUP(struct gpu *, gpu_close)

enum { ORDINAL_MAX = 1023 };

/* ---- the plugin -------------------------------------------------------- */

static int parse(const char *device, int *ret_ordinal, struct fault *fault)
{
        const char *digits = device + 5;
        size_t n;
        long ordinal;

        if (strncmp(device, "cuda:", 5) != 0)
                digits = "";
        n = strspn(digits, "0123456789");
        ordinal = strtol(digits, NULL, 10);
        if (n < 1 || n > 4 || digits[n] != '\0' || ordinal > ORDINAL_MAX)
                return fault_set(fault, ZERO_EINVAL,
                                 "device \"%.64s\" is not a device: name a GPU of this process as "
                                 "\"cuda:0\", or no device for host memory",
                                 device);
        *ret_ordinal = (int)ordinal;
        return 0;
}

/* The plugin stays loaded: a CUDA runtime cannot be unloaded. */
static int load(struct gpu *gpu, struct fault *fault)
{
        const char *chosen = secure_getenv("ZEROD_CUDA_PLUGIN");
        const char *path = chosen && chosen[0] ? chosen : ZEROD_CUDA_PLUGIN;
        zero_gpu_fn *table;

        gpu->library = dlopen(path, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
        if (!gpu->library)
                return fault_set(fault, ZERO_EGPU,
                                 "cannot load zerod's CUDA plugin: %s; install it, or set "
                                 "ZEROD_CUDA_PLUGIN to its path",
                                 dlerror());
        table = (zero_gpu_fn *)dlsym(gpu->library, ZERO_GPU_SYMBOL);
        if (!table)
                return fault_set(fault, ZERO_EGPU, "%s is not zerod's CUDA plugin: it has no %s()",
                                 path, ZERO_GPU_SYMBOL);
        gpu->plugin = table();
        if (gpu->plugin->abi_version != ZERO_GPU_ABI_VERSION)
                return fault_set(fault, ZERO_EGPU,
                                 "the CUDA plugin %s has interface version %u and libzero %d: "
                                 "install both from one release",
                                 path, (unsigned)gpu->plugin->abi_version, ZERO_GPU_ABI_VERSION);
        return 0;
}

static int refuse(const struct gpu *gpu, int error, const char *what, struct fault *fault)
{
        const char *why = strerror(-error);

        if (error == -ENODEV)
                why = "there is no GPU, no driver, or one that is older than the plugin";
        else if (error == -EINVAL)
                why = "this process has fewer GPUs";
        else if (error == -ENOTSUP)
                why = "its compute capability is below 8.0";
        else if (error == -ENOMEM)
                why = "its memory is used up";
        else if (error == -EIO)
                why = "the driver refuses it: with CUDA_LOG_FILE=stderr in the environment the "
                      "driver says more; a process forked from one that has used CUDA cannot use "
                      "it";
        return fault_set(fault, ZERO_EGPU, "cuda:%d %s: %s", gpu->ordinal, what, why);
}

/* ---- events ------------------------------------------------------------- */

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static struct gpu_events *unused; /* under the mutex */

static struct gpu_events *events_take(const struct gpu *gpu)
{
        struct gpu_events **at = &unused, *found;

        pthread_mutex_lock(&mutex);
        while (*at && ((*at)->plugin != gpu->plugin || (*at)->ordinal != gpu->ordinal))
                at = &(*at)->next;
        found = *at;
        if (found)
                *at = found->next;
        pthread_mutex_unlock(&mutex);
        return found;
}

static void events_leave(struct gpu_events *events)
{
        pthread_mutex_lock(&mutex);
        events->next = unused;
        unused = events;
        pthread_mutex_unlock(&mutex);
}

/* Nobody has heard of these events. */
static void events_destroy(struct gpu_events *events)
{
        while (events->n > 0)
                events->plugin->event_free(events->event[--events->n]);
        free(events);
}

static int make_events(struct gpu *gpu, struct fault *fault)
{
        struct gpu_events *e = calloc(1, sizeof(*e));

        if (!e)
                return fault_set(fault, ZERO_ENOMEM, "out of memory");
        e->plugin = gpu->plugin;
        e->ordinal = gpu->ordinal;
        while (e->n < ZERO_GPU_EVENTS) {
                int r = gpu->plugin->event_new(gpu->ordinal, e->handle[e->n], &e->event[e->n]);

                if (r < 0) {
                        events_destroy(e);
                        return refuse(gpu, r, "gives no events", fault);
                }
                e->alone = e->alone || r > 0;
                e->n++;
        }
        gpu->events = e;
        return 0;
}

int gpu_open(const char *device, bool events, struct gpu **ret, struct fault *fault)
{
        CLEANUP(cleanup_gpu_close) struct gpu *gpu = calloc(1, sizeof(*gpu));
        int r;

        if (!gpu)
                return fault_set(fault, ZERO_ENOMEM, "out of memory");
        r = parse(device, &gpu->ordinal, fault);
        if (r == 0)
                r = load(gpu, fault);
        if (r)
                return r;
        r = gpu->plugin->uuid(gpu->ordinal, gpu->uuid);
        if (r)
                return refuse(gpu, r, "cannot be used", fault);
        gpu->events = events ? events_take(gpu) : NULL;
        r = events && !gpu->events ? make_events(gpu, fault) : 0;
        if (r)
                return r;
        *ret = STEAL(gpu);
        return 0;
}

void gpu_close(struct gpu *gpu)
{
        if (!gpu)
                return;
        if (gpu->events)
                events_leave(gpu->events);
        if (gpu->library)
                dlclose(gpu->library);
        free(gpu);
}

/* ---- windows ------------------------------------------------------------- */

int gpu_map(const struct gpu *gpu, int fd, const uint8_t *handle, uint64_t bytes,
            struct mapping *ret)
{
        void *memory;
        int r = gpu->plugin->map(gpu->ordinal, fd, handle, bytes, true, &memory);

        if (r == 0)
                mapping_take(memory, bytes, gpu->plugin->unmap, ret);
        return r;
}

int gpu_copy(const struct gpu *gpu, void *dst, const void *src, uint64_t bytes, void *stream)
{
        return gpu->plugin->copy(gpu->ordinal, dst, src, bytes, stream);
}

int gpu_pin(const struct gpu *gpu, void *memory, uint64_t bytes)
{
        return gpu->plugin->pin(gpu->ordinal, memory, bytes);
}

void gpu_unpin(const struct gpu *gpu, void *memory)
{
        gpu->plugin->unpin(gpu->ordinal, memory);
}

/* ---- which event is free ------------------------------------------------- */

/* ZERO_GPU_EVENTS if all events are named. */
static uint32_t free_event(const struct gpu *gpu)
{
        for (uint32_t i = 0; i < ZERO_GPU_EVENTS; i++) {
                uint32_t event = (gpu->next + i) % ZERO_GPU_EVENTS;

                if (!gpu->named[event])
                        return event;
        }
        return ZERO_GPU_EVENTS;
}

bool gpu_has_free_event(const struct gpu *gpu)
{
        return free_event(gpu) < ZERO_GPU_EVENTS;
}

int gpu_record(struct gpu *gpu, void *stream, uint32_t *ret_event)
{
        uint32_t event = free_event(gpu);
        int r;

        assert(event < ZERO_GPU_EVENTS);
        r = gpu->plugin->event_record(gpu->events->event[event], stream);
        if (r)
                return r;
        gpu->next = (event + 1) % ZERO_GPU_EVENTS;
        *ret_event = event + 1;
        return 0;
}

int gpu_done(const struct gpu *gpu, uint32_t event)
{
        assert(event > 0 && event <= ZERO_GPU_EVENTS);
        return gpu->plugin->event_done(gpu->events->event[event - 1]);
}

void gpu_name(struct gpu *gpu, uint32_t event)
{
        if (event == 0)
                return;
        assert(event <= ZERO_GPU_EVENTS && !gpu->named[event - 1]);
        gpu->named[event - 1] = true;
}

void gpu_answered(struct gpu *gpu, uint32_t event)
{
        if (event > 0)
                gpu->named[event - 1] = false;
}

void gpu_forget(struct gpu *gpu)
{
        if (gpu)
                memset(gpu->named, 0, sizeof(gpu->named));
}
