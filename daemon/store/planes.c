/* The homes of planes, and how planes get from the file to a GPU and back; see planes.h. */
#include "daemon/store/planes.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "daemon/compute/device/segment/segment.h"
#include "daemon/floor/base/crash.h"
#include "daemon/store/carry.h"
#include "proto/cleanup.h"

DEFINE_CLEANUP(struct planes *, planes_free)

/* ---- lifetime ---- */

void planes_free(struct planes *p)
{
        if (!p)
                return;
        list_remove(&p->link);
        place_free(p->memory);
        segment_free(&p->serve);
        free(p);
}

static int gpu_make(struct state *state, const struct state_identity *id,
                    const struct file_map *places, struct fault *fault)
{
        CLEANUP(cleanup_planes_free) struct planes *p = calloc(1, sizeof(*p));
        char what[ZERO_NAME_MAX + 64];
        void *memory = NULL;
        int r = 0;

        if (!p)
                return fault_errno(fault, ENOMEM, id->job.name);
        list_init(&p->link);
        p->place = id->place;
        p->at = places->master;
        p->bytes = places->bytes - places->master;
        p->serve_at = places->serve;
        p->serve.fd = -1;
        snprintf(what, sizeof(what), "master weights, moments and gradients of job %s",
                 id->job.name);
        if (p->bytes)
                r = place_alloc(p->place, p->bytes, what, &memory, fault);
        if (r)
                return r;
        p->memory = memory;
        if (p->bytes)
                place_ops()->zero(p->memory, p->bytes);
        state->in->planes = STEAL(p);
        return 0;
}

void planes_bind(struct state *state, const struct file_map *places)
{
        struct state_inside *in = state->in;
        uint8_t *memory = in->home->memory(state, places);

        if (!in->home->in_file && places->serve < in->map_bytes) {
                munmap((uint8_t *)in->map + places->serve, in->map_bytes - places->serve);
                in->map_bytes = places->serve;
        }
        if (state->plan->keeps_served && in->home->in_file)
                in->serve = (uint8_t *)in->map + places->serve;
        in->master = (void *)memory;
        for (uint32_t i = 0; i < OPTIMIZER_MOMENTS; i++)
                in->moments[i] = memory ? memory + places->moments[i] - places->master : NULL;
        in->grad = memory ? memory + places->grad - places->master : NULL;
        in->old = memory ? memory + places->old - places->master : NULL;
        if (in->planes)
                state->id.place = in->planes->place;
}

/* ---- homes ---- */

static int file_make_serve(struct state *state, uint64_t bytes, const char *what,
                           struct fault *fault)
{
        return segment_new("zerod-serve", bytes, SEGMENT_READ_ONLY, &state->serve_segment, fault);
}

static uint8_t *file_memory(const struct state *state, const struct file_map *places)
{
        return (uint8_t *)state->in->map + places->master;
}

static int gpu_make_serve(struct state *state, uint64_t bytes, const char *what,
                          struct fault *fault)
{
        struct segment *parked = &state->in->planes->serve;

        if (parked->data) {
                state->serve_segment = *parked;
                *parked = (struct segment){ .fd = -1 };
                return 0;
        }
        return segment_new_away(state->in->planes->place, what, bytes, &state->serve_segment,
                                fault);
}

static uint8_t *gpu_memory(const struct state *state, const struct file_map *places)
{
        return state->in->planes ? state->in->planes->memory : NULL;
}

/* ---- the file ---- */

static bool is_ahead(const struct state *s)
{
        for (uint32_t g = 0; g < s->plan->n_groups; g++)
                if (s->plan->shards[g].old != UINT64_MAX && state_chunks(s, g) &&
                    state_chunk_version(s, s->plan->shards[g].first_chunk) != s->record->version)
                        return true;
        return false;
}

/*
 * How many bytes of master, moments, gradient and old values a later process may need.  It
 * decides by the record alone.  Without a vote the attempt is void.  With a vote the gradient
 * counts until all groups are updated.  Old values count while a group is ahead of the decision.
 */
static uint64_t needed(const struct state *s)
{
        const struct state_record *r = s->record;
        bool updates = r->phase == ATTEMPT_DECIDED && r->commit;
        const void *end = s->in->grad;

        if (r->phase == ATTEMPT_PREPARED || updates)
                end = s->in->old;
        if (!updates && is_ahead(s))
                end = s->in->old + s->plan->old_bytes;
        return (uint64_t)((const uint8_t *)end - (const uint8_t *)s->in->master);
}

void planes_load(struct state *state, const struct file_map *places)
{
        struct planes *p = state->in->planes;
        uint8_t *map = state->in->map;

        carry_run(&(struct carry){ .file = map + p->at,
                                   .memory = p->memory,
                                   .bytes = needed(state),
                                   .threads = state->in->store->threads });
        if (state->plan->keeps_served)
                carry_run(&(struct carry){ .file = map + p->serve_at,
                                           .memory = state->in->serve,
                                           .bytes = state->plan->serve_bytes,
                                           .threads = state->in->store->threads });
        file_set_planes(state->in->map, state->in->store->number);
        crash_point(CRASH_PLANES_AWAY);
        /* if the file system cannot punch holes, the room stays taken */
        (void)fallocate(state->in->fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
                        (off_t)p->serve_at, (off_t)(p->at + p->bytes - p->serve_at));
        planes_bind(state, places);
}

struct save {
        const struct planes *p;
        const struct store_saving *saving;
        uint64_t saved; /* bytes, by earlier calls of carry_run() */
};

static void save_tell(void *arg, uint64_t done)
{
        const struct save *s = arg;

        if (s->saving->saves)
                s->saving->saves(s->p->file, s->saved + done, s->p->needed);
}

/* Saves bytes that have their place in the file behind those that were saved before. */
static int save_memory(const struct store *store, struct save *s, int fd, uint8_t *map,
                       uint8_t *memory, uint64_t bytes)
{
        uint64_t at = s->p->serve_at + s->saved;
        int r = carry_run(&(struct carry){ .save = true,
                                           .fd = fd,
                                           .at = at,
                                           .file = map + at,
                                           .memory = memory,
                                           .bytes = bytes,
                                           .threads = store->threads,
                                           .tell = save_tell,
                                           .arg = s });

        s->saved += bytes;
        return r;
}

static int save(const struct store *store, struct save *s, struct fault *fault)
{
        const struct planes *p = s->p;
        uint64_t end = p->serve_at + p->needed, serve = p->at - p->serve_at;
        CLEANUP(cleanup_close)
        int fd = openat(store->dir, p->file, O_RDWR | O_NOFOLLOW | O_CLOEXEC);
        int r;
        uint8_t *map =
                fd < 0 ? MAP_FAILED : mmap(NULL, end, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);

        if (map == MAP_FAILED)
                return fault_errno(fault, errno, p->file);
        if (!segment_fits(fd, end)) {
                munmap(map, end);
                return fault_set(fault, ZERO_ESHM,
                                 "zerod's control group has no room for its %llu bytes",
                                 (unsigned long long)p->needed);
        }
        r = save_memory(store, s, fd, map, p->serve.data, serve);
        if (r == 0)
                r = save_memory(store, s, fd, map, p->memory, p->needed - serve);
        if (r == 0) {
                crash_point(CRASH_PLANES_WRITTEN);
                file_set_planes(map, PLANES_HERE);
        } else { /* a smaller state behind this one may fit */
                (void)fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, (off_t)p->serve_at,
                                (off_t)p->needed);
        }
        munmap(map, end);
        if (r == -ENOSPC)
                return fault_set(fault, ZERO_ESHM, "%s has no room for its %llu bytes", store->path,
                                 (unsigned long long)p->needed);
        return r ? fault_errno(fault, r, p->file) : 0;
}

void store_save(struct store *store, const struct store_saving *saving)
{
        list_for_each (&store->parked, item) {
                struct planes *p = CONTAINER_OF(item, struct planes, link);
                struct save s = { p, saving, 0 };
                struct fault fault = { 0 };
                int r = save(store, &s, &fault);

                saving->saved(p->file, p->needed, r ? &fault : NULL);
                planes_free(p);
        }
}

/* ---- parking ---- */

static void gpu_leave(struct state *state)
{
        if (!state->in->planes)
                return;
        tables_spread_versions(state);
        state->in->planes->needed =
                state->in->planes->at - state->in->planes->serve_at + needed(state);
}

void planes_park(struct state *state)
{
        struct planes *p = STEAL(state->in->planes);

        if (!p)
                return;
        if (state->serve_segment.data && state->plan->keeps_served) {
                p->serve = state->serve_segment;
                state->serve_segment = (struct segment){ .fd = -1 };
        }
        snprintf(p->file, sizeof(p->file), "%s", state->in->file);
        list_insert(&state->in->store->parked, &p->link);
}

uint64_t store_parked(const struct store *store)
{
        uint64_t bytes = 0;

        list_for_each ((struct list *)&store->parked, item) {
                bytes += CONTAINER_OF(item, struct planes, link)->needed;
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

/* ---- the rows ---- */

const struct home home_file = { .survives = true,
                                .for_cpu = true,
                                .in_file = true,
                                .make_serve = file_make_serve,
                                .memory = file_memory };
const struct home home_gpu = {
        .make = gpu_make, .make_serve = gpu_make_serve, .memory = gpu_memory, .leave = gpu_leave
};

const struct home *home_of(uint32_t place)
{
        return place_is_host(place) ? &home_file : &home_gpu;
}

bool state_survives(const struct state *state)
{
        return state->in->home->survives;
}

bool state_for_cpu(const struct state *state)
{
        return state->in->home->for_cpu;
}
