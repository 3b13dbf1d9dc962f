/*
 * A process that dies at any instruction of an update leaves a state that can be brought
 * to the same bits as if nothing had happened.
 *
 * Once by SIGKILL at random instants, two threads updating at once; once by recovering from what
 * the file holds before and after each instruction that stores to it (stores.h).  No other
 * instruction changes the file, so that covers them all, and the work does not follow their number.
 * Each with updates after the decision, and ahead of it.
 */
#include <criterion/criterion.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <sodium.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "daemon/store/file.h"
#include "daemon/store/seal.h"
#include "daemon/store/directory.h"
#include "fixture.h"
#include "stores.h"
#include "toy.h"
#include "trace.h"

enum { KILLS = 300, LIMIT_NS = 3000000 };

static char *directory, *other_directory;
static struct store *other;
static layout *l;
static struct state *undisturbed;
static bool eager, reader; /* with eager groups; a reader has updates undone that are decided */

static void begin_with(layout *tensors)
{
        cr_assert_geq(sodium_init(), 0); /* picks the fast hash: fewer instructions */
        directory = fixture_directory();
        other_directory = fixture_directory();
        other = fixture_store(other_directory);
        l = tensors;
        undisturbed = fixture_state(other, "undisturbed", l, 1, 0, 2);
        toy_init(undisturbed);
}

static void begin(void)
{
        begin_with(fixture_layout());
}

static void end(void)
{
        state_close(undisturbed);
        store_close(other);
        layout_free(l);
        fixture_remove(directory);
        fixture_remove(other_directory);
}

static void leave_out(const char *why)
{
        end(); /* Criterion does not, after a test that is skipped */
        cr_skip_test("%s", why);
}

/* The work follows the number of stores, so of elements.  Chunks have LAYOUT_ALIGN elements on
 * every CPU, and the first group has two. */
static void begin_small(void)
{
        begin_with(fixture_small_layout());
        if (!stores_can())
                leave_out("stores can be watched on x86-64 alone");
}

static void begin_wire(void)
{
        fixture_accumulate = ZERO_ACCUMULATE_WIRE;
        begin_small();
}

TestSuite(kill, .init = begin, .fini = end);
TestSuite(wire, .init = begin_wire, .fini = end);
TestSuite(stores, .init = begin_small, .fini = end);

/* Jobs with eager groups; the undisturbed state has none. */
static void make_eager(void)
{
        eager = true;
        for (uint32_t g = 0; g < l->n_groups; g++)
                cr_assert_eq(layout_set_eager(l, g, true, NULL), 0);
}

static void make_first(void)
{
        struct store *store = fixture_store(directory);
        struct state *s = fixture_state(store, "j", l, 1, 0, 2);

        toy_init(s);
        state_close(s);
        store_close(store);
}

/* Runs the undisturbed state to the end of the same attempt. */
static void follow(const struct state *s)
{
        while (undisturbed->record->attempt < s->record->attempt)
                toy_attempt(undisturbed, l);
}

/* ---- random instants ---- */

static void *update_odd(void *arg)
{
        toy_update(arg, 1, 1, 2);
        return NULL;
}

static void *update_odd_ahead(void *arg)
{
        toy_update_ahead(arg, 1, 1, 2);
        return NULL;
}

static void by_two_threads(struct state *s, void *(*odd)(void *),
                           void (*even)(struct state *, uint32_t, uint32_t, uint32_t))
{
        pthread_t thread;

        if (pthread_create(&thread, NULL, odd, s))
                abort();
        even(s, 0, 0, 2);
        pthread_join(thread, NULL);
}

static void attempt_by_two_threads(struct state *s)
{
        if (s->record->phase == ATTEMPT_OPEN)
                toy_push(s, l);
        if (eager && s->record->phase != ATTEMPT_DECIDED)
                by_two_threads(s, update_odd_ahead, toy_update_ahead);
        toy_decide(s);
        by_two_threads(s, update_odd, toy_update);
        state_finish(s);
}

static void run_until_killed(long ns)
{
        layout *stored = NULL;

        prctl(PR_SET_PDEATHSIG, SIGKILL);
        struct state *s = fixture_reopen(fixture_store(directory), &stored);
        trace_die_in(ns);
        for (;;)
                attempt_by_two_threads(s);
}

static void run_and_kill(long ns)
{
        int status;

        pid_t pid = fork();
        if (pid == 0)
                run_until_killed(ns);
        cr_assert_eq(waitpid(pid, &status, 0), pid);
        cr_assert(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL, "%d", status);
}

static void finish_and_compare(void)
{
        struct store *store = fixture_store(directory);
        layout *stored = NULL;
        struct state *s = fixture_reopen(store, &stored);

        toy_attempt(s, l);
        follow(s);
        cr_assert(toy_equal(s, undisturbed));
        state_close(s);
        store_close(store);
        layout_free(stored);
}

static void at_random_instants(void)
{
        long limit_ns = LIMIT_NS;

        make_first();
        srandom(1);
        for (int i = 0; i < KILLS; i++) {
                run_and_kill(1 + random() % limit_ns);
                if (i % 10 != 9)
                        continue;
                finish_and_compare();
                limit_ns = trace_limit(limit_ns, undisturbed->record->version, i + 1);
        }
        cr_assert_gt(undisturbed->record->version, KILLS / 2);
}

Test(kill, at_random_instants_leaves_the_bits_of_an_undisturbed_run)
{
        at_random_instants();
}

Test(kill, at_random_instants_with_updates_ahead_leaves_the_bits_of_an_undisturbed_run)
{
        make_eager();
        at_random_instants();
}

/* ---- every store ---- */

/* From the vote to the end of an attempt. */
static void run_attempt(struct state *s)
{
        if (eager)
                toy_update_ahead(s, 0, 0, 1);
        toy_decide(s);
        for (uint32_t c = 0; reader && c < s->plan->n_chunks; c++)
                if (state_chunk_version(s, c) != s->record->version)
                        undo_back(s, 0, c, s->record->version);
        toy_update(s, 0, 0, 1);
        state_finish(s);
}

struct sight {
        const struct state *seen; /* whose file changes */
        uint8_t *before;          /* what it held at the last look */
        uint64_t instants;
        void (*check)(struct state *s); /* what the successor has */
};

static void check_bits(struct state *s)
{
        toy_attempt(s, l);
        follow(s);
        cr_assert(toy_equal(s, undisturbed));
}

/* The successor of a process that died now. */
static void recover(const struct sight *t)
{
        layout *stored = NULL;
        struct store *store = fixture_store(directory);
        int fd = openat(store->dir, t->seen->in->file, O_WRONLY | O_CREAT, 0600);

        cr_assert_geq(fd, 0);
        cr_assert_eq(write(fd, t->before, t->seen->in->map_bytes), (ssize_t)t->seen->in->map_bytes);
        close(fd);
        struct state *s = fixture_reopen(store, &stored);
        t->check(s);
        state_close(s);
        store_close(store);
        layout_free(stored);
}

static void look(void *arg)
{
        struct sight *t = arg;

        if (memcmp(t->before, t->seen->in->map, t->seen->in->map_bytes) == 0)
                return;
        memcpy(t->before, t->seen->in->map, t->seen->in->map_bytes);
        t->instants++;
        recover(t);
}

/* Checks the successor of each state that run(s) gives the file; returns how many there were. */
static uint64_t run_and_look(struct state *s, void (*run)(struct state *s),
                             void (*check)(struct state *s))
{
        struct iovec file = { s->in->map, s->in->map_bytes };
        struct sight t = { .seen = s, .before = malloc(file.iov_len), .check = check };

        memcpy(t.before, file.iov_base, file.iov_len);
        stores_watch(&file, 1, look, &t);
        run(s);
        stores_end();
        free(t.before);
        return t.instants;
}

static void at_every_store(const char *isa, uint32_t attempts)
{
        struct state *s;

        toy_ops = device_host(isa);
        if (!toy_ops)
                leave_out("this CPU does not have these kernels");
        s = fixture_state(other, "j", l, 1, 0, 2);
        toy_init(s);
        for (uint32_t i = 0; i < attempts; i++)
                toy_attempt(s, l);
        toy_push(s, l);
        cr_assert_gt(run_and_look(s, run_attempt, check_bits), 300);
        state_close(s);
}

Test(stores, at_every_store_of_scalar_kernels_leaves_the_bits_of_an_undisturbed_run)
{
        at_every_store("scalar", 1);
}

Test(wire, at_every_store_of_updates_from_narrow_sums_leaves_the_bits_of_an_undisturbed_run)
{
        at_every_store("scalar", 1);
}

Test(stores, at_every_store_of_updates_ahead_leaves_the_bits_of_an_undisturbed_run)
{
        make_eager();
        at_every_store("scalar", 1);
}

Test(stores,
     at_every_store_of_an_undo_while_the_step_is_decided_leaves_the_bits_of_an_undisturbed_run)
{
        make_eager();
        reader = true;
        at_every_store("scalar", 1);
}

/* The attempt after four is skipped (toy.c). */
Test(stores, at_every_store_of_a_skip_what_is_ahead_can_be_put_back)
{
        make_eager();
        at_every_store("scalar", 4);
}

Test(stores, at_every_store_of_avx2_kernels_leaves_the_bits_of_an_undisturbed_run)
{
        at_every_store("avx2", 1);
}

Test(stores, at_every_store_of_avx512_kernels_leaves_the_bits_of_an_undisturbed_run)
{
        at_every_store("avx512", 1);
}

/* Marks follow from the vote's norm. */
static void prepare(struct state *s, uint32_t norm)
{
        struct state_record vote = *s->record;

        for (uint32_t t = 0; t < s->n_tensors; t++)
                s->present[t] = (t + norm) % 2;
        vote.clip_norm = norm;
        state_prepare(s, &vote);
}

static void run_votes(struct state *s)
{
        prepare(s, 2);
        prepare(s, 3);
        state_put_step(s, 0, 1000000);
        state_put_set(s, 0, 255);
        prepare(s, 4);
}

static void check_votes(struct state *s)
{
        uint64_t step = s->tensor_step[0], set = s->tensor_set[0];

        for (uint32_t t = 0; t < s->n_tensors; t++)
                cr_assert_eq(s->present[t], (t + (uint32_t)s->record->clip_norm) % 2);
        cr_assert((step == 7 || step == 1000000) && (set == 0 || set == 255));
        cr_assert(set == 0 || step == 1000000, "in the order in which they were put");
}

Test(stores, at_every_store_a_vote_has_its_own_marks_and_a_put_is_whole)
{
        struct state *s = fixture_state(other, "j", l, 1, 0, 1);

        state_put_step(s, 0, 7);
        prepare(s, 1);
        for (uint32_t i = 0; i < 2; i++) /* as if a process had died between two stores */
                s->in->copies[i]->use = seal(SEAL_COPY, i, COPY_COUNTS);
        cr_assert_gt(run_and_look(s, run_votes, check_votes), 20);
        state_close(s);
}
