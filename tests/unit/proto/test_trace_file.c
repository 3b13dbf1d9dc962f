/* Lanes of a trace: events of one lane do not overlap, and each lane has the name of its track. */
#include <criterion/criterion.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "proto/trace_file.h"

static const char *nameless(const void *arg, uint64_t group)
{
        return NULL;
}

static const char *nobody(const void *arg, uint32_t node)
{
        return NULL;
}

/* The trace of a node; json_decref() frees it. */
static json_t *written(struct trace_event *events, size_t n)
{
        struct trace_names names = { nobody, nameless, NULL };
        char *text = NULL;
        size_t size = 0;
        FILE *out = open_memstream(&text, &size);
        struct trace_file *t = trace_file_begin(out, &names);

        trace_file_node(t, 0, "n0", events, n, 0);
        trace_file_end(t);
        fclose(out);
        json_t *trace = json_loads(text, 0, NULL);
        free(text);
        cr_assert_not_null(trace);
        return trace;
}

/* A lane per rank, and more ranks than lanes. */
Test(trace_file, events_without_a_lane_are_under_others)
{
        enum { RANKS = 4200, LANES = 4096 };
        static const char *names[LANES];
        static struct trace_event events[RANKS];
        const json_t *e;
        size_t i;
        uint32_t rank = 0, others = 0;

        for (uint32_t r = 0; r < RANKS; r++)
                events[r] = (struct trace_event){
                        .what = "step", .who = r, .group = -1, .begin = r, .took = 2 * RANKS
                };
        json_t *trace = written(events, RANKS);
        json_array_foreach(json_object_get(trace, "traceEvents"), i, e)
        {
                const char *name = json_string_value(json_object_get(e, "name"));
                json_int_t lane = json_integer_value(json_object_get(e, "tid"));
                char expected[32];

                cr_assert_lt(lane, LANES);
                if (strcmp(name, "thread_name") == 0) {
                        names[lane] = json_string_value(
                                json_object_get(json_object_get(e, "args"), "name"));
                        continue;
                }
                if (strcmp(name, "step") != 0)
                        continue;
                snprintf(expected, sizeof expected, "rank %u", rank++);
                if (names[lane] && strcmp(names[lane], "others") == 0)
                        others++;
                else
                        cr_assert_str_eq(names[lane], expected);
        }
        cr_assert_eq(rank, RANKS);
        cr_assert_eq(others, RANKS - (LANES - 1));
        json_decref(trace);
}
