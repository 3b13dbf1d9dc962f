/* zeroctl plan: says beforehand what a model takes of a cluster, and whether it fits. */
#include "plan.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static bool paper, mirror, measure, eager, ema;
static const char *model, *dtype, *grad_dtype, *reduce_dtype, *accumulate = "fp32", *optimizer,
                                                              *state, *master;
static const char *states = "host";
static const char *stash, *host_memory, *gpu_memory, *link_rate, *update_rate, *copy_rate, *compute;
static long layers, hidden, vocab, seq = 1024, batch;
/* -1: not given */
static long nodes = -1, owners = -1, devices = 1, ranks = 1, gpus, stage = 3, hold = -1, push = 2;
static long micro_batches = 1, tensor_parallel = 1;

const struct command_option plan_options[] = {
        { "model", "FILE",
          "a safetensors file, an index of safetensors files (model.safetensors.index.json), or a "
          "config.json of Hugging Face whose model_type is gpt2, bert, llama, mistral, qwen2, "
          "deepseek_v3 or kimi_k2",
          .text = &model },
        { "layers", "N", "a decoder as GPT-2, with so many layers", .count = &layers },
        { "hidden", "N", "its hidden size", .count = &hidden },
        { "vocab", "N", "tokens of its vocabulary", .count = &vocab },
        { "seq", "N", "tokens of a sequence, and its positions (default: 1024)", .count = &seq },
        { "batch", "N", "sequences of a rank in a micro-batch; counts checkpoints of activations",
          .count = &batch },
        { "nodes", "N",
          "nodes, 1 to 64 (default: 1); simulate: 1 to 4096 (default: 64, 256, 1024 and 4096, one "
          "after "
          "the other)",
          .count = &nodes },
        { "owners", "N", "nodes that hold shards (default: all)", .count = &owners },
        { "devices", "N", "devices that a node divides its shards over, 1 to 8 (default: 1)",
          .count = &devices },
        { "ranks", "N", "ranks of each node (default: 1)", .count = &ranks },
        { "gpus", "N", "GPUs of each node, where trainers have their windows (default: 0)",
          .count = &gpus },
        { "states", "host|gpu", "where master weights, moments and gradients lie (default: host)",
          .text = &states },
        { "mirror", NULL, "a second copy of all shards, as zerod's option mirror",
          .flag = &mirror },
        { "eager", NULL, "owners update ahead of decisions, as of zerod.torch.shard(eager=True)",
          .flag = &eager },
        { "ema", NULL, "groups keep an average of their weights, as of zerod.torch.shard(ema=True)",
          .flag = &ema },
        { "stage", "1|2|3", "ZeRO stage of the trainers (default: 3)", .count = &stage },
        { "hold", "N",
          "groups that a rank holds at once at stage 3 (default, as zerod.torch.shard(): 4, or all "
          "if "
          "4 of the largest are more than the model)",
          .count = &hold },
        { "push", "N",
          "gradients of a rank in flight at stages 2 and 3 (default: 2); at stage 1 all",
          .count = &push },
        { "micro-batches", "N", "micro-batches of a step (default: 1)", .count = &micro_batches },
        { "stash", "SIZE|auto",
          "activation checkpoints of a rank that the nodes keep, in host memory; auto: one a "
          "layer, "
          "of 2 bytes an element",
          .text = &stash },
        { "tensor-parallel", "N",
          "consecutive ranks that stash the same bytes, each an Nth of them (default: 1)",
          .count = &tensor_parallel },
        { "dtype", "DTYPE",
          "of the parameters that trainers fetch: " ZERO_DTYPES " (default: the model's)",
          .text = &dtype },
        { "grad-dtype", "DTYPE", "of the gradients that trainers push (default: the parameters')",
          .text = &grad_dtype },
        { "reduce-dtype", "DTYPE", "of gradients between nodes (default: the gradients')",
          .text = &reduce_dtype },
        { "accumulate", "fp32|wire",
          "dtype of owners' sums of gradients: fp32, or as between nodes (default: fp32)",
          .text = &accumulate },
        { "state", "FORMAT",
          "of moments: fp32, bf16 or 8bit (default: the job's, or fp32)",
          .text = &state },
        { "master", "FORMAT",
          "of master weights of bf16 parameters: fp32, bf16+16 or bf16+8 (default: the job's, or "
          "fp32)",
          .text = &master },
        { "optimizer", "NAME",
          ZERO_OPTIMIZERS "; muon updates matrices of layers, and adamw all else (default: the "
                          "job's, or adamw)",
          .text = &optimizer },
        { "host-memory", "SIZE", "memory of each node: bytes, or with a suffix K, M, G, T",
          .text = &host_memory },
        { "gpu-memory", "SIZE", "memory of each GPU", .text = &gpu_memory },
        { "link", "GB/S",
          "what a node sends, and receives, in 10^9 bytes a second (simulate: 12.5 if not given)",
          .text = &link_rate },
        { "update", "GB/S", "what an update reads and writes on a node, or on a GPU with states",
          .text = &update_rate },
        { "copy", "GB/S", "what a node copies between shards, windows and sums",
          .text = &copy_rate },
        { "compute", "SECONDS", "what a step of the trainer takes by itself", .text = &compute },
        { 0 },
};

static const struct command_option options[] = {
        { "measure", NULL,
          "measure what --update, --copy and --link would give, on all nodes of the running "
          "cluster; "
          "no job may have ranks; only for root and the user zerod runs as",
          .flag = &measure },
        { "paper", NULL, "print tables of the ZeRO paper from its formulas, and its numbers",
          .flag = &paper },
        { 0 },
};

/* ---- what is asked --------------------------------------------------------------- */

static const struct plan_asker of_plan = { .name = "plan",
                                           .most_nodes = ZERO_NODE_MAX,
                                           .most_ranks = ZERO_RANK_MAX },
                               *asker = &of_plan;

static int usage(const char *option, const char *needed, long value)
{
        ctl_error("%s: --%s is %s, not %ld", asker->name, option, needed, value);
        return CTL_USAGE;
}

static int take_dtype(const char *option, const char *text, enum zero_dtype *ret)
{
        if (!text)
                return CTL_OK;
#define X(name, code, bytes, words)     \
        if (strcmp(text, words) == 0) { \
                *ret = ZERO_##name;     \
                return CTL_OK;          \
        }
        ZERO_DTYPE_MAP(X)
#undef X
        ctl_error("%s: --%s is " ZERO_DTYPES ", not '%s'", asker->name, option, text);
        return CTL_USAGE;
}

/* A number above 0 and up to `most`, perhaps with one of the suffixes, each 1024 times the last. */
static int take_number(const char *option, const char *text, const char *suffixes, double most,
                       double *ret)
{
        const char *suffix;
        char *end;
        double x;

        if (!text)
                return CTL_OK;
        x = strtod(text, &end);
        suffix = *end ? strchr(suffixes, *end) : NULL;
        if (suffix)
                x = ldexp(x, 10 * (int)(suffix + 1 - suffixes));
        if (end == text || end[suffix != NULL] || !(x > 0 && x <= most)) {
                ctl_error("%s: --%s is a number above 0 and up to %s, not '%s'", asker->name,
                          option,
                          *suffixes ? "1048576T, perhaps with a suffix K, M, G or T" : "1000000000",
                          text);
                return CTL_USAGE;
        }
        *ret = x;
        return CTL_OK;
}

static int take_size(const char *option, const char *text, int64_t *ret)
{
        double x = 0;
        int r = take_number(option, text, "KMGT", 0x1p60, &x);

        *ret = (int64_t)x;
        return r;
}

static int check_counts(void)
{
        /* without --nodes, the asker sees to it that these fit the nodes that it takes */
        long n = nodes < 0 ? 1 : nodes, most_owners = nodes < 0 ? asker->most_nodes : nodes;
        const struct {
                const char *option;
                long value, most;
        } bounds[] = {
                { "nodes", n, asker->most_nodes },
                { "owners", owners < 0 ? n : owners, most_owners },
                { "devices", devices, 8 },
                { "ranks", ranks, ZERO_RANK_MAX },
                { "stage", stage, 3 },
                { "hold", hold < 0 ? 1 : hold, ZERO_GROUP_MAX },
                { "seq", seq, COUNT_MAX },
                { "push", push, ZERO_GROUP_MAX },
                { "micro-batches", micro_batches, COUNT_MAX },
                { "tensor-parallel", tensor_parallel, n * ranks },
        };
        char most[64];

        for (size_t i = 0; i < sizeof(bounds) / sizeof(bounds[0]); i++) {
                char needed[32];

                snprintf(needed, sizeof(needed), "1 to %ld", bounds[i].most);
                if (bounds[i].value < 1 || bounds[i].value > bounds[i].most)
                        return usage(bounds[i].option, needed, bounds[i].value);
        }
        if (gpus > ranks)
                return usage("gpus", "at most --ranks: a rank has one GPU", gpus);
        snprintf(most, sizeof(most), "such that all owners have at most %ld", asker->most_nodes);
        if ((owners < 0 ? n : owners) * devices > asker->most_nodes)
                return usage("devices", most, devices);
        snprintf(most, sizeof(most), "such that all nodes have at most %ld", asker->most_ranks);
        if (n * ranks > asker->most_ranks)
                return usage("ranks", most, ranks);
        if ((ranks % tensor_parallel && tensor_parallel % ranks) || n * ranks % tensor_parallel)
                return usage("tensor-parallel",
                             "a divisor or a multiple of --ranks, and a divisor of all ranks",
                             tensor_parallel);
        return CTL_OK;
}

static bool asks_muon(void)
{
        return optimizer && strcmp(optimizer, "muon") == 0;
}

static int check_model(const struct ctl *ctl)
{
        bool by_sizes = layers || hidden || vocab;
        int named = !!ctl->argument + !!model + by_sizes + paper;

        if (named > 1 || (paper && measure) || !(named || measure || asker->any_model)) {
                ctl_error("%s: of which model? name a JOB, --model FILE, or --layers, --hidden and "
                          "--vocab%s",
                          asker->name,
                          asker->any_model ? "" : "; or ask for --paper, or --measure alone");
                return CTL_USAGE;
        }
        if (by_sizes && !(layers && hidden && vocab)) {
                ctl_error("%s: --layers, --hidden and --vocab belong together, each 1 or more",
                          asker->name);
                return CTL_USAGE;
        }
        if (ctl->argument && asks_muon()) {
                ctl_error("%s: --optimizer muon is for --model, or --layers, --hidden and --vocab: "
                          "the tensors of a job have their optimizers",
                          asker->name);
                return CTL_USAGE;
        }
        return CTL_OK;
}

static struct plan_cluster cluster;

static int check_places(void)
{
        cluster.states_on_gpu = strcmp(states, "gpu") == 0;
        if (!cluster.states_on_gpu && strcmp(states, "host") != 0) {
                ctl_error("%s: --states is host or gpu, not '%s'", asker->name, states);
                return CTL_USAGE;
        }
        if (cluster.states_on_gpu && devices > gpus)
                return usage("gpus", "as many as --devices or more, with --states gpu", gpus);
        if (gpu_memory && !gpus)
                return usage("gpus", "1 or more with --gpu-memory", gpus);
        cluster.wire = strcmp(accumulate, "wire") == 0;
        if (!cluster.wire && strcmp(accumulate, "fp32") != 0) {
                ctl_error("%s: --accumulate is " ZERO_ACCUMULATES ", not '%s'", asker->name,
                          accumulate);
                return CTL_USAGE;
        }
        if (cluster.wire && cluster.states_on_gpu) {
                ctl_error("%s: --states gpu needs --accumulate fp32", asker->name);
                return CTL_USAGE;
        }
        cluster.state = state;
        cluster.master = master;
        if (state && !plan_format_of_state(state)) {
                ctl_error("%s: --state is fp32, bf16 or 8bit, not '%s'", asker->name, state);
                return CTL_USAGE;
        }
        if (master && !plan_format_of_master(master)) {
                ctl_error("%s: --master is fp32, bf16+16 or bf16+8, not '%s'", asker->name, master);
                return CTL_USAGE;
        }
        cluster.optimizer = optimizer ? plan_optimizer(optimizer) : NULL;
        if (optimizer && !cluster.optimizer) {
                ctl_error("%s: --optimizer is " ZERO_OPTIMIZERS ", not '%s'", asker->name,
                          optimizer);
                return CTL_USAGE;
        }
        return CTL_OK;
}

static int check_values(void)
{
        const struct {
                const char *option, *text;
                enum zero_dtype *ret;
        } dtypes[] = {
                { "dtype", dtype, &cluster.dtype },
                { "grad-dtype", grad_dtype, &cluster.grad_dtype },
                { "reduce-dtype", reduce_dtype, &cluster.reduce_dtype },
        };
        const struct {
                const char *option, *text;
                double *ret;
        } rates[] = {
                { "link", link_rate, &cluster.link },
                { "update", update_rate, &cluster.update },
                { "copy", copy_rate, &cluster.copy },
                { "compute", compute, &cluster.compute },
        };
        int r = take_size("host-memory", host_memory, &cluster.host_memory);

        if (r == CTL_OK)
                r = take_size("gpu-memory", gpu_memory, &cluster.gpu_memory);
        if (r == CTL_OK && stash && strcmp(stash, "auto") == 0)
                cluster.stash = -1;
        else if (r == CTL_OK)
                r = take_size("stash", stash, &cluster.stash);
        for (size_t i = 0; r == CTL_OK && i < sizeof(dtypes) / sizeof(dtypes[0]); i++)
                r = take_dtype(dtypes[i].option, dtypes[i].text, dtypes[i].ret);
        for (size_t i = 0; r == CTL_OK && i < sizeof(rates) / sizeof(rates[0]); i++)
                r = take_number(rates[i].option, rates[i].text, "", 1e9, rates[i].ret);
        return r;
}

int plan_check(const struct ctl *ctl, const struct plan_asker *who)
{
        int r;

        asker = who;
        if (nodes < 0 && !asker->any_nodes)
                nodes = 1;
        r = check_model(ctl);
        if (r == CTL_OK)
                r = check_counts();
        if (r == CTL_OK)
                r = check_places();
        return r == CTL_OK ? check_values() : r;
}

static int check(const struct ctl *ctl)
{
        return plan_check(ctl, &of_plan);
}

struct plan_cluster plan_cluster_asked(void)
{
        cluster.nodes = nodes;
        cluster.owners = owners < 0 ? nodes : owners;
        cluster.devices = devices;
        cluster.ranks = ranks;
        cluster.gpus = gpus;
        cluster.stage = stage;
        cluster.hold = hold < 0 ? 0 : hold;
        cluster.push = push;
        cluster.micro_batches = micro_batches;
        cluster.tensor_parallel = tensor_parallel;
        cluster.batch = batch;
        cluster.seq = seq;
        cluster.mirror = mirror;
        cluster.eager = eager;
        cluster.ema = ema;
        cluster.link *= 1e9;
        cluster.update *= 1e9;
        cluster.copy *= 1e9;
        return cluster;
}

/* ---- the answer ------------------------------------------------------------------- */

static json_t *number(int64_t n)
{
        return json_integer((json_int_t)n);
}

static json_t *seconds(double s)
{
        return s > 0 ? json_real(s) : json_null();
}

/* Named as in the answer to status. */
static json_t *planes_json(const struct plan *p, const struct plan_node *n)
{
        const char *names[PLAN_PLANES] = {
                "master", p->moments[0], p->moments[1],          p->moments[2],
                "grad",   "serve",       p->eager ? "old" : NULL
        };
        json_t *j = json_object();

        for (int i = 0; i < PLAN_PLANES; i++)
                if (names[i])
                        json_object_set_new(j, names[i], number(n->planes[i]));
        return j;
}

static json_t *node_json(const struct plan *p, int64_t i)
{
        const struct plan_node *n = &p->nodes[i];

        return json_pack(
                "{s:I, s:b, s:o, s:{s:I, s:I}, s:I, s:{s:I, s:I}, s:I, s:I,"
                " s:I, s:{s:I, s:I, s:I}, s:{s:I, s:I, s:I}, s:I, s:I, s:I, s:I}",
                "node", (json_int_t)i, "owner", n->owner, "planes", planes_json(p, n), "gather",
                "window_bytes", (json_int_t)n->gather_window, "slots", (json_int_t)n->slots,
                "push_windows", (json_int_t)n->push_windows, "buffers", "sums", (json_int_t)n->sums,
                "receive", (json_int_t)n->receive, "host_bytes", (json_int_t)n->host, "gpu_bytes",
                (json_int_t)n->gpu, "stash", (json_int_t)n->stash, "sent", "gather",
                (json_int_t)n->step.gather_sent, "reduce", (json_int_t)n->step.reduce_sent, "stash",
                (json_int_t)n->step.stash, "received", "gather",
                (json_int_t)n->step.gather_received, "reduce", (json_int_t)n->step.reduce_received,
                "stash", (json_int_t)n->step.stash, "gather_elements_received",
                (json_int_t)n->step.gather_elements, "reduce_elements_sent",
                (json_int_t)n->step.reduce_elements, "update_bytes", (json_int_t)n->step.update,
                "copy_bytes", (json_int_t)n->step.copy);
}

/* Model states of a process, and elements of a process and step, by the paper's formulas: sections
 * 3.1 and 7. */
static json_t *paper_json(const struct plan *p)
{
        int64_t n = cluster.nodes * cluster.ranks;
        int64_t whole = stage == 1 ? 4 : stage == 2 ? 2 : 0;

        double all = 4 + p->state_bytes;

        return json_pack("{s:f, s:I, s:I}", "bytes_per_parameter", all, "rank_bytes",
                         (json_int_t)((double)p->elements *
                                      ((double)whole + (all - (double)whole) / (double)n)),
                         "rank_elements", (json_int_t)((stage == 3 ? 3 : 2) * p->elements));
}

static json_t *step_json(const struct plan *p)
{
        json_t *j = json_object();
        char name[16];

        for (int i = 0; i < PLAN_BOUNDS; i++) {
                snprintf(name, sizeof(name), "%s_s", plan_bounds[i]);
                json_object_set_new(j, name, seconds(p->bounds[i]));
        }
        json_object_set_new(j, "at_least_s",
                            p->bound < 0 ? json_null() : seconds(p->bounds[p->bound]));
        json_object_set_new(j, "estimate_s", seconds(p->estimate));
        json_object_set_new(j, "bound_by",
                            p->bound < 0 ? json_null() : json_string(plan_bounds[p->bound]));
        return j;
}

static json_t *muon_json(const struct plan_model *m, const struct plan *p)
{
        return m->muon ? json_pack("{s:f, s:f}", "flops", p->flops, "largest_share",
                                   p->largest_work)
                       : json_null();
}

static json_t *answer_json(const struct plan_model *m, const struct plan *p)
{
        bool limits = cluster.host_memory || cluster.gpu_memory, fit = plan_fits(&cluster, p);
        json_t *list = json_array();

        for (int64_t i = 0; i < cluster.nodes; i++)
                json_array_append_new(list, node_json(p, i));
        return json_pack(
                "{s:{s:I, s:I, s:I, s:I, s:I, s:I}, s:{s:I, s:I, s:I, s:I}, s:o, s:o, s:o, "
                "s:o, s:o, s:o, s:f, s:o}",
                "model", "parameters", (json_int_t)p->parameters, "elements",
                (json_int_t)p->elements, "trainable", (json_int_t)p->trainable, "groups",
                (json_int_t)p->groups, "largest_group", (json_int_t)p->largest_group,
                "tensors_left_out", (json_int_t)m->tensors_left_out, "rank", "push_window",
                (json_int_t)p->push_window, "activations", (json_int_t)p->activations, "stash",
                (json_int_t)p->stash, "stage", (json_int_t)stage, "zero_formula", paper_json(p),
                "nodes", list, "step", step_json(p), "fits",
                limits ? json_boolean(fit) : json_null(), "largest", plan_largest(m, &cluster, p),
                "advice", limits && !fit ? plan_advice(m, &cluster) : json_array(), "largest_share",
                p->largest_share, "newton_schulz", muon_json(m, p));
}

/* ---- run --------------------------------------------------------------------------- */

static int make_model(struct ctl *ctl, struct plan_model *ret)
{
        if (ctl->argument)
                return plan_model_job(ctl, ret);
        if (model)
                return plan_model_file(model, ret);
        if (!layers)
                return plan_model_sizes(128, 25600, 50257, seq, ret);
        return plan_model_sizes(layers, hidden, vocab, seq, ret);
}

int plan_model_asked(struct ctl *ctl, struct plan_model *ret)
{
        int r = make_model(ctl, ret);

        if (r == CTL_OK && asks_muon())
                return plan_model_muon(ret) == CTL_OK ? CTL_OK : plan_model_flaw(ret);
        return r;
}

/* The plan's answer takes over `measured`, or is that alone. */
static int plan_one(struct ctl *ctl, json_t *measured)
{
        struct plan *p = calloc(1, sizeof(*p));
        struct plan_model m = { 0 };
        const char *flaw = "out of memory";
        int r = p ? plan_model_asked(ctl, &m) : CTL_FAILED;

        if (r == CTL_OK)
                r = plan_make(&m, &cluster, p, &flaw);
        else if (p)
                flaw = NULL; /* it has been said */
        if (r == CTL_OK) {
                json_t *answer = answer_json(&m, p);

                if (measured)
                        json_object_set(answer, "measured", measured);
                r = ctl_show(ctl, answer, plan_show);
        } else if (flaw) {
                ctl_error("plan: %s", flaw);
        }
        free(p);
        plan_model_free(&m);
        return r;
}

static int run(struct ctl *ctl)
{
        json_t *measured = NULL;
        int r = CTL_OK;

        if (paper)
                return ctl_show(ctl, plan_paper(), plan_paper_show);
        plan_cluster_asked();
        if (measure)
                r = plan_measure(ctl, &cluster, &measured);
        if (r == CTL_OK && (ctl->argument || model || layers))
                r = plan_one(ctl, measured);
        else if (r == CTL_OK)
                r = ctl_show(ctl, json_pack("{s:O}", "measured", measured), plan_measure_show);
        json_decref(measured);
        return r;
}

const struct command command_plan = {
        .name = "plan",
        .arguments = "[JOB]",
        .summary = "what a model takes of a cluster, before there is one",
        .description =
                "Computes what a model takes of a cluster that need not exist: for each node the "
                "bytes of planes, windows and buffers, and what travels between nodes in a step. "
                "The "
                "model is that of a job, of *--model*, or of *--layers*, *--hidden* and *--vocab*. "
                "Only a job needs a daemon. Tensors of a layer, whose names begin alike up to a "
                "number, are one group, and those outside the layers the last one, as "
                "zerod.torch.shard() makes them.\n"
                "At stage 3 a node gathers every group forward and backward, less those that the "
                "window still has; at stages 1 and 2 once. The ranks of a node share that while "
                "they "
                "go through the model together, and the node sends one gradient. ZeRO's own "
                "figures stand beside: 2, 2 and 3 elements a "
                "parameter, for each rank (section 7 of arXiv 1910.02054). Windows and planes are "
                "what *status* counts; the buffers are the most that zerod takes. Not counted are "
                "what an update by Muon takes while it runs, 2 bytes an element of two groups and "
                "up to 16 of its largest matrix, "
                "tables of state files, below 1 % of the planes and 1.3 MiB, copies of what "
                "clients put, at most 8 MiB a client and 1 MiB while it puts nothing, and what a "
                "trainer "
                "allocates beside its windows, but for one checkpoint of activations a layer (2 "
                "bytes an element; section 6.1). With *--stash* the nodes keep the checkpoints, "
                "and "
                "*--tensor-parallel* ranks share them: a node that has all of these holds each "
                "byte "
                "once; if they are on several nodes, each holds its ranks' parts and two whole "
                "entries. A job's groups that only some ranks push are planned for the nodes of "
                "these "
                "ranks; node 0 has the first *--ranks* ranks, and so on.\n"
                "A step takes at least the longest of: what the busiest node sends or receives, by "
                "*--link*; what its update reads and writes, by *--update*; what it copies, by "
                "*--copy*; and *--compute*. What is not given does not count. With *--measure* the "
                "nodes of the running cluster measure the first three for about a second, all at "
                "once, each in 256 MiB of memory of its own; the slowest node's figures count. "
                "Alone, *--measure* prints them.\n"
                "With *--optimizer muon*, one moment is counted for the matrices of layers and two "
                "for all else. Each matrix has one owner. Beside the memory of the owner with most "
                "stands its share of the operations of Newton-Schulz: of a matrix of n x m, n the "
                "shorter side, 5 (4 n^2 m + 2 n^3) a step. No time has these operations. Experts "
                "of "
                "a layer are stacks of matrices.\n"
                "The estimate of a step, if all four are known, adds up what does not overlap. The "
                "update follows the last gradient. Where trainers compute on the CPU, their "
                "compute, "
                "the links and the copies share cores and memory: all four are added. With "
                "*--gpus*, "
                "links and copies overlap with compute, and the longer of both counts. Messages, "
                "and "
                "what a trainer waits for others, are left out, so small models take longer.\n"
                "With *--host-memory* or *--gpu-memory* it says whether the model fits, the "
                "largest that does (of what zerod takes, 262144 tensors), and single changes that "
                "make it "
                "fit.",
        .options = options,
        .more_options = plan_options,
        .check = check,
        .run = run,
        .of_job = true,
        .alone = true,
};
