/* zeroctl status: this node, its peers, and its jobs. */
#include "ctl.h"

#include <string.h>

#include "table.h"
#include "units.h"

/* ---- the verdict ---- */

static enum paint verdict_paint(const char *verdict)
{
        return strcmp(verdict, "ok") == 0         ? PAINT_GOOD
               : strncmp(verdict, "warn", 4) == 0 ? PAINT_WARN
                                                  : PAINT_BAD;
}

void show_verdict(const struct ctl *ctl, FILE *out, const json_t *status)
{
        const char *verdict = field_text(status, "verdict");
        enum paint paint = verdict_paint(verdict);
        json_t *finding;
        size_t i;

        if (!*verdict) /* of a daemon of the release before */
                return;
        fprintf(out, "health: %s%s%s\n", paint_begin(paint, ctl->colour), verdict,
                paint_end(paint, ctl->colour));
        json_array_foreach(json_object_get(status, "findings"), i, finding)
        {
                paint = verdict_paint(field_text(finding, "state"));
                fprintf(out, "  %s%s%s: %s\n    %s\n", paint_begin(paint, ctl->colour),
                        field_text(finding, "check"), paint_end(paint, ctl->colour),
                        field_text(finding, "found"), field_text(finding, "advice"));
        }
}

/* ---- the peers ---- */

void add_peer_state(struct table *t, const json_t *peer)
{
        const char *goodbye = field_text(peer, "goodbye");

        if (field_true(peer, "self"))
                table_add(t, PAINT_NONE, "self");
        else if (field_true(peer, "up"))
                table_add(t, PAINT_GOOD, "up");
        else
                table_add(t, *goodbye ? PAINT_WARN : PAINT_BAD, "%s", *goodbye ? goodbye : "down");
}

static void add_peer_link(struct table *t, const json_t *peer)
{
        bool self = field_true(peer, "self"), up = field_true(peer, "up") && !self;
        struct unit since = unit_seconds(field_number(peer, "since_s"));
        struct unit heard = unit_seconds(field_number(peer, "heard_s"));
        struct unit round_trip = unit_seconds(field_number(peer, "round_trip_s"));

        table_add(t, PAINT_NONE, "%s", self ? "-" : since.text);
        table_add(t, PAINT_NONE, "%s", up ? heard.text : "-");
        table_add(t, PAINT_NONE, "%s", up ? round_trip.text : "-");
        table_add(t, PAINT_NONE, "%s", up ? field_text(peer, "bulk") : "-");
}

/* What is too long for a table: the path of payloads, or why there is none. */
static void show_link(FILE *out, const json_t *peer)
{
        const char *detail = field_text(peer, "bulk_detail"), *gpu = field_text(peer, "bulk_gpu");

        if (field_true(peer, "self"))
                return;
        if (!field_true(peer, "up"))
                fprintf(out, "%s: %s\n", field_text(peer, "node"), field_text(peer, "why"));
        else if (*detail || *gpu)
                fprintf(out, "%s: payloads go by %s%s%s%s%s\n", field_text(peer, "node"),
                        field_text(peer, "bulk"), *detail ? " " : "", detail,
                        *gpu ? ", GPU memory " : "", gpu);
}

static void show_peers(const struct ctl *ctl, FILE *out, const json_t *peers)
{
        struct table t;
        json_t *peer;
        size_t i;

        table_init(&t, "NODE|ADDRESS|OWNER|STATE|>FOR|>HEARD|>RTT|BULK");
        json_array_foreach(peers, i, peer)
        {
                table_add(&t, PAINT_NONE, "%s", field_text(peer, "node"));
                table_add(&t, PAINT_NONE, "%s", field_text(peer, "address"));
                table_add(&t, PAINT_NONE, "%s", field_true(peer, "owner") ? "yes" : "no");
                add_peer_state(&t, peer);
                add_peer_link(&t, peer);
        }
        table_print(&t, out, ctl->colour);
        table_deinit(&t);
        json_array_foreach(peers, i, peer) show_link(out, peer);
}

static void add_bytes(struct table *t, const json_t *peer, const char *way)
{
        static const char *const kinds[] = { "gather", "reduce", "state", "control" };
        const json_t *bytes = json_object_get(peer, way);

        table_add(t, PAINT_NONE, "%s", field_text(peer, "node"));
        table_add(t, PAINT_NONE, "%s", way);
        for (size_t k = 0; k < 4; k++)
                table_add(t, PAINT_NONE, "%s", unit_bytes(field_number(bytes, kinds[k])).text);
}

static void show_bytes(const struct ctl *ctl, FILE *out, const json_t *peers)
{
        struct table t;
        json_t *peer;
        size_t i;

        table_init(&t, "NODE|BYTES|>GATHER|>REDUCE|>STATE|>CONTROL");
        json_array_foreach(peers, i, peer)
        {
                if (field_true(peer, "self"))
                        continue;
                add_bytes(&t, peer, "sent");
                add_bytes(&t, peer, "received");
        }
        if (t.n_cells > t.n_columns)
                fputc('\n', out);
        table_print(&t, out, ctl->colour);
        table_deinit(&t);
}

/* ---- the node ---- */

static void show_bases(FILE *out, const json_t *bases)
{
        json_t *base;
        size_t i;

        json_array_foreach(bases, i, base)
        {
                fprintf(out, "base %.16s of user %.0f: %s", field_text(base, "hash"),
                        field_number(base, "uid"), unit_bytes(field_number(base, "bytes")).text);
                if (field_true(base, "whole"))
                        fprintf(out, ", used by %.0f processes, copied to %.0f GPUs\n",
                                field_number(base, "uses"), field_number(base, "gpus"));
                else
                        fprintf(out, ", being read by process %.0f, %.0f wait\n",
                                field_number(base, "filler"), field_number(base, "uses") - 1);
        }
}

static void show_node(const struct ctl *ctl, FILE *out, const json_t *s)
{
        fprintf(out, "%snode %s%s: zerod %s, up %s, device %s\n",
                paint_begin(PAINT_HEAD, ctl->colour), field_text(s, "node"),
                paint_end(PAINT_HEAD, ctl->colour), field_text(s, "version"),
                unit_seconds(field_number(s, "uptime_s")).text, field_text(s, "device"));
        fprintf(out, "socket %s, state %s\n", field_text(s, "socket"), field_text(s, "state_dir"));
        if (field_true(s, "drained"))
                fprintf(out, "drained: takes no new ranks until zeroctl undrain %s\n",
                        field_text(s, "node"));
        show_memory(out, json_object_get(s, "memory"));
        show_gpus(ctl, out, s);
        show_bases(out, json_object_get(s, "bases"));
}

/* ---- ranks whose job is not open ---- */

static bool waits_alike(const json_t *a, const json_t *b)
{
        return strcmp(field_text(a, "job"), field_text(b, "job")) == 0 &&
               strcmp(field_text(a, "for"), field_text(b, "for")) == 0 &&
               strcmp(field_text(a, "what"), field_text(b, "what")) == 0;
}

/* A line a cause: a job's own waits name it already, and so does the first rank of several. */
static void show_attaching(const struct ctl *ctl, FILE *out, const json_t *answer)
{
        const json_t *attaching = json_object_get(answer, "attaching");
        json_t *rank, *other;
        size_t i, k;

        json_array_foreach(attaching, i, rank)
        {
                const json_t *job =
                        find_named(json_object_get(answer, "jobs"), "job", field_text(rank, "job"));
                unsigned more = 0;
                bool told =
                        find_named(json_object_get(job, "waiting"), "for", field_text(rank, "for"));

                json_array_foreach(attaching, k, other)
                {
                        told = told || (k < i && waits_alike(rank, other));
                        more += k > i && waits_alike(rank, other);
                }
                if (told)
                        continue;
                fprintf(out, "%s%s: rank %.0f (pid %.0f)", paint_begin(PAINT_WARN, ctl->colour),
                        field_text(rank, "job"), field_number(rank, "rank"),
                        field_number(rank, "pid"));
                if (more)
                        fprintf(out, " and %u more ranks", more);
                fprintf(out, ": attaching for %s, waiting for %s: %s%s\n",
                        unit_seconds(field_number(rank, "since_s")).text, field_text(rank, "for"),
                        field_text(rank, "what"), paint_end(PAINT_WARN, ctl->colour));
        }
}

static void show(const struct ctl *ctl, FILE *out, const json_t *answer)
{
        const json_t *jobs = json_object_get(answer, "jobs");
        const json_t *peers = json_object_get(answer, "peers");
        json_t *job;
        size_t i;

        show_verdict(ctl, out, answer);
        show_node(ctl, out, answer);
        fputc('\n', out);
        show_peers(ctl, out, peers);
        show_bytes(ctl, out, peers);
        fputc('\n', out);
        show_jobs(ctl, out, jobs);
        show_waiting(ctl, out, jobs);
        show_attaching(ctl, out, answer);
        json_array_foreach(jobs, i, job) show_job_details(ctl, out, job);
}

const struct command command_status = {
        .name = "status",
        .summary = "this node, its peers, its jobs",
        .description =
                "First a verdict, *ok*, *warn* or *error*, with each finding by the name of its "
                "alert (deploy/prometheus/README.md has a section for each), whom it is about, "
                "and what to do. It tells what this node sees now; an alert lets some time pass.\n"
                "This node: memory, and of each GPU what is used and free, what zerod "
                "uses, and for what; bases, frozen weights that a user's processes share. "
                "Its peers: state (stopped or drained, if it said so), bulk "
                "path (with GPUs whether their "
                "memory takes it directly or through the host's), and bytes sent and "
                "received by kind. The jobs: version, steps per second, gradient norm, "
                "skipped steps, who is waited for and for what (a line a cause), window hits, "
                "and bytes by plane next to ZeRO's formula.\n"
                "In JSON, a job's *gather* counts *hits* (fetches that found their group "
                "in the window), *misses* (fetches that waited for their group), "
                "*gathers* (groups brought there, for a fetch or a prefetch), *spread* "
                "(those of them that were copied from another window of the node) and "
                "*elements_received* from other nodes; *reduce* counts *elements_sent* to "
                "other nodes and *deferred*, the sums that were left to the update on a "
                "GPU.\n"
                "In JSON, a session's *no_events* says that the daemon cannot open the "
                "events of its GPU, so that the trainer waits for its GPU itself; "
                "*stash_unpinned* says that CUDA does not pin its stash in host memory, so "
                "that copies to and from the stash wait for its GPU. "
                "*cuda.between_gpus* says *by* what bytes go between GPUs of the node "
                "(nccl or copies), the version of *nccl*, *moves_by_nccl* so far, and "
                "*why* they are copied if they are.",
        .show = show,
};
