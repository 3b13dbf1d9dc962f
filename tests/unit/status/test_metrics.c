/* The text of /metrics: labels, kinds and what is left out. */
#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/face/status/status.h"

/* clang-format off */
#define PART(F, R)                                            \
        F(text, name, "name", LABEL("part"))                  \
        F(number, n, "how many", COUNTER("parts_total"))      \
        F(counts, bytes, "bytes", GAUGE("part_bytes"))

#define ALL(F, R)                                             \
        F(text, state, "state", INFO("state_info"))           \
        F(real, age_s, "age", GAUGE("age_seconds"))           \
        F(flag, up, "it is up", GAUGE("up"))                  \
        F(number, plain, "no metric")                         \
        R(list, part, parts, "parts", GAUGE("parts"))         \
        R(maybe, part, more, "one more")
/* clang-format on */

RECORD_DECLARE(part, PART)
RECORD_DECLARE(all, ALL)
RECORD_DEFINE(part, PART)
RECORD_DEFINE(all, ALL)

static void is_text(const struct all *all, enum metrics_format format, const char *expected)
{
        size_t n = 0;
        char *text = metrics_text(all_type(), all, format, &n);

        cr_assert_str_eq(text, expected);
        cr_assert_eq(n, strlen(expected));
        free(text);
}

static struct record_count counts[] = { { "a", 1 }, { "b", RECORD_NULL } };
static struct part parts[] = { { "x", 7, { 2, counts } }, { "y", RECORD_NULL, { 0 } } };

Test(metrics, classic)
{
        struct all all = {
                .state = "on", .age_s = 0.5, .up = true, .plain = 3, .parts = { 2, parts }
        };

        is_text(&all, METRICS_CLASSIC,
                "# HELP zerod_state_info state\n# TYPE zerod_state_info gauge\n"
                "zerod_state_info{state=\"on\"} 1\n"
                "# HELP zerod_age_seconds age\n# TYPE zerod_age_seconds gauge\n"
                "zerod_age_seconds{} 0.5\n"
                "# HELP zerod_up it is up\n# TYPE zerod_up gauge\nzerod_up{} 1\n"
                "# HELP zerod_parts parts\n# TYPE zerod_parts gauge\nzerod_parts{} 2\n"
                "# HELP zerod_parts_total how many\n# TYPE zerod_parts_total counter\n"
                "zerod_parts_total{part=\"x\"} 7\n"
                "# HELP zerod_part_bytes bytes\n# TYPE zerod_part_bytes gauge\n"
                "zerod_part_bytes{part=\"x\",kind=\"a\"} 1\n");
}

Test(metrics, openmetrics_and_null)
{
        struct all all = { .age_s = NAN };

        is_text(&all, METRICS_OPEN,
                "# HELP zerod_state state\n# TYPE zerod_state info\n"
                "# HELP zerod_age_seconds age\n# TYPE zerod_age_seconds gauge\n"
                "# HELP zerod_up it is up\n# TYPE zerod_up gauge\nzerod_up{} 0\n"
                "# HELP zerod_parts parts\n# TYPE zerod_parts gauge\nzerod_parts{} 0\n"
                "# HELP zerod_parts how many\n# TYPE zerod_parts counter\n"
                "# HELP zerod_part_bytes bytes\n# TYPE zerod_part_bytes gauge\n# EOF\n");
}

/* A name from outside cannot leave its quotes, and is bounded. */
Test(metrics, hostile_labels)
{
        char longest[5000];
        struct part part = { "a\"} 1\nevil{x=\"\\", 1, { 0 } };
        struct all all = { .age_s = NAN, .more = &part };
        char *text;
        size_t n;

        text = metrics_text(all_type(), &all, METRICS_CLASSIC, &n);
        cr_assert(strstr(text, "zerod_parts_total{part=\"a\\\"} 1\\nevil{x=\\\"\\\\\"} 1\n"));
        free(text);
        memset(longest, '"', sizeof longest);
        longest[sizeof longest - 1] = '\0';
        part.name = longest;
        text = metrics_text(all_type(), &all, METRICS_CLASSIC, &n);
        cr_assert_lt(n, 1500);
        free(text);
}
