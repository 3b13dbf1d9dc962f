/*
 * The daemon's log: one line an event, to standard error, with systemd's priority
 * prefix (<3>) where $JOURNAL_STREAM says the journal reads it, else with time and
 * level.  An error is logged once, where it stops, with what a person should do.
 * Control characters and bytes from outside are escaped.  Any thread.
 */
#pragma once

enum log_level {
        LOG_LEVEL_ERROR = 3,
        LOG_LEVEL_WARNING = 4,
        LOG_LEVEL_INFO = 6,
        LOG_LEVEL_DEBUG = 7
};

void log_set_level(enum log_level level);
void log_write(enum log_level level, const char *format, ...) __attribute__((format(printf, 2, 3)));

#define log_error(...) log_write(LOG_LEVEL_ERROR, __VA_ARGS__)
#define log_warning(...) log_write(LOG_LEVEL_WARNING, __VA_ARGS__)
#define log_info(...) log_write(LOG_LEVEL_INFO, __VA_ARGS__)
#define log_debug(...) log_write(LOG_LEVEL_DEBUG, __VA_ARGS__)
