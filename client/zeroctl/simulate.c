/*
 * zeroctl simulate: what steps take of clusters of many nodes.
 *
 * zerod-simulate has the daemon's machines and simulates; zeroctl sees only zero.h.  So this file
 * gives that program a description (plan.h has what a node moves and holds), and puts together what
 * it counts with what a plan has.
 */
#include "plan.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "program.h"
#include "simulate.h"

enum { PATIENCE_S = 600, RANKS_MAX = 65536, PATH_LENGTH = 4096 };
enum { PEER_UCX = 6000000, PEER_TCP = 150000 }; /* bytes; measured */
enum { QUEUE = 24 }; /* bytes, of each node in each group of a replica (reduce/accumulator.h) */

static long seed = 1;
static const char *latency = "10", *message = "20", *bulk = "ucx";
static double latency_us, message_us;

static const struct command_option options[] = {
        { "seed", "N", "what the order of messages follows from (default: 1)", .count = &seed },
        { "latency", "US",
          "microseconds that a message takes at least, and at most twice (default: 10)",
          .text = &latency },
        { "message", "US",
          "microseconds that a daemon spends on a message that it sends or receives, with what "
          "follows from it (default: 20, measured with groups of 512 bytes)",
          .text = &message },
        { "bulk", "ucx|tcp",
          "the path of payloads; over ucx, owners read small gradients without asking for them "
          "(default: ucx)",
          .text = &bulk },
        { 0 },
};

static const struct plan_asker of_simulate = { .name = "simulate",
                                               .most_nodes = PLAN_NODES_MAX,
                                               .most_ranks = RANKS_MAX,
                                               .any_model = true,
                                               .any_nodes = true };

static int take_us(const char *option, const char *text, double *ret)
{
        char *end;
        double x = strtod(text, &end);

        if (end == text || *end || !(x >= 0 && x <= 1e6)) {
                ctl_error("simulate: --%s is 0 to 1000000 microseconds, not '%s'", option, text);
                return CTL_USAGE;
        }
        *ret = x;
        return CTL_OK;
}

static int check(const struct ctl *ctl)
{
        int r = plan_check(ctl, &of_simulate);

        if (r == CTL_OK)
                r = take_us("latency", latency, &latency_us);
        if (r == CTL_OK)
                r = take_us("message", message, &message_us);
        if (r == CTL_OK && strcmp(bulk, "ucx") != 0 && strcmp(bulk, "tcp") != 0) {
                ctl_error("simulate: --bulk is ucx or tcp, not '%s'", bulk);
                r = CTL_USAGE;
        }
        return r;
}

/* ---- the description --------------------------------------------------------------- */

static json_t *group_json(const struct plan_model *m, const struct plan_cluster *c, struct plan *p,
                          uint32_t group)
{
        const struct plan_passes passes = plan_passes(m, c, p, group);
        uint32_t tensor, n = zero_layout_group_tensors(m->layout, group, &tensor);
        json_t *tensors = json_array();

        for (uint32_t i = tensor; i < tensor + n; i++)
                json_array_append_new(
                        tensors,
                        json_pack("[I, b]", (json_int_t)zero_layout_tensor_elements(m->layout, i),
                                  zero_layout_tensor_frozen(m->layout, i)));
        return json_pack("{s:i, s:I, s:o}", "dtype", (int)passes.dtype, "gathers",
                         (json_int_t)passes.gathers, "tensors", tensors);
}

/* Times beyond an hour are cut: they order nothing. */
static json_int_t nanoseconds(double s)
{
        return (json_int_t)((s < 3600 ? s : 3600) * 1e9);
}

static json_t *description(const struct ctl *ctl, const struct plan_model *m,
                           const struct plan_cluster *c, struct plan *p)
{
        const struct plan_passes passes = plan_passes(m, c, p, 0);
        json_t *groups = json_array();

        for (uint32_t g = 0; g < p->groups; g++)
                json_array_append_new(groups, group_json(m, c, p, g));
        return json_pack("{s:I, s:I, s:I, s:I, s:b, s:b, s:I, s:s, s:I, s:I, s:I, s:I, s:f, s:I, "
                         "s:I, s:o}",
                         "nodes", (json_int_t)c->nodes, "owners", (json_int_t)c->owners, "devices",
                         (json_int_t)c->devices, "ranks", (json_int_t)c->ranks, "mirror", c->mirror,
                         "announces", strcmp(bulk, "ucx") == 0 && !c->gpus, "seed",
                         (json_int_t)seed, "job", ctl->argument ? ctl->argument : "simulated",
                         "latency_ns", nanoseconds(latency_us / 1e6), "message_ns",
                         nanoseconds(message_us / 1e6), "step_ns",
                         nanoseconds(p->bound < 0 ? 0 : p->bounds[p->bound]), "update_ns",
                         nanoseconds(p->bounds[1]), "link", c->link, "reduce_size",
                         (json_int_t)passes.reduce_size, "pushes", (json_int_t)passes.pushes,
                         "groups", groups);
}

/* ---- the program ------------------------------------------------------------------- */

/* $ZEROCTL_SIMULATE, or where meson installs it, seen from zeroctl. */
static const char *program_path(char path[static PATH_LENGTH])
{
        const char *given = getenv("ZEROCTL_SIMULATE");
        ssize_t n = readlink("/proc/self/exe", path, PATH_LENGTH - 1);
        char *slash;

        if (given)
                return given;
        path[n > 0 ? n : 0] = '\0';
        slash = strrchr(path, '/');
        if (!slash || slash - path + sizeof("/" ZEROD_SIMULATE) > PATH_LENGTH)
                return "zerod-simulate";
        strcpy(slash, "/" ZEROD_SIMULATE);
        return path;
}

static int simulate(const struct ctl *ctl, const json_t *what, json_t **ret)
{
        double patience = ctl->options.timeout_ms ? ctl_patience(ctl) : PATIENCE_S;
        FILE *in = tmpfile(), *out = tmpfile();
        char path[PATH_LENGTH];
        const char *name = program_path(path);
        char *const arguments[] = { (char *)name, NULL };
        json_error_t error;
        pid_t pid;
        int r = CTL_FAILED, e = -EIO;

        if (in && out && json_dumpf(what, in, JSON_COMPACT) == 0 && fflush(in) == 0 &&
            fseek(in, 0, SEEK_SET) == 0)
                e = program_start(arguments, fileno(in), fileno(out), &pid);
        if (e) {
                ctl_error("simulate: cannot run %s: %s; see ZEROCTL_SIMULATE in zeroctl(1)", name,
                          strerror(-e));
        } else if ((e = program_end(pid, patience, -1))) {
                if (e == PROGRAM_LATE) /* otherwise it has said why */
                        ctl_error("simulate: zerod-simulate did not end within %.0f s; see "
                                  "--timeout",
                                  patience);
        } else if (fseek(out, 0, SEEK_SET) == 0) {
                *ret = json_loadf(out, 0, &error);
                r = *ret ? CTL_OK : CTL_FAILED;
                if (!*ret)
                        ctl_error("simulate: %s: %s", name, error.text);
        }
        if (in)
                fclose(in);
        if (out)
                fclose(out);
        return r;
}

/* ---- the answer -------------------------------------------------------------------- */

/* The node that has most to hold, with what a plan does not know: each other node's share. */
static json_t *memory_json(const struct plan_cluster *c, const struct plan *p)
{
        const struct plan_node *most = &p->nodes[0];
        int64_t planes = 0, peers, queues;

        for (int64_t n = 1; n < c->nodes; n++)
                if (p->nodes[n].host > most->host)
                        most = &p->nodes[n];
        for (int i = 0; i < PLAN_PLANES; i++)
                planes += most->planes[i];
        peers = (c->nodes - 1) * (strcmp(bulk, "ucx") == 0 ? PEER_UCX : PEER_TCP);
        queues = QUEUE * c->nodes * p->groups * c->devices * (1 + c->mirror);
        return json_pack("{s:I, s:I, s:I, s:I, s:I, s:I, s:I}", "planes", (json_int_t)planes,
                         "windows", (json_int_t)(most->gather_window + most->push_windows),
                         "buffers", (json_int_t)(most->sums + most->receive), "peers",
                         (json_int_t)peers, "queues", (json_int_t)queues, "host",
                         (json_int_t)(most->host + peers + queues), "gpu", (json_int_t)p->gpu);
}

/* What of a real cluster ends before this size. */
static json_t *limits_json(const struct plan_cluster *c, const json_t *memory)
{
        double host = field_number(memory, "host"), gpu = field_number(memory, "gpu");
        json_t *list = json_array();

        if (c->nodes > ZERO_NODE_MAX)
                json_array_append_new(list, json_string("nodes: a cluster has at most 64"));
        if (c->nodes * c->ranks > ZERO_RANK_MAX)
                json_array_append_new(list, json_string("ranks: a job has at most 4096"));
        if (c->host_memory && host > (double)c->host_memory)
                json_array_append_new(list, json_string("host memory"));
        if (c->gpu_memory && gpu > (double)c->gpu_memory)
                json_array_append_new(list, json_string("GPU memory"));
        return list;
}

/* What of the step goes on at the same time takes as long as the slowest; the decision follows. */
static json_t *time_json(const struct plan *p, const json_t *said)
{
        double decision = field_number(said, "decision_s"), most = field_number(said, "loop_s");
        json_t *j = json_pack("{s:f, s:f}", "loop_s", most, "decision_s", decision);
        const char *bound = "loop";
        char name[16];

        for (int i = 0; i < PLAN_BOUNDS; i++) {
                snprintf(name, sizeof(name), "%s_s", plan_bounds[i]);
                json_object_set_new(j, name,
                                    p->bounds[i] > 0 ? json_real(p->bounds[i]) : json_null());
                if (p->bounds[i] > most) {
                        most = p->bounds[i];
                        bound = plan_bounds[i];
                }
        }
        json_object_set_new(j, "at_least_s", json_real(most + decision));
        json_object_set_new(j, "bound_by", json_string(decision > most ? "decision" : bound));
        return j;
}

/* Every node does the same with a group: all ranks work with all groups. */
static int check_groups(const struct plan_model *m)
{
        const uint32_t *ranks;

        for (uint32_t g = 0; g < zero_layout_groups(m->layout); g++)
                if (zero_layout_group_ranks(m->layout, g, &ranks)) {
                        ctl_error("simulate: group '%s' is of some ranks only, which is not "
                                  "simulated; zeroctl plan takes such a job",
                                  zero_layout_group_name(m->layout, g));
                        return CTL_FAILED;
                }
        return CTL_OK;
}

static int size_json(const struct ctl *ctl, const struct plan_model *m, struct plan_cluster *c,
                     struct plan *p, json_t **ret)
{
        json_t *what, *said = NULL, *memory;
        const char *flaw;
        int r = plan_make(m, c, p, &flaw);

        if (r != CTL_OK) {
                ctl_error("simulate: %s", flaw);
                return r;
        }
        what = description(ctl, m, c, p);
        r = what ? simulate(ctl, what, &said) : CTL_FAILED;
        json_decref(what);
        if (r != CTL_OK)
                return r;
        memory = memory_json(c, p);
        json_object_set_new(said, "links",
                            json_pack("{s:I, s:I}", "of_each", (json_int_t)(c->nodes - 1), "total",
                                      (json_int_t)(c->nodes * (c->nodes - 1) / 2)));
        json_object_set_new(said, "limits", limits_json(c, memory));
        json_object_set_new(said, "memory", memory);
        json_object_set_new(said, "time", time_json(p, said));
        *ret = said;
        return CTL_OK;
}

static int sizes_json(const struct ctl *ctl, const struct plan_model *m, json_t *list,
                      struct plan *p)
{
        struct plan_cluster c = plan_cluster_asked();
        const int64_t sizes[] = { 64, 256, 1024, 4096 }, nodes = c.nodes, owners = c.owners;
        int r = CTL_OK;

        if (!(c.link > 0))
                c.link = 12.5e9;
        if (c.stash && c.tensor_parallel > c.ranks) {
                ctl_error("simulate: a stash that ranks of several nodes share is not simulated");
                return CTL_USAGE;
        }
        for (size_t i = 0; r == CTL_OK && i < (nodes < 0 ? sizeof(sizes) / sizeof(sizes[0]) : 1);
             i++) {
                json_t *size = NULL;

                c.nodes = nodes < 0 ? sizes[i] : nodes;
                c.owners = owners < 0 ? c.nodes : owners;
                if (c.owners > c.nodes || c.owners * c.devices > PLAN_NODES_MAX ||
                    c.nodes * c.ranks > RANKS_MAX) {
                        ctl_error("simulate: %lld nodes do not go with the given --owners, "
                                  "--devices or --ranks: give --nodes",
                                  (long long)c.nodes);
                        return CTL_USAGE;
                }
                r = size_json(ctl, m, &c, p, &size);
                if (r == CTL_OK)
                        json_array_append_new(list, size);
        }
        return r;
}

static int run(struct ctl *ctl)
{
        struct plan_model m = { 0 };
        struct plan *p = calloc(1, sizeof(*p));
        json_t *list = json_array();
        int r = p && list ? plan_model_asked(ctl, &m) : CTL_FAILED;

        if (!p || !list)
                ctl_error("out of memory");
        if (r == CTL_OK)
                r = check_groups(&m);
        if (r == CTL_OK)
                r = sizes_json(ctl, &m, list, p);
        if (r == CTL_OK)
                r = ctl_show(ctl,
                             json_pack("{s:I, s:I, s:I, s:O}", "parameters",
                                       (json_int_t)p->parameters, "groups", (json_int_t)p->groups,
                                       "seed", (json_int_t)seed, "sizes", list),
                             simulate_show);
        json_decref(list);
        free(p);
        plan_model_free(&m);
        return r;
}

const struct command command_simulate = {
        .name = "simulate",
        .arguments = "[JOB]",
        .summary = "what steps take of a cluster of up to 4096 nodes",
        .description =
                "Simulates clusters in one process: the daemon's own machines (coordinator, "
                "owners, "
                "partition) on simulated links and clocks. The model is as for *plan*, or without "
                "one a decoder of 10^12 parameters; without *--nodes* the clusters have 64, 256, "
                "1024 and 4096 nodes. Nodes beyond 64, and ranks beyond 4096, are simulated "
                "although "
                "zerod refuses them. Only a job needs a daemon.\n"
                "A job is opened and makes steps, each message by itself. Messages of gathers and "
                "gradients, which are most, are counted from the partition; for four nodes those "
                "that come in are simulated one by one. Shown are the messages of a step between "
                "nodes, by kind as *status* counts them, on all nodes and at the node that has "
                "most; the most nodes whose messages wait for one daemon at once; memory of the "
                "node that has most to hold, as in *plan*, with 6 MB for each other node over UCX, "
                "or 0.15 over TCP; "
                "and what the step takes at least: the longest of link, update, copy, compute (as "
                "in *plan*) and loop, the time that the busiest "
                "daemon spends on messages, and then the decision.\n"
                "The same options give the same output. Another *--seed* gives another order of "
                "messages, and the same counts. The program that simulates, zerod-simulate, is "
                "found by the environment variable *ZEROCTL_SIMULATE*, or where it is installed. "
                "It "
                "may take 600 seconds, or *--timeout*.",
        .options = options,
        .more_options = plan_options,
        .check = check,
        .run = run,
        .of_job = true,
        .alone = true,
};
