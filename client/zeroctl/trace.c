/* zeroctl trace: the last steps of a job on all nodes, as a file (proto/trace_file.h). */
#include "ctl.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "proto/trace_file.h"

static long seconds;

struct trace {
        const json_t *groups; /* from "shards"; NULL: not known */
        const json_t *nodes;  /* names, in the cluster's order */
        struct trace_event *events;
        size_t n, capacity;
};

/* ---- reading ------------------------------------------------------------------- */

static bool add(struct trace *t, const struct trace_event *event)
{
        if (t->n == t->capacity) {
                size_t capacity = t->capacity ? 2 * t->capacity : 1024;
                struct trace_event *more = realloc(t->events, capacity * sizeof *more);

                if (!more)
                        return false;
                t->events = more;
                t->capacity = capacity;
        }
        t->events[t->n++] = *event;
        return true;
}

static bool read_events(struct trace *t, const char *text, double ahead_us)
{
        for (const char *line = text; *line; line += strcspn(line, ";"), line += *line == ';') {
                struct trace_event e = { .group = -1 };
                char group[TRACE_WORD_MAX];
                unsigned long long version;

                if (sscanf(line, "%31s %u %31s %llu %lf %lf", e.what, &e.who, group, &version,
                           &e.begin, &e.took) != 6)
                        continue;
                e.version = version;
                if (strcmp(group, "-") != 0)
                        e.group = strtoll(group, NULL, 10);
                e.begin -= ahead_us;
                if (!add(t, &e))
                        return false;
        }
        return true;
}

/* What still waits ends where the trace ends. */
static bool read_waits(struct trace *t, const json_t *waits, double ahead_us)
{
        json_t *wait;
        size_t i;

        json_array_foreach(waits, i, wait)
        {
                const json_t *group = json_object_get(wait, "group");
                struct trace_event e = { .who = (unsigned)field_number(wait, "rank"),
                                         .group = json_is_integer(group) ? json_integer_value(group)
                                                                         : -1,
                                         .begin = field_number(wait, "begun_ns") / 1000 - ahead_us,
                                         .waits_for = field_text(wait, "for"),
                                         .waits_what = field_text(wait, "what") };

                snprintf(e.what, sizeof e.what, "%s", field_text(wait, "call"));
                if (!add(t, &e))
                        return false;
        }
        return true;
}

/* ---- writing ------------------------------------------------------------------- */

static const char *name_node(const void *arg, uint32_t node)
{
        const struct trace *t = arg;

        return json_string_value(json_array_get(t->nodes, node));
}

static const char *name_group(const void *arg, uint64_t group)
{
        const struct trace *t = arg;

        return field_text(json_array_get(t->groups, group), "group");
}

static bool write_node(struct trace *t, struct trace_file *file, size_t pid, const json_t *node)
{
        double ahead_us = field_number(node, "ahead_s") * 1e6;

        t->n = 0;
        if (!read_events(t, field_text(node, "events"), ahead_us) ||
            !read_waits(t, json_object_get(node, "waits"), ahead_us))
                return false;
        trace_file_node(file, (uint32_t)pid, field_text(node, "node"), t->events, t->n,
                        (double)seconds * 1e6);
        return true;
}

/* The number of lines; 0: out of memory. */
static unsigned write_trace(struct trace *t, FILE *out, const json_t *answer)
{
        struct trace_names names = { name_node, name_group, t };
        struct trace_file *file = trace_file_begin(out, &names);
        bool whole = file != NULL;
        unsigned n;
        json_t *node;
        size_t i;

        json_array_foreach(json_object_get(answer, "nodes"), i, node)
        {
                whole = whole && write_node(t, file, i, node);
        }
        n = file ? trace_file_end(file) : 0;
        free(t->events);
        return whole ? n : 0;
}

/* ---- the command --------------------------------------------------------------- */

/* The names of all nodes, in the cluster's order. */
static json_t *node_names(const json_t *status)
{
        json_t *names = json_array(), *peer;
        size_t i;

        json_array_foreach(json_object_get(status, "peers"), i, peer)
                json_array_append(names, json_object_get(peer, "node"));
        return names;
}

int trace_write(struct ctl *ctl, const char *job, const json_t *status, const json_t *answer,
                FILE *out, unsigned *ret_lines)
{
        json_t *shards, *names = node_names(status);
        struct trace t = { .nodes = names };
        unsigned lines;

        if (ctl_query(ctl, "shards", job, &shards) != ZERO_OK)
                shards = NULL; /* groups have numbers, then */
        t.groups = json_object_get(json_array_get(json_object_get(shards, "jobs"), 0), "groups");
        lines = write_trace(&t, out, answer);
        json_decref(names);
        json_decref(shards);
        if (!lines)
                return -ENOMEM;
        if (fflush(out) || ferror(out))
                return errno ? -errno : -EIO; /* of the write that failed */
        *ret_lines = lines;
        return 0;
}

static int save(struct ctl *ctl, const json_t *answer, unsigned *ret_lines)
{
        FILE *out = fopen(ctl->file, "we");
        json_t *status;
        int r;

        if (!out) {
                ctl_error("%s: %s", ctl->file, strerror(errno));
                return CTL_FAILED;
        }
        if (ctl_query(ctl, "status", "", &status) != ZERO_OK)
                status = NULL; /* as with groups */
        r = trace_write(ctl, ctl->argument, status, answer, out, ret_lines);
        json_decref(status);
        if (fclose(out) && r == 0)
                r = -errno;
        if (r == 0)
                return CTL_OK;
        ctl_error("%s: %s; the file is not whole", ctl->file, strerror(-r));
        return CTL_FAILED;
}

static int run(struct ctl *ctl)
{
        unsigned lines;
        json_t *answer;
        int r = ctl_ask(ctl, "trace", &answer);

        if (r != CTL_OK)
                return r;
        if (!ctl->file)
                return ctl_show(ctl, answer, NULL);
        r = save(ctl, answer, &lines);
        json_decref(answer);
        if (r == CTL_OK)
                printf("%s: %u events; open it at https://ui.perfetto.dev or chrome://tracing\n",
                       ctl->file, lines);
        return r;
}

static int check(const struct ctl *ctl)
{
        if (ctl->file || ctl->json)
                return CTL_OK;
        ctl_error("trace: which FILE? without one, --json prints what the daemons said");
        return CTL_USAGE;
}

static const struct command_option options[] = {
        { .name = "seconds",
          .argument = "N",
          .help = "only what ended in the last N seconds; default: all that is kept",
          .count = &seconds },
        { NULL },
};

const struct command command_trace = {
        .name = "trace",
        .arguments = "JOB [FILE]",
        .summary = "what took time in the last steps, as a file for Perfetto",
        .description =
                "Writes what took time in the last steps of a job, on all its nodes and on one "
                "clock: calls of ranks (fetch, push, norm, step, stash), payloads from other nodes "
                "(gather, reduce), votes and updates of owners, and what still waits, with the "
                "name "
                "of who keeps it waiting.\n"
                "The file has the Trace Event Format, which ui.perfetto.dev and chrome://tracing "
                "open. Every node keeps the last 8,192 events of a job, and writes them into its "
                "log_dir when the deadline of a rank's call passes.",
        .options = options,
        .check = check,
        .run = run,
};
