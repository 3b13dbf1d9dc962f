/* Checkpoints for tests; see scene.h. */
#include "scene.h"

#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "daemon/store/file.h"
#include "daemon/compute/device/device.h"
#include "proto/cleanup.h"

/* ---- states ------------------------------------------------------------------------- */

layout *large_layout(void)
{
        layout *l = fixture_layout();
        struct layout_tensor t = { .name = (char[]){ "large" }, .ndim = 1, .shape = { 2500000 } };
        uint32_t group, tensor;

        cr_assert_eq(layout_add_group(l, "c", ZERO_BF16, NULL, 0, 0, &group, NULL), 0);
        cr_assert_eq(layout_set_optimizer(l, group, "adamw", NULL), 0);
        t.group = group;
        cr_assert_eq(layout_add_tensor(l, &t, &tensor, NULL), 0);
        return l;
}

/* The value of an element, wherever it lies. */
static float value(uint32_t plane, uint32_t group, uint64_t in_group)
{
        return (float)(plane + 1) * 1000 + (float)group * 100 + (float)(in_group % 8191);
}

static void each_value(struct state *s, void (*each)(float *at, float expected))
{
        for (uint32_t i = 0; i < s->plan->n_segments; i++) {
                const struct plan_segment *g = &s->plan->segments[i];
                const struct plan_run *run = &s->plan->runs[g->run];

                for (uint64_t k = 0; k < g->count; k++) {
                        each(&s->in->master[g->master + k], value(0, g->group, g->in_group + k));
                        if (g->moment == UINT64_MAX)
                                continue;
                        for (uint32_t m = 0; m < run->n_moments; m++)
                                each((float *)(s->in->moments[m] +
                                               plan_moment_at(run, m, g->moment + k)),
                                     value(1 + m, g->group, g->in_group + k));
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

void fill(struct state *s)
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

void open_states(struct scene *s, uint32_t n_owners)
{
        s->n_owners = n_owners;
        for (uint32_t o = 0; o < n_owners; o++) {
                s->homes[o] = fixture_directory();
                s->stores[o] = fixture_store(s->homes[o]);
                s->states[o] = fixture_state(s->stores[o], "job", s->l, n_owners, o, 1);
        }
}

void close_states(struct scene *s)
{
        for (uint32_t o = 0; o < s->n_owners; o++) {
                state_drop(s->states[o]);
                cr_assert_eq(store_used(s->stores[o]), 0);
                store_close(s->stores[o]);
                fixture_remove(s->homes[o]);
        }
}

void check_values(struct state *s)
{
        each_value(s, check_value);
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

int publish(struct scene *s, struct fault *fault)
{
        char *text;
        int r;

        cr_assert_eq(manifest_format(&s->manifest, &text), 0);
        r = snapshot_publish(s->dir, &s->manifest, text, s->packed, fault);
        free(text);
        return r;
}

void write_partial(struct scene *s)
{
        struct fault fault;
        int partial;

        cr_assert_eq(snapshot_partial_open(s->dir, "job", s->manifest.version, &partial, &fault),
                     0);
        for (uint32_t o = 0; o < s->n_owners; o++)
                write_shard(s, partial, o);
        close(partial);
}

void scene_init(struct scene *s, layout *l, uint32_t n_owners)
{
        struct fault fault = { 0 };

        *s = (struct scene){ .l = l, .checkpoints = fixture_directory() };
        s->dir = open(s->checkpoints, O_RDONLY | O_DIRECTORY);
        s->manifest = (struct manifest){
                .job = { .name = "job", .uid = 1234, .world_size = 6, .reduce_dtype = ZERO_BF16 },
                .version = VERSION,
                .attempt = ATTEMPT,
                .created_ms = 1,
                .n_owners = n_owners
        };
        pack_layout(s);
        open_states(s, n_owners);
        for (uint32_t o = 0; o < n_owners; o++)
                fill(s->states[o]);
        write_partial(s);
        cr_assert_eq(publish(s, &fault), 0, "%s", fault.text);
        close_states(s);
}

void remove_tree(const char *path)
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

void scene_deinit(struct scene *s)
{
        close(s->dir);
        remove_tree(s->checkpoints);
        free(s->checkpoints);
        free(s->packed);
        layout_free(s->l);
}

/* ---- reading ---------------------------------------------------------------------------- */

int open_checkpoint(const struct scene *s, const char *name)
{
        return openat(s->dir, name, O_RDONLY | O_DIRECTORY);
}

/* Everything that a restore reads, into drafts of n owners. */
int load(struct scene *s, uint32_t n_owners, bool check, struct fault *fault)
{
        CLEANUP(cleanup_close) int dir = open_checkpoint(s, "job-7");
        CLEANUP(cleanup_free) uint8_t *packed = NULL;
        struct manifest m;
        int r = snapshot_open_checkpoint(dir, 0, &m, &packed, fault);

        if (r)
                return r;
        open_states(s, n_owners);
        for (uint32_t o = 0; r == 0 && o < n_owners; o++) {
                struct snapshot_progress progress = { .bytes = 0 };
                struct snapshot_loaded loaded;

                r = snapshot_load(dir, &m, s->l, s->l, s->states[o], device_host(NULL), &progress,
                                  &loaded, fault);
                if (r)
                        break;
                if (check) {
                        check_values(s->states[o]);
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

uint64_t random_below(uint64_t n)
{
        static uint64_t state = 88172645463325252u;

        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        return state % n;
}

bool exists(const struct scene *s, const char *name)
{
        return faccessat(s->dir, name, F_OK, AT_SYMLINK_NOFOLLOW) == 0;
}

void take_version(struct scene *s, uint64_t version, uint64_t created_ms)
{
        struct fault fault = { 0 };

        s->manifest.version = version;
        s->manifest.created_ms = created_ms;
        open_states(s, s->manifest.n_owners);
        write_partial(s);
        close_states(s);
        cr_assert_eq(publish(s, &fault), 0, "%s", fault.text);
}
