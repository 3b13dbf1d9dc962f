/* What the holder of a descriptor can and cannot do with a segment. */
#include <criterion/criterion.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "daemon/compute/device/segment/segment.h"

enum { BYTES = 3 * 4096 + 100, NOBODY = 65534 };

static struct segment make(unsigned flags)
{
        struct segment s;
        struct fault fault;

        cr_assert_eq(segment_new("test", BYTES, flags, &s, &fault), 0);
        return s;
}

static bool maps(int fd, int protection)
{
        void *p = mmap(NULL, BYTES, protection, MAP_SHARED, fd, 0);

        if (p != MAP_FAILED)
                munmap(p, BYTES);
        return p != MAP_FAILED;
}

/* Opens the descriptor's file again through /proc; -1 if refused. */
static int reopen(int fd, int flags)
{
        char path[64];

        snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
        return open(path, flags | O_CLOEXEC);
}

Test(segment, is_of_the_size_asked_for_and_zero)
{
        struct segment s = make(SEGMENT_READ_ONLY);
        struct stat st;

        cr_assert_eq(fstat(s.fd, &st), 0);
        cr_assert_eq(st.st_size, BYTES);
        cr_assert_eq(st.st_mode & 07777, 0600);
        cr_assert_eq(fcntl(s.fd, F_GETFD), FD_CLOEXEC);
        for (size_t i = 0; i < BYTES; i++)
                cr_assert_eq(((char *)s.data)[i], 0);
        segment_free(&s);
}

Test(segment, this_mapping_writes_and_a_reader_sees_it)
{
        struct segment s = make(SEGMENT_READ_ONLY);
        char *reader = mmap(NULL, BYTES, PROT_READ, MAP_SHARED, s.fd, 0);

        cr_assert_neq(reader, MAP_FAILED);
        ((char *)s.data)[BYTES - 1] = 'x';
        cr_assert_eq(reader[BYTES - 1], 'x');
        munmap(reader, BYTES);
        segment_free(&s);
}

Test(segment, read_only_cannot_be_written_through_the_descriptor)
{
        struct segment s = make(SEGMENT_READ_ONLY);

        cr_assert(!maps(s.fd, PROT_READ | PROT_WRITE));
        cr_assert_eq(pwrite(s.fd, "x", 1, 0), -1);
        cr_assert_eq(fallocate(s.fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, 4096), -1);
        segment_free(&s);
}

Test(segment, read_only_cannot_be_reopened_for_writing_by_the_same_user)
{
        struct segment s = make(SEGMENT_READ_ONLY);
        int fd = reopen(s.fd, O_RDWR);

        cr_assert(fd < 0 || (!maps(fd, PROT_READ | PROT_WRITE) && pwrite(fd, "x", 1, 0) < 0));
        if (fd >= 0)
                close(fd);
        segment_free(&s);
}

/* Bits of what another user could do with a read-only mapping's protection and a reopened
 * descriptor. */
static int try_as_nobody(int fd)
{
        int done = 0;

        if (setgid(NOBODY) || setuid(NOBODY))
                return 64;
        int again = reopen(fd, O_RDWR);
        done |= again >= 0 && maps(again, PROT_READ | PROT_WRITE);
        done |= (again >= 0 && pwrite(again, "x", 1, 0) == 1) << 1;
        done |= (reopen(fd, O_RDONLY) >= 0) << 2;
        void *p = mmap(NULL, BYTES, PROT_READ, MAP_SHARED, fd, 0);
        done |= (p == MAP_FAILED) << 3;
        done |= (mprotect(p, BYTES, PROT_READ | PROT_WRITE) == 0) << 4;
        return done;
}

Test(segment, read_only_can_be_read_and_not_written_by_another_user)
{
        if (geteuid() != 0)
                cr_skip_test("only root can become another user");
        struct segment s = make(SEGMENT_READ_ONLY);
        int status;

        pid_t pid = fork();
        if (pid == 0)
                _exit(try_as_nobody(s.fd));
        cr_assert_eq(waitpid(pid, &status, 0), pid);
        cr_assert(WIFEXITED(status));
        cr_assert_eq(WEXITSTATUS(status), 0, "%d", WEXITSTATUS(status));
        segment_free(&s);
}

Test(segment, shared_can_be_written_through_the_descriptor)
{
        struct segment s = make(SEGMENT_SHARED);
        char *writer = mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, s.fd, 0);

        cr_assert_neq(writer, MAP_FAILED);
        writer[5] = 'x';
        cr_assert_eq(((char *)s.data)[5], 'x');
        munmap(writer, BYTES);
        segment_free(&s);
}

Test(segment, no_kind_can_be_resized_or_sealed_further)
{
        static const unsigned kinds[] = { SEGMENT_SHARED, SEGMENT_READ_ONLY,
                                          SEGMENT_SHARED | SEGMENT_SPARSE };

        for (int k = 0; k < 3; k++) {
                struct segment s = make(kinds[k]);

                cr_assert_eq(ftruncate(s.fd, BYTES - 4096), -1);
                cr_assert_eq(ftruncate(s.fd, BYTES + 4096), -1);
                cr_assert_eq(fcntl(s.fd, F_ADD_SEALS, F_SEAL_WRITE), -1);
                segment_free(&s);
        }
}

Test(segment, sparse_takes_memory_as_it_is_touched)
{
        struct segment s;
        struct stat st;

        cr_assert_eq(segment_new("test", UINT64_C(1) << 40, SEGMENT_SPARSE, &s, NULL), 0);
        ((char *)s.data)[UINT64_C(1) << 39] = 'x';
        cr_assert_eq(fstat(s.fd, &st), 0);
        cr_assert_leq(st.st_blocks, 4096); /* one page, be it a huge one */
        segment_free(&s);
}

Test(segment, more_than_there_is_is_refused)
{
        struct segment s = { .fd = -1 };
        struct fault fault;

        cr_assert_eq(segment_new("test", UINT64_MAX, 0, &s, &fault), ZERO_ESHM);
        cr_assert(strstr(fault.text, "18446744073709551615"));
        cr_assert_eq(s.fd, -1);
}

Test(segment, free_accepts_what_was_freed)
{
        struct segment s = make(SEGMENT_SHARED);

        segment_free(&s);
        segment_free(&s);
        cr_assert_eq(s.fd, -1);
}
