/* A file comes through windows and the page cache with the same bytes. */
#include <criterion/criterion.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
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

static void expect(struct file_reader *r, uint64_t at, size_t bytes)
{
        uint64_t end = at + bytes < SIZE ? at + bytes : SIZE;

        for (ssize_t n; at < end; at += (uint64_t)n) {
                n = file_reader_read(r, read_to, bytes, at);
                cr_assert(n > 0 && at + (uint64_t)n <= end, "%zd bytes at %llu", n,
                          (unsigned long long)at);
                cr_assert_eq(memcmp(read_to, data + at, (size_t)n), 0, "at %llu",
                             (unsigned long long)at);
                bytes = end - at - (uint64_t)n < STEP ? end - at - (uint64_t)n : STEP;
        }
}

static void expect_all(int fd, uint64_t end)
{
        struct file_reader r;

        file_reader_open(&r, fd, end);
        for (uint64_t at = 13; at < SIZE; at += STEP)
                expect(&r, at, STEP);
        cr_assert_eq(file_reader_read(&r, read_to, 1, SIZE), 0);
        for (uint64_t i = 1; i < 40; i++) /* to and fro */
                expect(&r, i * 7919 * 104729 % SIZE, STEP);
        file_reader_close(&r);
        close(fd);
        free(data);
}

Test(file_reader, bytes_around_the_page_cache)
{
        expect_all(file_of_data(), SIZE);
}

Test(file_reader, bytes_of_the_page_cache)
{
        int fd = file_of_data();

        for (uint64_t at = 0; at < SIZE; at += STEP)
                cr_assert(pread(fd, read_to, STEP, (off_t)at) > 0);
        expect_all(fd, SIZE);
}

Test(file_reader, bytes_that_the_page_cache_has_in_part)
{
        int fd = file_of_data();

        cr_assert(pread(fd, read_to, STEP, READER_WINDOW + 5) > 0);
        expect_all(fd, SIZE);
}

Test(file_reader, bytes_of_a_file_of_another_kind)
{
        expect_all(file_of_data(), 0);
}

Test(file_reader, a_file_that_became_shorter_ends_there)
{
        int fd = file_of_data();
        struct file_reader r;

        cr_assert_eq(ftruncate(fd, READER_WINDOW + 10), 0);
        file_reader_open(&r, fd, SIZE);
        cr_assert_eq(file_reader_read(&r, read_to, 100, READER_WINDOW), 10);
        cr_assert_eq(file_reader_read(&r, read_to, 100, READER_WINDOW + 10), 0);
        cr_assert_eq(file_reader_read(&r, read_to, 100, 3 * READER_WINDOW), 0);
        file_reader_close(&r);
        close(fd);
        free(data);
}

Test(file_reader, takes_no_pages_of_the_page_cache)
{
        int fd = file_of_data();
        unsigned char in_memory[SIZE / PAGE + 1];
        size_t n = 0;
        struct file_reader r;
        void *map;

        if (fcntl(fd, F_SETFL, O_DIRECT))
                cr_skip_test("the file system of /var/tmp has no direct reads");
        cr_assert_eq(fcntl(fd, F_SETFL, 0), 0);
        file_reader_open(&r, fd, SIZE);
        expect(&r, 0, STEP);
        expect(&r, 4 * READER_WINDOW, STEP);
        file_reader_close(&r);
        map = mmap(NULL, SIZE, PROT_READ, MAP_SHARED, fd, 0);
        cr_assert_eq(mincore(map, SIZE, in_memory), 0);
        for (size_t i = 0; i < sizeof in_memory; i++)
                n += in_memory[i] & 1;
        cr_assert_lt(n, READER_WINDOW / PAGE, "%zu pages", n);
        munmap(map, SIZE);
        close(fd);
        free(data);
}

Test(file_reader, reads_ahead_of_who_goes_on_and_not_after_a_jump)
{
        int fd = file_of_data();
        struct file_reader r;

        file_reader_open(&r, fd, SIZE);
        if (r.direct < 0)
                cr_skip_test("the file system of /var/tmp has no direct reads");
        expect(&r, 0, STEP);
        expect(&r, 4 * (uint64_t)READER_WINDOW, STEP);
        cr_assert_neq(r.windows[5 % READER_WINDOWS].at, 5 * (uint64_t)READER_WINDOW);
        expect(&r, 4 * (uint64_t)READER_WINDOW + STEP, STEP);
        cr_assert_eq(r.windows[5 % READER_WINDOWS].at, 5 * (uint64_t)READER_WINDOW);
        file_reader_close(&r);
        close(fd);
        free(data);
}
