/*
 * A job's state: making, opening, filling, closing.  file.h has the map of the file,
 * record.c, redo.c and tables.c what makes it crash-consistent.
 *
 * A new file has a temporary name until it is complete, so that a name store_each()
 * gives is never that of half a file.  Its space is reserved before it is touched: neither a
 * file nor a serve plane can end in SIGBUS because memory ran out later.
 */
#include "daemon/store/state.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "daemon/base/crash.h"
#include "daemon/store/file.h"
#include "daemon/store/init.h"
#include "daemon/store/redo.h"
#include "daemon/store/store.h"
#include "proto/cleanup.h"

/* A layout as it is stored. */
struct packed {
        uint8_t *data;
        size_t size;
};

static void packed_deinit(struct packed *p)
{
        free(p->data);
}

/* ---- the object ---- */

static void state_free(struct state *s)
{
        if (s->map)
                munmap(s->map, s->map_bytes);
        cleanup_close(&s->fd);
        blobs_close(s);
        tables_free(s);
        segment_free(&s->serve_segment);
        plan_free(s->plan);
        free(s->file);
        free(s);
}

DEFINE_CLEANUP(struct state *, state_free)
DEFINE_CLEANUP(layout *, layout_free)
DEFINE_CLEANUP(struct partition *, partition_free)

static int state_new(struct store *store, const char *file, struct state **ret)
{
        CLEANUP(cleanup_state_free) struct state *s = calloc(1, sizeof(*s));
        if (!s)
                return -ENOMEM;
        *s = (struct state){
                .store = store, .fd = -1, .serve_segment = { .fd = -1 }, .blobs = { .fd = -1 }
        };
        s->file = strdup(file);
        if (!s->file)
                return -ENOMEM;
        *ret = STEAL(s);
        return 0;
}

static int map_file(struct state *s, uint64_t bytes, struct fault *fault)
{
        void *map = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, s->fd, 0);
        if (map == MAP_FAILED)
                return fault_errno(fault, errno, s->file);
        s->map = map;
        s->map_bytes = bytes;
        return 0;
}

static int make_serve(struct state *s, const struct plan *plan, struct fault *fault)
{
        if (plan->serve_bytes == 0)
                return 0;
        int r = segment_new("zerod-serve", plan->serve_bytes, SEGMENT_READ_ONLY, &s->serve_segment,
                            fault);
        if (r)
                return r;
        s->serve = s->serve_segment.data;
        return 0;
}

/* What both ways of getting a state have in common, once the file is mapped. */
static int bind_file(struct state *s, const struct file_map *places)
{
        const struct file_header *h = s->map;

        file_bind(s, places);
        s->n_redo = h->n_redo;
        s->n_tensors = h->n_tensors;
        s->id = (struct state_identity){ .job = h->job,
                                         .uid = h->uid,
                                         .world_size = h->world_size,
                                         .n_owners = h->n_owners,
                                         .reduce_dtype = h->reduce_dtype,
                                         .copy = h->copy,
                                         .epoch = store_file_epoch(s->file) };
        return tables_new(s);
}

/* ---- making ---- */

static int pack(const layout *l, struct packed *ret)
{
        Zero__Layout *m;
        int r = layout_to_message(l, &m);
        if (r)
                return r;

        struct packed p = { .size = zero__layout__get_packed_size(m) };
        p.data = malloc(p.size ? p.size : 1);
        if (p.data)
                zero__layout__pack(m, p.data);
        zero__layout__free_unpacked(m, NULL);
        if (!p.data)
                return -ENOMEM;
        *ret = p;
        return 0;
}

static int make_file(struct state *s, uint64_t bytes, const char *job, struct fault *fault)
{
        struct store *store = s->store;

        s->fd = openat(store->dir, s->file, O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC,
                       0600);
        if (s->fd < 0)
                return errno == EEXIST ? fault_set(fault, ZERO_EBUSY,
                                                   "the state of job %s is just being made", job)
                                       : fault_errno(fault, errno, store->path);
        int r = segment_reserve(s->fd, bytes);
        if (r == -ENOSPC)
                return fault_set(fault, ZERO_ESHM,
                                 "job %s needs %" PRIu64 " bytes of state: %s is full", job, bytes,
                                 store->path);
        return r ? fault_errno(fault, r, store->path) : 0;
}

static int fill_file(struct state *s, const struct state_identity *id, const layout *l,
                     struct plan *plan, const struct packed *packed, uint32_t n_redo,
                     struct fault *fault)
{
        struct file_map places = file_map(plan, l->n_tensors, n_redo, packed->size);
        struct file_header h = { .chunk_elements = plan->chunk_elements,
                                 .n_redo = n_redo,
                                 .n_tensors = l->n_tensors,
                                 .uid = id->uid,
                                 .world_size = id->world_size,
                                 .n_owners = id->n_owners,
                                 .owner = plan->owner,
                                 .reduce_dtype = id->reduce_dtype,
                                 .copy = id->copy,
                                 .layout_bytes = packed->size };
        int r = map_file(s, places.bytes, fault);
        if (r)
                return r;
        snprintf(h.job, sizeof(h.job), "%s", id->job);
        file_plan_hash(plan, h.plan_hash);
        file_write(s->map, &places, &h, packed->data);
        s->plan = plan;
        r = bind_file(s, &places);
        if (r)
                return fault_errno(fault, r, s->file);
        tables_init(s, l);
        puts_init(s);
        redo_init(s);
        record_init(s);
        return blobs_open(s, fault);
}

/* Makes and fills the file; on failure nothing is left. */
static int build_file(struct state *s, const struct state_identity *id, const layout *l,
                      struct plan *plan, const struct packed *packed, uint32_t n_redo,
                      struct fault *fault)
{
        uint64_t bytes = file_map(plan, l->n_tensors, n_redo, packed->size).bytes;
        int r = make_file(s, bytes, id->job, fault);

        if (r == 0)
                r = fill_file(s, id, l, plan, packed, n_redo, fault);
        if (r && s->fd >= 0)
                unlinkat(s->store->dir, s->file, 0);
        return r;
}

static int create_taken(struct store *store, const struct state_identity *id, const layout *l,
                        struct plan *plan, const struct packed *packed, uint32_t n_redo,
                        struct state **ret, struct fault *fault)
{
        CLEANUP(cleanup_state_free) struct state *s = NULL;
        char file[STORE_FILE_NAME], temporary[STORE_FILE_NAME];

        store_file_name(id, plan->owner, file);
        store_temporary_name(file, temporary);
        int r = state_new(store, temporary, &s);
        if (r)
                return fault_errno(fault, r, id->job);
        r = make_serve(s, plan, fault);
        if (r)
                return r;
        r = build_file(s, id, l, plan, packed, n_redo, fault);
        if (r) {
                s->plan = NULL; /* the caller's */
                return r;
        }
        *ret = STEAL(s);
        return 0;
}

int state_draft(struct store *store, const struct state_identity *id, const layout *l,
                struct plan *plan, uint32_t n_redo, struct state **ret, struct fault *fault)
{
        assert(n_redo >= 1 && n_redo <= FILE_REDO_MAX && plan->owner < id->n_owners);
        assert(strlen(id->job) <= ZERO_NAME_MAX && id->copy < FILE_COPIES);
        CLEANUP(packed_deinit) struct packed packed = { 0 };
        char what[ZERO_NAME_MAX + 8];

        snprintf(what, sizeof(what), "job %s", id->job);
        int r = pack(l, &packed);
        if (r)
                return fault_errno(fault, r, what);
        uint64_t bytes =
                file_map(plan, l->n_tensors, n_redo, packed.size).bytes + plan->serve_bytes;
        r = store_take(store, bytes, what, fault);
        if (r)
                return r;
        r = create_taken(store, id, l, plan, &packed, n_redo, ret, fault);
        if (r)
                store_give(store, bytes);
        return r;
}

int state_create(struct store *store, const struct state_identity *id, const layout *l,
                 struct plan *plan, uint32_t n_redo, struct state **ret, struct fault *fault)
{
        struct state *s = NULL;
        int r = state_vacant(store, id, plan->owner, fault);

        if (r == 0)
                r = state_draft(store, id, l, plan, n_redo, &s, fault);
        if (r)
                return r;
        r = state_replace(s, NULL, fault);
        if (r == 0) {
                *ret = s;
                return 0;
        }
        unlinkat(store->dir, s->file, 0);
        store_give(store, state_bytes(s));
        s->plan = NULL; /* the caller's still */
        state_free(s);
        return r;
}

/* ---- opening what an earlier process left ---- */

static int read_layout(const struct state *s, const struct file_header *h, layout **ret,
                       struct fault *fault)
{
        /* the layout is the first part behind the header, whatever the plan */
        const uint8_t *at = (const uint8_t *)s->map + FILE_ALIGN;
        uint8_t hash[FILE_HASH];

        if (FILE_ALIGN + h->layout_bytes > s->map_bytes)
                return file_damaged(fault, s->file, "its length is wrong");
        file_hash(hash, at, h->layout_bytes);
        if (memcmp(hash, h->layout_hash, FILE_HASH) != 0)
                return file_damaged(fault, s->file, "the checksum of its layout is wrong");
        Zero__Layout *m = zero__layout__unpack(NULL, h->layout_bytes, at);
        if (!m)
                return file_damaged(fault, s->file, "its layout cannot be read");
        int r = layout_from_message(m, ret, fault);
        zero__layout__free_unpacked(m, NULL);
        return r < 0 ? fault_errno(fault, r, s->file) : r;
}

/* The plan, made again from the layout, and held against the one the file was made with. */
static int remake_plan(struct state *s, const struct file_header *h, const layout *l,
                       struct fault *fault)
{
        CLEANUP(cleanup_partition_free) struct partition *p = NULL;
        uint8_t hash[FILE_HASH];

        if (l->n_tensors != h->n_tensors)
                return file_damaged(fault, s->file, "its layout is another one");
        int r = partition_new(l, h->n_owners, &p);
        if (r == 0)
                r = plan_new(l, p, h->owner, h->chunk_elements, &s->plan);
        if (r)
                return fault_errno(fault, r, s->file);
        file_plan_hash(s->plan, hash);
        if (memcmp(hash, h->plan_hash, FILE_HASH) != 0)
                return file_damaged(fault, s->file, "its parts lie elsewhere");
        return 0;
}

/* A step that is to be carried out has the hyperparameter sets of its tensors. */
static int check_sets(const struct state *s, struct fault *fault)
{
        bool commit = s->record->phase == ATTEMPT_DECIDED && s->record->commit;

        if (commit && state_check_sets(s, s->record->n_sets) != s->n_tensors)
                return file_damaged(fault, s->file, "its step lacks a hyperparameter set");
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
                r = redo_check(s, fault);
        if (r == 0)
                r = check_sets(s, fault);
        return r ? r : blobs_open(s, fault);
}

/* Everything that can be checked; the state is bound to the file then. */
static int check_file(struct state *s, layout **ret_layout, struct fault *fault)
{
        CLEANUP(cleanup_layout_free) layout *l = NULL;
        struct file_header h;
        char name[STORE_FILE_NAME];
        uint64_t bytes = 0;

        int r = file_open(s->store->dir, s->file, &s->fd, &bytes, fault);
        if (r == 0)
                r = file_read_header(s->fd, bytes, s->file, &h, fault);
        if (r)
                return r;
        store_file_name(&(struct state_identity){ .job = h.job,
                                                  .copy = h.copy,
                                                  .epoch = store_file_epoch(s->file) },
                        h.owner, name);
        if (strcmp(name, s->file) != 0)
                return file_damaged(fault, s->file, "it is the file of another job or owner");
        r = map_file(s, bytes, fault);
        if (r == 0)
                r = read_layout(s, &h, &l, fault);
        if (r == 0)
                r = remake_plan(s, &h, l, fault);
        if (r)
                return r;
        struct file_map places = file_map(s->plan, h.n_tensors, h.n_redo, h.layout_bytes);
        if (places.bytes != bytes)
                return file_damaged(fault, s->file, "its length is wrong");
        r = bind_file(s, &places);
        if (r)
                return fault_errno(fault, r, s->file);
        r = check_parts(s, fault);
        if (r == 0)
                *ret_layout = STEAL(l);
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
        if (r)
                return r;
        r = store_take(store, s->plan->serve_bytes, file, fault);
        if (r)
                return r;
        r = make_serve(s, s->plan, fault);
        if (r) {
                store_give(store, s->plan->serve_bytes);
                return r;
        }
        redo_replay(s);
        blobs_settle(s);
        puts_settle(s);
        crash_point(CRASH_RESUME_REPLAYED);
        *ret = STEAL(s);
        *ret_layout = STEAL(l);
        return 0;
}

/* ---- closing ---- */

void state_close(struct state *state)
{
        if (!state)
                return;
        store_give(state->store, state->plan->serve_bytes);
        state_free(state);
}

void state_drop(struct state *state)
{
        if (!state)
                return;
        blobs_drop(state); /* first: none is left alone */
        if (state->file)   /* else another state has its name now */
                unlinkat(state->store->dir, state->file, 0);
        store_give(state->store, state->map_bytes);
        state_close(state);
}

uint64_t state_bytes(const struct state *state)
{
        return state->map_bytes + state->blobs.bytes + state->plan->serve_bytes;
}

/* ---- contents ---- */

/* Takes the first touch of pages, zeroing included, off the first step. */
static void prefault(const float *plane, uint64_t first, uint64_t count)
{
        uintptr_t page = FILE_ALIGN - 1, start = (uintptr_t)(plane + first) & ~page;
        uintptr_t end = ((uintptr_t)(plane + first + count) + page) & ~page;

        /* a hint: kernels before 5.14 do not know it */
        (void)madvise((void *)start, end - start, MADV_POPULATE_WRITE);
}

void state_init_group(struct state *state, const layout *l, uint32_t group,
                      const struct device_ops *ops)
{
        const struct plan_shard *shard = &state->plan->shards[group];
        const struct plan_segment *segment = state->plan->segments + shard->first_segment;

        for (uint32_t i = 0; i < shard->n_segments; i++, segment++) {
                const struct layout_tensor *t = &l->tensors[segment->tensor];

                init_fill(state->master + segment->master, t, segment->in_group - t->offset,
                          segment->count);
        }
        if (shard->moment_count) {
                prefault(state->exp_avg, shard->moment, shard->moment_count);
                prefault(state->exp_avg_sq, shard->moment, shard->moment_count);
                prefault(state->grad, shard->moment, shard->moment_count);
        }
        state_serve_group(state, l, group, ops);
}

void state_serve_group(struct state *state, const layout *l, uint32_t group,
                       const struct device_ops *ops)
{
        const struct plan_shard *shard = &state->plan->shards[group];
        enum zero_dtype dtype = l->groups[group].dtype;

        if (dtype != ZERO_FP32 && shard->range.count)
                ops->serve(dtype, state->serve + shard->serve, state->master + shard->master,
                           shard->range.count);
}

const void *state_shard(const struct state *state, const layout *l, uint32_t group)
{
        const struct plan_shard *shard = &state->plan->shards[group];

        if (l->groups[group].dtype == ZERO_FP32)
                return state->master + shard->master;
        return state->serve ? state->serve + shard->serve : NULL;
}
