/*
 * Blobs that ranks keep with a step: those that are read back after a process died at any
 * instruction, and those of a damaged file.
 */
#include <criterion/criterion.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <sodium.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "blob.h"
#include "daemon/store/file.h"
#include "daemon/store/directory.h"
#include "fixture.h"
#include "stores.h"
#include "trace.h"

enum { RANKS = 3, KILLS = 150, LIMIT_NS = 1000000 };

static char *directory;
static struct store *store;
static layout *l;
static struct state *s;

static void begin(void)
{
        cr_assert_geq(sodium_init(), 0);
        directory = fixture_directory();
        store = fixture_store(directory);
        l = fixture_layout();
        s = fixture_state(store, "j", l, 1, 0, 1);
        state_abort(s, 1);
}

static void end(void)
{
        state_close(s);
        store_close(store);
        layout_free(l);
        fixture_remove(directory);
}

TestSuite(blobs, .init = begin, .fini = end);

static void reopen(void)
{
        layout *stored = NULL;

        state_close(s);
        s = fixture_reopen(store, &stored);
        layout_free(stored);
}

static void decide(struct state *state)
{
        state_prepare(state, state->record);
        struct state_record r = *state->record;
        r.commit = 0;
        state_decide(state, &r, 0);
}

static void attempt(uint32_t ranks)
{
        for (uint32_t r = 0; r < ranks; r++)
                cr_assert_eq(blob_stage(s, r), 0);
        decide(s);
        state_finish(s);
}

static bool kept_nothing(uint32_t rank)
{
        size_t n;

        return state_blob(s, rank, &n) == NULL && n == 0;
}

static int blobs_fd(void)
{
        char name[STORE_FILE_NAME];

        store_blobs_name(s->in->file, name);
        return openat(store->dir, name, O_RDWR);
}

/* ---- what is given back ---- */

Test(blobs, each_rank_gets_what_it_kept_with_the_last_decided_attempt)
{
        for (int i = 0; i < 20; i++) {
                uint64_t now = s->record->attempt;

                for (uint32_t r = 0; r < RANKS; r++) {
                        cr_assert_eq(blob_stage(s, r), 0);
                        cr_assert(i == 0 ? kept_nothing(r) : blob_is(s, r, now - 1));
                }
                decide(s);
                for (uint32_t r = 0; r < RANKS; r++)
                        cr_assert(blob_is(s, r, now));
                state_finish(s);
                if (i % 3 == 0)
                        reopen();
                for (uint32_t r = 0; r < RANKS; r++)
                        cr_assert(blob_is(s, r, now));
        }
}

Test(blobs, what_was_kept_with_an_aborted_attempt_counts_for_nothing)
{
        attempt(RANKS);
        for (int i = 0; i < 3; i++) {
                for (uint32_t r = 0; r < RANKS; r++)
                        cr_assert_eq(blob_stage(s, r), 0);
                state_prepare(s, s->record);
                state_abort(s, s->record->attempt + 1);
                reopen();
                for (uint32_t r = 0; r < RANKS; r++)
                        cr_assert(blob_is(s, r, 1));
        }
        decide(s); /* nobody kept anything with this one */
        for (uint32_t r = 0; r < RANKS; r++)
                cr_assert(kept_nothing(r));
}

Test(blobs, what_was_staged_before_a_crash_without_a_vote_counts_for_nothing)
{
        attempt(RANKS);
        for (uint32_t r = 0; r < RANKS; r++)
                cr_assert_eq(blob_stage(s, r), 0);
        reopen();
        for (uint32_t r = 0; r < RANKS; r++)
                cr_assert(blob_is(s, r, 1));
        decide(s); /* the attempt's number was given again, and nobody kept anything with it */
        for (uint32_t r = 0; r < RANKS; r++)
                cr_assert(kept_nothing(r));
}

Test(blobs, what_was_staged_before_a_vote_counts_if_it_is_decided_after_a_crash)
{
        attempt(RANKS);
        for (uint32_t r = 0; r < RANKS; r++)
                cr_assert_eq(blob_stage(s, r), 0);
        state_prepare(s, s->record);
        reopen();
        decide(s);
        for (uint32_t r = 0; r < RANKS; r++)
                cr_assert(blob_is(s, r, 2));
}

Test(blobs, the_later_bytes_of_an_attempt_count)
{
        size_t n;

        attempt(RANKS);
        cr_assert_eq(state_blob_stage(s, 0, 2, "first", 5), 0);
        cr_assert_eq(state_blob_stage(s, 0, 2, "again", 5), 0);
        cr_assert_eq(state_blob_stage(s, 1, 2, "first", 5), 0);
        cr_assert_eq(state_blob_stage(s, 1, 2, NULL, 0), 0);
        decide(s);
        const void *p = state_blob(s, 0, &n);
        cr_assert(n == 5 && memcmp(p, "again", 5) == 0);
        state_blob(s, 1, &n);
        cr_assert_eq(n, 0);
}

Test(blobs, the_longest_fits_and_a_longer_one_is_refused)
{
        uint8_t bytes[ZERO_BLOB_MAX + 1];
        size_t n;

        memset(bytes, 0x77, sizeof(bytes));
        cr_assert_eq(state_blob_stage(s, 1, 1, bytes, ZERO_BLOB_MAX + 1), -EINVAL);
        cr_assert_eq(state_blob_stage(s, ZERO_RANK_MAX, 1, bytes, 1), -EINVAL);
        cr_assert_eq(state_blob_stage(s, 1, 0, bytes, 1), -EINVAL);
        cr_assert_eq(state_blob_stage(s, 1, 1, bytes, ZERO_BLOB_MAX), 0);
        decide(s);
        const void *p = state_blob(s, 1, &n);
        cr_assert_eq(n, ZERO_BLOB_MAX);
        cr_assert_eq(memcmp(p, bytes, n), 0);
        cr_assert_eq(state_blob_stage(s, 1, 1, bytes, 1), -EINVAL, "it is decided");
}

/* ---- the file ---- */

Test(blobs, a_job_that_keeps_nothing_has_no_file)
{
        uint64_t used = store_used(store);

        for (int i = 0; i < 3; i++) {
                cr_assert_eq(state_blob_stage(s, 5, s->record->attempt, NULL, 0), 0);
                decide(s);
                state_finish(s);
        }
        cr_assert_lt(blobs_fd(), 0);
        cr_assert_eq(store_used(store), used);
}

Test(blobs, the_file_is_private_charged_and_no_state)
{
        uint64_t used = store_used(store);
        struct stat st;

        attempt(RANKS);
        int fd = blobs_fd();
        cr_assert_eq(fstat(fd, &st), 0);
        cr_assert_eq(st.st_mode & 07777, 0600);
        cr_assert_geq(st.st_blocks * 512, st.st_size, "its space is reserved");
        cr_assert_eq(store_used(store), used + (uint64_t)st.st_size);
        cr_assert_eq(store_used(store), state_bytes(s));
        cr_assert_str_eq(fixture_only_file(store), s->in->file);
        close(fd);
        reopen();
        cr_assert_eq(store_used(store), state_bytes(s));
        state_close(s);
        store_close(store);
        store = fixture_store(directory);
        layout *stored = NULL;
        s = fixture_reopen(store, &stored);
        layout_free(stored);
        cr_assert_eq(store_used(store), state_bytes(s));
}

Test(blobs, drop_leaves_nothing)
{
        attempt(RANKS);
        char name[STORE_FILE_NAME];
        store_blobs_name(s->in->file, name);
        state_drop(s);
        cr_assert_eq(store_used(store), 0);
        cr_assert_eq(faccessat(store->dir, name, F_OK, 0), -1);
        s = NULL;
}

Test(blobs, the_quota_holds_for_them)
{
        attempt(1);
        state_close(s);
        uint64_t used = store_used(store);
        store_close(store);
        layout *stored = NULL;
        cr_assert_eq(store_open(directory, used + 100000, &store, NULL), 0);
        s = fixture_reopen(store, &stored);
        layout_free(stored);
        uint64_t before = store_used(store);
        cr_assert_eq(state_blob_stage(s, 50, 2, "x", 1), -EDQUOT);
        cr_assert_eq(store_used(store), before);
        cr_assert(blob_is(s, 0, 1));
        cr_assert_eq(state_blob_stage(s, 1, 2, "x", 1), 0);
}

Test(blobs, those_of_an_earlier_job_of_the_name_count_for_nothing)
{
        char blobs[STORE_FILE_NAME], aside[] = "aside";

        attempt(RANKS);
        store_blobs_name(s->in->file, blobs);
        cr_assert_eq(linkat(store->dir, blobs, store->dir, aside, 0), 0);
        state_drop(s);
        cr_assert_eq(renameat(store->dir, aside, store->dir, blobs), 0);
        s = fixture_state(store, "j", l, 1, 0, 1);
        state_abort(s, 1);
        decide(s);
        for (uint32_t r = 0; r < RANKS; r++)
                cr_assert(kept_nothing(r));
        state_finish(s);
        attempt(RANKS);
        for (uint32_t r = 0; r < RANKS; r++)
                cr_assert(blob_is(s, r, 2));
}

Test(blobs, a_file_of_another_length_gives_what_is_whole)
{
        static const off_t lengths[] = { 1000000, 100000, 40000, 20000, 8000, 100, 0 };

        attempt(RANKS);
        int fd = blobs_fd();
        for (int i = 0; i < 7; i++) {
                cr_assert_eq(ftruncate(fd, lengths[i]), 0);
                reopen();
                for (uint32_t r = 0; r < RANKS; r++)
                        cr_assert(blob_is(s, r, 1) || kept_nothing(r));
                cr_assert(kept_nothing(RANKS));
                cr_assert(lengths[i] < 50000 || blob_is(s, RANKS - 1, 1));
        }
        close(fd);
}

Test(blobs, a_file_that_others_may_open_is_refused)
{
        struct state *other = NULL;
        layout *stored = NULL;
        struct fault fault;

        attempt(RANKS);
        int fd = blobs_fd();
        cr_assert_eq(fchmod(fd, 0640), 0);
        close(fd);
        cr_assert_eq(state_open(store, s->in->file, &other, &stored, &fault), ZERO_EIO);
        cr_assert(strstr(fault.text, "others have access"), "%s", fault.text);
}

/* ---- processes that die ---- */

static uint32_t ranks_at(uint64_t attempt)
{
        return attempt % 40;
}

static void run_until_killed(long ns)
{
        layout *stored = NULL;

        prctl(PR_SET_PDEATHSIG, SIGKILL);
        struct state *state = fixture_reopen(store, &stored);
        trace_die_in(ns);
        for (;;) {
                for (uint32_t r = 0; r < ranks_at(state->record->attempt); r++)
                        if (blob_stage(state, r))
                                abort();
                if (state->record->phase != ATTEMPT_DECIDED)
                        decide(state);
                state_finish(state);
        }
}

static void check_ranks(const struct state *state)
{
        uint64_t decided = state->record->decided_attempt;

        for (uint32_t r = 0; decided && r < 40; r++)
                if (r < ranks_at(decided))
                        cr_assert(blob_is(state, r, decided), "%u", r);
                else
                        cr_assert(kept_nothing(r), "%u", r);
}

Test(blobs, at_random_instants_a_kill_leaves_what_belongs_to_the_decision)
{
        long limit_ns = LIMIT_NS;
        int status;

        srandom(3);
        for (int i = 0; i < KILLS; i++) {
                long ns = 1 + random() % limit_ns;
                pid_t pid = fork();

                if (pid == 0)
                        run_until_killed(ns);
                cr_assert_eq(waitpid(pid, &status, 0), pid);
                cr_assert(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL, "%d", status);
                reopen();
                check_ranks(s);
                if (s->record->phase == ATTEMPT_DECIDED)
                        state_finish(s);
                if (i % 10 == 9)
                        limit_ns = trace_limit(limit_ns, s->record->decided_attempt, 2 * (i + 1));
        }
        cr_assert_gt(s->record->decided_attempt, KILLS);
}

/* An attempt that is aborted after the vote, and one that is decided. */
static void run_attempts(void)
{
        for (uint32_t r = 0; r < RANKS; r++)
                cr_assert_eq(blob_stage(s, r), 0);
        state_prepare(s, s->record);
        state_abort(s, s->record->attempt + 1);
        for (uint32_t r = 0; r < RANKS; r++)
                cr_assert_eq(blob_stage(s, r), 0);
        decide(s);
        state_finish(s);
}

struct sight {
        struct store *store; /* where the successor lives */
        char blobs[STORE_FILE_NAME];
        uint8_t *before;
        uint64_t instants;
};

static void write_file(int dir, const char *name, const void *data, size_t size)
{
        int fd = openat(dir, name, O_WRONLY | O_CREAT, 0600);

        cr_assert(fd >= 0 && write(fd, data, size) == (ssize_t)size);
        close(fd);
}

/* The successor of a process that died now. */
static void succeed(const struct sight *t)
{
        layout *stored = NULL;

        write_file(t->store->dir, s->in->file, s->in->map, s->in->map_bytes);
        write_file(t->store->dir, t->blobs, s->in->blobs.map, s->in->blobs.bytes);
        struct state *after = fixture_reopen(t->store, &stored);
        for (uint32_t r = 0; r < RANKS; r++)
                cr_assert(blob_is(after, r, after->record->decided_attempt), "rank %u at %lu", r,
                          (unsigned long)t->instants);
        state_close(after);
        layout_free(stored);
}

static void look(void *arg)
{
        struct sight *t = arg;
        uint8_t *blobs = t->before + s->in->map_bytes;

        if (memcmp(t->before, s->in->map, s->in->map_bytes) == 0 &&
            memcmp(blobs, s->in->blobs.map, s->in->blobs.bytes) == 0)
                return;
        memcpy(t->before, s->in->map, s->in->map_bytes);
        memcpy(blobs, s->in->blobs.map, s->in->blobs.bytes);
        t->instants++;
        succeed(t);
}

Test(blobs, at_every_store_a_kill_leaves_what_belongs_to_the_decision)
{
        if (!stores_can()) {
                end(); /* Criterion does not, after a test that is skipped */
                cr_skip_test("stores can be watched on x86-64 alone");
        }
        char *other = fixture_directory();
        struct sight t = { .store = fixture_store(other) };

        attempt(RANKS);
        attempt(RANKS);
        reopen(); /* with room for the blobs that are to come */
        store_blobs_name(s->in->file, t.blobs);
        t.before = calloc(1, s->in->map_bytes + s->in->blobs.bytes);
        struct iovec files[] = { { s->in->map, s->in->map_bytes },
                                 { s->in->blobs.map, s->in->blobs.bytes } };
        stores_watch(files, 2, look, &t);
        run_attempts();
        stores_end();
        cr_assert_gt(t.instants, 50, "%lu", (unsigned long)t.instants);
        free(t.before);
        store_close(t.store);
        fixture_remove(other);
}
