/*
 * A job's state: opening, closing, moving to another place.  create.c makes a new state, and file.h
 * maps the file.  record.c, undo_slot.c and tables.c keep the state consistent at every
 * instruction.
 */
#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "daemon/floor/base/crash.h"
#include "daemon/store/file.h"
#include "daemon/store/planes.h"
#include "daemon/store/directory.h"
#include "proto/cleanup.h"

/* ---- the object ---- */

void state_free(struct state *s)
{
        assert(s->in->mapped == 0);
        if (s->in->map)
                munmap(s->in->map, s->in->map_bytes);
        planes_free(s->in->planes);
        cleanup_close(&s->in->fd);
        cleanup_close(&s->in->file_served.fd);
        blobs_close(s);
        tables_free(s);
        segment_free(&s->serve_segment);
        plan_free(s->plan);
        free(s->in->file);
        free(s);
}

DEFINE_CLEANUP(struct state *, state_free)
DEFINE_CLEANUP(layout *, layout_free)
DEFINE_CLEANUP(struct partition *, partition_free)

int state_new(struct store *store, const char *file, struct state **ret)
{
        struct whole {
                struct state state;
                struct state_inside in;
        } *whole = malloc(sizeof(*whole));

        if (!whole)
                return -ENOMEM;
        *whole = (struct whole){
                .state = { .in = &whole->in, .serve_segment = { .fd = -1 } },
                .in = { .store = store,
                        .file = strdup(file),
                        .fd = -1,
                        .blobs = { .fd = -1 },
                        .file_served = { .fd = -1 } },
        };
        if (!whole->in.file) {
                state_free(&whole->state);
                return -ENOMEM;
        }
        *ret = &whole->state;
        return 0;
}

int state_map_file(struct state *s, uint64_t bytes, struct fault *fault)
{
        void *map = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, s->in->fd, 0);
        if (map == MAP_FAILED)
                return fault_errno(fault, errno, s->in->file);
        s->in->map = map;
        s->in->map_bytes = s->in->file_bytes = bytes;
        return 0;
}

int state_make_serve(struct state *s, const struct plan *plan, const char *job, struct fault *fault)
{
        char what[ZERO_NAME_MAX + 24];
        int r;

        if (plan->serve_bytes == 0 || (plan->keeps_served && s->in->home->in_file) || s->in->lost)
                return 0;
        snprintf(what, sizeof(what), "serve of job %s", job);
        r = s->in->home->make_serve(s, plan->serve_bytes, what, fault);
        if (r)
                return r;
        s->in->serve = s->serve_segment.data;
        return 0;
}

/* Others may only read through this descriptor.  The file's mode stops them opening it again. */
static int serve_file(struct state *s, const struct file_map *places)
{
        struct segment *served = &s->in->file_served;
        const struct plan *plan = s->plan;

        if (s->id.n_owners > 1 || plan_served_apart(plan) || plan->master_elements == 0 ||
            !s->in->home->in_file)
                return 0;
        served->fd = openat(s->in->store->dir, s->in->file, O_RDONLY | O_NOFOLLOW | O_CLOEXEC);
        served->data = s->in->map;
        served->bytes = plan->keeps_served ? places->serve + plan->serve_bytes
                                           : places->master + plan->master_bytes;
        return served->fd < 0 ? -errno : 0;
}

const struct segment *state_serve(const struct state *s)
{
        if (s->serve_segment.data)
                return &s->serve_segment;
        return s->in->file_served.fd >= 0 && s->in->home->in_file ? &s->in->file_served : NULL;
}

uint64_t state_serve_offset(const struct state *s, uint32_t group)
{
        const struct plan_shard *shard = &s->plan->shards[group];
        const uint8_t *at = s->plan->keeps_served ? s->in->serve + shard->serve
                                                  : master_at(s, group, shard->master);

        return s->serve_segment.data ? shard->serve : (uint64_t)(at - (uint8_t *)s->in->map);
}

static struct state_identity identity(const struct file_header *h, const char *file)
{
        struct state_identity id = { .job = job_spec_named(h->job),
                                     .n_owners = h->n_owners,
                                     .copy = h->copy,
                                     .epoch = store_file_epoch(file) };

        JOB_SPEC_READ(&id.job, h);
        return id;
}

int state_bind_file(struct state *s, const struct file_map *places)
{
        const struct file_header *h = s->in->map;

        file_bind(s, places);
        s->in->n_undo = h->n_undo;
        s->n_tensors = h->n_tensors;
        s->id = identity(h, s->in->file);
        planes_bind(s, places);
        int r = serve_file(s, places);
        return r ? r : tables_new(s);
}

/* ---- opening what an earlier process left ---- */

static int read_layout(const struct state *s, const struct file_header *h, layout **ret,
                       struct fault *fault)
{
        /* the layout lies behind the header, so its place is known before the plan is */
        const uint8_t *at = (const uint8_t *)s->in->map + FILE_ALIGN;
        uint8_t hash[FILE_HASH];

        if (FILE_ALIGN + h->layout_bytes > s->in->map_bytes)
                return file_damaged(fault, s->in->file, "its length is wrong");
        file_hash(hash, at, h->layout_bytes);
        if (memcmp(hash, h->layout_hash, FILE_HASH) != 0)
                return file_damaged(fault, s->in->file, "the checksum of its layout is wrong");
        Zero__Layout *m = zero__layout__unpack(NULL, h->layout_bytes, at);
        if (!m)
                return file_damaged(fault, s->in->file, "its layout cannot be read");
        int r = optimizer_layout(m, ret, fault);
        zero__layout__free_unpacked(m, NULL);
        return r < 0 ? fault_errno(fault, r, s->in->file) : r;
}

/* Makes the plan again from the layout, and checks that the file was made with the same one. */
static int remake_plan(struct state *s, const struct file_header *h, const layout *l,
                       struct fault *fault)
{
        CLEANUP(cleanup_partition_free) struct partition *p = NULL;
        const struct state_identity id = identity(h, s->in->file);
        uint8_t hash[FILE_HASH];

        if (l->n_tensors != h->n_tensors)
                return file_damaged(fault, s->in->file, "its layout does not match its header");
        int r = partition_new(l, h->n_owners, &p);
        if (r == 0)
                r = plan_new(l, p, h->owner, h->chunk_elements, &s->plan);
        if (r)
                return fault_errno(fault, r, s->in->file);
        s->plan->grad_dtype = job_spec_sum_dtype(&id.job);
        s->plan->staggered = h->format >= FILE_FORMAT;
        file_plan_hash(s->plan, hash);
        if (memcmp(hash, h->plan_hash, FILE_HASH) != 0)
                return file_damaged(fault, s->in->file,
                                    "this zerod partitions its layout in another way");
        return 0;
}

/* A decided update must have the hyperparameter sets of its tensors. */
static int check_sets(const struct state *s, struct fault *fault)
{
        bool commit = s->record->phase == ATTEMPT_DECIDED && s->record->commit;

        if (commit && state_check_sets(s, s->record->sets, s->record->n_sets) != s->n_tensors)
                return file_damaged(fault, s->in->file, "its step lacks a hyperparameter set");
        return 0;
}

static int check_parts(struct state *s, struct fault *fault)
{
        int r = record_load(s, fault);

        if (r == 0)
                r = tables_load(s, fault);
        if (r == 0)
                r = puts_load(s, fault);
        if (r == 0)
                r = undo_check(s, fault);
        if (r == 0)
                r = check_sets(s, fault);
        return r ? r : blobs_open(s, fault);
}

/* Planes that are not in the file are parked in this process, or lost. */
static int find_planes(struct state *s, struct fault *fault)
{
        uint64_t where;

        if (file_planes(s->in->fd, &where))
                return file_damaged(fault, s->in->file, "it does not say where its planes are");
        s->in->home = where == PLANES_HERE ? &home_file : &home_gpu;
        if (where == PLANES_HERE)
                return 0;
        s->in->planes = planes_take(s->in->store, s->in->file);
        s->in->lost = !s->in->planes;
        return 0;
}

/* Checks everything that can be checked, and binds the state to the file. */
static int check_file(struct state *s, layout **ret_layout, struct fault *fault)
{
        CLEANUP(cleanup_layout_free) layout *l = NULL;
        struct file_header h;
        char name[STORE_FILE_NAME];
        uint64_t bytes = 0;

        int r = file_open(s->in->store->dir, s->in->file, &s->in->fd, &bytes, fault);
        if (r == 0)
                r = file_read_header(s->in->fd, bytes, s->in->file, &h, fault);
        if (r == 0)
                r = find_planes(s, fault);
        if (r == 0)
                r = file_reserve(s->in->fd,
                                 s->in->home->in_file ? bytes : FILE_ALIGN + h.layout_bytes,
                                 s->in->file, fault);
        if (r)
                return r;
        const struct state_identity id = identity(&h, s->in->file);
        store_file_name(&id, h.owner, name);
        if (strcmp(name, s->in->file) != 0)
                return file_damaged(fault, s->in->file, "it is the file of another job or owner");
        r = state_map_file(s, bytes, fault);
        if (r == 0)
                r = read_layout(s, &h, &l, fault);
        if (r == 0)
                r = remake_plan(s, &h, l, fault);
        if (r)
                return r;
        struct file_map places = file_map(s->plan, h.n_tensors, h.n_undo, h.layout_bytes);
        if (places.bytes != bytes)
                return file_damaged(fault, s->in->file, "its length is wrong");
        r = file_reserve(s->in->fd, places.serve, s->in->file, fault);
        if (r)
                return r;
        r = state_bind_file(s, &places);
        if (r)
                return fault_errno(fault, r, s->in->file);
        r = check_parts(s, fault);
        if (r == 0)
                *ret_layout = STEAL(l);
        return r;
}

static int take_serve(struct state *s, struct fault *fault)
{
        int r = state_make_serve(s, s->plan, s->id.job.name, fault);

        if (r == 0)
                store_take_up(s->in->store, plan_beside(s->plan));
        return r;
}

int state_open(struct store *store, const char *file, struct state **ret, layout **ret_layout,
               struct fault *fault)
{
        CLEANUP(cleanup_state_free) struct state *s = NULL;
        CLEANUP(cleanup_layout_free) layout *l = NULL;

        if (!store_is_state(file))
                return fault_set(fault, ZERO_EINVAL, "%s is not the name of a state file", file);
        int r = state_new(store, file, &s);
        if (r)
                return fault_errno(fault, r, file);
        r = check_file(s, &l, fault);
        if (r == 0)
                r = take_serve(s, fault);
        if (r) {
                planes_park(s);
                return r;
        }
        if (!s->in->home->survives)
                tables_join_units(s);
        undo_all(s);
        blobs_settle(s);
        puts_settle(s);
        crash_point(CRASH_RESUME_REPLAYED);
        *ret = STEAL(s);
        *ret_layout = STEAL(l);
        return 0;
}

int state_file_look(const struct store *store, const char *file, struct state_identity *ret,
                    struct fault *fault)
{
        CLEANUP(cleanup_close) int fd = -1;
        struct file_header h;
        uint64_t bytes;
        int r = file_open(store->dir, file, &fd, &bytes, fault);

        if (!r)
                r = file_read_header(fd, bytes, file, &h, fault);
        if (!r)
                *ret = identity(&h, file);
        return r;
}

/* ---- closing ---- */

void state_close(struct state *state)
{
        if (!state)
                return;
        store_give(state->in->store, plan_beside(state->plan));
        if (state->in->home->leave)
                state->in->home->leave(state);
        planes_park(state);
        state_free(state);
}

void state_unlink(struct state *state)
{
        if (!state->in->file) /* deleted already, or another state has the name now */
                return;
        blobs_unlink(state); /* first, so that no file of blobs is left without its state */
        unlinkat(state->in->store->dir, state->in->file, 0);
        free(STEAL(state->in->file));
}

void state_withdraw(struct state *state)
{
        if (state)
                state->in->file_served.bytes = 0;
}

void state_drop(struct state *state)
{
        if (!state)
                return;
        state_unlink(state);
        uint64_t bytes = (state->in->lost ? 0 : state->in->file_bytes) + state->in->blobs.bytes +
                         plan_beside(state->plan);
        struct store *store = state->in->store;

        /* trainers may have it mapped; in a hole their reads would take memory again */
        if (state->in->file_served.fd >= 0)
                (void)ftruncate(state->in->fd, (off_t)state->in->file_served.bytes);
        planes_free(STEAL(state->in->planes));
        state_free(state);
        store_give(store, bytes); /* last, once the memory is really free */
}

uint64_t state_bytes(const struct state *state)
{
        return state->in->file_bytes + state->in->blobs.bytes + plan_beside(state->plan);
}

const char *state_file(const struct state *state)
{
        return state->in->file;
}

/* ---- in another place ---- */

bool state_lost(const struct state *state)
{
        return state->in->lost;
}

int state_place_check(const struct job_spec *job, uint32_t place, struct fault *fault)
{
        if (place_is_host(place) || job_spec_sum_dtype(job) == ZERO_FP32)
                return 0;
        return fault_set(fault, ZERO_EGPU,
                         "job '%s' has accumulate wire, but owners on GPUs accumulate in fp32 "
                         "only: attach with accumulate fp32, or set `optimizer` to host",
                         job->name);
}

int state_move(struct state *state, uint32_t place, struct fault *fault)
{
        const struct file_header *h = state->in->map;
        const struct file_map places =
                file_map(state->plan, state->n_tensors, state->in->n_undo, h->layout_bytes);
        struct segment serve = state->serve_segment;
        struct state_identity id = state->id;
        int r = state_place_check(&id.job, place, fault);

        assert(state->in->home->in_file && state->in->mapped == 0);
        id.place = place;
        if (r == 0)
                r = home_gpu.make(state, &id, &places, fault);
        if (r)
                return r;
        state->in->home = &home_gpu;
        r = state_make_serve(state, state->plan, id.job.name, fault);
        if (r) {
                planes_free(STEAL(state->in->planes));
                state->in->home = &home_file;
                return r;
        }
        if (plan_served_apart(state->plan))
                segment_free(&serve);
        tables_join_units(state);
        planes_load(state, &places);
        return 0;
}
