/*
 * The daemon's log: one line for each event, on standard error.  A line begins with systemd's
 * priority prefix (<3>) if $JOURNAL_STREAM says that the journal reads it, otherwise with time and
 * level.  An error is logged once, where it stops, and says what a person should do.  Control
 * characters and bytes from outside are escaped.  Any thread.
 *
 * A line that a user can cause again and again is logged on behalf of that user (log_..._for).  If
 * there are many in a short time the log leaves some out and says how many (log_limit.h).
 */
#pragma once

#include <stdint.h>

enum log_level {
        LOG_LEVEL_ERROR = 3,
        LOG_LEVEL_WARNING = 4,
        LOG_LEVEL_INFO = 6,
        LOG_LEVEL_DEBUG = 7
};

void log_set_level(enum log_level level);
void log_write(enum log_level level, const char *format, ...) __attribute__((format(printf, 2, 3)));
void log_write_for(uint32_t user, enum log_level level, const char *format, ...)
        __attribute__((format(printf, 3, 4)));
/* Logs how many lines were left out, if any; to be called now and then. */
void log_tick(void);

#define log_error(...) log_write(LOG_LEVEL_ERROR, __VA_ARGS__)
#define log_warning(...) log_write(LOG_LEVEL_WARNING, __VA_ARGS__)
#define log_info(...) log_write(LOG_LEVEL_INFO, __VA_ARGS__)
#define log_error_for(user, ...) log_write_for(user, LOG_LEVEL_ERROR, __VA_ARGS__)
#define log_warning_for(user, ...) log_write_for(user, LOG_LEVEL_WARNING, __VA_ARGS__)
#define log_info_for(user, ...) log_write_for(user, LOG_LEVEL_INFO, __VA_ARGS__)
#define log_debug(...) log_write(LOG_LEVEL_DEBUG, __VA_ARGS__)
