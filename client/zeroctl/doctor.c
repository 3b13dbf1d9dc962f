/* zeroctl doctor: what is wrong with the nodes, and what to do about it. */
#include "ctl.h"

#include <string.h>

#include "table.h"

static bool all;

struct counts {
        unsigned checks, warnings, errors;
};

static struct counts count(const json_t *answer)
{
        struct counts n = { 0 };
        json_t *node, *finding;
        size_t i, j;

        json_array_foreach(json_object_get(answer, "nodes"), i, node)
        {
                json_array_foreach(json_object_get(node, "findings"), j, finding)
                {
                        n.checks++;
                        n.warnings += strcmp(field_text(finding, "state"), "warning") == 0;
                        n.errors += strcmp(field_text(finding, "state"), "error") == 0;
                }
        }
        return n;
}

static void add_finding(struct table *t, const char *node, const json_t *finding)
{
        const char *state = field_text(finding, "state"), *advice = field_text(finding, "advice");
        bool fine = strcmp(state, "fine") == 0;

        if (fine && !all)
                return;
        table_add(t, PAINT_NONE, "%s", node);
        table_add(t,
                  fine                          ? PAINT_GOOD
                  : strcmp(state, "error") == 0 ? PAINT_BAD
                                                : PAINT_WARN,
                  "%s", state);
        table_add(t, PAINT_NONE, "%s", field_text(finding, "check"));
        table_add(t, PAINT_NONE, "%s", field_text(finding, "found"));
        if (!*advice)
                return;
        for (int i = 0; i < 3; i++)
                table_add(t, PAINT_NONE, "%s", "");
        table_add(t, PAINT_NONE, "-> %s", advice);
}

static void show(const struct ctl *ctl, FILE *out, const json_t *answer)
{
        struct counts n = count(answer);
        json_t *node, *finding;
        struct table t;
        size_t i, j;

        table_init(&t, "NODE|STATE|CHECK|FOUND");
        json_array_foreach(json_object_get(answer, "nodes"), i, node)
        {
                json_array_foreach(json_object_get(node, "findings"), j, finding)
                        add_finding(&t, field_text(node, "node"), finding);
        }
        table_print(&t, out, ctl->colour);
        table_deinit(&t);
        fprintf(out, "%u checks: %u errors, %u warnings\n", n.checks, n.errors, n.warnings);
}

static int run(struct ctl *ctl)
{
        struct counts n;
        json_t *answer;
        int r = ctl_ask(ctl, "examine", &answer);

        if (r != CTL_OK)
                return r;
        n = count(answer);
        r = ctl_show(ctl, answer, show);
        return n.errors ? CTL_FAILED : r;
}

static const struct command_option options[] = {
        { .name = "all", .help = "also what is fine", .flag = &all },
        { NULL },
};

const struct command command_doctor = {
        .name = "doctor",
        .summary = "what is wrong with the nodes, and what to do about it",
        .description =
                "Every node looks at what a person would check: key files, directories and the "
                "space "
                "in them, limits of open files, locked memory and the cgroup, swap, huge pages, "
                "errors of memory, the formats of states, and its link to every other node. The "
                "clocks and versions of the nodes are compared.\n"
                "Prints what is not fine, with what to do about it. Changes nothing. Only root and "
                "the user zerod runs as may ask. Exits with 1 if there is an error; a warning is "
                "not one.",
        .options = options,
        .run = run,
};
