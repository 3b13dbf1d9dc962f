/* The nodes' answers to zeroctl doctor, compared. */
#include <criterion/criterion.h>
#include <string.h>

#include "daemon/face/rpc/query.h"

static struct cluster cluster = { .n_nodes = 2, .nodes = { { .name = "n0" }, { .name = "n1" } } };
static struct engine engine = { .cluster = &cluster };

/* What is said of the second node, whose answer is this one; "" if the check is not among it. */
static const char *state_of(const char *check, json_t *told, double clock_s, double within_s)
{
        struct examined_answer answers[ZERO_NODE_MAX] = {
                { .told = NULL }, { told, told != NULL, clock_s, within_s }
        };
        json_t *all = examined_together(&engine, answers), *finding;
        static char state[32];
        size_t i;

        state[0] = 0;
        json_array_foreach(
                json_object_get(json_array_get(json_object_get(all, "nodes"), 1), "findings"), i,
                finding)
        {
                if (strcmp(json_string_value(json_object_get(finding, "check")), check) == 0)
                        snprintf(state, sizeof state, "%s",
                                 json_string_value(json_object_get(finding, "state")));
        }
        json_decref(all);
        json_decref(told);
        return state;
}

static json_t *answer_at(const char *version, double clock_s)
{
        return json_pack("{s:s,s:f,s:[{s:s,s:s,s:s,s:s}]}", "version", version, "clock_s", clock_s,
                         "findings", "check", "swap", "state", "warning", "found", "/dev/sda2",
                         "advice", "swapoff");
}

Test(examined, what_a_node_found_is_passed_on)
{
        cr_expect_str_eq(state_of("swap", answer_at(ZEROD_VERSION, 1000), 1000, 0), "warning");
}

Test(examined, a_node_without_an_answer_is_an_error)
{
        cr_expect_str_eq(state_of("answer", NULL, 0, 0), "error");
        cr_expect_str_eq(state_of("answer", json_pack("{s:s}", "version", "9"), 0, 0), "");
        cr_expect_str_eq(state_of("answer", json_pack("{s:i}", "version", 9), 0, 0), "error");
}

Test(examined, clocks_that_differ_are_a_warning)
{
        cr_expect_str_eq(state_of("clock", answer_at(ZEROD_VERSION, 1000), 1000.5, 0), "fine");
        cr_expect_str_eq(state_of("clock", answer_at(ZEROD_VERSION, 1000), 1002, 0), "warning");
        cr_expect_str_eq(state_of("clock", answer_at(ZEROD_VERSION, 1000), 998, 0), "warning");
}

Test(examined, a_slow_answer_tells_less_of_the_clock)
{
        cr_expect_str_eq(state_of("clock", answer_at(ZEROD_VERSION, 1000), 1002, 2), "fine");
        cr_expect_str_eq(state_of("clock", answer_at(ZEROD_VERSION, 1000), 1004, 2), "warning");
}

Test(examined, versions_that_differ_are_a_warning)
{
        cr_expect_str_eq(state_of("version", answer_at(ZEROD_VERSION, 1000), 1000, 0), "fine");
        cr_expect_str_eq(state_of("version", answer_at("0.0.1", 1000), 1000, 0), "warning");
        cr_expect_str_eq(state_of("version", json_pack("{}"), 0, 0), "warning");
}
