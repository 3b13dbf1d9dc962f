/* Reports as JSON. */
#include "daemon/rpc/report.h"

#include <math.h>
#include <stdio.h>

#include "daemon/rpc/report_json.h"
#include "daemon/rpc/session.h"
#include "proto/cleanup.h"

/* JSON has no NaN. */
static json_t *real(double x)
{
        return isfinite(x) ? json_real(x) : json_null();
}

/* ---- jobs -------------------------------------------------------------------- */

static json_t *report_ranks(const struct job *job)
{
        json_t *ranks = json_array();

        for (uint32_t r = 0; r < job->world_size; r++) {
                json_t *rank = json_object();
                bool known = job->node_of_rank[r] != RANK_ABSENT;

                json_object_set_new(rank, "rank", number(r));
                json_object_set_new(rank, "node",
                                    known ? text(node_name(job->x, job->node_of_rank[r]))
                                          : json_null());
                json_object_set_new(rank, "attached", json_boolean(job->here[r]));
                json_array_append_new(ranks, rank);
        }
        return ranks;
}

static json_t *report_wait(const struct job *job, const struct wait_line *line)
{
        json_t *wait = json_object();
        uint64_t now = exchange_now(job->x);

        json_object_set_new(wait, "for", text(line->who));
        json_object_set_new(wait, "what", text(line->what));
        json_object_set_new(wait, "since_s",
                            real(now > line->since_ms ? (double)(now - line->since_ms) / 1000 : 0));
        return wait;
}

/* A node that is away first: its coordinator may be there. */
static json_t *report_waiting(const struct job *job)
{
        json_t *waiting = json_array();
        struct wait_line away;

        if (job_away(job, &away))
                json_array_append_new(waiting, report_wait(job, &away));
        for (uint32_t i = 0; i < job->n_waits; i++)
                json_array_append_new(waiting, report_wait(job, &job->waits[i]));
        return waiting;
}

static json_t *report_gather(const struct job *job)
{
        struct gather_info info;
        json_t *j = json_object();

        gather_info(job, &info);
        json_object_set_new(j, "window_bytes", number(info.window_bytes));
        json_object_set_new(j, "place", text(info.places[0] ? info.places : "host"));
        json_object_set_new(j, "slots", number(info.slots));
        json_object_set_new(j, "hits", number(info.hits));
        json_object_set_new(j, "misses", number(info.misses));
        json_object_set_new(j, "gathers", number(info.gathers));
        json_object_set_new(j, "spread", number(info.spread));
        json_object_set_new(j, "elements_received", number(info.elements_received));
        return j;
}

static uint64_t state_plane_bytes(const struct state *state, enum zero_plane plane,
                                  uint64_t *on_gpu)
{
        uint64_t bytes = state ? plan_plane_bytes(state->plan, plane) : 0;

        if (state && state_on_gpu(state))
                *on_gpu += bytes;
        return bytes;
}

/* Bytes of one plane of what is here, of earlier owner lists too; *on_gpu: more of them there. */
static uint64_t plane_bytes(const struct job *job, enum zero_plane plane, uint64_t *on_gpu)
{
        uint64_t bytes = 0;

        for_holdings (job, h)
                bytes += state_plane_bytes(h->state, plane, on_gpu);
        list_for_each ((struct list *)&job->former, item) {
                bytes += state_plane_bytes(CONTAINER_OF(item, struct holding, link)->state, plane,
                                           on_gpu);
        }
        return bytes;
}

static json_t *report_planes(const struct job *job, uint64_t *ret_on_gpu)
{
        static const struct {
                enum zero_plane plane;
                const char *name;
        } planes[] = { { ZERO_PLANE_MASTER, "master" },
                       { ZERO_PLANE_EXP_AVG, "exp_avg" },
                       { ZERO_PLANE_EXP_AVG_SQ, "exp_avg_sq" },
                       { ZERO_PLANE_GRAD, "grad" },
                       { ZERO_PLANE_SERVE, "serve" } };
        json_t *j = json_object();
        uint64_t on_gpu = 0;

        for (size_t i = 0; i < sizeof planes / sizeof planes[0]; i++)
                json_object_set_new(j, planes[i].name,
                                    number(plane_bytes(job, planes[i].plane, &on_gpu)));
        *ret_on_gpu = on_gpu;
        return j;
}

/* ZeRO's 16 bytes a parameter (SC20, section 3.1), over the owners. */
static json_t *report_formula(const struct job *job)
{
        json_t *j = json_object();

        json_object_set_new(j, "bytes_per_parameter", number(16));
        json_object_set_new(j, "stage3_bytes",
                            number(16 * job->layout->elements / job->place.n_owners));
        return j;
}

static json_t *report_sessions(const struct job *job)
{
        json_t *sessions = json_array();

        for (uint32_t r = 0; r < job->world_size; r++) {
                const struct rank *rank = job->ranks[r];
                json_t *s;

                if (!rank)
                        continue;
                s = json_object();
                json_object_set_new(s, "rank", number(r));
                json_object_set_new(s, "pid", number(rank->pid));
                json_object_set_new(s, "held", number(rank->held));
                json_object_set_new(s, "no_events", json_boolean(rank->no_events));
                json_object_set_new(
                        s, "push_window",
                        number(rank->window->segment.bytes + rank->window->gpu_slots.bytes));
                json_array_append_new(sessions, s);
        }
        return sessions;
}

static const char *job_state_name(const struct job *job)
{
        uint32_t here = 0;
        struct move move;

        for (uint32_t r = 0; r < job->world_size; r++)
                here += job->here[r];
        if (job_moves(job, &move))
                return "moving";
        if (job->opening)
                return "opening";
        if (here == 0)
                return "idle";
        return job->started && here == job->world_size ? "running" : "incomplete";
}

static json_t *report_owners(const struct job *job)
{
        json_t *owners = json_array();

        for (uint32_t o = 0; o < job->place.n_owners; o++)
                json_array_append_new(owners, text(node_name(job->x, job->place.node[o])));
        return owners;
}

json_t *report_move(const struct move *m)
{
        json_t *j = json_object();

        json_object_set_new(j, "from_epoch", number(m->from));
        json_object_set_new(j, "to_epoch", number(m->to));
        json_object_set_new(j, "bytes", number(m->bytes));
        json_object_set_new(j, "total", number(m->total));
        return j;
}

static json_t *report_job_move(const struct job *job)
{
        struct move move;

        return job_moves(job, &move) ? report_move(&move) : json_null();
}

json_t *report_job(const struct job *job)
{
        json_t *j = json_object(), *reduce = json_object();
        uint64_t on_gpu = 0;

        json_object_set_new(j, "job", text(job->name));
        json_object_set_new(j, "uid", number(job->uid));
        json_object_set_new(j, "coordinator", text(node_name(job->x, job->coordinator)));
        json_object_set_new(j, "world_size", number(job->world_size));
        json_object_set_new(j, "ranks", report_ranks(job));
        json_object_set_new(j, "state", text(job_state_name(job)));
        json_object_set_new(j, "version", number(job->version));
        json_object_set_new(j, "attempt", number(job->attempt));
        json_object_set_new(j, "steps_per_s", real(job_steps_per_second(job)));
        json_object_set_new(j, "grad_norm", real(job->grad_norm));
        json_object_set_new(j, "loss_scale", real(job->loss_scale));
        json_object_set_new(j, "skipped", number(job->skipped));
        json_object_set_new(j, "parameters", number(job->layout->elements));
        json_object_set_new(j, "groups", number(job->layout->n_groups));
        json_object_set_new(j, "owners", report_owners(job));
        json_object_set_new(j, "move", report_job_move(job));
        json_object_set_new(j, "waiting", report_waiting(job));
        json_object_set_new(j, "gather", report_gather(job));
        json_object_set_new(reduce, "elements_sent", number(reduce_elements_sent(job->reduce)));
        json_object_set_new(reduce, "deferred", number(reduce_deferred(job->reduce)));
        json_object_set_new(j, "reduce", reduce);
        json_object_set_new(j, "planes", report_planes(job, &on_gpu));
        json_object_set_new(j, "planes_on_gpu", number(on_gpu));
        json_object_set_new(j, "zero_formula", report_formula(job));
        json_object_set_new(j, "sessions", report_sessions(job));
        return j;
}

/* Ranks in zero_attach(): their job may not be there yet. */
static json_t *report_attaching(const struct exchange *x)
{
        json_t *attaching = json_array();

        list_for_each ((struct list *)&x->joining, item) {
                const struct rank *rank = CONTAINER_OF(item, struct rank, link);
                struct wait_line line;
                json_t *j;

                if (!rank_attaching(rank, &line))
                        continue;
                j = json_object();
                json_object_set_new(j, "job", text(rank->job_name));
                json_object_set_new(j, "rank", number(rank->rank));
                json_object_set_new(j, "pid", number(rank->pid));
                json_object_set_new(j, "for", text(line.who));
                json_object_set_new(j, "what", text(line.what));
                json_object_set_new(j, "since_s",
                                    real((double)(exchange_now(x) - line.since_ms) / 1000));
                json_array_append_new(attaching, j);
        }
        return attaching;
}

json_t *report_jobs(const struct rpc *rpc)
{
        json_t *jobs = json_array();

        list_for_each (&rpc->x->jobs, item) {
                json_array_append_new(jobs, report_job(CONTAINER_OF(item, struct job, link)));
        }
        return jobs;
}

/* ---- the node -------------------------------------------------------------------- */

static json_t *report_traffic(const uint64_t bytes[TRAFFIC_KINDS])
{
        static const char *const names[TRAFFIC_KINDS] = { "gather", "reduce", "state", "control" };
        json_t *j = json_object();

        for (size_t i = 0; i < TRAFFIC_KINDS; i++)
                json_object_set_new(j, names[i], number(bytes[i]));
        return j;
}

static json_t *report_peer(const struct exchange *x, uint32_t node)
{
        const struct cluster_node *n = &x->cluster->nodes[node];
        struct fabric_info info;
        json_t *j = json_object();
        char address[300];
        uint64_t now = exchange_now(x);

        fabric_info(x->fabric, node, &info);
        snprintf(address, sizeof address, "%s:%u", n->host, n->port);
        json_object_set_new(j, "node", text(n->name));
        json_object_set_new(j, "address", text(n->host[0] ? address : ""));
        json_object_set_new(j, "owner", json_boolean(placement_nodes(&x->view) >> node & 1));
        json_object_set_new(j, "self", json_boolean(node == x->cluster->self));
        json_object_set_new(j, "up", json_boolean(info.up));
        json_object_set_new(j, "why", text(info.link.why));
        json_object_set_new(j, "bulk", text(info.bulk));
        json_object_set_new(j, "bulk_detail", text(info.bulk_detail));
        json_object_set_new(j, "bulk_gpu", text(info.gpu));
        json_object_set_new(j, "since_s", real((double)(now - info.link.since_ms) / 1000));
        json_object_set_new(j, "heard_s", real((double)(now - info.link.last_heard_ms) / 1000));
        json_object_set_new(j, "round_trip_s", real((double)info.link.round_trip_ns / 1e9));
        json_object_set_new(j, "sent", report_traffic(info.sent));
        json_object_set_new(j, "received", report_traffic(info.received));
        return j;
}

static uint64_t resident_bytes(void)
{
        unsigned long size, resident = 0;
        FILE *f = fopen("/proc/self/statm", "re");

        if (f && fscanf(f, "%lu %lu", &size, &resident) != 2)
                resident = 0;
        if (f)
                fclose(f);
        return (uint64_t)resident * (uint64_t)sysconf(_SC_PAGESIZE);
}

json_t *report_status(const struct rpc *rpc, const struct gpu_use_now *gpus)
{
        const struct exchange *x = rpc->x;
        json_t *j = json_object(), *peers = json_array(), *memory = json_object();

        json_object_set_new(j, "node", text(node_name(x, x->cluster->self)));
        json_object_set_new(j, "version", text(ZEROD_VERSION));
        json_object_set_new(j, "uptime_s",
                            real((double)(exchange_now(x) - rpc->started_ms) / 1000));
        json_object_set_new(j, "socket", text(x->conf->socket));
        json_object_set_new(j, "state_dir", text(x->conf->state_dir));
        json_object_set_new(j, "device", text(x->ops->name));
        for (uint32_t n = 0; n < x->cluster->n_nodes; n++)
                json_array_append_new(peers, report_peer(x, n));
        json_object_set_new(j, "peers", peers);
        json_object_set_new(j, "jobs", report_jobs(rpc));
        json_object_set_new(j, "attaching", report_attaching(x));
        json_object_set_new(memory, "state_used", number(store_used(x->store)));
        json_object_set_new(memory, "state_quota", number(store_quota(x->store)));
        json_object_set_new(memory, "resident", number(resident_bytes()));
        json_object_set_new(j, "memory", memory);
        json_object_set_new(j, "cuda", report_cuda());
        json_object_set_new(j, "gpus", report_gpus(gpus));
        return j;
}

static void config_option(void *arg, const char *name, const char *value, const char *source,
                          const char *doc)
{
        json_t *j = json_object();

        json_object_set_new(j, "name", text(name));
        json_object_set_new(j, "value", text(value));
        json_object_set_new(j, "source", text(source));
        json_object_set_new(j, "doc", text(doc));
        json_array_append_new(arg, j);
}

json_t *report_config(const struct rpc *rpc)
{
        json_t *j = json_object(), *options = json_array();

        conf_each(rpc->x->conf, config_option, options);
        json_object_set_new(j, "options", options);
        return j;
}
