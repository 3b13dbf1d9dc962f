/*
 * How many lines one user can cause: LOG_LIMIT_LINES of each message in LOG_LIMIT_MS.  The rest is
 * left out, and one line says how many.  Pure: the caller passes the time, and writes the lines.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { LOG_LIMIT_LINES = 50, LOG_LIMIT_MS = 10000, LOG_LIMIT_KEYS = 64, LOG_LIMIT_TEXT = 200 };

struct log_limit {
        struct log_key {
                const char *message; /* the format; NULL: the key is not in use */
                uint32_t user;
                uint64_t since_ms;
                uint32_t written, left_out;
                char last[LOG_LIMIT_TEXT]; /* the last line that was left out */
        } keys[LOG_LIMIT_KEYS];
};

/*
 * Whether to write the line.  The line may take the key of another message; ret_told then counts
 * the lines that key left out, as in log_limit_over(), and is empty if there are none.
 */
bool log_limit_pass(struct log_limit *limit, const char *message, uint32_t user, const char *text,
                    uint64_t now_ms, char ret_told[static LOG_LIMIT_TEXT + 100]);
/* Takes a key whose time is over, and puts the number of lines it left out into words.  False:
 * there is no such key (any more). */
bool log_limit_over(struct log_limit *limit, uint64_t now_ms,
                    char ret_told[static LOG_LIMIT_TEXT + 100]);
