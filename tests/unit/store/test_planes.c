/* States on a GPU: their planes, and what is left of them after each way in which a process ends.
 */
#include <criterion/criterion.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "daemon/compute/device/gpu/core.h"
#include "daemon/store/carry.h"
#include "daemon/store/file.h"
#include "daemon/store/seal.h"
#include "daemon/store/directory.h"
#include "fixture.h"
#include "toy.h"

static char *directory;
static struct store *store;
static layout *l;

static void open_gpus(void)
{
        struct fault fault = { 0 };

        cr_assert_eq(gpus_open(getenv("ZEROD_CUDA_PLUGIN"), device_host("scalar"), &fault), 0, "%s",
                     fault.text);
}

static void begin(void)
{
        directory = fixture_directory();
        store = fixture_store(directory);
        l = fixture_layout();
        open_gpus();
}

static void end(void)
{
        store_close(store);
        layout_free(l);
        fixture_remove(directory);
        gpus_close(); /* fails if any of their memory is left */
}

TestSuite(planes, .init = begin, .fini = end);

/* ---- what tests share ---- */

static struct state *make(void)
{
        return fixture_state_on_gpu(store, "j", l, 1, 0, 2);
}

/* A plane's values, in memory that the caller frees. */
static void *read_plane(const void *plane, uint64_t bytes)
{
        void *values = malloc(bytes + 1);

        gpu_ops()->copy(values, plane, bytes);
        return values;
}

static void assert_same_plane(const char *name, const void *a, const void *b, uint64_t bytes)
{
        void *x = read_plane(a, bytes), *y = read_plane(b, bytes);

        cr_assert(memcmp(x, y, bytes) == 0, "%s differs", name);
        free(x);
        free(y);
}

/* Compares planes in any place. */
static void assert_same_planes(const struct state *a, const struct state *b)
{
        uint64_t master = plan_plane_bytes(a->plan, plane_master);

        assert_same_plane("master", a->in->master, b->in->master, master);
        for (int k = 0; k < OPTIMIZER_MOMENTS; k++)
                assert_same_plane("a moment", a->in->moments[k], b->in->moments[k],
                                  a->plan->moment_bytes[k]);
        assert_same_plane("grad", a->in->grad, b->in->grad, plan_plane_bytes(a->plan, plane_grad));
        assert_same_plane("serve", a->in->serve, b->in->serve, a->plan->serve_bytes);
}

/* One in host memory and in a directory of its own, with something in every plane. */
static char *twin_directory;
static struct store *twin_store;

static struct state *make_twin(void)
{
        struct state *s;

        twin_directory = fixture_directory();
        twin_store = fixture_store(twin_directory);
        s = fixture_state(twin_store, "j", l, 1, 0, 2);
        toy_init(s);
        toy_push(s, l);
        for (uint32_t g = 0; g < l->n_groups; g++)
                state_serve_group(s, l, g, gpu_ops());
        return s;
}

static void end_twin(struct state *twin)
{
        state_close(twin);
        store_close(twin_store);
        fixture_remove(twin_directory);
}

static void serve_all(struct state *s)
{
        for (uint32_t g = 0; g < l->n_groups; g++)
                state_serve_group(s, l, g, gpu_ops());
}

/* Copies the twin's values to the state. */
static void fill(struct state *s, const struct state *twin)
{
        gpu_ops()->copy(s->in->master, twin->in->master, plan_plane_bytes(s->plan, plane_master));
        for (int k = 0; k < OPTIMIZER_MOMENTS; k++)
                gpu_ops()->copy(s->in->moments[k], twin->in->moments[k], s->plan->moment_bytes[k]);
        gpu_ops()->copy(s->in->grad, twin->in->grad, plan_plane_bytes(s->plan, plane_grad));
        serve_all(s);
}

static uint64_t file_space(void)
{
        struct stat st;

        cr_assert_eq(fstatat(store->dir, fixture_only_file(store), &st, 0), 0);
        return (uint64_t)st.st_blocks * 512;
}

static uint64_t file_plane_bytes(const struct state *s)
{
        return plan_state_bytes(s->plan) + plan_plane_bytes(s->plan, plane_grad);
}

static uint64_t gpu_used(void)
{
        uint64_t left = 0, total = 0;

        cr_assert_eq(gpu_memory(0, &left, &total), 0);
        return total - left;
}

static struct fault told;
static uint32_t n_told;

static void tell(const char *file, uint64_t bytes, const struct fault *fault)
{
        told = fault ? *fault : (struct fault){ 0 };
        n_told++;
}

static const struct store_saving saving = { .saved = tell };

/* Ends the process, in order or not, and begins another one. */
static void anew(bool orderly)
{
        if (orderly)
                store_save(store, &saving);
        store_close(store);
        store = fixture_store(directory);
}

/* ---- a process ---- */

Test(planes, a_new_state_is_empty_and_leaves_a_hole_in_its_file)
{
        struct state *s = make();
        uint64_t bytes = plan_plane_bytes(s->plan, plane_updated(1));
        float *values = read_plane(s->in->moments[0], bytes);

        cr_assert(!state_survives(s) && !state_lost(s));
        cr_assert_eq(s->id.place, 1);
        cr_assert(gpu_of(s->in->master) == 0 && gpu_of(s->in->grad) == 0 &&
                  gpu_of(s->in->serve) == 0);
        for (uint64_t i = 0; i < bytes / sizeof(float); i++)
                cr_assert_eq(values[i], 0);
        cr_assert_leq(file_space(), state_bytes(s) - s->plan->serve_bytes - file_plane_bytes(s));
        free(values);
        state_close(s);
}

Test(planes, first_values_are_those_of_a_state_in_host_memory)
{
        struct state *twin = make_twin(), *s = make();

        memset(twin->in->master, 0, plan_plane_bytes(twin->plan, plane_master));
        memset(twin->in->moments[0], 0, plan_plane_bytes(twin->plan, plane_updated(1)));
        memset(twin->in->moments[1], 0, plan_plane_bytes(twin->plan, plane_updated(2)));
        memset(twin->in->grad, 0, plan_plane_bytes(twin->plan, plane_grad));
        for (uint32_t g = 0; g < l->n_groups; g++) {
                cr_assert_eq(state_init_group(twin, l, g, device_host("scalar")), 0);
                cr_assert_eq(state_init_group(s, l, g, gpu_ops()), 0);
        }
        assert_same_planes(s, twin);
        state_close(s);
        end_twin(twin);
}

Test(planes, a_process_that_opens_its_own_state_again_has_it_on_the_gpu)
{
        struct state *twin = make_twin(), *s = make();
        layout *stored = NULL;

        fill(s, twin);
        state_abort(s, 7);
        state_close(s);
        s = fixture_reopen(store, &stored);
        cr_assert(!state_survives(s));
        cr_assert_eq(s->record->attempt, 7);
        serve_all(s);
        assert_same_planes(s, twin);
        state_close(s);
        layout_free(stored);
        end_twin(twin);
}

/* Flips a bit of the layout in the file; a second call flips it back. */
static void flip_layout(const char *file)
{
        int fd = openat(store->dir, file, O_RDWR);
        char byte;

        cr_assert_eq(pread(fd, &byte, 1, FILE_ALIGN), 1);
        byte ^= 1;
        cr_assert_eq(pwrite(fd, &byte, 1, FILE_ALIGN), 1);
        close(fd);
}

Test(planes, what_cannot_be_opened_stays_on_the_gpu)
{
        struct state *s = make(), *again = NULL;
        layout *stored = NULL;
        uint64_t used = gpu_used();
        char file[STORE_FILE_NAME];

        state_close(s);
        strcpy(file, fixture_only_file(store));
        flip_layout(file);
        cr_assert_eq(state_open(store, file, &again, &stored, NULL), ZERO_EIO);
        flip_layout(file);
        cr_assert_eq(state_open(store, file, &again, &stored, NULL), 0);
        cr_assert(!state_survives(again));
        cr_assert_eq(gpu_used(), used);
        state_close(again);
        layout_free(stored);
}

Test(planes, a_dropped_state_leaves_nothing)
{
        uint64_t used = gpu_used();

        state_drop(make());
        cr_assert_eq(gpu_used(), used);
        cr_assert_eq(store_used(store), 0);
        cr_assert_str_eq(fixture_only_file(store), "");
}

Test(planes, a_draft_takes_the_place_of_a_state)
{
        struct state_identity id = { .job.name = "j", .n_owners = 1, .place = 1 };
        struct state *old = make(), *draft = NULL, *twin = make_twin();
        uint64_t used = gpu_used();
        layout *stored = NULL;
        struct fault fault = { 0 };

        cr_assert_eq(
                state_draft(store, &id, l, fixture_plan(l, 1, 0, LAYOUT_ALIGN), 2, &draft, &fault),
                0);
        fill(draft, twin);
        cr_assert_eq(state_replace(draft, old, &fault), 0);
        state_drop(old);
        cr_assert_eq(gpu_used(), used);
        state_close(draft);
        draft = fixture_reopen(store, &stored);
        serve_all(draft);
        assert_same_planes(draft, twin);
        state_drop(draft);
        layout_free(stored);
        end_twin(twin);
}

/* ---- the end of a process ---- */

Test(planes, an_orderly_end_writes_planes_to_the_file)
{
        struct state *twin = make_twin(), *s = make();
        layout *stored = NULL;
        uint64_t hole = file_space();

        fill(s, twin);
        cr_assert_eq(store_parked(store), 0);
        state_close(s);
        cr_assert_geq(store_parked(store), plan_state_bytes(twin->plan));
        anew(true);
        cr_assert(n_told == 1 && told.status == 0, "%s", told.text);
        s = fixture_reopen(store, &stored);
        cr_assert(state_survives(s) && !state_lost(s));
        serve_all(s);
        memset(twin->in->grad, 0, plan_plane_bytes(twin->plan, plane_grad));
        assert_same_planes(s, twin);
        cr_assert_geq(file_space(), hole + file_plane_bytes(s));

        cr_assert_eq(state_move(s, 1, NULL), 0);
        cr_assert(!state_survives(s));
        cr_assert_eq(file_space(), hole);
        serve_all(s);
        assert_same_planes(s, twin);
        state_close(s);
        layout_free(stored);
        end_twin(twin);
}

static void vote(struct state *s)
{
        struct state_record r = *s->record;

        r.finite = 1;
        r.n_sets = TOY_SETS;
        memcpy(r.sets, toy_sets, sizeof(toy_sets));
        state_prepare(s, &r);
}

static void decide(struct state *s, bool commit)
{
        struct state_record r = *s->record;

        vote(s);
        r = *s->record;
        r.commit = commit;
        state_decide(s, &r, 1);
}

static void decide_to_commit(struct state *s)
{
        decide(s, true);
}

static void decide_to_skip(struct state *s)
{
        decide(s, false);
}

/*
 * Ends the process in order with the twin's values in a state on the GPU, and compares what the
 * next one finds.  The gradient comes to the file if it is `written`, and back if it `counts`.
 */
static void assert_kept(const struct state *twin, void (*go_to)(struct state *s), bool written,
                        bool counts)
{
        uint64_t bytes = plan_plane_bytes(twin->plan, plane_grad);
        struct state *s = make();
        layout *stored = NULL;
        void *grad = malloc(bytes);

        memcpy(grad, twin->in->grad, bytes);
        fill(s, twin);
        if (go_to)
                go_to(s);
        state_close(s);
        anew(true);
        s = fixture_reopen(store, &stored);
        serve_all(s);
        if (!written)
                memset(twin->in->grad, 0, bytes);
        assert_same_planes(s, twin);
        cr_assert_eq(state_move(s, 1, NULL), 0);
        serve_all(s);
        if (!counts)
                memset(twin->in->grad, 0, bytes);
        assert_same_planes(s, twin);
        memcpy(twin->in->grad, grad, bytes);
        state_drop(s);
        layout_free(stored);
        free(grad);
}

Test(planes, a_gradient_is_written_while_it_counts)
{
        struct state *twin = make_twin();

        assert_kept(twin, NULL, false, false);
        assert_kept(twin, vote, true, true);
        assert_kept(twin, decide_to_commit, true, true);
        assert_kept(twin, decide_to_skip, false, false);
        end_twin(twin);
}

/* Changes the master weights of all groups as an update before its decision does. */
static void go_ahead(struct state *s)
{
        for (uint32_t g = 0; g < l->n_groups; g++) {
                const struct plan_shard *shard = &s->plan->shards[g];

                if (shard->n_chunks == 0)
                        continue;
                undo_keep(s, shard->first_chunk);
                gpu_ops()->zero(s->in->master + shard->master, shard->range.count * sizeof(float));
                undo_done(s, shard->first_chunk, s->record->version + 1);
        }
}

static void go_ahead_and_skip(struct state *s)
{
        decide_to_skip(s);
        go_ahead(s);
}

static void make_eager(void)
{
        for (uint32_t g = 0; g < l->n_groups; g++)
                l->groups[g].eager = true;
        for (uint32_t t = 0; t < l->n_tensors; t++)
                l->tensors[t].frozen = false;
}

Test(planes, what_is_ahead_on_a_gpu_goes_back)
{
        struct state *twin, *s;

        make_eager();
        twin = make_twin();
        s = make();
        fill(s, twin);
        go_ahead(s);
        for (uint32_t g = 0; g < l->n_groups; g++) {
                uint32_t first = s->plan->shards[g].first_chunk;

                if (state_chunks(s, g) == 0)
                        continue;
                undo_back(s, 0, first, s->record->version);
                cr_assert(undo_reached(s, first, s->record->version));
        }
        assert_same_planes(s, twin);
        state_close(s);
        end_twin(twin);
}

static void assert_units(const struct state *s, enum update_unit unit)
{
        for (uint32_t g = 0; g < l->n_groups; g++) {
                const struct plan_shard *shard = &s->plan->shards[g];

                cr_assert_eq(shard->unit, unit);
                cr_assert_eq(state_chunks(s, g),
                             shard->n_chunks && unit == UNIT_SHARD ? 1 : shard->n_chunks);
        }
}

Test(planes, a_chunk_in_host_memory_is_a_unit_and_on_a_gpu_a_shard_is)
{
        struct state *s = fixture_state(store, "j", l, 1, 0, 2);
        layout *stored = NULL;

        assert_units(s, UNIT_CHUNK);
        cr_assert_eq(state_move(s, 1, NULL), 0);
        assert_units(s, UNIT_SHARD);
        state_close(s);
        s = fixture_reopen(store, &stored);
        assert_units(s, UNIT_SHARD);
        state_drop(s);
        s = make();
        assert_units(s, UNIT_SHARD);
        state_close(s);
        layout_free(stored);
}

Test(planes, a_shard_that_came_in_the_middle_of_an_update_is_reached_once_all_of_it_is)
{
        struct state *s = fixture_state(store, "j", l, 1, 0, 2);
        uint64_t version = s->record->version + 1;
        uint32_t n = 0;

        toy_init(s);
        toy_push(s, l);
        decide_to_commit(s);
        toy_update(s, 0, 0, 2);
        cr_assert_eq(state_move(s, 1, NULL), 0);
        for (uint32_t g = 0; g < l->n_groups; g++) {
                uint32_t first = s->plan->shards[g].first_chunk;

                if (s->plan->shards[g].n_chunks < 2)
                        continue;
                n += state_chunk_version(s, first) == version;
                cr_assert_eq(state_chunks(s, g), s->plan->shards[g].n_chunks);
                cr_assert(!undo_reached(s, first, version));
                undo_done(s, first, version);
                cr_assert(undo_reached(s, first, version));
                cr_assert_eq(state_chunks(s, g), 1);
        }
        cr_assert_gt(n, 0);
        state_close(s);
}

Test(planes, old_values_are_written_while_an_update_is_ahead)
{
        struct state *twin;

        make_eager();
        twin = make_twin();
        assert_kept(twin, go_ahead, true, false);
        assert_kept(twin, go_ahead_and_skip, true, false);
        end_twin(twin);
}

/* ---- by several threads ---- */

enum { CARRIERS = 3, PATIENCE_S = 20 };
static pthread_mutex_t carriers_mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t carriers_changed = PTHREAD_COND_INITIALIZER;
static pthread_t carriers[CARRIERS];
static uint32_t n_carriers;
static bool too_few;
static const struct zero_cuda_plugin *plugin;

static bool is_new_carrier(void)
{
        for (uint32_t i = 0; i < n_carriers; i++)
                if (pthread_equal(carriers[i], pthread_self()))
                        return false;
        return n_carriers < CARRIERS;
}

/* No copy ends before several threads have begun one. */
static int copy_together(void *dst, const void *src, size_t n, void *stream)
{
        struct timespec until;

        clock_gettime(CLOCK_REALTIME, &until);
        until.tv_sec += PATIENCE_S;
        pthread_mutex_lock(&carriers_mutex);
        if (is_new_carrier())
                carriers[n_carriers++] = pthread_self();
        pthread_cond_broadcast(&carriers_changed);
        while (n_carriers < CARRIERS && !too_few)
                too_few = pthread_cond_timedwait(&carriers_changed, &carriers_mutex, &until) != 0;
        pthread_mutex_unlock(&carriers_mutex);
        return plugin->copy(dst, src, n, stream);
}

static void assert_carried_together(const char *what)
{
        cr_assert_eq(n_carriers, CARRIERS, "%s: by %u threads", what, n_carriers);
        n_carriers = 0;
}

static layout *large_layout(void)
{
        struct layout_tensor t = { .name = (char *)"t",
                                   .ndim = 1,
                                   .shape = { CARRIERS * (CARRY_PIECE / sizeof(float)) } };
        layout *large = NULL;
        uint32_t group;

        cr_assert_eq(layout_new(&large), 0);
        cr_assert_eq(layout_add_group(large, "g", ZERO_FP32, NULL, 0, 0, &group, NULL), 0);
        cr_assert_eq(layout_set_optimizer(large, group, "sgd", NULL), 0);
        cr_assert_eq(layout_add_tensor(large, &t, &group, NULL), 0);
        cr_assert_eq(layout_check(large, NULL), 0);
        return large;
}

Test(planes, several_threads_carry_planes_to_the_file_and_back)
{
        struct zero_cuda_plugin together;
        layout *large = large_layout(), *stored = NULL;
        struct state *s = fixture_state_on_gpu(store, "j", large, 1, 0, 2);
        uint64_t bytes = plan_plane_bytes(s->plan, plane_master);
        float *values = malloc(bytes);

        for (uint64_t i = 0; i < bytes / sizeof(float); i++)
                values[i] = (float)i;
        gpu_ops()->copy(s->in->master, values, bytes);
        state_close(s);
        plugin = gpu_plugin;
        together = *plugin;
        together.copy = copy_together;
        gpu_plugin = &together;
        store_set_threads(store, CARRIERS);
        anew(true);
        assert_carried_together("to the file");
        s = fixture_reopen(store, &stored);
        assert_same_plane("master", s->in->master, values, bytes);
        store_set_threads(store, CARRIERS);
        cr_assert_eq(state_move(s, 1, NULL), 0);
        assert_carried_together("to the GPU");
        gpu_plugin = plugin;
        assert_same_plane("master", s->in->master, values, bytes);
        state_drop(s);
        layout_free(stored);
        layout_free(large);
        free(values);
}

Test(planes, planes_that_cannot_be_written_are_reported)
{
        char file[STORE_FILE_NAME];

        state_close(make());
        strcpy(file, fixture_only_file(store));
        cr_assert_eq(unlinkat(store->dir, file, 0), 0);
        store_save(store, &saving);
        cr_assert(n_told == 1 && strstr(told.text, file), "%s", told.text);
}

static void assert_lost(void)
{
        struct state_identity id = { .job.name = "j", .n_owners = 1 };
        struct fault fault = { 0 };
        layout *stored = NULL;
        struct state *s = fixture_reopen(store, &stored);

        cr_assert(state_lost(s) && !state_survives(s));
        cr_assert(!s->in->master && !s->in->moments[0] && !s->in->moments[1] && !s->in->grad &&
                  !s->in->serve);
        cr_assert_eq(s->record->attempt, 7);
        state_close(s);
        layout_free(stored);
        cr_assert(state_was_lost(store, &id, 0));
        cr_assert_eq(state_vacant(store, &id, 0, &fault), ZERO_EBUSY);
        cr_assert(strstr(fault.text, "restore") && strstr(fault.text, fixture_only_file(store)),
                  "%s", fault.text);
}

Test(planes, after_a_disorderly_end_the_state_is_lost_and_its_file_left_alone)
{
        struct state *s = make();
        struct state_identity id = { .job.name = "j", .n_owners = 1 };

        state_abort(s, 7);
        state_close(s);
        anew(false);
        assert_lost();
        anew(true); /* there is nothing left to write */
        cr_assert_eq(n_told, 0);
        assert_lost();
        state_discard(store, &id, 0);
        cr_assert_eq(state_vacant(store, &id, 0, NULL), 0);
        cr_assert_eq(store_used(store), 0);
}

Test(planes, a_state_that_was_moved_to_the_gpu_is_lost_with_its_process)
{
        struct state *s = fixture_state(store, "j", l, 1, 0, 2);

        state_abort(s, 7);
        cr_assert_eq(state_move(s, 1, NULL), 0);
        state_close(s);
        anew(false);
        assert_lost();
}

Test(planes, a_lost_state_is_dropped_whole)
{
        layout *stored = NULL;

        state_close(make());
        anew(false);
        state_drop(fixture_reopen(store, &stored));
        layout_free(stored);
        cr_assert_eq(store_used(store), 0);
        cr_assert_str_eq(fixture_only_file(store), "");
}

Test(planes, a_parked_state_is_not_lost)
{
        struct state_identity id = { .job.name = "j", .n_owners = 1 };

        state_close(make());
        cr_assert(!state_was_lost(store, &id, 0));
        cr_assert_eq(state_vacant(store, &id, 0, NULL), ZERO_EBUSY);
        state_discard(store, &id, 0);
        cr_assert_eq(gpu_used(), 0);
}

Test(planes, an_open_state_is_not_lost)
{
        struct state_identity id = { .job.name = "j", .n_owners = 1 };
        struct state *made = make(), *moved = fixture_state(store, "k", l, 1, 0, 2);
        layout *stored = NULL;

        cr_assert_eq(state_move(moved, 1, NULL), 0);
        cr_assert_eq(store_sweep_lost(store, "j", 1) + store_sweep_lost(store, "k", 1), 0);
        state_drop(moved);
        state_close(made);
        made = fixture_reopen(store, &stored);
        cr_assert(!state_was_lost(store, &id, 0));
        state_close(made);
        layout_free(stored);
}

/* A trainer that maps the file may lock it. */
Test(planes, no_lock_on_the_file_changes_where_its_planes_are)
{
        struct state_identity id = { .job.name = "j", .n_owners = 1 };
        struct state *s = fixture_state(store, "j", l, 1, 0, 2);
        int fd = openat(store->dir, fixture_only_file(store), O_RDONLY);
        layout *stored = NULL;

        cr_assert_eq(flock(fd, LOCK_SH), 0);
        cr_assert_eq(state_move(s, 1, NULL), 0);
        cr_assert(!state_was_lost(store, &id, 0));
        state_close(s);
        s = fixture_reopen(store, &stored);
        cr_assert(!state_was_lost(store, &id, 0));
        state_close(s);
        layout_free(stored);
        cr_assert_eq(flock(fd, LOCK_EX), 0);
        anew(false);
        cr_assert(state_was_lost(store, &id, 0));
        close(fd);
}

Test(planes, lost_states_of_earlier_owner_lists_are_swept)
{
        struct state_identity id = { .job.name = "j", .n_owners = 1 };

        state_close(make());
        cr_assert_eq(store_sweep_lost(store, "j", 1), 0);
        anew(false);
        cr_assert_eq(store_sweep_lost(store, "j", 0), 0);
        cr_assert_eq(store_sweep_lost(store, "jj", 1), 0);
        cr_assert_eq(store_sweep_lost(store, "j", 1), 1);
        cr_assert_eq(state_vacant(store, &id, 0, NULL), 0);
        cr_assert_eq(store_used(store), 0);
}

Test(planes, a_state_in_an_unknown_place_is_refused)
{
        struct fault fault = { 0 };
        struct state *s = make();
        layout *stored = NULL;

        *(uint64_t *)((uint8_t *)s->in->map + FILE_PLANES) = seal(SEAL_PLANES, 1, PLANES_HERE);
        state_close(s);
        cr_assert_eq(state_open(store, fixture_only_file(store), &s, &stored, &fault), ZERO_EIO);
        cr_assert(strstr(fault.text, "planes"), "%s", fault.text);
}

Test(planes, an_undo_slot_of_a_state_on_a_gpu_is_damage)
{
        struct state *s = make();
        struct fault fault = { 0 };
        layout *stored = NULL;
        struct state *again = NULL;

        s->in->undo->chunk = seal(SEAL_UNDO, 0, 1);
        state_close(s);
        cr_assert_eq(state_open(store, fixture_only_file(store), &again, &stored, &fault),
                     ZERO_EIO);
        cr_assert(strstr(fault.text, "undo"), "%s", fault.text);
}

/* ---- room ---- */

static void begin_small(void)
{
        setenv("FAKE_GPU_BYTES", "8192", 1);
        begin();
}

TestSuite(small, .init = begin_small, .fini = end);

Test(small, a_state_that_the_gpu_has_no_room_for_is_refused_and_leaves_nothing)
{
        struct state_identity id = { .job.name = "j", .n_owners = 1, .place = 1 };
        struct plan *plan = fixture_plan(l, 1, 0, LAYOUT_ALIGN);
        struct fault fault = { 0 };
        struct state *s = NULL;

        cr_assert_eq(state_create(store, &id, l, plan, 2, &s, &fault), ZERO_ENOMEM);
        cr_assert(strstr(fault.text, "of job j") && strstr(fault.text, "free"), "%s", fault.text);
        cr_assert_eq(store_used(store), 0);
        cr_assert_str_eq(fixture_only_file(store), "");
        plan_free(plan);
}

Test(small, a_state_that_does_not_fit_on_the_gpu_stays_where_it_is)
{
        struct state *twin = make_twin();

        cr_assert_eq(state_move(twin, 1, NULL), ZERO_ENOMEM);
        cr_assert(state_survives(twin));
        toy_attempt(twin, l);
        end_twin(twin);
}
