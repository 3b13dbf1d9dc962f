/* Shards of checkpoints: any number of owners reads what any other number wrote, and no damaged
 * byte is used. */
#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "proto/cleanup.h"
#include "scene.h"

enum { FLIPS = 400 };

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
                        const struct plan_shard *s = &plan->shards[g];

                        bytes += (s->range.count + s->n_moments * s->moment_count) * sizeof(float);
                        cr_assert_eq(map.group_end[g], bytes);
                }
                cr_assert_eq(map.bytes, bytes);
                snapshot_map_deinit(&map);
                plan_free(plan);
        }
        layout_free(l);
}

/* Each element of the stream is what it was before, or what the state has. */
static void check_saved(const struct snapshot_map *map, const uint8_t *saved, const uint8_t *old,
                        const uint8_t *now, uint64_t from)
{
        for (uint32_t i = 0; i < map->n; i++) {
                const struct snapshot_extent *e = &map->extents[i];

                for (uint64_t at = e->offset; at < e->offset + e->bytes; at += sizeof(float)) {
                        bool is_now = memcmp(saved + at, now + at, sizeof(float)) == 0;
                        bool is_old = memcmp(saved + at, old + at, sizeof(float)) == 0;

                        if (e->frozen ? !is_old : at >= from ? !is_now : !is_now && !is_old)
                                cr_assert_fail("byte %lu, saved from %lu", (unsigned long)at,
                                               (unsigned long)from);
                }
        }
}

static void save_from(struct state *state, uint64_t from, bool all)
{
        struct snapshot_map map;

        cr_assert_eq(snapshot_map_new(state->plan, &map), 0);
        from = all ? 0 : from % (map.bytes + 1);
        uint8_t *now = malloc(map.bytes + 1), *old = malloc(map.bytes + 1);
        uint8_t *saved = malloc(map.bytes + 1);
        snapshot_copy(&map, state, device_host(NULL), 0, now, map.bytes);
        memset(old, 0xee, map.bytes);
        memset(saved, 0xee, map.bytes);
        for (uint32_t c = 0; c < state->plan->n_chunks; c++) {
                snapshot_save_chunk(&map, state->plan, device_host(NULL), c,
                                    undo_values(state, 0, c), from, saved);
        }
        check_saved(&map, saved, old, now, from);
        free(now);
        free(old);
        free(saved);
        snapshot_map_deinit(&map);
}

/* Takes the layout over. */
static void save_each(layout *l, void (*fill_state)(struct state *s))
{
        struct scene s = { .l = l };

        open_states(&s, 2);
        for (uint32_t o = 0; o < 2; o++) {
                fill_state(s.states[o]);
                save_from(s.states[o], 0, true);
                for (int i = 0; i < 200; i++)
                        save_from(s.states[o], random_below(1 << 20), false);
        }
        close_states(&s);
        layout_free(s.l);
}

static void fill_bytes(struct state *s)
{
        struct snapshot_map map;

        cr_assert_eq(snapshot_map_new(s->plan, &map), 0);
        for (uint32_t i = 0; i < map.n; i++) {
                const struct snapshot_extent *e = &map.extents[i];
                struct mapping m = state_map(s, e->plane, e->group, e->part);

                for (uint64_t at = 0; at < e->bytes; at++)
                        ((uint8_t *)m.at)[at] = (uint8_t)random_below(0xee);
                state_unmap(&m);
        }
        snapshot_map_deinit(&map);
}

Test(snapshot, chunks_are_saved_in_their_places)
{
        save_each(fixture_layout(), fill);
}

/* What is served of a frozen tensor is the upper half of its master, and no update saves it. */
Test(snapshot, chunks_in_formats_are_saved_in_their_places)
{
        static const char *const formats[][2] = { { "8bit", "bf16+8" },
                                                  { "bf16", "bf16+16" },
                                                  { "fp32", "bf16+8" },
                                                  { "8bit", "fp32" } };

        for (size_t i = 0; i < 4; i++) {
                layout *l = fixture_layout();

                cr_assert_eq(layout_set_state(l, 0, formats[i][0], formats[i][1], NULL), 0);
                save_each(l, fill_bytes);
        }
}

Test(snapshot, what_is_frozen_is_what_has_no_moments)
{
        layout *l = large_layout();
        struct plan *plan = fixture_plan(l, 2, 0, LAYOUT_ALIGN);
        uint64_t frozen = 0, at = 0;
        struct snapshot_map map;

        cr_assert_eq(snapshot_map_new(plan, &map), 0);
        for (uint32_t i = 0; i < map.n; i++) {
                const struct snapshot_extent *e = &map.extents[i];

                cr_assert(e->offset == at && e->bytes > 0);
                cr_assert_leq(e->offset + e->bytes, map.group_end[e->group]);
                cr_assert(!e->group || e->offset >= map.group_end[e->group - 1]);
                frozen += e->frozen ? e->bytes / sizeof(float) : 0;
                at += e->bytes;
        }
        cr_assert_eq(frozen, plan->master_elements - plan->moment_elements);
        cr_assert_gt(frozen, 0);
        snapshot_map_deinit(&map);
        plan_free(plan);
        layout_free(l);
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
