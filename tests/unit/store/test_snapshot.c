/* Checkpoints as files: any number of owners reads what any other number wrote, and no damaged
 * byte is used. */
#include <criterion/criterion.h>
#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "daemon/device/device.h"
#include "daemon/store/blobs.h"
#include "daemon/store/snapshot.h"
#include "daemon/store/snapshot_dir.h"
#include "fixture.h"
#include "proto/cleanup.h"

enum { OWNERS_MAX = 5, VERSION = 7, ATTEMPT = 9, FLIPS = 400 };

/* A state directory an owner, and one for checkpoints. */
struct scene {
        layout *l;
        char *checkpoints;
        int dir;
        char *homes[OWNERS_MAX];
        struct store *stores[OWNERS_MAX];
        struct state *states[OWNERS_MAX];
        uint32_t n_owners;
        struct manifest manifest;
        uint8_t *packed;
};

/* ---- states ------------------------------------------------------------------------- */

static layout *large_layout(void)
{
        layout *l = fixture_layout();
        struct layout_tensor t = { .name = (char[]){ "large" }, .ndim = 1, .shape = { 2500000 } };
        uint32_t group, tensor;

        cr_assert_eq(layout_add_group(l, "c", ZERO_BF16, NULL, 0, 0, &group, NULL), 0);
        t.group = group;
        cr_assert_eq(layout_add_tensor(l, &t, &tensor, NULL), 0);
        return l;
}

/* What an element is, wherever it lies. */
static float value(uint32_t plane, uint32_t group, uint64_t in_group)
{
        return (float)(plane + 1) * 1000 + (float)group * 100 + (float)(in_group % 8191);
}

static void each_value(struct state *s, void (*each)(float *at, float expected))
{
        for (uint32_t i = 0; i < s->plan->n_segments; i++) {
                const struct plan_segment *g = &s->plan->segments[i];

                for (uint64_t k = 0; k < g->count; k++) {
                        each(&s->master[g->master + k], value(0, g->group, g->in_group + k));
                        if (g->moment == UINT64_MAX)
                                continue;
                        each(&s->exp_avg[g->moment + k], value(1, g->group, g->in_group + k));
                        each(&s->exp_avg_sq[g->moment + k], value(2, g->group, g->in_group + k));
                }
        }
}

static void set_value(float *at, float expected)
{
        *at = expected;
}

static void check_value(float *at, float expected)
{
        if (*at != expected)
                cr_assert_eq(*at, expected);
}

static void fill(struct state *s)
{
        struct state_record record = { .version = VERSION,
                                       .attempt = ATTEMPT + 1,
                                       .decided_attempt = ATTEMPT,
                                       .commit = 1,
                                       .loss_scale = 512,
                                       .good_steps = 5,
                                       .skipped = 2,
                                       .grad_norm = 0.25 };

        each_value(s, set_value);
        for (uint32_t i = 0; i < s->plan->n_segments; i++) {
                uint32_t t = s->plan->segments[i].tensor;

                state_put_step(s, t, t + 3);
                state_put_set(s, t, t % 3);
        }
        cr_assert_eq(state_blob_stage(s, 0, ATTEMPT, "first", 5), 0);
        cr_assert_eq(state_blob_stage(s, 4, ATTEMPT, "fourth", 6), 0);
        state_restore(s, &record);
}

static void open_states(struct scene *s, uint32_t n_owners)
{
        s->n_owners = n_owners;
        for (uint32_t o = 0; o < n_owners; o++) {
                s->homes[o] = fixture_directory();
                s->stores[o] = fixture_store(s->homes[o]);
                s->states[o] = fixture_state(s->stores[o], "job", s->l, n_owners, o, 1);
        }
}

static void close_states(struct scene *s)
{
        for (uint32_t o = 0; o < s->n_owners; o++) {
                state_drop(s->states[o]);
                cr_assert_eq(store_used(s->stores[o]), 0);
                store_close(s->stores[o]);
                fixture_remove(s->homes[o]);
        }
}

/* ---- writing -------------------------------------------------------------------------- */

static void write_shard(struct scene *s, int partial, uint32_t owner)
{
        struct state *state = s->states[owner];
        struct snapshot_header h = { .owner = owner,
                                     .n_owners = s->n_owners,
                                     .uid = 1234,
                                     .world_size = 6,
                                     .reduce_dtype = ZERO_BF16,
                                     .version = VERSION,
                                     .attempt = ATTEMPT };
        uint8_t *block = malloc(SNAPSHOT_BLOCK), *meta;
        struct snapshot_writer *w;
        struct snapshot_map map;
        struct fault fault;
        size_t meta_bytes;

        cr_assert_eq(snapshot_map_new(state->plan, &map), 0);
        cr_assert_eq(snapshot_meta_new(state, &meta, &meta_bytes), 0);
        h.meta_bytes = meta_bytes;
        h.stream_bytes = map.bytes;
        memcpy(h.model_hash, s->manifest.model_hash, MANIFEST_HASH);
        cr_assert_eq(snapshot_writer_new(partial, &h, meta, &w, &fault), 0, "%s", fault.text);
        for (uint64_t at = 0; at < map.bytes; at += SNAPSHOT_BLOCK) {
                uint64_t left = map.bytes - at;

                snapshot_copy(&map, state, device_host(NULL), at, block,
                              left < SNAPSHOT_BLOCK ? left : SNAPSHOT_BLOCK);
                cr_assert_eq(snapshot_writer_block(w, block, &fault), 0);
        }
        cr_assert_eq(snapshot_writer_finish(w, &s->manifest.shards[owner], &fault), 0);
        strcpy(s->manifest.shards[owner].node, "node");
        snapshot_writer_free(w);
        snapshot_map_deinit(&map);
        free(meta);
        free(block);
}

static void pack_layout(struct scene *s)
{
        Zero__Layout *m;

        cr_assert_eq(layout_to_message(s->l, &m), 0);
        s->manifest.layout_bytes = zero__layout__get_packed_size(m);
        s->packed = malloc(s->manifest.layout_bytes);
        zero__layout__pack(m, s->packed);
        zero__layout__free_unpacked(m, NULL);
        manifest_hash(s->manifest.layout_hash, s->packed, s->manifest.layout_bytes);
        layout_hash(s->l, s->manifest.model_hash);
}

static int publish(struct scene *s, struct fault *fault)
{
        char *text;
        int r;

        cr_assert_eq(manifest_format(&s->manifest, &text), 0);
        r = snapshot_publish(s->dir, &s->manifest, text, s->packed, fault);
        free(text);
        return r;
}

static void write_partial(struct scene *s)
{
        struct fault fault;
        int partial;

        cr_assert_eq(snapshot_partial_open(s->dir, "job", s->manifest.version, &partial, &fault),
                     0);
        for (uint32_t o = 0; o < s->n_owners; o++)
                write_shard(s, partial, o);
        close(partial);
}

static void scene_init(struct scene *s, layout *l, uint32_t n_owners)
{
        struct fault fault = { 0 };

        *s = (struct scene){ .l = l, .checkpoints = fixture_directory() };
        s->dir = open(s->checkpoints, O_RDONLY | O_DIRECTORY);
        s->manifest = (struct manifest){ .job = "job",
                                         .uid = 1234,
                                         .world_size = 6,
                                         .reduce_dtype = ZERO_BF16,
                                         .version = VERSION,
                                         .attempt = ATTEMPT,
                                         .created_ms = 1,
                                         .n_owners = n_owners };
        pack_layout(s);
        open_states(s, n_owners);
        for (uint32_t o = 0; o < n_owners; o++)
                fill(s->states[o]);
        write_partial(s);
        cr_assert_eq(publish(s, &fault), 0, "%s", fault.text);
        close_states(s);
}

static void remove_tree(const char *path)
{
        DIR *d = opendir(path);
        char child[512];

        for (struct dirent *e; d && (e = readdir(d));) {
                if (strcmp(e->d_name, ".") == 0 || strcmp(e->d_name, "..") == 0)
                        continue;
                snprintf(child, sizeof(child), "%s/%s", path, e->d_name);
                if (e->d_type == DT_DIR)
                        remove_tree(child);
                else
                        unlink(child);
        }
        closedir(d);
        rmdir(path);
}

static void scene_deinit(struct scene *s)
{
        close(s->dir);
        remove_tree(s->checkpoints);
        free(s->checkpoints);
        free(s->packed);
        layout_free(s->l);
}

/* ---- reading ---------------------------------------------------------------------------- */

static int open_checkpoint(const struct scene *s, const char *name)
{
        return openat(s->dir, name, O_RDONLY | O_DIRECTORY);
}

/* Everything that a restore reads, into drafts of n owners. */
static int load(struct scene *s, uint32_t n_owners, bool check, struct fault *fault)
{
        CLEANUP(cleanup_close) int dir = open_checkpoint(s, "job-7");
        CLEANUP(cleanup_free) uint8_t *packed = NULL;
        struct manifest m;
        int r = snapshot_open_checkpoint(dir, &m, &packed, fault);

        if (r)
                return r;
        open_states(s, n_owners);
        for (uint32_t o = 0; r == 0 && o < n_owners; o++) {
                struct snapshot_progress progress = { .bytes = 0 };
                struct snapshot_loaded loaded;

                r = snapshot_load(dir, &m, s->l, s->states[o], &progress, &loaded, fault);
                if (r)
                        break;
                if (check) {
                        each_value(s->states[o], check_value);
                        cr_assert_eq(loaded.record.version, VERSION);
                        cr_assert_eq(loaded.record.decided_attempt, ATTEMPT);
                        cr_assert_eq(loaded.record.loss_scale, 512);
                        cr_assert_eq(loaded.record.good_steps, 5);
                        cr_assert_eq(loaded.record.skipped, 2);
                        cr_assert_eq(loaded.n_blobs, 2);
                        for (uint32_t i = 0; i < s->states[o]->plan->n_segments; i++) {
                                uint32_t t = s->states[o]->plan->segments[i].tensor;

                                cr_assert_eq(s->states[o]->tensor_step[t], t + 3);
                                cr_assert_eq(s->states[o]->tensor_set[t], t % 3);
                        }
                }
                snapshot_loaded_deinit(&loaded);
        }
        close_states(s);
        return r;
}

Test(snapshot, any_number_of_owners_reads_what_any_other_wrote)
{
        static const uint32_t counts[] = { 1, 2, 3, 5 };

        for (size_t i = 0; i < 4; i++) {
                struct scene s;
                struct fault fault = { 0 };

                scene_init(&s, large_layout(), counts[i]);
                for (size_t k = 0; k < 4; k++)
                        cr_assert_eq(load(&s, counts[k], true, &fault), 0, "%s", fault.text);
                scene_deinit(&s);
        }
}

Test(snapshot, a_group_s_end_is_where_the_next_begins)
{
        layout *l = large_layout();

        for (uint32_t o = 0; o < 3; o++) {
                struct plan *plan = fixture_plan(l, 3, o, LAYOUT_ALIGN);
                struct snapshot_map map;
                uint64_t bytes = 0;

                cr_assert_eq(snapshot_map_new(plan, &map), 0);
                for (uint32_t g = 0; g < l->n_groups; g++) {
                        bytes += (plan->shards[g].range.count + 2 * plan->shards[g].moment_count) *
                                 sizeof(float);
                        cr_assert_eq(map.group_end[g], bytes);
                }
                cr_assert_eq(map.bytes, bytes);
                snapshot_map_deinit(&map);
                plan_free(plan);
        }
        layout_free(l);
}

static uint64_t random_below(uint64_t n)
{
        static uint64_t state = 88172645463325252u;

        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        return state % n;
}

/* Flips a bit of a file, or puts it back. */
static void flip(int dir, const char *name, uint64_t bit)
{
        CLEANUP(cleanup_close) int fd = openat(dir, name, O_RDWR);
        uint8_t byte;

        cr_assert_eq(pread(fd, &byte, 1, (off_t)(bit / 8)), 1);
        byte ^= (uint8_t)(1 << bit % 8);
        cr_assert_eq(pwrite(fd, &byte, 1, (off_t)(bit / 8)), 1);
}

static void damage(void (*spoil)(struct scene *s, int dir, const char *name, uint64_t bytes))
{
        struct scene s;
        DIR *d;
        int n = 0;

        scene_init(&s, fixture_layout(), 2);
        CLEANUP(cleanup_close) int dir = open_checkpoint(&s, "job-7");
        d = fdopendir(dup(dir));
        for (struct dirent *e; (e = readdir(d));) {
                struct stat st;

                if (e->d_name[0] == '.')
                        continue;
                cr_assert_eq(fstatat(dir, e->d_name, &st, 0), 0);
                spoil(&s, dir, e->d_name, (uint64_t)st.st_size);
                n++;
        }
        closedir(d);
        cr_assert_eq(n, 4);
        cr_assert_eq(load(&s, 2, true, NULL), 0);
        scene_deinit(&s);
}

static void flip_bits(struct scene *s, int dir, const char *name, uint64_t bytes)
{
        for (int i = 0; i < FLIPS; i++) {
                uint64_t bit = random_below(8 * bytes);
                struct fault fault = { 0 };

                flip(dir, name, bit);
                cr_assert_eq(load(s, 1, false, &fault), ZERO_EIO, "bit %lu of %s: %s",
                             (unsigned long)bit, name, fault.text);
                cr_assert(strstr(fault.text, name), "%s: %s", name, fault.text);
                flip(dir, name, bit);
        }
}

Test(snapshot, every_flipped_bit_is_found_and_its_file_named)
{
        damage(flip_bits);
}

static void cut(struct scene *s, int dir, const char *name, uint64_t bytes)
{
        CLEANUP(cleanup_close) int fd = openat(dir, name, O_RDWR);
        CLEANUP(cleanup_free) uint8_t *data = malloc(bytes + 1);

        cr_assert_eq(pread(fd, data, bytes, 0), (ssize_t)bytes);
        for (int i = 0; i < 40; i++) {
                uint64_t length = i == 0 ? bytes + 1 : random_below(bytes);

                cr_assert_eq(ftruncate(fd, (off_t)length), 0);
                cr_assert_eq(load(s, 1, false, NULL), ZERO_EIO, "%s of %lu bytes", name,
                             (unsigned long)length);
                cr_assert_eq(ftruncate(fd, (off_t)bytes), 0);
                cr_assert_eq(pwrite(fd, data, bytes, 0), (ssize_t)bytes);
        }
}

Test(snapshot, a_file_of_another_length_is_refused)
{
        damage(cut);
}

static void expose(struct scene *s, int dir, const char *name, uint64_t bytes)
{
        cr_assert_eq(fchmodat(dir, name, 0602, 0), 0);
        cr_assert_eq(load(s, 1, false, NULL), ZERO_EIO);
        cr_assert_eq(fchmodat(dir, name, 0600, 0), 0);
        cr_assert_eq(renameat(dir, name, s->dir, "aside"), 0);
        cr_assert_eq(symlinkat("../aside", dir, name), 0);
        cr_assert_eq(load(s, 1, false, NULL), ZERO_EIO);
        cr_assert_eq(unlinkat(dir, name, 0), 0);
        cr_assert_eq(load(s, 1, false, NULL), ZERO_EIO);
        cr_assert_eq(mkfifoat(dir, name, 0600), 0);
        cr_assert_eq(load(s, 1, false, NULL), ZERO_EIO);
        cr_assert_eq(unlinkat(dir, name, 0), 0);
        cr_assert_eq(renameat(s->dir, "aside", dir, name), 0);
}

Test(snapshot, links_pipes_and_what_others_can_write_are_refused)
{
        damage(expose);
}

/* ---- directories -------------------------------------------------------------------------- */

static bool exists(const struct scene *s, const char *name)
{
        return faccessat(s->dir, name, F_OK, AT_SYMLINK_NOFOLLOW) == 0;
}

static void take_version(struct scene *s, uint64_t version, uint64_t created_ms)
{
        struct fault fault = { 0 };

        s->manifest.version = version;
        s->manifest.created_ms = created_ms;
        open_states(s, s->manifest.n_owners);
        write_partial(s);
        close_states(s);
        cr_assert_eq(publish(s, &fault), 0, "%s", fault.text);
}

Test(snapshot, the_newest_by_time_are_kept_of_one_job_and_user)
{
        struct scene s;

        scene_init(&s, fixture_layout(), 1); /* version 7 at time 1 */
        take_version(&s, 3, 5);
        take_version(&s, 9, 3);
        strcpy(s.manifest.job, "job-1");
        cr_assert_eq(mkdirat(s.dir, "job-10", 0700), 0); /* no checkpoint */
        strcpy(s.manifest.job, "job");
        s.manifest.uid++;
        snapshot_keep(s.dir, &s.manifest, 1);
        cr_assert(exists(&s, "job-7") && exists(&s, "job-3") && exists(&s, "job-9"));
        s.manifest.uid--;
        snapshot_keep(s.dir, &s.manifest, 2); /* 9 has just been written: the newest */
        cr_assert(!exists(&s, "job-7") && exists(&s, "job-3") && exists(&s, "job-9"));
        snapshot_keep(s.dir, &s.manifest, 0);
        cr_assert(exists(&s, "job-3") && exists(&s, "job-9") && exists(&s, "job-10"));
        scene_deinit(&s);
}

Test(snapshot, one_of_the_same_version_is_replaced_and_one_that_is_done_stays)
{
        struct scene s;
        struct fault fault;
        struct stat before, after;

        scene_init(&s, fixture_layout(), 2);
        cr_assert_eq(fstatat(s.dir, "job-7", &before, 0), 0);
        cr_assert_eq(publish(&s, &fault), 0); /* as a second node does */
        cr_assert_eq(fstatat(s.dir, "job-7", &after, 0), 0);
        cr_assert_eq(before.st_ino, after.st_ino);
        take_version(&s, 7, 2);
        cr_assert_eq(fstatat(s.dir, "job-7", &after, 0), 0);
        cr_assert_neq(before.st_ino, after.st_ino);
        cr_assert(!exists(&s, ".job-7.partial"));
        s.manifest.uid++;
        cr_assert_eq(publish(&s, &fault), ZERO_EBUSY);
        scene_deinit(&s);
}

Test(snapshot, partial_ones_are_no_checkpoints_and_the_next_clears_them_away)
{
        struct scene s;
        struct manifest m;
        struct fault fault;
        uint8_t *packed;

        scene_init(&s, fixture_layout(), 2);
        s.manifest.version = 8;
        open_states(&s, 2);
        write_partial(&s);
        CLEANUP(cleanup_close) int dir = open_checkpoint(&s, ".job-8.partial");
        cr_assert_eq(snapshot_open_checkpoint(dir, &m, &packed, &fault), ZERO_EIO);
        s.manifest.version = 9;
        write_partial(&s);
        close_states(&s);
        cr_assert(!exists(&s, ".job-8.partial") && exists(&s, ".job-9.partial"));
        snapshot_partial_remove(s.dir, "job", 9);
        cr_assert(!exists(&s, ".job-9.partial") && exists(&s, "job-7"));
        scene_deinit(&s);
}

static int place(const char *root, const char *path, uint32_t uid)
{
        struct snapshot_place p = { root, path, uid };
        struct fault fault;
        int fd, r = snapshot_place_open(&p, true, &fd, &fault);

        if (r == 0)
                close(fd);
        return r;
}

Test(snapshot, others_come_below_the_root_only_and_no_link_leads_out)
{
        char *outside = fixture_directory(), *root = fixture_directory(), path[256];
        uint32_t other = geteuid() + 1;

        snprintf(path, sizeof(path), "%s/link", root);
        cr_assert_eq(symlink(outside, path), 0);
        cr_assert_eq(place(root, path, other), ZERO_EIO);
        cr_assert_eq(place(root, outside, other), ZERO_EPERM);
        cr_assert_eq(place("", outside, other), ZERO_EPERM);
        cr_assert_eq(place("", outside, geteuid()), 0);
        cr_assert_eq(place(root, root, other), 0);
        snprintf(path, sizeof(path), "%s/a/../../x", root);
        cr_assert_eq(place(root, path, other), ZERO_EINVAL);
        snprintf(path, sizeof(path), "%s/./a", root);
        cr_assert_eq(place(root, path, other), ZERO_EINVAL);
        cr_assert_eq(place(root, "a", other), ZERO_EINVAL);
        snprintf(path, sizeof(path), "%sx", root);
        cr_assert_eq(place(root, path, other), ZERO_EPERM);
        snprintf(path, sizeof(path), "%s//a/b/", root);
        cr_assert_eq(place(root, path, other), 0);
        remove_tree(root);
        remove_tree(outside);
        free(root);
        free(outside);
}

/* ---- manifest ---------------------------------------------------------------------------------
 */

Test(manifest, says_what_it_was_told_and_no_byte_can_change)
{
        struct scene s;
        struct manifest m;
        struct fault fault;
        char *text;
        size_t n;

        scene_init(&s, fixture_layout(), 3);
        cr_assert_eq(manifest_format(&s.manifest, &text), 0);
        n = strlen(text);
        memset(&m, 0, sizeof(m));
        cr_assert_eq(manifest_parse(text, n, &m, &fault), 0, "%s", fault.text);
        cr_assert_eq(memcmp(&m, &s.manifest, sizeof(m)), 0);
        for (size_t i = 0; i < n; i++) {
                for (int bit = 0; bit < 8; bit++) {
                        text[i] ^= (char)(1 << bit);
                        cr_assert_eq(manifest_parse(text, n, &m, &fault), ZERO_EIO);
                        text[i] ^= (char)(1 << bit);
                }
                cr_assert_eq(manifest_parse(text, i, &m, &fault), ZERO_EIO);
        }
        free(text);
        scene_deinit(&s);
}

/* ---- drafts -------------------------------------------------------------------------------------
 */

Test(draft, takes_the_place_of_a_state_and_is_found_again)
{
        char *directory = fixture_directory();
        struct store *store = fixture_store(directory);
        layout *l = fixture_layout(), *again;
        struct state *old = fixture_state(store, "job", l, 1, 0, 1), *draft, *found;
        struct state_identity id = old->id;
        struct plan *plan = fixture_plan(l, 1, 0, LAYOUT_ALIGN);
        struct fault fault;
        size_t n;

        cr_assert_eq(state_blob_stage(old, 1, 1, "old", 3), 0);
        cr_assert_eq(state_draft(store, &id, l, plan, 1, &draft, &fault), 0, "%s", fault.text);
        fill(draft);
        cr_assert_eq(state_replace(draft, old, &fault), 0, "%s", fault.text);
        state_drop(old);
        cr_assert_eq(store_used(store), state_bytes(draft));
        state_close(draft);
        found = fixture_reopen(store, &again);
        each_value(found, check_value);
        cr_assert_eq(found->record->version, VERSION);
        cr_assert_eq(memcmp(state_blob(found, 4, &n), "fourth", 6), 0);
        cr_assert_null(state_blob(found, 1, &n));
        state_drop(found);
        cr_assert_eq(store_used(store), 0);
        store_close(store);
        layout_free(l);
        layout_free(again);
        fixture_remove(directory);
}

Test(draft, that_is_dropped_leaves_the_state_as_it_is)
{
        char *directory = fixture_directory();
        struct store *store = fixture_store(directory);
        layout *l = fixture_layout();
        struct state *old = fixture_state(store, "job", l, 1, 0, 1), *draft;
        uint64_t used = store_used(store);
        struct state_identity id = old->id;
        struct fault fault;

        cr_assert_eq(
                state_draft(store, &id, l, fixture_plan(l, 1, 0, LAYOUT_ALIGN), 1, &draft, &fault),
                0);
        fill(draft);
        state_drop(draft);
        cr_assert_eq(store_used(store), used);
        cr_assert_eq(old->record->version, 0);
        cr_assert(strlen(fixture_only_file(store)) > 0);
        state_drop(old);
        store_close(store);
        layout_free(l);
        fixture_remove(directory);
}
