/*
 * Flipped bits: whatever part of the files they hit, and whatever phase the process died in, the
 * state is refused and the file left alone, or opened with exactly the meaning it had.
 *
 * Only what the planes and held undo slots contain is left out (file.h).
 */
#include <criterion/criterion.h>
#include <fcntl.h>
#include <sodium.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "blob.h"
#include "daemon/store/file.h"
#include "daemon/store/seal.h"
#include "daemon/store/directory.h"
#include "fixture.h"
#include "toy.h"

enum { RANKS = 3, FLIPS = 1500, REGIONS = 32 };

/* Bytes of the state's file or of the blobs' file, and whether every flip in them must be found. */
struct region {
        const char *name;
        size_t first, bytes;
        bool counts, of_blobs;
};

struct image {
        uint8_t *bytes;
        size_t size;
};

static char *directory, *reference_directory;
static struct store *store, *reference_store;
static layout *l;
static struct state *reference; /* the meaning */
static char file[STORE_FILE_NAME], blobs[STORE_FILE_NAME];
static struct image state_image, blobs_image;
static struct region regions[REGIONS];
static uint32_t n_regions;

static void begin(void)
{
        cr_assert_geq(sodium_init(), 0);
        directory = fixture_directory();
        reference_directory = fixture_directory();
        store = fixture_store(directory);
        reference_store = fixture_store(reference_directory);
        l = fixture_layout();
}

static void end(void)
{
        state_close(reference);
        store_close(store);
        store_close(reference_store);
        layout_free(l);
        free(state_image.bytes);
        free(blobs_image.bytes);
        fixture_remove(directory);
        fixture_remove(reference_directory);
}

TestSuite(flips, .init = begin, .fini = end);

/* ---- files ---- */

static int open_here(const struct store *where, const char *name)
{
        int fd = openat(where->dir, name, O_RDWR | O_CREAT, 0600);

        cr_assert_geq(fd, 0);
        return fd;
}

static struct image read_image(const struct store *where, const char *name)
{
        struct stat st;
        int fd = open_here(where, name);

        cr_assert_eq(fstat(fd, &st), 0);
        struct image i = { .bytes = malloc((size_t)st.st_size), .size = (size_t)st.st_size };
        cr_assert_eq(read(fd, i.bytes, i.size), (ssize_t)i.size);
        close(fd);
        return i;
}

static void write_image(const struct store *where, const char *name, const struct image *i)
{
        int fd = open_here(where, name);

        cr_assert_eq(write(fd, i->bytes, i->size), (ssize_t)i->size);
        close(fd);
}

/* ---- phases ---- */

static struct state *make(uint32_t attempts)
{
        struct state *s = fixture_state(store, "j", l, 1, 0, 2);

        state_abort(s, 1);
        toy_init(s);
        for (uint32_t i = 0; i <= attempts; i++) {
                for (uint32_t r = 0; r < RANKS; r++)
                        cr_assert_eq(blob_stage(s, r), 0);
                toy_push(s, l);
                state_put_begin(s);
                for (uint32_t t = 0; t < l->n_tensors; t++)
                        state_put_set(s, t, l->tensors[t].set);
                state_put_end(s, i);
                if (i < attempts)
                        toy_attempt(s, l);
        }
        return s;
}

/* An undo slot as of a chunk whose bytes have changed, but not yet its version. */
static void hold(struct state *s, uint32_t slot, uint32_t chunk)
{
        struct undo_slot *at = (void *)((uint8_t *)s->in->undo + slot * file_undo_stride(s->plan));

        for (uint32_t i = 0; i < 3 * s->plan->chunk_elements; i++)
                at->values[i] = (float)i;
        at->kept = undo_mark(plan_chunk(s->plan, chunk).n);
        at->version = seal(SEAL_UNDO_VERSION, slot, s->record->version + 1);
        at->chunk = seal(SEAL_UNDO, slot, (uint64_t)chunk + 1);
}

static struct state *stop_open(void)
{
        return make(6);
}

static struct state *stop_prepared(void)
{
        struct state *s = make(6);

        state_prepare(s, s->record);
        return s;
}

static struct state *stop_updating(void)
{
        struct state *s = make(6);

        toy_decide(s);
        cr_assert(s->record->commit);
        toy_update(s, 0, 0, 2);
        hold(s, 1, 1);
        return s;
}

static struct state *stop_skipped(void)
{
        struct state *s = make(3);

        toy_decide(s);
        cr_assert(!s->record->commit);
        return s;
}

static struct state *stop_finished(void)
{
        struct state *s = make(6);

        toy_attempt(s, l);
        return s;
}

/* Between the two stores that make one copy valid and the other invalid. */
static struct state *stop_publishing(void)
{
        struct state *s = make(6);

        for (uint32_t i = 0; i < 2; i++)
                s->in->copies[i]->use = seal(SEAL_COPY, i, COPY_COUNTS);
        return s;
}

/* ---- regions ---- */

static void add(const char *name, const void *first, size_t bytes, bool counts)
{
        cr_assert_lt(n_regions, REGIONS);
        regions[n_regions++] = (struct region){
                .name = name,
                .first = (size_t)((const uint8_t *)first - (const uint8_t *)reference->in->map),
                .bytes = bytes,
                .counts = counts,
        };
}

static void add_copy(uint32_t i)
{
        const struct record_copy *copy = reference->in->copies[i];
        bool counts = seal_open(SEAL_COPY, i, copy->use) == COPY_COUNTS;
        size_t hashed = offsetof(struct record_copy, record.sets[copy->record.n_sets]);

        add("the use of a record copy", &copy->use, sizeof(copy->use), true);
        add("a record copy", copy->hash, hashed - sizeof(copy->use), counts);
        add("unused sets", (const uint8_t *)copy + hashed, sizeof(*copy) - hashed, false);
}

static void add_slot(uint32_t i)
{
        size_t at = i * file_undo_stride(reference->plan);
        const struct undo_slot *slot = (void *)((uint8_t *)reference->in->undo + at);
        size_t in_file = (size_t)((const uint8_t *)slot - (const uint8_t *)reference->in->map);
        const struct undo_slot *was = (const void *)(state_image.bytes + in_file);
        bool held = seal_open(SEAL_UNDO, i, was->chunk) != 0;

        add("the chunk of an undo slot", &slot->chunk, sizeof(slot->chunk), true);
        add("the version of an undo slot", &slot->version, sizeof(slot->version), held);
        add("what an undo slot has kept", &slot->kept, sizeof(slot->kept), held);
        add("the gap in an undo slot", slot->unused, sizeof(slot->unused), false);
}

static void add_tables(void)
{
        const struct record_copy *copy = record_current(reference);
        size_t words = reference->n_tensors * sizeof(uint64_t);
        bool marked = reference->record->phase != ATTEMPT_OPEN;

        for (uint32_t i = 0; i < 2; i++) {
                add("tensor steps", reference->in->steps[i], words, i == copy->side);
                add("presence marks", reference->in->presents[i], words,
                    marked && i == copy->present_side);
        }
        add("sets", reference->in->sets, words, true);
        add("the gap behind the sets", (const uint8_t *)reference->in->sets + words,
            FILE_ALIGN - words, false);
        add("puts", reference->in->puts_words, 2 * sizeof(uint64_t), true);
        add("chunk versions", reference->in->versions, reference->plan->n_chunks * sizeof(uint64_t),
            true);
}

static void add_all(void)
{
        const struct file_header *h = reference->in->map;

        n_regions = 0;
        add("the header", h, sizeof(*h), true);
        add("the gap behind the header", h + 1, FILE_PLANES - sizeof(*h), false);
        add("where the planes are", (const uint8_t *)h + FILE_PLANES, sizeof(uint64_t), true);
        add("the layout", (const uint8_t *)h + FILE_ALIGN, h->layout_bytes, true);
        for (uint32_t i = 0; i < 2; i++) {
                add_copy(i);
                add_slot(i);
        }
        add_tables();
        regions[n_regions++] =
                (struct region){ .name = "blobs", .bytes = blobs_image.size, .of_blobs = true };
}

/* ---- one flip ---- */

static bool same_record(const struct state *a, const struct state *b)
{
        size_t bytes = offsetof(struct state_record, sets[a->record->n_sets]);

        return a->record->n_sets == b->record->n_sets && memcmp(a->record, b->record, bytes) == 0;
}

static bool same_tensors(const struct state *a, const struct state *b)
{
        return memcmp(a->present, b->present, a->n_tensors) == 0 &&
               memcmp(a->tensor_set, b->tensor_set, a->n_tensors * sizeof(uint64_t)) == 0 &&
               a->puts == b->puts;
}

/* A damaged blob gives nothing, never other bytes. */
static bool same_blobs(const struct state *a, const struct state *b, bool may_lack)
{
        uint32_t lacking = 0;

        for (uint32_t r = 0; r < RANKS + 1; r++) {
                size_t n, m;
                const void *p = state_blob(a, r, &n), *q = state_blob(b, r, &m);

                if (n == 0 && m > 0)
                        lacking++;
                else if (n != m || (n && memcmp(p, q, n) != 0))
                        return false;
        }
        return lacking <= may_lack;
}

static void check_refused(const struct region *region, const struct image *flipped,
                          const struct fault *fault)
{
        struct image left = read_image(store, file);

        cr_assert(!region->of_blobs, "blobs are never a reason");
        cr_assert(strstr(fault->text, "cannot be used: ") && strstr(fault->text, file), "%s",
                  fault->text);
        cr_assert(left.size == flipped->size && memcmp(left.bytes, flipped->bytes, left.size) == 0,
                  "the file is left alone");
        free(left.bytes);
}

static void check_opened(const struct region *region, const struct state *s, const layout *stored)
{
        char text[128];

        cr_assert(!region->counts, "a flip in %s was not found", region->name);
        cr_assert(toy_equal(s, reference) && same_record(s, reference) &&
                          same_tensors(s, reference) &&
                          same_blobs(s, reference, region->of_blobs) &&
                          layout_equal(l, stored, text, sizeof(text)),
                  "a flip in %s changed what is opened", region->name);
}

static bool try_flip(const struct region *region, size_t at, int bit)
{
        struct image *image = region->of_blobs ? &blobs_image : &state_image;
        struct state *s = NULL;
        layout *stored = NULL;
        struct fault fault = { 0 };

        image->bytes[at] ^= (uint8_t)(1 << bit);
        write_image(store, file, &state_image);
        write_image(store, blobs, &blobs_image);
        int r = state_open(store, file, &s, &stored, &fault);
        if (r) {
                cr_assert_eq(r, ZERO_EIO, "%s", fault.text);
                check_refused(region, &state_image, &fault);
        } else {
                check_opened(region, s, stored);
        }
        image->bytes[at] ^= (uint8_t)(1 << bit);
        state_close(s);
        layout_free(stored);
        return r != 0;
}

/* Flips bits in the files of a process that died in that phase. */
static void flip_all(struct state *(*stop)(void), long seed)
{
        struct state *s = stop();
        uint32_t found = 0;
        layout *stored = NULL;

        strcpy(file, s->in->file);
        store_blobs_name(file, blobs);
        state_close(s);
        state_image = read_image(store, file);
        blobs_image = read_image(store, blobs);
        write_image(reference_store, file, &state_image);
        write_image(reference_store, blobs, &blobs_image);
        reference = fixture_reopen(reference_store, &stored);
        layout_free(stored);
        add_all();
        srandom((unsigned)seed);
        for (int i = 0; i < FLIPS; i++) {
                const struct region *region = &regions[(uint32_t)i % n_regions];
                size_t at = region->first + (size_t)random() % region->bytes;

                found += try_flip(region, at, (int)(random() % 8));
        }
        cr_assert_gt(found, FLIPS / 4);
}

Test(flips, in_an_open_attempt)
{
        flip_all(stop_open, 1);
}

Test(flips, after_a_vote)
{
        flip_all(stop_prepared, 2);
}

Test(flips, in_the_middle_of_an_update)
{
        flip_all(stop_updating, 3);
}

Test(flips, after_the_decision_to_skip)
{
        flip_all(stop_skipped, 4);
}

Test(flips, after_the_end_of_a_step)
{
        flip_all(stop_finished, 5);
}

Test(flips, while_a_record_is_published)
{
        flip_all(stop_publishing, 6);
}
