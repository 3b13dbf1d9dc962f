/* Which of a user's lines are written, by a clock of the test's own. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>

#include "daemon/floor/base/log_limit.h"

static struct log_limit limit;
static const char one[] = "one %s", two[] = "two %s";
static char told[LOG_LIMIT_TEXT + 100];

/* The number of n lines that are written. */
static unsigned written(const char *message, uint32_t user, unsigned n, uint64_t now_ms)
{
        unsigned passed = 0;
        char text[40];

        for (unsigned i = 0; i < n; i++) {
                snprintf(text, sizeof text, "line %u", i);
                passed += log_limit_pass(&limit, message, user, text, now_ms, told);
        }
        return passed;
}

Test(log_limit, each_user_and_message_has_its_own)
{
        cr_assert_eq(written(one, 1, 1000, 5), LOG_LIMIT_LINES);
        cr_assert_eq(written(two, 1, 1000, 5), LOG_LIMIT_LINES);
        cr_assert_eq(written(one, 2, 7, 5), 7);
}

Test(log_limit, lines_left_out_are_counted_when_the_time_is_over)
{
        written(one, 1, LOG_LIMIT_LINES + 3, 5);
        cr_assert(!log_limit_over(&limit, 4 + LOG_LIMIT_MS, told));
        cr_assert(log_limit_over(&limit, 5 + LOG_LIMIT_MS, told));
        cr_assert(strstr(told, "3 more lines on behalf of user 1 "), "%s", told);
        cr_assert(strstr(told, "line 52"), "%s", told);
        cr_assert(!log_limit_over(&limit, 5 + LOG_LIMIT_MS, told));
}

Test(log_limit, lines_left_out_are_counted_by_the_next_line_of_their_kind)
{
        written(one, 1, LOG_LIMIT_LINES + 3, 5);
        cr_assert(log_limit_pass(&limit, one, 1, "", 5 + LOG_LIMIT_MS, told));
        cr_assert(strstr(told, "3 more lines"), "%s", told);
        cr_assert(log_limit_pass(&limit, one, 1, "", 5 + LOG_LIMIT_MS, told));
        cr_assert_str_eq(told, "");
}

Test(log_limit, lines_left_out_are_counted_when_their_place_is_taken)
{
        unsigned tells = 0;

        written(one, 0, LOG_LIMIT_LINES + 3, 5);
        for (uint32_t user = 1; user <= LOG_LIMIT_KEYS; user++) {
                cr_assert(log_limit_pass(&limit, one, user, "", 6, told));
                tells += told[0] != '\0';
        }
        cr_assert_eq(tells, 1);
}
