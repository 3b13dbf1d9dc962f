/* Writes traces; see trace_file.h. */
#include "trace_file.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

enum { LANES_MAX = 4096 };

enum track { TRACK_RANK, TRACK_OWNER, TRACK_NODE, TRACK_OTHERS };

struct lane {
        enum track track;
        uint32_t who;
        double end;
};

struct trace_file {
        FILE *out;
        const struct trace_names *names;
        struct lane lanes[LANES_MAX];
        unsigned n_lanes, n_written;
        double last; /* end of the last event */
};

static int by_begin(const void *a, const void *b)
{
        const struct trace_event *x = a, *y = b;

        return (x->begin > y->begin) - (x->begin < y->begin);
}

static void write_object(struct trace_file *t, json_t *object)
{
        fputs(t->n_written++ ? ",\n" : "\n", t->out);
        json_dumpf(object, t->out, JSON_COMPACT | JSON_REAL_PRECISION(15));
        json_decref(object);
}

static void write_name(struct trace_file *t, const char *what, uint32_t pid, unsigned tid,
                       json_t *name)
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

static json_t *track_name(const struct trace_file *t, enum track track, uint32_t who)
{
        const char *node = track == TRACK_NODE ? t->names->node(t->names->arg, who) : NULL;

        if (track == TRACK_OTHERS)
                return json_string("others");
        if (node)
                return json_sprintf("from %s", node);
        return json_sprintf(track == TRACK_RANK    ? "rank %u"
                            : track == TRACK_OWNER ? "owner %u"
                                                   : "from node %u",
                            who);
}

/* The first lane of the event's track that is free when the event begins; the last lane of all has
 * the events of any track that find none, and they overlap. */
static unsigned lane_of(struct trace_file *t, uint32_t pid, const struct trace_event *e)
{
        enum track track = track_of(e->what);
        unsigned i = 0;

        while (i < t->n_lanes && i < LANES_MAX - 1 &&
               (t->lanes[i].track != track || t->lanes[i].who != e->who ||
                t->lanes[i].end > e->begin))
                i++;
        if (i == LANES_MAX - 1)
                track = TRACK_OTHERS;
        if (i == t->n_lanes)
                write_name(t, "thread_name", pid, t->n_lanes++, track_name(t, track, e->who));
        t->lanes[i] = (struct lane){ track, e->who, e->begin + e->took };
        return i;
}

static json_t *event_name(const struct trace_file *t, const struct trace_event *e)
{
        const char *group =
                e->group < 0 ? NULL : t->names->group(t->names->arg, (uint64_t)e->group);

        if (e->group < 0)
                return json_string(e->what);
        return group && *group ? json_sprintf("%s %s", e->what, group)
                               : json_sprintf("%s group %lld", e->what, e->group);
}

static void write_event(struct trace_file *t, uint32_t pid, struct trace_event *e)
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
                                  (int)lane_of(t, pid, e), "args", args));
}

struct trace_file *trace_file_begin(FILE *out, const struct trace_names *names)
{
        struct trace_file *t = calloc(1, sizeof *t);

        if (!t)
                return NULL;
        t->out = out;
        t->names = names;
        fputs("{\"displayTimeUnit\":\"ms\",\"traceEvents\":[", out);
        return t;
}

void trace_file_node(struct trace_file *t, uint32_t pid, const char *node,
                     struct trace_event *events, size_t n, double lately)
{
        t->n_lanes = 0;
        for (size_t i = 0; i < n; i++)
                if (events[i].begin + events[i].took > t->last)
                        t->last = events[i].begin + events[i].took;
        qsort(events, n, sizeof *events, by_begin);
        write_name(t, "process_name", pid, 0, json_sprintf("node %s", node));
        for (size_t i = 0; i < n; i++)
                if (lately <= 0 || events[i].waits_for ||
                    events[i].begin + events[i].took >= t->last - lately)
                        write_event(t, pid, &events[i]);
}

unsigned trace_file_end(struct trace_file *t)
{
        unsigned n = t->n_written;

        fputs("\n]}\n", t->out);
        free(t);
        return n;
}
