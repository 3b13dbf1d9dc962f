/* A file comes through windows and the page cache with the same bytes, and nobody waits in a read.
 */
#include <criterion/criterion.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include "client/lib/file_reader.h"

enum { SIZE = 5 * READER_WINDOW + 4321, PAGE = 4096, STEP = 700001 };

static uint8_t *data, read_to[STEP];

/* Not in the page cache. */
static int file_of_data(void)
{
        char path[] = "/var/tmp/zerod-test-XXXXXX";
        int fd = mkstemp(path);

        cr_assert(fd >= 0 && unlink(path) == 0);
        data = malloc(SIZE);
        for (uint32_t i = 0; i < SIZE; i++)
                data[i] = (uint8_t)(i * 2654435761u >> 23);
        cr_assert_eq(pwrite(fd, data, SIZE, 0), SIZE);
        cr_assert_eq(fsync(fd), 0);
        cr_assert_eq(posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED), 0);
        return fd;
}

/* Of the process: holds the thread's reads back. */
static pthread_mutex_t disk = PTHREAD_MUTEX_INITIALIZER;
/* The disk has nothing from here on; a read that begins before comes back short. */
static off_t broken_from = INT64_MAX;

ssize_t pread(int fd, void *to, size_t bytes, off_t at)
{
        ssize_t n;

        pthread_mutex_lock(&disk);
        if (at >= broken_from) {
                errno = EIO;
                n = -1;
        } else {
                if ((off_t)bytes > broken_from - at)
                        bytes = (size_t)(broken_from - at);
                n = syscall(SYS_pread64, fd, to, bytes, at);
        }
        pthread_mutex_unlock(&disk);
        return n;
}

static enum { CACHE_OF_THE_KERNEL, CACHE_OF_NOTHING, CACHE_OF_SINGLE_BYTES } cache;

ssize_t preadv2(int fd, const struct iovec *to, int n, off_t at, int flags)
{
        if (cache == CACHE_OF_SINGLE_BYTES && to->iov_len == 1)
                return pread(fd, to->iov_base, 1, at);
        if (cache == CACHE_OF_THE_KERNEL)
                return syscall(SYS_preadv2, fd, to, n, at, 0L, flags);
        errno = EAGAIN;
        return -1;
}

static struct file_reader *reader_of(int fd, uint64_t end)
{
        struct file_reader *r = NULL;

        cr_assert_eq(file_reader_open(fd, end, &r), 0);
        return r;
}

static ssize_t read_some(struct file_reader *r, size_t bytes, uint64_t at)
{
        struct pollfd arrived = { .fd = r->arrived, .events = POLLIN };
        ssize_t n;

        /* once for each window that comes ahead, and twice where the page cache dropped one */
        for (int i = 0; (n = file_reader_read(r, read_to, bytes, at)) < 0 && errno == EAGAIN; i++)
                cr_assert(i < 3 * READER_WINDOWS && poll(&arrived, 1, 30000) == 1);
        return n;
}

static void expect(struct file_reader *r, uint64_t at, size_t bytes)
{
        uint64_t end = at + bytes < SIZE ? at + bytes : SIZE;

        for (ssize_t n; at < end; at += (uint64_t)n) {
                n = read_some(r, bytes, at);
                cr_assert(n > 0 && at + (uint64_t)n <= end, "%zd bytes at %llu", n,
                          (unsigned long long)at);
                cr_assert_eq(memcmp(read_to, data + at, (size_t)n), 0, "at %llu",
                             (unsigned long long)at);
                bytes = end - at - (uint64_t)n < STEP ? end - at - (uint64_t)n : STEP;
        }
}

static void expect_all(int fd)
{
        struct file_reader *r = reader_of(fd, SIZE);

        for (uint64_t at = 13; at < SIZE; at += STEP)
                expect(r, at, STEP);
        cr_assert_eq(read_some(r, 1, SIZE), 0);
        for (uint64_t i = 1; i < 40; i++) /* to and fro */
                expect(r, i * 7919 * 104729 % SIZE, STEP);
        file_reader_close(r);
        close(fd);
        free(data);
}

Test(file_reader, bytes_around_the_page_cache)
{
        expect_all(file_of_data());
}

Test(file_reader, bytes_of_the_page_cache)
{
        int fd = file_of_data();

        for (uint64_t at = 0; at < SIZE; at += STEP)
                cr_assert(pread(fd, read_to, STEP, (off_t)at) > 0);
        expect_all(fd);
}

Test(file_reader, bytes_that_the_page_cache_has_in_part)
{
        int fd = file_of_data();

        cr_assert(pread(fd, read_to, STEP, READER_WINDOW + 5) > 0);
        expect_all(fd);
}

Test(file_reader, bytes_that_the_page_cache_drops_meanwhile)
{
        cache = CACHE_OF_SINGLE_BYTES;
        expect_all(file_of_data());
}

Test(file_reader, bytes_of_a_file_without_direct_reads)
{
        int file = file_of_data(), fd = memfd_create("data", MFD_CLOEXEC);

        cr_assert_eq(write(fd, data, SIZE), SIZE);
        close(file);
        expect_all(fd);
}

Test(file_reader, a_file_that_became_shorter_ends_there)
{
        int fd = file_of_data();
        struct file_reader *r = reader_of(fd, SIZE);

        cr_assert_eq(ftruncate(fd, READER_WINDOW + 10), 0);
        cr_assert_eq(read_some(r, 100, READER_WINDOW), 10);
        cr_assert_eq(read_some(r, 100, READER_WINDOW + 10), 0);
        cr_assert_eq(read_some(r, 100, 3 * (uint64_t)READER_WINDOW), 0);
        file_reader_close(r);
        close(fd);
        free(data);
}

Test(file_reader, what_cannot_be_read_is_an_error)
{
        int fds[2];
        struct file_reader *r;

        cr_assert_eq(file_reader_open(1 << 20, 1, &r), -EBADF);
        cr_assert_eq(pipe2(fds, O_CLOEXEC), 0);
        r = reader_of(fds[0], SIZE);
        cr_assert_eq(read_some(r, 1, 0), -1);
        cr_assert_eq(errno, ESPIPE);
        file_reader_close(r);
}

Test(file_reader, an_error_behind_what_could_be_read_is_no_end)
{
        int fd = file_of_data();
        struct file_reader *r = reader_of(fd, SIZE);

        cache = CACHE_OF_NOTHING;
        broken_from = READER_WINDOW + 8192;
        cr_assert_eq(read_some(r, 100, READER_WINDOW + 8192 - 10), 10);
        cr_assert_eq(read_some(r, 100, READER_WINDOW + 8192), -1);
        cr_assert_eq(errno, EIO);
        file_reader_close(r);
        close(fd);
        free(data);
}

/* Neither a read nor the end waits; the thread takes what it needs with it. */
Test(file_reader, a_disk_that_does_not_answer_holds_nobody_up)
{
        int fd = file_of_data();
        struct file_reader *r;

        cache = CACHE_OF_NOTHING;
        pthread_mutex_lock(&disk);
        r = reader_of(fd, SIZE);
        for (int i = 0; i < 3; i++) {
                cr_assert_eq(file_reader_read(r, read_to, 1, 0), -1);
                cr_assert_eq(errno, EAGAIN);
        }
        file_reader_close(r);
        close(fd);
        pthread_mutex_unlock(&disk);
        free(data);
}

Test(file_reader, takes_no_pages_of_the_page_cache)
{
        int fd = file_of_data();
        unsigned char in_memory[SIZE / PAGE + 1];
        size_t n = 0;
        struct file_reader *r;
        void *map;

        if (fcntl(fd, F_SETFL, O_DIRECT))
                cr_skip_test("the file system of /var/tmp has no direct reads");
        cr_assert_eq(fcntl(fd, F_SETFL, 0), 0);
        r = reader_of(fd, SIZE);
        for (uint64_t at = 0; at < SIZE; at += STEP)
                expect(r, at, STEP);
        file_reader_close(r);
        map = mmap(NULL, SIZE, PROT_READ, MAP_SHARED, fd, 0);
        cr_assert_eq(mincore(map, SIZE, in_memory), 0);
        for (size_t i = 0; i < sizeof in_memory; i++)
                n += in_memory[i] & 1;
        /* a look whether a window is cached may bring a few */
        cr_assert_lt(n, READER_WINDOW / PAGE / 2, "%zu pages", n);
        munmap(map, SIZE);
        close(fd);
        free(data);
}

Test(file_reader, reads_ahead_of_who_goes_on_and_not_after_a_jump)
{
        int fd = file_of_data();
        struct file_reader *r = reader_of(fd, SIZE);
        const struct reader_window *ahead = &r->windows[5 % READER_WINDOWS];

        expect(r, 0, STEP);
        expect(r, 4 * (uint64_t)READER_WINDOW, STEP);
        cr_assert_neq(ahead->at, 5 * (uint64_t)READER_WINDOW);
        expect(r, 4 * (uint64_t)READER_WINDOW + STEP, STEP);
        cr_assert_eq(ahead->at, 5 * (uint64_t)READER_WINDOW);
        file_reader_close(r);
        close(fd);
        free(data);
}
