/* The file of votes: a record is read back as it was written, and any other file is refused. */
#include <criterion/criterion.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "daemon/cluster/membership/ballots.h"
#include "../store/fixture.h"

static const uint8_t cluster[BALLOTS_CLUSTER] = { 1, 2, 3 }, other[BALLOTS_CLUSTER] = { 1, 2, 4 };
static char *directory;

static void begin(void)
{
        directory = fixture_directory();
}

static void end(void)
{
        fixture_remove(directory);
}

TestSuite(ballots, .init = begin, .fini = end);

static struct ballots_record sample(void)
{
        return (struct ballots_record){
                .voter = true,
                .promised = 77 << 6 | 2,
                .accepted = 76 << 6 | 1,
                .chosen = { .epoch = 4, .n_owners = 3, .node = { 2, 0, 1 }, .before = { 5, 7 } },
                .value = { .epoch = 5,
                           .n_owners = 2,
                           .node = { 0, 2 },
                           .before = { 7, 5, [BALLOTS_BEFORE - 1] = 2 },
                           .older = 6,
                           .dead = 2 },
        };
}

static bool equal(const struct ballots_record *a, const struct ballots_record *b)
{
        return a->voter == b->voter && a->promised == b->promised && a->accepted == b->accepted &&
               memcmp(&a->chosen, &b->chosen, sizeof a->chosen) == 0 &&
               memcmp(&a->value, &b->value, sizeof a->value) == 0;
}

static struct ballots_place ballots_of(const char *in, const uint8_t (*of)[BALLOTS_CLUSTER])
{
        return (struct ballots_place){
                .directory = in, .node = "a", .clusters = of, .n_clusters = 1
        };
}

static int try_open(const uint8_t (*of)[BALLOTS_CLUSTER], struct ballots_record *ret,
                    bool *ret_found, struct fault *fault)
{
        struct ballots *b = NULL;
        const struct ballots_place place = ballots_of(directory, of);
        int r = ballots_open(&place, &b, ret, ret_found, fault);

        cr_assert_eq(r == 0, b != NULL);
        ballots_close(b);
        return r;
}

static void keep(const struct ballots_record *record)
{
        struct ballots_record was;
        struct ballots *b;
        struct fault fault;
        bool found;

        const struct ballots_place place = ballots_of(directory, &cluster);
        cr_assert_eq(ballots_open(&place, &b, &was, &found, &fault), 0, "%s", fault.text);
        cr_assert_eq(ballots_write(b, record), 0);
        ballots_close(b);
}

static size_t file_bytes(uint8_t *bytes, size_t most)
{
        char path[256];

        snprintf(path, sizeof path, "%s/a.votes", directory);
        int fd = open(path, O_RDONLY);
        ssize_t n = read(fd, bytes, most);

        close(fd);
        cr_assert(n > 0 && (size_t)n < most);
        return (size_t)n;
}

static void file_set(const uint8_t *bytes, size_t n)
{
        char path[256];

        snprintf(path, sizeof path, "%s/a.votes", directory);
        int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0600);

        cr_assert_eq(write(fd, bytes, n), (ssize_t)n);
        close(fd);
}

Test(ballots, are_not_there_at_first)
{
        struct ballots_record r;
        struct fault fault;
        bool found = true;

        cr_assert_eq(try_open(&cluster, &r, &found, &fault), 0);
        cr_assert_not(found);
}

Test(ballots, are_read_as_they_were_written)
{
        struct ballots_record r, s = sample();
        struct fault fault;
        bool found = false;

        for (uint32_t i = 0; i < 3; i++) {
                s.promised += 64;
                s.voter = !s.voter;
                keep(&s);
                cr_assert_eq(try_open(&cluster, &r, &found, &fault), 0, "%s", fault.text);
                cr_assert(found && equal(&r, &s));
        }
}

Test(ballots, make_their_directory_with_all_above_it)
{
        struct ballots_record r;
        struct ballots *b;
        struct fault fault;
        struct stat st;
        char path[256], middle[256];
        bool found;

        snprintf(middle, sizeof middle, "%s/x", directory);
        snprintf(path, sizeof path, "%s/x/y", directory);
        const struct ballots_place place = ballots_of(path, &cluster);
        cr_assert_eq(ballots_open(&place, &b, &r, &found, &fault), 0, "%s", fault.text);
        ballots_close(b);
        cr_assert_eq(stat(path, &st), 0);
        cr_assert_eq(st.st_mode & 07777, 0700);
        rmdir(path);
        rmdir(middle);
}

Test(ballots, each_flipped_bit_is_found)
{
        const struct ballots_record s = sample();
        struct ballots_record r;
        struct fault fault;
        uint8_t bytes[2048];
        bool found;

        keep(&s);
        size_t n = file_bytes(bytes, sizeof bytes);
        for (size_t i = 0; i < 8 * n; i++) {
                bytes[i / 8] ^= (uint8_t)(1 << i % 8);
                file_set(bytes, n);
                cr_assert_eq(try_open(&cluster, &r, &found, &fault), ZERO_EIO, "bit %zu", i);
                cr_assert(strstr(fault.text, "cannot be used") && strstr(fault.text, directory));
                bytes[i / 8] ^= (uint8_t)(1 << i % 8);
        }
}

Test(ballots, another_length_is_found)
{
        const struct ballots_record s = sample();
        struct ballots_record r;
        struct fault fault;
        uint8_t bytes[2048] = { 0 };
        bool found;

        keep(&s);
        size_t n = file_bytes(bytes, sizeof bytes);
        bytes[n] = 0;
        for (size_t i = 0; i <= n + 1; i++) {
                file_set(bytes, i);
                cr_assert_eq(try_open(&cluster, &r, &found, &fault), i == n ? 0 : ZERO_EIO);
        }
}

Test(ballots, of_another_cluster_are_refused)
{
        const struct ballots_record s = sample();
        struct ballots_record r;
        struct fault fault;
        bool found;

        keep(&s);
        cr_assert_eq(try_open(&other, &r, &found, &fault), ZERO_EIO);
        cr_assert(strstr(fault.text, "another cluster"));
        cr_assert_eq(try_open(&cluster, &r, &found, &fault), 0);
        cr_assert(found && equal(&r, &s));
}

Test(ballots, of_another_cluster_that_never_voted_count_for_nothing)
{
        const struct ballots_record s = { .voter = true, .chosen = { .n_owners = 1 } };
        struct ballots_record r;
        struct fault fault;
        bool found = true;

        keep(&s);
        cr_assert_eq(try_open(&other, &r, &found, &fault), 0);
        cr_assert_not(found);
}

Test(ballots, by_which_states_are_cut_are_refused_without_a_vote)
{
        const struct ballots_record s = { .voter = true, .chosen = { .n_owners = 1 } };
        struct ballots_place place = ballots_of(directory, &other);
        struct ballots_record r;
        struct ballots *b;
        struct fault fault;
        bool found;

        keep(&s);
        place.states = true;
        cr_assert_eq(ballots_open(&place, &b, &r, &found, &fault), ZERO_EIO);
        cr_assert(strstr(fault.text, "the end of `peers`"));
}

Test(ballots, of_the_cluster_before_it_grew_count)
{
        static const uint8_t grown[][BALLOTS_CLUSTER] = { { 1, 2, 4 }, { 1, 2, 3 } };
        const struct ballots_record s = sample();
        struct ballots_place place = ballots_of(directory, grown);
        struct ballots_record r;
        struct ballots *b;
        struct fault fault;
        bool found = false;

        place.n_clusters = 2;
        keep(&s);
        cr_assert_eq(ballots_open(&place, &b, &r, &found, &fault), 0, "%s", fault.text);
        cr_assert(found && equal(&r, &s));
        cr_assert_eq(ballots_write(b, &r), 0);
        ballots_close(b);
        cr_assert_eq(try_open(&cluster, &r, &found, &fault), ZERO_EIO, "it is the grown one's now");
}

Test(ballots, that_others_can_write_are_refused)
{
        const struct ballots_record s = sample();
        struct ballots_record r;
        struct fault fault;
        char path[256];
        bool found;

        keep(&s);
        snprintf(path, sizeof path, "%s/a.votes", directory);
        chmod(path, 0620);
        cr_assert_eq(try_open(&cluster, &r, &found, &fault), ZERO_EIO);
        chmod(path, 0600);
        chmod(directory, 0720);
        cr_assert_eq(try_open(&cluster, &r, &found, &fault), ZERO_EPERM);
        chmod(directory, 0700);
}

Test(ballots, a_write_that_was_broken_off_changes_nothing)
{
        const struct ballots_record s = sample();
        struct ballots_record r;
        struct fault fault;
        char path[256];
        bool found;

        keep(&s);
        snprintf(path, sizeof path, "%s/.a.votes.new", directory);
        int fd = open(path, O_WRONLY | O_CREAT, 0600);
        cr_assert_eq(write(fd, "half", 4), 4);
        close(fd);
        cr_assert_eq(try_open(&cluster, &r, &found, &fault), 0);
        cr_assert(found && equal(&r, &s));
        keep(&s);
        cr_assert_eq(access(path, F_OK), -1);
}
