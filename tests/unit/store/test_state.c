/* States: what a file gives back, and which files are refused. */
#include <criterion/criterion.h>
#include <fcntl.h>
#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "daemon/store/file.h"
#include "daemon/store/init.h"
#include "daemon/store/seal.h"
#include "daemon/store/directory.h"
#include "proto/dtype.h"
#include "fixture.h"
#include "toy.h"

static char *directory;
static struct store *store;
static layout *l;

static void begin(void)
{
        directory = fixture_directory();
        store = fixture_store(directory);
        l = fixture_layout();
}

static void end(void)
{
        store_close(store);
        layout_free(l);
        fixture_remove(directory);
}

TestSuite(state, .init = begin, .fini = end);

static struct state *make(void)
{
        return fixture_state(store, "job.1", l, 2, 0, 3);
}

Test(state, a_new_one_is_at_version_zero_and_empty)
{
        struct state *s = make();

        cr_assert_eq(s->record->version, 0);
        cr_assert_eq(s->record->attempt, 0);
        cr_assert_eq(s->record->phase, ATTEMPT_OPEN);
        for (uint64_t i = 0; i < s->plan->moment_elements; i++)
                cr_assert_eq(((float *)s->in->grad)[i], 0);
        for (int k = 0; k < OPTIMIZER_MOMENTS; k++)
                for (uint64_t i = 0; i < s->plan->moment_bytes[k]; i++)
                        cr_assert_eq(s->in->moments[k][i], 0);
        for (uint32_t t = 0; t < l->n_tensors; t++)
                cr_assert(s->tensor_step[t] == 0 && s->present[t] == 0 &&
                          s->tensor_set[t] == l->tensors[t].set);
        state_close(s);
}

Test(state, a_file_gives_back_who_it_belongs_to_and_its_layout)
{
        layout *stored = NULL;
        char text[256] = "";

        state_close(fixture_state(store, "job.1", l, 1, 0, 3));
        struct state *s = fixture_reopen(store, &stored);

        cr_assert_str_eq(s->id.job.name, "job.1");
        cr_assert_eq(s->id.job.uid, 1234);
        cr_assert_eq(s->id.job.world_size, 6);
        cr_assert_eq(s->id.n_owners, 1);
        cr_assert_eq(s->id.job.reduce_dtype, ZERO_BF16);
        cr_assert_eq(s->plan->owner, 0);
        cr_assert_eq(s->plan->chunk_elements, LAYOUT_ALIGN);
        cr_assert_eq(s->in->n_undo, 3);
        cr_assert(layout_equal(l, stored, text, sizeof(text)), "%s", text);
        state_close(s);
        layout_free(stored);
}

Test(state, planes_and_record_outlive_the_mapping)
{
        layout *stored = NULL;
        struct state *s = fixture_state(store, "j", l, 1, 0, 1);
        float first, last;

        toy_init(s);
        for (int i = 0; i < 7; i++)
                toy_attempt(s, l);
        first = s->in->master[0];
        memcpy(&last, s->in->moments[1] + s->plan->moment_bytes[1] - sizeof last, sizeof last);
        state_close(s);

        s = fixture_reopen(store, &stored);
        cr_assert_eq(s->record->version, 6);
        cr_assert_eq(s->record->attempt, 7);
        cr_assert_eq(s->record->skipped, 1);
        cr_assert_eq(s->in->master[0], first);
        cr_assert(memcmp(s->in->moments[1] + s->plan->moment_bytes[1] - sizeof last, &last,
                         sizeof last) == 0);
        state_close(s);
        layout_free(stored);
}

Test(state, hyperparameter_sets_outlive_the_mapping)
{
        layout *stored = NULL;
        struct state *s = fixture_state(store, "j", l, 1, 0, 1);

        toy_attempt(s, l);
        for (uint32_t t = 0; t < l->n_tensors; t++)
                state_put_set(s, t, ZERO_SET_MAX - 1 - t);
        state_close(s);
        s = fixture_reopen(store, &stored);
        for (uint32_t t = 0; t < l->n_tensors; t++)
                cr_assert_eq(s->tensor_set[t], ZERO_SET_MAX - 1 - t);
        state_close(s);
        layout_free(stored);
}

Test(state, a_trainable_tensor_without_a_set_in_the_step_is_found)
{
        struct state *s = fixture_state(store, "j", l, 1, 0, 1);

        for (uint32_t t = 0; t < l->n_tensors; t++)
                state_put_set(s, t, 3);
        cr_assert_eq(state_check_sets(s, NULL, 4), l->n_tensors);
        for (uint32_t i = 0; i < s->plan->n_segments; i++) {
                uint32_t t = s->plan->segments[i].tensor;

                state_put_set(s, t, 4);
                cr_assert_eq(state_check_sets(s, NULL, 4), l->tensors[t].frozen ? l->n_tensors : t);
                state_put_set(s, t, 3);
        }
        state_close(s);
}

Test(state, a_second_one_of_the_same_job_is_refused)
{
        struct state_identity id = { .job.name = "job.1", .n_owners = 2 };
        struct plan *plan = fixture_plan(l, 2, 0, LAYOUT_ALIGN);
        struct state *s = make(), *second = NULL;
        struct fault fault;
        uint64_t used = store_used(store);

        cr_assert_eq(state_create(store, &id, l, plan, 1, &second, &fault), ZERO_EBUSY);
        cr_assert_null(second);
        cr_assert(strstr(fault.text, "job.1"));
        cr_assert_eq(store_used(store), used);
        state_close(s);
        plan_free(plan);
}

Test(state, drop_leaves_no_file)
{
        state_drop(make());
        cr_assert_str_eq(fixture_only_file(store), "");
        cr_assert_eq(store_used(store), 0);
}

Test(state, the_file_is_its_owners_alone)
{
        struct state *s = make();
        struct stat st;

        cr_assert_eq(fstat(s->in->fd, &st), 0);
        cr_assert_eq(st.st_mode & 07777, 0600);
        cr_assert_geq(st.st_blocks * 512, st.st_size, "its space is reserved");
        state_close(s);
}

/* ---- contents ---- */

static void check_shard(const struct state *s, uint32_t group)
{
        const struct plan_shard *shard = &s->plan->shards[group];
        const struct plan_segment *segment = s->plan->segments + shard->first_segment;

        for (uint32_t i = 0; i < shard->n_segments; i++, segment++) {
                const struct layout_tensor *t = &l->tensors[segment->tensor];
                float *expected = malloc(segment->count * sizeof(float));

                init_fill(expected, t, segment->in_group - t->offset, segment->count);
                cr_assert_arr_eq(expected, s->in->master + segment->master,
                                 segment->count * sizeof(float));
                free(expected);
        }
}

Test(state, init_fills_master_with_the_tensors_values)
{
        struct state *s = fixture_state(store, "j", l, 1, 0, 1);

        for (uint32_t g = 0; g < l->n_groups; g++) {
                state_init_group(s, l, g, device_host("scalar"));
                check_shard(s, g);
        }
        state_close(s);
}

Test(state, trainers_get_master_rounded_to_the_groups_dtype)
{
        struct state *s = fixture_state(store, "j", l, 1, 0, 1);
        const struct device_ops *ops = device_host("scalar");
        const struct plan_shard *shard = &s->plan->shards[0];
        uint16_t *expected = malloc(shard->range.count * sizeof(*expected));

        state_init_group(s, l, 0, ops);
        state_init_group(s, l, 1, ops);
        ops->cast(ZERO_BF16, expected, ZERO_FP32, s->in->master + shard->master,
                  shard->range.count);
        cr_assert_arr_eq(s->in->serve + s->plan->shards[0].serve, expected,
                         shard->range.count * sizeof(*expected));
        free(expected);
        state_close(s);
}

Test(state, serve_is_made_again_after_reopening)
{
        struct state *s = fixture_state(store, "j", l, 1, 0, 1);
        const struct device_ops *ops = device_host("scalar");
        size_t bytes = s->plan->shards[0].range.count * 2;
        void *before = malloc(bytes);
        layout *stored = NULL;

        state_init_group(s, l, 0, ops);
        memcpy(before, s->in->serve + s->plan->shards[0].serve, bytes);
        state_close(s);
        s = fixture_reopen(store, &stored);
        state_serve_group(s, l, 0, ops);
        cr_assert_arr_eq(s->in->serve + s->plan->shards[0].serve, before, bytes);
        free(before);
        state_close(s);
        layout_free(stored);
}

/* No group of it is served beside the master weights. */
static layout *fp32_layout(void)
{
        static char names[2][2] = { "a", "b" };
        layout *ret = NULL;
        uint32_t g, index;

        cr_assert_eq(layout_new(&ret), 0);
        for (uint32_t i = 0; i < 2; i++) {
                struct layout_tensor t = {
                        .name = names[i], .group = i, .ndim = 1, .shape = { 300 - i }
                };

                cr_assert_eq(layout_add_group(ret, t.name, ZERO_FP32, NULL, 0, 0, &g, NULL), 0);
                cr_assert_eq(layout_set_optimizer(ret, g, "sgd", NULL), 0);
                cr_assert_eq(layout_add_tensor(ret, &t, &index, NULL), 0);
        }
        cr_assert_eq(layout_check(ret, NULL), 0);
        return ret;
}

Test(state, others_read_fp32_groups_from_master_and_never_write)
{
        layout *fp32 = fp32_layout();
        struct state *s = fixture_state(store, "j", fp32, 1, 0, 1);
        const struct segment *served = state_serve(s);
        struct stat st;

        cr_assert_not_null(served);
        uint64_t at = state_serve_offset(s, 1), bytes = served->bytes;
        cr_assert(at % 4096 == 0 && at + 299 * sizeof(float) <= bytes);
        int fd = dup(served->fd);
        cr_assert_eq(mmap(NULL, bytes, PROT_WRITE, MAP_SHARED, fd, 0), MAP_FAILED);
        const uint8_t *seen = mmap(NULL, bytes, PROT_READ, MAP_SHARED, fd, 0);
        cr_assert_neq(seen, MAP_FAILED);
        cr_assert_eq(mprotect((void *)seen, bytes, PROT_READ | PROT_WRITE), -1);
        s->in->master[s->plan->shards[1].master + 256] = 3;
        cr_assert_eq(((const float *)(seen + at))[256], 3);
        state_withdraw(s);
        state_drop(s);
        cr_assert_eq(fstat(fd, &st), 0);
        cr_assert_eq(st.st_blocks, 0, "a mapping keeps a dropped job's memory");
        cr_assert_eq(st.st_size, 0, "reading the mapping takes memory again");
        munmap((void *)seen, bytes);
        close(fd);
        layout_free(fp32);
}

Test(state, of_a_state_that_is_over_trainers_keep_what_they_map)
{
        layout *fp32 = fp32_layout();
        struct state *s = fixture_state(store, "j", fp32, 1, 0, 1);
        uint64_t bytes = state_serve(s)->bytes, at = state_serve_offset(s, 1);
        int fd = dup(state_serve(s)->fd);
        const uint8_t *seen = mmap(NULL, bytes, PROT_READ, MAP_SHARED, fd, 0);
        struct stat st;

        s->in->master[s->plan->shards[1].master + 256] = 3;
        state_drop(s);
        cr_assert_eq(((const float *)(seen + at))[256], 3);
        cr_assert_eq(fstat(fd, &st), 0);
        cr_assert_eq((uint64_t)st.st_size, bytes, "they keep the gradients, too");
        munmap((void *)seen, bytes);
        close(fd);
        layout_free(fp32);
}

Test(state, only_the_only_owners_file_is_served)
{
        layout *fp32 = fp32_layout();
        struct state *s = fixture_state(store, "k", fp32, 2, 0, 1);

        cr_assert_null(state_serve(s));
        state_close(s);
        layout_free(fp32);
}

/* ---- damaged files ---- */

static int open_only(struct fault *fault)
{
        struct state *s = NULL;
        layout *stored = NULL;
        uint64_t used = store_used(store);
        int r = state_open(store, fixture_only_file(store), &s, &stored, fault);

        cr_assert_eq(r != 0, s == NULL);
        state_close(s);
        layout_free(stored);
        cr_assert_eq(store_used(store), used);
        return r;
}

static int only_fd(void)
{
        int fd = openat(store->dir, fixture_only_file(store), O_RDWR);

        cr_assert_geq(fd, 0);
        return fd;
}

/* Whether the file is refused while the byte at `at` has another value. */
static bool flip_is_refused(int fd, off_t at)
{
        struct fault fault;
        uint8_t byte;

        cr_assert_eq(pread(fd, &byte, 1, at), 1);
        uint8_t other = (uint8_t)~byte;
        cr_assert_eq(pwrite(fd, &other, 1, at), 1);
        int r = open_only(&fault);
        cr_assert_eq(pwrite(fd, &byte, 1, at), 1);
        return r == ZERO_EIO && strstr(fault.text, "delete it");
}

Test(state, any_flipped_byte_of_header_or_layout_is_refused)
{
        struct state *s = make();
        const struct file_header *h = s->in->map;
        off_t layout_end = FILE_ALIGN + (off_t)h->layout_bytes;
        state_close(s);

        int fd = only_fd();
        for (off_t at = 0; at < (off_t)sizeof(struct file_header); at++)
                cr_assert(flip_is_refused(fd, at), "%ld", (long)at);
        for (off_t at = FILE_ALIGN; at < layout_end; at++)
                cr_assert(flip_is_refused(fd, at), "%ld", (long)at);
        cr_assert_eq(open_only(NULL), 0);
        close(fd);
}

Test(state, a_file_of_another_length_is_refused)
{
        struct state *s = make();
        off_t size = (off_t)s->in->map_bytes;
        state_close(s);

        int fd = only_fd();
        const off_t sizes[] = {
                size + 4096, size + 1, size - 1, size - 4096, 5000, 4096, 100, 1, 0
        };
        for (int i = 0; i < 9; i++) {
                cr_assert_eq(ftruncate(fd, sizes[i]), 0);
                cr_assert_eq(open_only(NULL), ZERO_EIO);
        }
        close(fd);
}

/* Whether the file is refused, for that reason, with this header, whose own checksum is right. */
static bool header_is_refused(struct state *s, struct file_header h, const char *why)
{
        struct file_header was = *(struct file_header *)s->in->map;
        struct fault fault = { 0 };

        file_hash(h.hash, &h, offsetof(struct file_header, hash));
        memcpy(s->in->map, &h, sizeof(h));
        int r = open_only(&fault);
        memcpy(s->in->map, &was, sizeof(was));
        return r == ZERO_EIO && strstr(fault.text, why);
}

static struct state *make_old(void)
{
        struct state *s;

        fixture_old_format = true;
        s = make();
        fixture_old_format = false;
        return s;
}

Test(state, planes_begin_at_different_places_in_their_pages_unless_the_release_before_reads_them)
{
        for (int old = 0; old < 2; old++) {
                struct state *s = old ? make_old() : make();
                const uint8_t *before = (void *)s->in->master;
                uint64_t moment = s->plan->moment_bytes[0];

                cr_assert(moment);
                for (int i = 0; i <= OPTIMIZER_MOMENTS; i++) {
                        bool is_grad = i == OPTIMIZER_MOMENTS;
                        const uint8_t *at = is_grad ? (void *)s->in->grad : s->in->moments[i];

                        cr_assert_eq((uintptr_t)at % FILE_ALIGN,
                                     old ? 0 : (uint64_t)(i + 1) * FILE_STAGGER);
                        cr_assert(at >= before + (i < 2 ? moment : 0));
                        before = at;
                }
                cr_assert_eq(((struct file_header *)s->in->map)->format, old ? 8 : 10);
                cr_assert_eq(state_keeps_times(s), !old);
                memset(s->in->moments[1], 7, moment);
                state_close(s);
                layout *stored = NULL;
                s = fixture_reopen(store, &stored);
                layout_free(stored);
                cr_assert_eq(s->in->moments[1][0], 7);
                cr_assert_eq(s->in->moments[1][moment - 1], 7);
                cr_assert_eq(s->in->moments[0][moment - 1], 0);
                cr_assert_neq(*(uint8_t *)s->in->grad, 7);
                store_discard(store, s->in->file);
                state_close(s);
        }
}

Test(state, a_file_for_the_release_before_has_its_format_until_it_keeps_times)
{
        struct state *s = make_old();
        const struct file_header *h = s->in->map;
        struct file_header was = *h;

        cr_assert_eq(h->format, 8);
        cr_assert_not(state_keeps_times(s));
        cr_assert_eq(open_only(NULL), 0);
        cr_assert_eq(state_keep_times(s), 0);
        cr_assert_eq(h->format, 9);
        cr_assert(state_keeps_times(s));
        cr_assert_eq(open_only(NULL), 0);
        was.format = 9;
        cr_assert_eq(memcmp(&was, h, offsetof(struct file_header, hash)), 0);
        state_close(s);
}

static struct state *make_wire(const char *job)
{
        struct state *s;

        fixture_accumulate = ZERO_ACCUMULATE_WIRE;
        fixture_old_format = true;
        s = fixture_state(store, job, l, 1, 0, 3);
        fixture_old_format = false;
        fixture_accumulate = ZERO_ACCUMULATE_FP32;
        return s;
}

Test(state, a_file_of_narrow_sums_says_so_and_the_release_before_refuses_it)
{
        struct state *s = make_wire("job.1");
        const struct file_header *h = s->in->map;
        layout *stored = NULL;

        cr_assert_eq(h->format, 9, "the release before reads 8 and less");
        cr_assert_eq(plan_plane_bytes(s->plan, plane_grad), 2 * s->plan->moment_elements);
        state_close(s);
        s = fixture_reopen(store, &stored);
        cr_assert_eq(s->id.job.reduce_dtype, ZERO_BF16);
        cr_assert_eq(s->id.job.accumulate, ZERO_ACCUMULATE_WIRE);
        cr_assert_eq(s->plan->grad_dtype, ZERO_BF16);
        state_close(s);
        layout_free(stored);
}

Test(state, an_update_from_a_narrow_sum_has_the_bits_of_one_from_the_same_values_in_fp32)
{
        struct state *wire = make_wire("wire"), *fp32 = fixture_state(store, "fp32", l, 1, 0, 3);
        float *wide = fp32->in->grad;

        toy_init(wire);
        toy_init(fp32);
        for (int i = 0; i < 3; i++) {
                toy_push(fp32, l);
                toy_push(wire, l);
                for (uint64_t k = 0; k < fp32->plan->moment_elements; k++)
                        wide[k] = dtype_load(ZERO_BF16, wire->in->grad, k);
                for (int s = 0; s < 2; s++) {
                        toy_decide(s ? wire : fp32);
                        toy_update(s ? wire : fp32, 0, 0, 1);
                        state_finish(s ? wire : fp32);
                }
                cr_assert(toy_equal(wire, fp32));
        }
        state_close(wire);
        state_close(fp32);
}

Test(state, a_header_that_disagrees_with_the_file_is_refused)
{
        struct state *s = make();
        const struct file_header *is = s->in->map;
        struct file_header h = *is;

        h.format = FILE_FORMAT + 1;
        cr_assert(header_is_refused(s, h, "a newer release of zerod"));
        h.format = FILE_FORMAT_BEFORE - 1;
        cr_assert(header_is_refused(s, h, "an older release of zerod"));
        h = *is;
        h.record_bytes += 8;
        cr_assert(header_is_refused(s, h, "another build"));
        h = *is;
        h.layout_hash[3] ^= 1;
        cr_assert(header_is_refused(s, h, "checksum of its layout"));
        h = *is;
        h.layout_bytes--;
        cr_assert(header_is_refused(s, h, "checksum of its layout"));
        h = *is;
        h.plan_hash[3] ^= 1;
        cr_assert(header_is_refused(s, h, "this zerod partitions its layout in another way"));
        h = *is;
        h.n_tensors++;
        cr_assert(header_is_refused(s, h, "its layout does not match its header"));
        h = *is;
        h.n_undo += 64;
        cr_assert(header_is_refused(s, h, "its length"));
        h = *is;
        h.file_bytes += FILE_ALIGN;
        cr_assert(header_is_refused(s, h, "its length"));
        h = *is;
        h.owner = h.n_owners;
        cr_assert(header_is_refused(s, h, "its header makes no sense"));
        h = *is;
        h.chunk_elements = 1U << 30;
        cr_assert(header_is_refused(s, h, "its header makes no sense"));
        cr_assert_eq(open_only(NULL), 0);
        state_close(s);
}

Test(state, a_file_that_others_may_open_is_refused)
{
        state_close(make());
        int fd = only_fd();

        cr_assert_eq(fchmod(fd, 0640), 0);
        cr_assert_eq(open_only(NULL), ZERO_EIO);
        close(fd);
}

Test(state, the_file_of_another_job_is_refused)
{
        struct fault fault;

        state_close(make());
        cr_assert_eq(renameat(store->dir, fixture_only_file(store), store->dir, "x.0.state"), 0);
        cr_assert_eq(open_only(&fault), ZERO_EIO);
        cr_assert(strstr(fault.text, "another job"));
}

Test(state, names_that_are_no_states_are_refused)
{
        static const char *const names[] = { "../x.state", "/etc/passwd",  ".lock",
                                             "",           ".new-x.state", "absent.state" };
        struct state *s = NULL;
        layout *stored = NULL;

        for (int i = 0; i < 6; i++)
                cr_assert_gt(state_open(store, names[i], &s, &stored, NULL), 0);
}

Test(state, a_step_without_a_tensors_hyperparameter_set_is_refused)
{
        struct state *s = make();

        struct state_record record = *s->record;
        record.n_sets = TOY_SETS;
        memcpy(record.sets, toy_sets, sizeof(toy_sets));
        state_prepare(s, &record);
        record = *s->record;
        record.commit = 1;
        state_decide(s, &record, 0);
        cr_assert_eq(open_only(NULL), 0);
        state_put_set(s, s->plan->segments[0].tensor, TOY_SETS);
        cr_assert_eq(open_only(NULL), ZERO_EIO);
        state_put_set(s, s->plan->segments[0].tensor, 1); /* another optimizer's */
        cr_assert_eq(open_only(NULL), ZERO_EIO);
        state_close(s);
}

Test(state, numbers_that_are_out_of_bounds_are_refused)
{
        struct state *s = make();

        s->in->sets[l->n_tensors - 1] = seal(SEAL_SETS, l->n_tensors - 1, ZERO_SET_MAX);
        cr_assert_eq(open_only(NULL), ZERO_EIO);
        state_put_set(s, l->n_tensors - 1, 0);
        s->in->steps[0][1] = seal(SEAL_STEPS, 1, STATE_STEP_MAX + 1);
        cr_assert_eq(open_only(NULL), ZERO_EIO);
        state_put_step(s, 1, STATE_STEP_MAX);
        cr_assert_eq(open_only(NULL), 0);
        state_close(s);
}

static void hold(struct state *s, uint64_t chunk, uint64_t version)
{
        s->in->undo->chunk = seal(SEAL_UNDO, 0, chunk);
        s->in->undo->version = seal(SEAL_UNDO_VERSION, 0, version);
        s->in->undo->kept = undo_mark(0);
}

Test(state, impossible_chunk_versions_and_slots_are_refused)
{
        struct state *s = make();
        s->in->versions[1] = seal(SEAL_VERSIONS, 1, 1); /* nothing was decided */
        cr_assert_eq(open_only(NULL), ZERO_EIO);
        s->in->versions[1] = seal(SEAL_VERSIONS, 1, 0);
        hold(s, 1, 1);
        cr_assert_eq(open_only(NULL), ZERO_EIO);
        hold(s, 0, 1);

        toy_push(s, l);
        toy_decide(s);
        hold(s, (uint64_t)s->plan->n_chunks + 1, 1);
        cr_assert_eq(open_only(NULL), ZERO_EIO);
        hold(s, 1, 2);
        cr_assert_eq(open_only(NULL), ZERO_EIO);
        hold(s, 1, 1);
        s->in->undo->kept = undo_mark(plan_chunk(s->plan, 0).n + 1);
        cr_assert_eq(open_only(NULL), ZERO_EIO);
        hold(s, 0, 2);
        cr_assert_eq(open_only(NULL), 0);
        state_close(s);
}
