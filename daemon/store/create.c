/*
 * Makes a new state.
 *
 * The file has a temporary name until it is complete, so store_each() never names half a file.
 * Space is reserved before it is touched.  So no write to the file or to the serve plane can end in
 * SIGBUS because memory ran out later.
 */
#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "daemon/floor/base/memory.h"
#include "daemon/store/planes.h"
#include "proto/cleanup.h"

DEFINE_CLEANUP(struct state *, state_free)

/* A layout as the file stores it. */
struct packed {
        uint8_t *data;
        size_t size;
};

static void packed_deinit(struct packed *p)
{
        free(p->data);
}

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

/* Makes the file in its full length, with a hole in place of planes that are elsewhere. */
static int make_file(struct state *s, const struct file_map *places, const char *job,
                     struct fault *fault)
{
        uint64_t bytes = s->in->home->in_file ? places->bytes : places->serve;
        struct store *store = s->in->store;

        s->in->fd = openat(store->dir, s->in->file,
                           O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
        if (s->in->fd < 0)
                return errno == EEXIST ? fault_set(fault, ZERO_EBUSY,
                                                   "the state of job %s is being made already", job)
                                       : fault_errno(fault, errno, store->path);
        int r = segment_reserve(s->in->fd, bytes);
        if (r == 0 && ftruncate(s->in->fd, (off_t)places->bytes) < 0)
                r = -errno;
        if (r == -ENOSPC)
                return fault_set(fault, ZERO_ESHM,
                                 "job %s needs %" PRIu64 " bytes of state: %s is full", job, bytes,
                                 store->path);
        if (r == -ENOMEM)
                return fault_set(fault, ZERO_ESHM,
                                 "job %s needs %" PRIu64 " bytes of state: the control group of "
                                 "zerod leaves %" PRIu64 " bytes of memory; raise its limit, or "
                                 "set memory_limit below it",
                                 job, bytes, memory_of_groups(""));
        return r ? fault_errno(fault, r, store->path) : 0;
}

static int fill_file(struct state *s, const struct state_identity *id, const layout *l,
                     struct plan *plan, const struct packed *packed, uint32_t n_undo,
                     struct fault *fault)
{
        struct file_map places = file_map(plan, l->n_tensors, n_undo, packed->size);
        struct file_header h = { .format = file_format(plan, &id->job),
                                 .chunk_elements = plan->chunk_elements,
                                 .n_undo = n_undo,
                                 .n_tensors = l->n_tensors,
                                 .n_owners = id->n_owners,
                                 .owner = plan->owner,
                                 .copy = id->copy,
                                 .layout_bytes = packed->size };
        int r = state_map_file(s, places.bytes, fault);
        if (r)
                return r;
        JOB_SPEC_WRITE(&h, &id->job);
        snprintf(h.job, sizeof(h.job), "%s", id->job.name);
        file_plan_hash(plan, h.plan_hash);
        file_write(s->in->map, &places, &h, packed->data,
                   s->in->home->in_file ? PLANES_HERE : s->in->store->number);
        s->plan = plan;
        r = state_bind_file(s, &places);
        if (r)
                return fault_errno(fault, r, s->in->file);
        tables_init(s, l);
        puts_init(s);
        undo_init(s);
        record_init(s);
        if (!s->in->home->survives)
                tables_join_units(s);
        return blobs_open(s, fault);
}

/* Makes and fills the file; on failure nothing is left. */
static int build_file(struct state *s, const struct state_identity *id, const layout *l,
                      struct plan *plan, const struct packed *packed, uint32_t n_undo,
                      struct fault *fault)
{
        struct file_map places = file_map(plan, l->n_tensors, n_undo, packed->size);
        int r = make_file(s, &places, id->job.name, fault);

        if (r == 0)
                r = fill_file(s, id, l, plan, packed, n_undo, fault);
        if (r && s->in->fd >= 0)
                unlinkat(s->in->store->dir, s->in->file, 0);
        return r;
}

static int create_taken(struct store *store, const struct state_identity *id, const layout *l,
                        struct plan *plan, const struct packed *packed, uint32_t n_undo,
                        struct state **ret, struct fault *fault)
{
        CLEANUP(cleanup_state_free) struct state *s = NULL;
        const struct file_map places = file_map(plan, l->n_tensors, n_undo, packed->size);
        char file[STORE_FILE_NAME], temporary[STORE_FILE_NAME];

        store_file_name(id, plan->owner, file);
        store_temporary_name(file, temporary);
        int r = state_new(store, temporary, &s);
        if (r)
                return fault_errno(fault, r, id->job.name);
        s->in->home = home_of(id->place);
        if (s->in->home->make)
                r = s->in->home->make(s, id, &places, fault);
        if (r == 0)
                r = state_make_serve(s, plan, id->job.name, fault);
        if (r)
                return r;
        r = build_file(s, id, l, plan, packed, n_undo, fault);
        if (r) {
                s->plan = NULL; /* the caller keeps it */
                return r;
        }
        *ret = STEAL(s);
        return 0;
}

int state_draft(struct store *store, const struct state_identity *id, const layout *l,
                struct plan *plan, uint32_t n_undo, struct state **ret, struct fault *fault)
{
        assert(n_undo >= 1 && n_undo <= FILE_UNDO_MAX && plan->owner < id->n_owners);
        assert(id->copy < FILE_COPIES);
        CLEANUP(packed_deinit) struct packed packed = { 0 };
        char what[ZERO_NAME_MAX + 8];

        snprintf(what, sizeof(what), "job %s", id->job.name);
        int r = pack(l, &packed);
        if (r)
                return fault_errno(fault, r, what);
        const struct file_map places = file_map(plan, l->n_tensors, n_undo, packed.size);
        uint64_t bytes = places.bytes + plan_beside(plan);
        r = store_take(store, bytes,
                       home_of(id->place)->in_file ? plan_beside(plan) : bytes - places.serve, what,
                       fault);
        if (r)
                return r;
        r = create_taken(store, id, l, plan, &packed, n_undo, ret, fault);
        if (r)
                store_give(store, bytes);
        return r;
}

int state_create(struct store *store, const struct state_identity *id, const layout *l,
                 struct plan *plan, uint32_t n_undo, struct state **ret, struct fault *fault)
{
        struct state *s = NULL;
        int r = state_vacant(store, id, plan->owner, fault);

        if (r == 0)
                r = state_draft(store, id, l, plan, n_undo, &s, fault);
        if (r)
                return r;
        r = state_replace(s, NULL, fault);
        if (r == 0) {
                *ret = s;
                return 0;
        }
        unlinkat(store->dir, s->in->file, 0);
        store_give(store, state_bytes(s));
        s->plan = NULL; /* the caller keeps it */
        state_free(s);
        return r;
}
