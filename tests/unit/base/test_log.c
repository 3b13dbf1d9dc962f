/* The log: one line an event, and no outside text can forge a line. */
#include <criterion/criterion.h>

#include "daemon/floor/base/log.h"

#include <errno.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static int reader;

/* Standard error becomes a pipe; each test is a process of its own. */
static void capture(void)
{
        int fds[2];

        cr_assert_eq(pipe(fds), 0);
        cr_assert_geq(dup2(fds[1], STDERR_FILENO), 0);
        close(fds[1]);
        reader = fds[0];
        unsetenv("JOURNAL_STREAM");
}

/* All that was written, at most 64 KiB. */
static const char *captured(void)
{
        static char text[65536];
        size_t n = 0;
        ssize_t k;

        close(STDERR_FILENO);
        while ((k = read(reader, text + n, sizeof(text) - 1 - n)) > 0)
                n += (size_t)k;
        return text;
}

static size_t count(const char *text, char c)
{
        size_t n = 0;

        for (; *text; text++)
                n += *text == c;
        return n;
}

Test(log, time_level_and_text, .init = capture)
{
        int year, ms, end = 0;

        log_info("node %s of %d", "a", 2);
        const char *text = captured();
        cr_assert_eq(sscanf(text, "%d-%*d-%*dT%*d:%*d:%*d.%3dZ %n", &year, &ms, &end), 2);
        cr_assert_str_eq(text + end, "info: node a of 2\n");
}

Test(log, levels_below_are_left_out, .init = capture)
{
        log_debug("1");
        log_set_level(LOG_LEVEL_WARNING);
        log_info("2");
        log_warning("3");
        log_error("4");
        const char *text = captured();
        cr_assert_eq(count(text, '\n'), 2);
        cr_assert(strstr(text, "warning: 3\n") && strstr(text, "error: 4\n"));
}

Test(log, no_forged_lines, .init = capture)
{
        log_info("a\nb\r\x1b[31m\x7f\\");
        const char *text = captured();
        cr_assert_eq(count(text, '\n'), 1);
        cr_assert(strstr(text, "info: a\\x0ab\\x0d\\x1b[31m\\x7f\\\\\n"));
}

Test(log, utf8_stays_and_broken_utf8_does_not, .init = capture)
{
        log_info("gr\xc3\xbc\xc3\x9f");
        log_info("gr\xc3");
        log_info("\xc3(");
        const char *text = captured();
        cr_assert(strstr(text, "info: gr\xc3\xbc\xc3\x9f\n"));
        cr_assert(strstr(text, "info: gr\n"), "a character cut at the end is dropped");
        cr_assert(strstr(text, "info: \\xc3(\n"));
}

Test(log, long_lines_are_cut_with_a_mark, .init = capture)
{
        static char x[10000], y[10000];

        memset(x, 'x', sizeof(x) - 1);
        memset(y, 1, sizeof(y) - 1);
        log_info("%s", x);
        log_info("%s", y);
        const char *text = captured();
        const char *first_end = strchr(text, '\n');
        cr_assert_eq(count(text, '\n'), 2);
        cr_assert_lt(strlen(text), 2 * 2048);
        cr_assert_eq(memcmp(first_end - 4, "x...", 4), 0);
        cr_assert_str_eq(text + strlen(text) - 8, "\\x01...\n");
}

Test(log, errno_is_kept, .init = capture)
{
        errno = ENOSPC;
        log_info("x");
        cr_assert_eq(errno, ENOSPC);
}

Test(log, journal_gets_priorities, .init = capture)
{
        struct stat st;
        char stream[64];

        fstat(STDERR_FILENO, &st);
        snprintf(stream, sizeof(stream), "%ju:%ju", (uintmax_t)st.st_dev, (uintmax_t)st.st_ino);
        setenv("JOURNAL_STREAM", stream, 1);
        log_error("x");
        cr_assert_str_eq(captured(), "<3>x\n");
}

Test(log, journal_of_somebody_else_does_not_count, .init = capture)
{
        setenv("JOURNAL_STREAM", "1:1", 1);
        log_error("x");
        cr_assert(strstr(captured(), "Z error: x\n"));
}

static void *write_lines(void *arg)
{
        for (int i = 0; i < 50; i++)
                log_info("%s", (const char *)arg);
        return NULL;
}

Test(log, lines_of_threads_do_not_mix, .init = capture)
{
        pthread_t a, b;

        pthread_create(&a, NULL, write_lines, "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa");
        pthread_create(&b, NULL, write_lines, "bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb");
        pthread_join(a, NULL);
        pthread_join(b, NULL);
        const char *text = captured();
        for (const char *p = text; *p; p = strchr(p, '\n') + 1) {
                const char *line = strstr(p, "info: ") + strlen("info: ");

                cr_assert_eq(strcspn(line, "\n"), 32);
                cr_assert_eq(strspn(line, line[0] == 'a' ? "a" : "b"), 32);
        }
        cr_assert_eq(count(text, '\n'), 100);
}
