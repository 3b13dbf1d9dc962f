/* zeroctl status: this node, its peers, and its jobs. */
#include "ctl.h"

#include "table.h"
#include "units.h"

static void add_peer_state(struct table *t, const json_t *peer)
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
        bool self = field_true(peer, "self"), up = field_true(peer, "up");
        const char *gpu = field_text(peer, "bulk_gpu");

        if (self)
                table_add(t, PAINT_NONE, "-");
        else
                table_add(t, PAINT_NONE, "%s", unit_seconds(field_number(peer, "since_s")).text);
        if (self || !up) {
                table_add(t, PAINT_NONE, "-");
                table_add(t, PAINT_NONE, "-");
                table_add(t, PAINT_NONE, "%s", field_text(peer, "why"));
                return;
        }
        table_add(t, PAINT_NONE, "%s", unit_seconds(field_number(peer, "heard_s")).text);
        table_add(t, PAINT_NONE, "%s", unit_seconds(field_number(peer, "round_trip_s")).text);
        table_add(t, PAINT_NONE, "%s %s%s%s", field_text(peer, "bulk"),
                  field_text(peer, "bulk_detail"), *gpu ? ", GPU memory " : "", gpu);
}

static void show_peers(const struct ctl *ctl, FILE *out, const json_t *peers)
{
        struct table t;
        json_t *peer;
        size_t i;

        table_init(&t, "NODE|ADDRESS|OWNER|STATE|>FOR|>HEARD|>ROUND TRIP|BULK PATH");
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
}

static void show_bytes(const struct ctl *ctl, FILE *out, const json_t *peers)
{
        static const char *const kinds[] = { "gather", "reduce", "state", "control" };
        struct table t;
        json_t *peer;
        size_t i;

        table_init(&t, "NODE|>GATHER SENT|>RECEIVED|>REDUCE SENT|>RECEIVED|>STATE SENT|>RECEIVED|"
                       ">CONTROL SENT|>RECEIVED");
        json_array_foreach(peers, i, peer)
        {
                const json_t *sent = json_object_get(peer, "sent");
                const json_t *received = json_object_get(peer, "received");

                if (field_true(peer, "self"))
                        continue;
                table_add(&t, PAINT_NONE, "%s", field_text(peer, "node"));
                for (size_t k = 0; k < 4; k++) {
                        table_add(&t, PAINT_NONE, "%s",
                                  unit_bytes(field_number(sent, kinds[k])).text);
                        table_add(&t, PAINT_NONE, "%s",
                                  unit_bytes(field_number(received, kinds[k])).text);
                }
        }
        if (t.n_cells > t.n_columns)
                fputc('\n', out);
        table_print(&t, out, ctl->colour);
        table_deinit(&t);
}

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

static void show_attaching(const struct ctl *ctl, FILE *out, const json_t *attaching)
{
        json_t *rank;
        size_t i;

        json_array_foreach(attaching, i, rank)
                fprintf(out, "%s%s: rank %.0f (pid %.0f) attaches for %s, waiting for %s: %s%s\n",
                        paint_begin(PAINT_WARN, ctl->colour), field_text(rank, "job"),
                        field_number(rank, "rank"), field_number(rank, "pid"),
                        unit_seconds(field_number(rank, "since_s")).text, field_text(rank, "for"),
                        field_text(rank, "what"), paint_end(PAINT_WARN, ctl->colour));
}

static void show(const struct ctl *ctl, FILE *out, const json_t *answer)
{
        const json_t *jobs = json_object_get(answer, "jobs");
        const json_t *peers = json_object_get(answer, "peers");
        json_t *job;
        size_t i;

        show_node(ctl, out, answer);
        fputc('\n', out);
        show_peers(ctl, out, peers);
        show_bytes(ctl, out, peers);
        fputc('\n', out);
        show_jobs(ctl, out, jobs);
        show_waiting(ctl, out, jobs);
        show_attaching(ctl, out, json_object_get(answer, "attaching"));
        json_array_foreach(jobs, i, job) show_job_details(ctl, out, job);
}

const struct command command_status = {
        .name = "status",
        .summary = "this node, its peers, its jobs",
        .description = "This node: memory, and of each GPU what is used and free, what zerod "
                       "uses, and for what; bases, frozen weights that a user's processes share. "
                       "Its peers: state (stopped or drained, if it said so), bulk "
                       "path (with GPUs whether their "
                       "memory takes it directly or through the host's), and bytes sent and "
                       "received by kind. The jobs: version, steps per second, gradient norm, "
                       "skipped steps, who is waited for and for what, window hits, and bytes by "
                       "plane next to ZeRO's formula.\n"
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
