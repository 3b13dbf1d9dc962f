/*
 * log.c - one line for each event, on standard error.
 *
 * A line is built on the stack and written by one write(), so that lines of several threads do not
 * mix.  A line that is too long is cut and ends in "...".
 */
#include "daemon/floor/base/log.h"

#include <errno.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "daemon/floor/base/log_limit.h"
#include "proto/text.h"

enum { LOG_TEXT = 1536, LOG_LINE = 2048 };

static _Atomic int log_level_ = LOG_LEVEL_INFO;
static pthread_once_t journal_once = PTHREAD_ONCE_INIT;
static bool to_journal;
static pthread_mutex_t limit_mutex = PTHREAD_MUTEX_INITIALIZER;
static struct log_limit limit;

/* $JOURNAL_STREAM is the "device:inode" of the stream that the journal reads. */
static void journal_detect(void)
{
        const char *stream = getenv("JOURNAL_STREAM");
        unsigned long long device, inode;
        struct stat st;

        to_journal = stream && sscanf(stream, "%llu:%llu", &device, &inode) == 2 &&
                     fstat(STDERR_FILENO, &st) == 0 && st.st_dev == device && st.st_ino == inode;
}

static const char *level_name(enum log_level level)
{
        switch (level) {
        case LOG_LEVEL_ERROR:
                return "error";
        case LOG_LEVEL_WARNING:
                return "warning";
        case LOG_LEVEL_INFO:
                return "info";
        default:
                return "debug";
        }
}

static size_t write_prefix(char *line, size_t size, enum log_level level)
{
        struct timespec now;
        struct tm tm;
        char text[32];

        if (to_journal)
                return (size_t)snprintf(line, size, "<%d>", (int)level);
        clock_gettime(CLOCK_REALTIME, &now);
        gmtime_r(&now.tv_sec, &tm);
        strftime(text, sizeof(text), "%Y-%m-%dT%H:%M:%S", &tm);
        return (size_t)snprintf(line, size, "%s.%03ldZ %s: ", text, now.tv_nsec / 1000000,
                                level_name(level));
}

/*
 * Appends text and a line feed; leaves room for the mark of a cut.  If any of the text is not
 * printable UTF-8, every byte that is not ASCII becomes an escape.
 */
static size_t write_text(char *line, size_t n, size_t size, const char *text, bool cut)
{
        const bool printable = text_printable(text);
        const size_t room = size - strlen("...\n") - strlen("\\xff") - 1;

        for (; *text && n <= room; text++) {
                unsigned char c = (unsigned char)*text;

                if (c == '\\')
                        n += (size_t)sprintf(line + n, "\\\\");
                else if (printable || (c >= 0x20 && c < 0x7f))
                        line[n++] = (char)c;
                else
                        n += (size_t)sprintf(line + n, "\\x%02x", c);
        }
        return n + (size_t)sprintf(line + n, "%s\n", cut || *text ? "..." : "");
}

static void write_all(const char *line, size_t n)
{
        while (n > 0) {
                ssize_t k = write(STDERR_FILENO, line, n);

                if (k < 0 && errno == EINTR)
                        continue;
                if (k <= 0) /* nobody reads: a log line is not worth a wait */
                        return;
                line += k;
                n -= (size_t)k;
        }
}

void log_set_level(enum log_level level)
{
        atomic_store_explicit(&log_level_, (int)level, memory_order_relaxed);
}

static void write_line(enum log_level level, const char *text, bool cut)
{
        char line[LOG_LINE];
        size_t n;

        pthread_once(&journal_once, journal_detect);
        n = write_prefix(line, sizeof(line), level);
        n = write_text(line, n, sizeof(line), text, cut);
        write_all(line, n);
}

static uint64_t now_ms(void)
{
        struct timespec now;

        clock_gettime(CLOCK_MONOTONIC, &now);
        return (uint64_t)now.tv_sec * 1000 + (uint64_t)now.tv_nsec / 1000000;
}

/* Whether to write a user's line.  Before that, says how many lines the log left out, if any. */
static bool limit_pass(const char *format, uint32_t user, const char *text)
{
        char told[LOG_LIMIT_TEXT + 100];
        bool pass;

        pthread_mutex_lock(&limit_mutex);
        pass = log_limit_pass(&limit, format, user, text, now_ms(), told);
        pthread_mutex_unlock(&limit_mutex);
        if (told[0])
                write_line(LOG_LEVEL_WARNING, told, false);
        return pass;
}

void log_tick(void)
{
        char told[LOG_LIMIT_TEXT + 100];
        bool some;

        do {
                pthread_mutex_lock(&limit_mutex);
                some = log_limit_over(&limit, now_ms(), told);
                pthread_mutex_unlock(&limit_mutex);
                if (some)
                        write_line(LOG_LEVEL_WARNING, told, false);
        } while (some);
}

/* user: NULL if no user caused the line. */
static void write_formatted(enum log_level level, const uint32_t *user, const char *format,
                            va_list args)
{
        char text[LOG_TEXT];
        int saved = errno, length;

        if ((int)level > atomic_load_explicit(&log_level_, memory_order_relaxed))
                return;
        length = vsnprintf(text, sizeof(text), format, args);
        if (length < 0)
                text[0] = '\0';
        text_trim(text);
        if (!user || limit_pass(format, *user, text))
                write_line(level, text, length >= (int)sizeof(text));
        errno = saved;
}

void log_write(enum log_level level, const char *format, ...)
{
        va_list args;

        va_start(args, format);
        write_formatted(level, NULL, format, args);
        va_end(args);
}

void log_write_for(uint32_t user, enum log_level level, const char *format, ...)
{
        va_list args;

        va_start(args, format);
        write_formatted(level, &user, format, args);
        va_end(args);
}
