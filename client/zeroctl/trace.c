/*
 * zeroctl trace: the last steps of a job on all nodes, as a file of the Trace Event Format that
 * Perfetto and chrome://tracing open.
 *
 * A process of the trace is a node.  A track is a rank, an owner, or a node that sent payloads.
 * Events of one track may overlap, which the format does not allow, so that a track gets as many
 * lanes as it needs.
 */
#include "ctl.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

enum { WORD_MAX = 32, LANES_MAX = 4096 };

static long seconds;

struct event {
        char what[WORD_MAX];
        unsigned who;
        long long group; /* -1: none */
        unsigned long long version;
        double begin, took; /* microseconds, of the clock of the node that answered */
        const char *waits_for, *waits_what; /* NULL: it has ended */
};

enum track { TRACK_RANK, TRACK_OWNER, TRACK_NODE };

struct lane {
        enum track track;
        unsigned who;
        double end;
};

struct trace {
        FILE *out;
        const json_t *groups; /* from "shards"; NULL: not known */
        struct event *events;
        size_t n, capacity;
        struct lane lanes[LANES_MAX];
        unsigned n_lanes, n_written;
        double last; /* end of the last event */
};

/* ---- reading ------------------------------------------------------------------- */

static bool add(struct trace *t, const struct event *event)
{
        if (t->n == t->capacity) {
                size_t capacity = t->capacity ? 2 * t->capacity : 1024;
                struct event *more = realloc(t->events, capacity * sizeof *more);

                if (!more)
                        return false;
                t->events = more;
                t->capacity = capacity;
        }
        t->events[t->n++] = *event;
        if (event->begin + event->took > t->last)
                t->last = event->begin + event->took;
        return true;
}

static bool read_events(struct trace *t, const char *text, double ahead_us)
{
        for (const char *line = text; *line; line += strcspn(line, ";"), line += *line == ';') {
                struct event e = { .group = -1 };
                char group[WORD_MAX];

                if (sscanf(line, "%31s %u %31s %llu %lf %lf", e.what, &e.who, group, &e.version,
                           &e.begin, &e.took) != 6)
                        continue;
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
                struct event e = { .who = (unsigned)field_number(wait, "rank"),
                                   .group = json_is_integer(group) ? json_integer_value(group) : -1,
                                   .begin = field_number(wait, "begun_ns") / 1000 - ahead_us,
                                   .waits_for = field_text(wait, "for"),
                                   .waits_what = field_text(wait, "what") };

                snprintf(e.what, sizeof e.what, "%s", field_text(wait, "call"));
                if (!add(t, &e))
                        return false;
        }
        return true;
}

static int by_begin(const void *a, const void *b)
{
        const struct event *x = a, *y = b;

        return (x->begin > y->begin) - (x->begin < y->begin);
}

/* ---- writing ------------------------------------------------------------------- */

static void write_object(struct trace *t, json_t *object)
{
        fputs(t->n_written++ ? ",\n" : "\n", t->out);
        json_dumpf(object, t->out, JSON_COMPACT | JSON_REAL_PRECISION(15));
        json_decref(object);
}

static void write_name(struct trace *t, const char *what, size_t pid, unsigned tid, json_t *name)
{
        write_object(t, json_pack("{s:s,s:s,s:I,s:i,s:{s:o}}", "name", what, "ph", "M", "pid",
                                  (json_int_t)pid, "tid", (int)tid, "args", "name", name));
}

static enum track track_of(const char *what)
{
        static const struct {
                const char *what;
                enum track track;
        } tracks[] = { { "vote", TRACK_OWNER },  { "update", TRACK_OWNER },
                       { "gather", TRACK_NODE }, { "reduce", TRACK_NODE },
                       { "state", TRACK_NODE },  { "stash_parts", TRACK_NODE } };

        for (size_t i = 0; i < sizeof tracks / sizeof tracks[0]; i++)
                if (strcmp(what, tracks[i].what) == 0)
                        return tracks[i].track;
        return TRACK_RANK;
}

static json_t *track_name(enum track track, unsigned who, const json_t *nodes)
{
        const char *node = json_string_value(json_array_get(nodes, who));

        if (track == TRACK_NODE && node)
                return json_sprintf("from %s", node);
        return json_sprintf(track == TRACK_RANK    ? "rank %u"
                            : track == TRACK_OWNER ? "owner %u"
                                                   : "from node %u",
                            who);
}

/* The first lane of the event's track that is free when the event begins. */
static unsigned lane_of(struct trace *t, size_t pid, const json_t *nodes, const struct event *e)
{
        enum track track = track_of(e->what);
        unsigned i = 0;

        while (i < t->n_lanes && (t->lanes[i].track != track || t->lanes[i].who != e->who ||
                                  t->lanes[i].end > e->begin))
                i++;
        if (i == LANES_MAX) /* events overlap in the last one */
                i--;
        else if (i == t->n_lanes)
                write_name(t, "thread_name", pid, t->n_lanes++, track_name(track, e->who, nodes));
        t->lanes[i] = (struct lane){ track, e->who, e->begin + e->took };
        return i;
}

static json_t *event_name(const struct trace *t, const struct event *e)
{
        const char *group = field_text(json_array_get(t->groups, (size_t)e->group), "group");

        if (e->group < 0)
                return json_string(e->what);
        return *group ? json_sprintf("%s %s", e->what, group)
                      : json_sprintf("%s group %lld", e->what, e->group);
}

static void write_event(struct trace *t, size_t pid, const json_t *nodes, struct event *e)
{
        json_t *args = json_pack("{s:I}", "version", (json_int_t)e->version);

        if (e->waits_for) {
                e->took = t->last > e->begin ? t->last - e->begin : 0;
                json_decref(args);
                args = json_pack("{s:s,s:s}", "waits for", e->waits_for, "which has to",
                                 e->waits_what);
        }
        write_object(t, json_pack("{s:o,s:s,s:s,s:f,s:f,s:I,s:i,s:o}", "name", event_name(t, e),
                                  "cat", e->waits_for ? "waits" : e->what, "ph", "X", "ts",
                                  e->begin, "dur", e->took, "pid", (json_int_t)pid, "tid",
                                  (int)lane_of(t, pid, nodes, e), "args", args));
}

static bool write_node(struct trace *t, size_t pid, const json_t *names, const json_t *node)
{
        double ahead_us = field_number(node, "ahead_s") * 1e6;

        t->n = t->n_lanes = 0;
        if (!read_events(t, field_text(node, "events"), ahead_us) ||
            !read_waits(t, json_object_get(node, "waits"), ahead_us))
                return false;
        qsort(t->events, t->n, sizeof *t->events, by_begin);
        write_name(t, "process_name", pid, 0, json_sprintf("node %s", field_text(node, "node")));
        for (size_t i = 0; i < t->n; i++)
                if (!seconds || t->events[i].waits_for ||
                    t->events[i].begin + t->events[i].took >= t->last - (double)seconds * 1e6)
                        write_event(t, pid, names, &t->events[i]);
        return true;
}

static bool write_trace(struct trace *t, const json_t *answer, const json_t *names)
{
        json_t *node;
        size_t i;

        fputs("{\"displayTimeUnit\":\"ms\",\"traceEvents\":[", t->out);
        json_array_foreach(json_object_get(answer, "nodes"), i,
                           node) if (!write_node(t, i, names, node)) return false;
        fputs("\n]}\n", t->out);
        return true;
}

/* ---- the command --------------------------------------------------------------- */

/* The names of all nodes, in the cluster's order. */
static json_t *node_names(struct ctl *ctl)
{
        json_t *names = json_array(), *status, *peer;
        size_t i;

        if (ctl_query(ctl, "status", "", &status) != ZERO_OK)
                return names;
        json_array_foreach(json_object_get(status, "peers"), i, peer)
                json_array_append(names, json_object_get(peer, "node"));
        json_decref(status);
        return names;
}

static int write_file(struct ctl *ctl, const json_t *answer, const json_t *shards)
{
        static struct trace t;
        json_t *names = node_names(ctl);
        bool whole;

        t.groups = json_object_get(json_array_get(json_object_get(shards, "jobs"), 0), "groups");
        t.out = fopen(ctl->file, "we");
        if (!t.out) {
                ctl_error("%s: %s", ctl->file, strerror(errno));
                json_decref(names);
                return CTL_FAILED;
        }
        whole = write_trace(&t, answer, names);
        json_decref(names);
        free(t.events);
        errno = whole ? EIO : ENOMEM; /* unless fclose() knows better */
        whole = whole && !ferror(t.out);
        if (fclose(t.out) || !whole) {
                ctl_error("%s: %s; the file is not whole", ctl->file, strerror(errno));
                return CTL_FAILED;
        }
        printf("%s: %u events; open it at https://ui.perfetto.dev or chrome://tracing\n", ctl->file,
               t.n_written);
        return CTL_OK;
}

static int run(struct ctl *ctl)
{
        json_t *answer, *shards = NULL;
        int r = ctl_ask(ctl, "trace", &answer);

        if (r != CTL_OK)
                return r;
        if (!ctl->file)
                return ctl_show(ctl, answer, NULL);
        if (ctl_query(ctl, "shards", ctl->argument, &shards) != ZERO_OK)
                shards = NULL; /* groups have numbers, then */
        r = write_file(ctl, answer, shards);
        json_decref(shards);
        json_decref(answer);
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
                "open. Every node keeps the last 8,192 events of a job.",
        .options = options,
        .check = check,
        .run = run,
};
