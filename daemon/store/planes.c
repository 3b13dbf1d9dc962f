/* Planes on a GPU, and how they get there from the file and back; see planes.h. */
#include "daemon/store/planes.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "daemon/base/crash.h"
#include "proto/cleanup.h"

DEFINE_CLEANUP(struct planes *, planes_free)

/* ---- lifetime ---- */

void planes_free(struct planes *p)
{
        if (!p)
                return;
        list_remove(&p->link);
        place_free(p->memory);
        free(p);
}

int planes_new(const struct state_identity *id, const struct file_map *places, struct planes **ret,
               struct fault *fault)
{
        CLEANUP(cleanup_planes_free) struct planes *p = calloc(1, sizeof(*p));
        char what[ZERO_NAME_MAX + 64];
        void *memory = NULL;
        int r = 0;

        if (!p)
                return fault_errno(fault, ENOMEM, id->job);
        list_init(&p->link);
        p->place = id->place;
        p->at = places->master;
        p->bytes = places->bytes - places->master;
        snprintf(what, sizeof(what), "master weights, moments and gradients of job %s", id->job);
        if (p->bytes)
                r = place_alloc(p->place, p->bytes, what, &memory, fault);
        if (r)
                return r;
        p->memory = memory;
        if (p->bytes)
                place_ops()->zero(p->memory, p->bytes);
        *ret = STEAL(p);
        return 0;
}

void planes_bind(struct state *state, const struct file_map *places)
{
        struct planes *p = state->in->planes;

        state->in->master = state->in->grad = state->in->old = NULL;
        memset(state->in->moments, 0, sizeof(state->in->moments));
        if (!p) /* lost */
                return;
        if (p->memory) {
                state->in->master = (void *)(p->memory + (places->master - p->at));
                for (uint32_t i = 0; i < OPTIMIZER_MOMENTS; i++)
                        state->in->moments[i] = (void *)(p->memory + (places->moments[i] - p->at));
                state->in->grad = (void *)(p->memory + (places->grad - p->at));
                state->in->old = (void *)(p->memory + (places->old - p->at));
        }
        state->id.place = p->place;
}

/* ---- the file ---- */

void planes_leave_hole(struct state *state, const struct file_map *places)
{
        if (places->master < state->in->map_bytes)
                munmap((uint8_t *)state->in->map + places->master,
                       state->in->map_bytes - places->master);
        state->in->map_bytes = places->master;
}

void planes_load(struct state *state, const struct file_map *places)
{
        struct planes *p = state->in->planes;

        if (p->bytes)
                place_ops()->copy(p->memory, (uint8_t *)state->in->map + p->at, p->bytes);
        file_set_planes(state->in->map, state->in->store->number);
        crash_point(CRASH_PLANES_AWAY);
        /* if the file system cannot punch holes the room stays taken */
        (void)fallocate(state->in->fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, (off_t)p->at,
                        (off_t)p->bytes);
        planes_leave_hole(state, places);
        planes_bind(state, places);
}

static int save(const struct store *store, const struct planes *p, struct fault *fault)
{
        uint64_t end = p->at + p->bytes;
        CLEANUP(cleanup_close)
        int fd = openat(store->dir, p->file, O_RDWR | O_NOFOLLOW | O_CLOEXEC);
        int r = fd < 0 ? -errno : segment_reserve(fd, end);

        if (r == -ENOSPC)
                return fault_set(fault, ZERO_ESHM, "%s has no room for its %llu bytes", store->path,
                                 (unsigned long long)p->bytes);
        if (r)
                return fault_errno(fault, r, p->file);
        uint8_t *map = mmap(NULL, end, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
        if (map == MAP_FAILED)
                return fault_errno(fault, errno, p->file);
        if (p->bytes)
                place_ops()->copy(map + p->at, p->memory, p->bytes);
        crash_point(CRASH_PLANES_WRITTEN);
        file_set_planes(map, PLANES_HERE);
        munmap(map, end);
        return 0;
}

void store_save(struct store *store,
                void (*saved)(void *arg, const char *file, uint64_t bytes,
                              const struct fault *fault),
                void *arg)
{
        list_for_each (&store->parked, item) {
                struct planes *p = CONTAINER_OF(item, struct planes, link);
                struct fault fault = { 0 };
                int r = save(store, p, &fault);

                saved(arg, p->file, p->bytes, r ? &fault : NULL);
                planes_free(p);
        }
}

/* ---- parking ---- */

void planes_park(struct state *state)
{
        struct planes *p = STEAL(state->in->planes);

        if (!p)
                return;
        snprintf(p->file, sizeof(p->file), "%s", state->in->file);
        list_insert(&state->in->store->parked, &p->link);
}

uint64_t store_parked(const struct store *store)
{
        uint64_t bytes = 0;

        list_for_each ((struct list *)&store->parked, item) {
                bytes += CONTAINER_OF(item, struct planes, link)->bytes;
        }
        return bytes;
}

struct planes *planes_take(struct store *store, const char *file)
{
        list_for_each (&store->parked, item) {
                struct planes *p = CONTAINER_OF(item, struct planes, link);

                if (strcmp(p->file, file) == 0) {
                        list_remove(&p->link);
                        return p;
                }
        }
        return NULL;
}
