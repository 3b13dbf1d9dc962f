/*
 * How many lines one user may have the daemon write: LOG_LIMIT_LINES of each message in
 * LOG_LIMIT_MS.  Of those behind them only the number is told, in one line.
 * Pure: the caller tells the time, and writes.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { LOG_LIMIT_LINES = 50, LOG_LIMIT_MS = 10000, LOG_LIMIT_KEYS = 64, LOG_LIMIT_TEXT = 200 };

struct log_limit {
        struct log_key {
                const char *message; /* its format; NULL: not in use */
                uint32_t user;
                uint64_t since_ms;
                uint32_t written, left_out;
                char last[LOG_LIMIT_TEXT]; /* of those left out */
        } keys[LOG_LIMIT_KEYS];
};

/*
 * Whether a line is to be written.  The key that it takes may have been another's, whose lines are
 * told first: ret_told as log_limit_over(), empty if there are none.
 */
bool log_limit_pass(struct log_limit *limit, const char *message, uint32_t user, const char *text,
                    uint64_t now_ms, char ret_told[static LOG_LIMIT_TEXT + 100]);
/* The lines left out by a key whose time is over, in words; false: there is none (any more). */
bool log_limit_over(struct log_limit *limit, uint64_t now_ms,
                    char ret_told[static LOG_LIMIT_TEXT + 100]);
