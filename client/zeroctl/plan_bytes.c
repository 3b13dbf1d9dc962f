/*
 * What a model takes of a cluster: bytes of each node, and what travels in a step.
 *
 * Pure.  Sums are checked: a cluster whose bytes do not fit int64_t has no plan.
 */
#include "plan.h"

#include <stdlib.h>
#include <string.h>

enum {
        ALIGN = 128,        /* elements between tensors, and the unit of a shard */
        PAGE = 4096,        /* bytes; slots, and the shards of the serve plane */
        GPU_UNIT = 2 << 20, /* bytes that CUDA shares with trainers at once */
        TRANSFER = 4 << 20, /* bytes of a session that are no slots */
        BUFFERS = 4,        /* sums, and offers of each node, that a node keeps room for */
        STASH_UNITS = 32768,
        NS_STEPS = 5, /* of Newton-Schulz, as of torch.optim.Muon */
        HOLD = 4,     /* groups, as zerod.torch.shard() holds them: outside the layers, the one in
                         use, the one before and the one ahead */
        MASTER = 0,
        MOMENT = 1,
        GRAD = MOMENT + PLAN_MOMENTS,
        SERVE,
        OLD,
};

const char *const plan_bounds[PLAN_BOUNDS] = { "link", "update", "copy", "compute" };

#define STASH_MAX (INT64_C(1) << 50) /* bytes of a rank, as daemon/step/stash takes them */

/* What an owner holds, over all groups. */
struct owner {
        int64_t planes[PLAN_PLANES];
        int64_t update;                  /* bytes */
        double flops;                    /* of Newton-Schulz in a step */
        int64_t largest, largest_moment; /* elements of a shard; of its trainable part */
        struct {
                int64_t fetched, fetched_bytes; /* its shards, as often as the node gathers them */
                int64_t reduced; /* its shards of groups that are trained, each push */
                int64_t summed;  /* bytes of the ranks' gradients, and of their sum on the node */
                int64_t added;   /* bytes of that, and of the owner's sum */
        } flow;                  /* in a step, between the owner and one node */
};

struct work {
        const struct plan_model *m;
        const struct plan_cluster *c;
        struct plan *p;
        struct owner *owners;
        int64_t n_owners;
        uint64_t *first, *count; /* [group * n_owners + owner]: zero_layout_partition() */
        bool rank_sets;          /* not all ranks work with all groups */
        bool strangers;          /* ranks that the cluster does not have */
        bool large_stash;
        bool overflow;
};

/* sum += a * b */
static void add(struct work *w, int64_t *sum, int64_t a, int64_t b)
{
        int64_t product = 0;

        w->overflow |= __builtin_mul_overflow(a, b, &product) ||
                       __builtin_add_overflow(*sum, product, sum);
}

static int64_t up(int64_t n, int64_t unit)
{
        return (n + unit - 1) / unit * unit;
}

/* ---- a group --------------------------------------------------------------------- */

static int64_t elements(const struct work *w, uint32_t group)
{
        return (int64_t)zero_layout_group_elements(w->m->layout, group);
}

static enum zero_dtype group_dtype(const struct work *w, uint32_t group)
{
        enum zero_dtype dtype = zero_layout_group_dtype(w->m->layout, group);

        return w->c->dtype && !zero_dtype_is_bytes(dtype) ? w->c->dtype : dtype;
}

static bool eager(const struct work *w, uint32_t group)
{
        return (w->c->eager && !zero_dtype_is_bytes(group_dtype(w, group))) ||
               zero_layout_group_eager(w->m->layout, group);
}

/* Whether owners have parameters to serve beside the master weights. */
static bool served(const struct work *w, uint32_t group)
{
        enum zero_dtype dtype = group_dtype(w, group);

        return (dtype != ZERO_FP32 && !zero_dtype_is_bytes(dtype)) || eager(w, group);
}

static int64_t group_size(const struct work *w, uint32_t group)
{
        return (int64_t)zero_dtype_size(group_dtype(w, group));
}

static int64_t grad_size(const struct work *w)
{
        return w->c->grad_dtype ? (int64_t)zero_dtype_size(w->c->grad_dtype) : group_size(w, 0);
}

static int64_t reduce_size(const struct work *w)
{
        return w->c->reduce_dtype ? (int64_t)zero_dtype_size(w->c->reduce_dtype) : grad_size(w);
}

/* Of an owner's sum. */
static int64_t sum_size(const struct work *w)
{
        return w->c->wire ? reduce_size(w) : (int64_t)sizeof(float);
}

/* Bytes of 128 elements, as daemon/compute/device/formats.h has them. */
static const struct {
        const char *name;
        bool state, master;
        int64_t bytes;
} formats[] = {
        { "fp32", true, true, 512 },    { "bf16", true, false, 256 },
        { "8bit", true, false, 136 },   { "bf16+16", false, true, 256 },
        { "bf16+8", false, true, 128 },
};
enum { FORMATS = sizeof(formats) / sizeof(formats[0]) };

/* FORMATS: there is none of that name. */
static size_t find_format(const char *name)
{
        size_t i = 0;

        while (i < FORMATS && strcmp(formats[i].name, name) != 0)
                i++;
        return i;
}

bool plan_format_of_state(const char *name)
{
        size_t i = find_format(name);

        return i < FORMATS && formats[i].state;
}

bool plan_format_of_master(const char *name)
{
        size_t i = find_format(name);

        return i < FORMATS && formats[i].master;
}

/* n: a multiple of 128. */
static int64_t format_bytes(const char *name, int64_t n)
{
        return n / ALIGN * formats[find_format(name)].bytes;
}

static const char *state_format(const struct work *w, uint32_t group)
{
        return w->c->state ? w->c->state : zero_layout_group_state(w->m->layout, group, NULL);
}

static const char *master_format(const struct work *w, uint32_t group)
{
        const char *own;

        (void)zero_layout_group_state(w->m->layout, group, &own);
        if (!w->c->master)
                return own;
        return group_dtype(w, group) == ZERO_BF16 && !eager(w, group) ? w->c->master : "fp32";
}

/* NULL: the tensor has no moment i. */
static const char *moment_name(const struct work *w, uint32_t tensor, int i)
{
        uint32_t group = zero_layout_tensor_group(w->m->layout, tensor);
        const struct plan_optimizer *o = w->m->muon ? NULL : w->c->optimizer;
        int own = 0;

        if (!o)
                o = plan_optimizer(zero_layout_optimizer_of(w->m->layout, tensor));
        while (own < PLAN_MOMENTS && o->moments[own])
                own++;
        if (i == own && (w->c->ema || zero_layout_group_ema(w->m->layout, group)))
                return "ema";
        return o->moments[i];
}

enum { TRAINED = -1 };

/* Elements of a part of the group that are trained, with the gaps behind their tensors; of these,
 * the ones that have the moment, unless it is TRAINED.  *ret_bytes: of that moment; an average is
 * in fp32. */
static int64_t elements_with(const struct work *w, uint32_t group, int64_t first, int64_t count,
                             int moment, int64_t *ret_bytes)
{
        const struct zero_layout *l = w->m->layout;
        uint32_t tensor, n = zero_layout_group_tensors(l, group, &tensor);
        int64_t sum = 0;

        for (uint32_t end = tensor + n; tensor < end; tensor++) {
                int64_t from = (int64_t)zero_layout_offset(l, tensor);
                int64_t to = from + up((int64_t)zero_layout_tensor_elements(l, tensor), ALIGN);

                from = from < first ? first : from;
                to = to > first + count ? first + count : to;
                if (to <= from || zero_layout_tensor_frozen(l, tensor))
                        continue;
                const char *name = moment == TRAINED ? NULL : moment_name(w, tensor, moment);

                if (moment != TRAINED && !name)
                        continue;
                sum += to - from;
                if (ret_bytes)
                        *ret_bytes += format_bytes(
                                strcmp(name, "ema") == 0 ? "fp32" : state_format(w, group),
                                to - from);
        }
        return sum;
}

static int64_t trainable(const struct work *w, uint32_t group, int64_t first, int64_t count)
{
        return elements_with(w, group, first, count, TRAINED, NULL);
}

static int64_t pushes(const struct work *w)
{
        return w->c->stage == 1 ? 1 : w->c->micro_batches;
}

/* Ranks that share a window. */
static int64_t sharers(const struct work *w)
{
        int64_t windows = w->c->gpus ? w->c->gpus : 1;

        return (w->c->ranks + windows - 1) / windows;
}

/* Groups that a window is asked to hold. */
static int64_t slots_asked(const struct work *w)
{
        return w->c->stage == 3 ? (w->c->hold ? w->c->hold : HOLD) * sharers(w) : w->p->groups;
}

/* Ranks of the node that work with the group.  Nodes have the ranks in order. */
static int64_t members(const struct work *w, uint32_t group, int64_t node)
{
        const uint32_t *ranks;
        uint32_t n = zero_layout_group_ranks(w->m->layout, group, &ranks);
        int64_t sum = 0;

        for (uint32_t i = 0; i < n; i++)
                sum += ranks[i] / w->c->ranks == node;
        return n ? sum : w->c->ranks;
}

/*
 * How often a node gathers a group in a step: the `group`-th of `n` that its ranks work with.
 * Forward passes go through the groups in order, backward passes against it.  At a turn the window
 * still has the last groups it took.
 */
static int64_t gathers(const struct work *w, uint32_t number, int64_t group, int64_t n)
{
        int64_t m = w->c->micro_batches, slots = w->p->slots;

        if (slots >= n) /* a group that is not trained never changes */
                return trainable(w, number, 0, elements(w, number)) > 0;
        return 1 + m * (group < n - slots) + (m - 1) * (group >= slots);
}

/* Whether a node sums its ranks' gradients in a buffer.  Owners that have no other node to wait for
 * read them where they are, and one rank's may travel as they are. */
static bool sums(const struct work *w, int64_t ranks)
{
        if (w->c->nodes == 1 && w->c->states_on_gpu == (w->c->gpus > 0))
                return false;
        return ranks > 1 || grad_size(w) != reduce_size(w);
}

/* ---- shards ---------------------------------------------------------------------- */

static void add_shard(struct work *w, uint32_t group, struct owner *o, int64_t first, int64_t count)
{
        int64_t trained = trainable(w, group, first, count), size = group_size(w, group);
        int64_t changed = format_bytes(master_format(w, group), trained); /* by an update */

        if (w->n_owners == 1) /* trainers map it */
                o->planes[MASTER] = up(o->planes[MASTER], PAGE);
        add(w, &o->planes[MASTER], format_bytes(master_format(w, group), count), 1);
        add(w, &o->planes[GRAD], trained, sum_size(w));
        for (int i = 0; i < PLAN_MOMENTS; i++) {
                int64_t bytes = 0;

                elements_with(w, group, first, count, i, &bytes);
                add(w, &o->planes[MOMENT + i], bytes, 1);
                changed += bytes;
        }
        if (served(w, group))
                add(w, &o->planes[SERVE], up(count * size, PAGE), 1);
        add(w, &o->update, changed, 2);
        add(w, &o->update, trained, sum_size(w));
        if (served(w, group))
                add(w, &o->update, trained, size);
        if (eager(w, group)) { /* old values are written, and master is read again to be served */
                add(w, &o->planes[OLD], changed, 1);
                add(w, &o->update, changed, 1);
                add(w, &o->update, trained, (int64_t)sizeof(float));
        }
        o->largest = count > o->largest ? count : o->largest;
        o->largest_moment = trained > o->largest_moment ? trained : o->largest_moment;
}

/* Of a node that has so many ranks with the group, and gathers it so often. */
static void add_flow(struct work *w, uint32_t group, struct owner *o, int64_t count, int64_t ranks,
                     int64_t times)
{
        add(w, &o->flow.fetched, count, times);
        add(w, &o->flow.fetched_bytes, count * group_size(w, group), times);
        if (!trainable(w, group, 0, elements(w, group)))
                return;
        add(w, &o->flow.reduced, count, pushes(w));
        if (sums(w, ranks))
                add(w, &o->flow.summed, count * pushes(w), ranks * grad_size(w) + reduce_size(w));
        add(w, &o->flow.added, count * pushes(w),
            2 * sum_size(w) + (sums(w, ranks) ? reduce_size(w) : ranks * grad_size(w)));
}

/* node -1: shards; else what flows to and from the node. */
static void walk_shards(struct work *w, int64_t node)
{
        int64_t own = 0, at = 0;

        for (uint32_t g = 0; node >= 0 && g < w->p->groups; g++)
                own += members(w, g, node) > 0;
        for (uint32_t g = 0; g < w->p->groups; g++) {
                int64_t ranks = node < 0 ? 0 : members(w, g, node);

                for (int64_t o = 0; o < w->n_owners; o++) {
                        int64_t i = g * w->n_owners + o, count = (int64_t)w->count[i];

                        if (count && node < 0)
                                add_shard(w, g, &w->owners[o], (int64_t)w->first[i], count);
                        else if (count && ranks)
                                add_flow(w, g, &w->owners[o], count, ranks, gathers(w, g, at, own));
                }
                at += ranks > 0;
        }
}

/* The bytes of the owner that has most, over the mean. */
static double largest_share(const struct work *w)
{
        double most = 0, all = 0;

        for (int64_t o = 0; o < w->n_owners; o++) {
                double own = 0;

                for (int i = 0; i < PLAN_PLANES; i++)
                        own += (double)w->owners[o].planes[i];
                most = own > most ? own : most;
                all += own;
        }
        return all > 0 ? most * (double)w->n_owners / all : 1;
}

/* Of matrices, one behind the other, which an owner has or has not. */
static void add_flops(struct work *w, uint32_t group, int64_t begin, int64_t count, double each)
{
        size_t at = (size_t)group * (size_t)w->n_owners;

        w->p->flops += each * (double)count;
        for (int64_t o = 0; o < w->n_owners; o++, at++) {
                int64_t from = (int64_t)w->first[at], to = from + (int64_t)w->count[at];

                from = from < begin ? begin : from;
                to = to > begin + count ? begin + count : to;
                if (to > from)
                        w->owners[o].flops += each * (double)(to - from);
        }
}

static void add_tensor_flops(struct work *w, uint32_t tensor)
{
        const struct zero_layout *l = w->m->layout;
        const uint64_t *shape, *rows;
        uint32_t ndim = zero_layout_tensor_shape(l, tensor, &shape);
        uint32_t n_rows = zero_layout_tensor_rows(l, tensor, &rows);
        int64_t begin = (int64_t)zero_layout_offset(l, tensor);
        int64_t end = begin + (int64_t)zero_layout_tensor_elements(l, tensor);

        for (uint32_t i = 0; begin < end && n_rows; i = (i + 1) % n_rows) {
                double r = (double)rows[i], c = (double)shape[ndim - 1];
                double n = r < c ? r : c, m = r < c ? c : r;
                /* a stack of equal matrices at once */
                int64_t count = n_rows == 1 ? end - begin : (int64_t)(rows[i] * shape[ndim - 1]);

                add_flops(w, zero_layout_tensor_group(l, tensor), begin, count,
                          NS_STEPS * (4 * n + 2 * n * n / m));
                begin += count;
        }
}

/* Floating-point operations of Newton-Schulz, whose products are n x n and n x m: all of them, and
 * those of the owner with most. */
static void count_flops(struct work *w)
{
        const struct zero_layout *l = w->m->layout;
        double most = 0;

        for (uint32_t t = 0; t < zero_layout_tensors(l); t++)
                add_tensor_flops(w, t);
        for (int64_t o = 0; o < w->n_owners; o++)
                most = w->owners[o].flops > most ? w->owners[o].flops : most;
        w->p->largest_work = w->p->flops > 0 ? most * (double)w->n_owners / w->p->flops : 1;
}

/* ---- windows --------------------------------------------------------------------- */

/* As proto/slots.c bounds a window.  size 0: each group in its own dtype.  *slots: asked for, and
 * what there is. */
static int64_t window_bytes(struct work *w, int64_t *slots, int64_t size, bool gather, bool mapped)
{
        int64_t largest = 0, sum = 0, equal = 0;
        bool master =
                mapped && !w->c->gpus; /* trainers map it where no group is served beside it */

        for (uint32_t g = 0; g < w->p->groups; g++)
                master = master && !served(w, g);
        for (uint32_t g = 0; g < w->p->groups; g++) {
                bool skip = gather ? mapped && (served(w, g) || master)
                                   : !trainable(w, g, 0, elements(w, g));
                int64_t bytes = up(elements(w, g) * (size ? size : group_size(w, g)), PAGE);

                if (skip)
                        continue;
                add(w, &sum, bytes, 1);
                largest = bytes > largest ? bytes : largest;
        }
        add(w, &equal, largest, *slots);
        if (*slots < w->p->groups && equal < sum)
                return equal;
        *slots = w->p->groups;
        return sum;
}

static void make_windows(struct work *w, int64_t node)
{
        const struct plan_cluster *c = w->c;
        struct plan_node *ret = &w->p->nodes[node];
        int64_t windows = c->gpus ? c->gpus : 1, readers = sharers(w);
        int64_t *window_memory = c->gpus ? &ret->gpu : &ret->host;
        /* trainers map what the only owner serves where they are in its place */
        bool mapped = node == 0 && w->n_owners == 1 &&
                      (c->gpus ? c->states_on_gpu && c->gpus == 1 : !c->states_on_gpu);
        int64_t slots = slots_asked(w), bytes = window_bytes(w, &slots, 0, true, mapped);

        add(w, &ret->gather_window, bytes, windows);
        add(w, &ret->push_windows, w->p->push_window, c->ranks);
        ret->slots = slots * windows;
        add(w, window_memory, c->gpus ? up(bytes, GPU_UNIT) : bytes, 1);
        add(w, window_memory, w->p->push_window - TRANSFER, readers);
        add(w, window_memory, w->p->activations, readers);
        add(w, &ret->host, TRANSFER, c->ranks);
}

/* ---- nodes ----------------------------------------------------------------------- */

/* The node that mirrors an owner's shards; -1: none. */
static int64_t mirror_of(const struct work *w, int64_t owner)
{
        if (!w->c->mirror || w->c->owners < 2)
                return -1;
        return (owner / w->c->devices + 1) % w->c->owners;
}

static void add_replica(struct work *w, const struct owner *o, int64_t node, bool mirror)
{
        struct plan_node *n = &w->p->nodes[node];
        int64_t offer = mirror ? o->largest_moment * sum_size(w) : o->largest * reduce_size(w);

        n->owner |= !mirror;
        for (int i = 0; i < PLAN_PLANES; i++) {
                add(w, &n->planes[i], o->planes[i], 1);
                if (!w->c->states_on_gpu)
                        add(w, &n->host, o->planes[i], 1);
        }
        if (w->c->nodes > 1)
                add(w, &n->receive, offer, BUFFERS * w->c->nodes);
        add(w, &n->step.update, o->update, 1);
}

/* Owners' planes lie on their own devices: the device that holds most counts. */
static void add_states_on_gpu(struct work *w, int64_t node)
{
        int64_t most = 0;

        for (int64_t d = 0; d < w->c->devices; d++) {
                int64_t sum = 0;

                for (int64_t o = d; o < w->n_owners; o += w->c->devices)
                        for (int i = 0; i < PLAN_PLANES; i++)
                                add(w, &sum,
                                    i == SERVE ? up(w->owners[o].planes[i], GPU_UNIT)
                                               : w->owners[o].planes[i],
                                    (o / w->c->devices == node) + (mirror_of(w, o) == node));
                most = sum > most ? sum : most;
        }
        add(w, &w->p->nodes[node].gpu, most, 1);
}

/* What node `to` takes of an owner's shards in a step, and gives back as gradients. */
static void add_traffic(struct work *w, int64_t owner, int64_t to)
{
        const struct owner *o = &w->owners[owner];
        int64_t fetched = o->flow.fetched_bytes, at = owner / w->c->devices,
                mirror = mirror_of(w, owner);
        struct plan_node *from = &w->p->nodes[at], *n = &w->p->nodes[to];

        if (to != at && to != mirror) {
                add(w, &from->step.gather_sent, fetched, 1);
                add(w, &n->step.gather_received, fetched, 1);
                add(w, &n->step.gather_elements, o->flow.fetched, 1);
        } else if (w->c->gpus == 0 && n->gather_window) {
                add(w, &n->step.copy, fetched, 2);
        }
        if (to != at) {
                add(w, &n->step.reduce_sent, o->flow.reduced, reduce_size(w));
                add(w, &from->step.reduce_received, o->flow.reduced, reduce_size(w));
                add(w, &n->step.reduce_elements, o->flow.reduced, 1);
        }
        if (to == mirror) { /* the sum */
                add(w, &from->step.reduce_sent, o->planes[GRAD], 1);
                add(w, &n->step.reduce_received, o->planes[GRAD], 1);
        }
        if (w->c->gpus) /* into the windows of all GPUs */
                add(w, &n->step.copy, fetched, 2 * w->c->gpus);
        add(w, &n->step.copy, o->flow.summed, 1);
        add(w, &from->step.copy, o->flow.added, 1);
}

static void add_buffers(struct work *w, struct plan_node *n)
{
        if (sums(w, w->c->ranks))
                add(w, &n->sums, w->p->largest_group, BUFFERS * reduce_size(w));
        add(w, &n->host, n->sums, 1);
        add(w, &n->host, n->receive, 1);
}

/* As daemon/step/stash/pages.c: whole units of a region. */
static int64_t stash_unit(int64_t bytes)
{
        int64_t unit = PAGE;

        while (bytes / unit >= STASH_UNITS)
                unit *= 2;
        return unit;
}

/*
 * As daemon/step/stash/stash.c: ranks of one node share the whole; of sets on several nodes each
 * node has its ranks' parts, and two whole entries.  A rank's entry is a layer's checkpoint.
 */
static void add_stash(struct work *w, int64_t node)
{
        int64_t bytes = w->p->stash, set = w->c->tensor_parallel, here = w->c->ranks;
        int64_t layers = plan_layers(w->m) ? plan_layers(w->m) : 1;
        int64_t entry = up(bytes, layers) / layers, unit = stash_unit(bytes), region = bytes;
        struct plan_node *n = &w->p->nodes[node];

        if (!bytes)
                return;
        if (set > here)
                region = (bytes / set + 1) * here + (bytes / entry + 1) * unit + 2 * (entry + unit);
        add(w, &n->stash, up(region, stash_unit(region)), set > here ? 1 : here / set);
        add(w, &n->host, n->stash, 1);
        if (set > here)
                add(w, &n->step.stash, bytes / set * (set - here), w->c->micro_batches);
}

static void make_nodes(struct work *w)
{
        struct plan *p = w->p;

        for (int64_t o = 0; o < w->n_owners; o++) {
                add_replica(w, &w->owners[o], o / w->c->devices, false);
                if (mirror_of(w, o) >= 0)
                        add_replica(w, &w->owners[o], mirror_of(w, o), true);
        }
        for (int64_t n = 0; n < w->c->nodes; n++) {
                make_windows(w, n);
                add_buffers(w, &p->nodes[n]);
                if (w->c->states_on_gpu)
                        add_states_on_gpu(w, n);
                if (n == 0 || w->rank_sets) {
                        for (int64_t o = 0; o < w->n_owners; o++)
                                memset(&w->owners[o].flow, 0, sizeof(w->owners[o].flow));
                        walk_shards(w, n);
                }
                for (int64_t o = 0; o < w->n_owners; o++)
                        add_traffic(w, o, n);
                add_stash(w, n);
                p->host = p->nodes[n].host > p->host ? p->nodes[n].host : p->host;
                p->gpu = p->nodes[n].gpu > p->gpu ? p->nodes[n].gpu : p->gpu;
        }
}

/* ---- time ------------------------------------------------------------------------ */

static double larger(double a, double b)
{
        return a > b ? a : b;
}

/* 0: nothing is done, or how fast that is was not given. */
static double time_of(double bytes, double rate)
{
        return rate > 0 ? bytes / rate : 0;
}

/*
 * Everything may overlap, so that a step takes at least the longest of these.  The estimate adds up
 * what does not.  An update begins after the last gradient.  Trainers that compute on a CPU share
 * the cores and their memory with zerod, trainers that compute on GPUs do not.
 */
static void make_bounds(struct plan *p, const struct plan_cluster *c)
{
        double link = 0, update = 0, copy = 0, served;

        for (int64_t i = 0; i < c->nodes; i++) {
                const struct plan_node *n = &p->nodes[i];

                double sent = (double)n->step.gather_sent + (double)n->step.reduce_sent;
                double received = (double)n->step.gather_received + (double)n->step.reduce_received;

                link = larger(link, larger(sent, received) + (double)n->step.stash);
                update = larger(update, (double)n->step.update);
                copy = larger(copy, (double)n->step.copy);
        }
        if (c->states_on_gpu) /* each GPU has a memory of its own */
                update /= (double)c->devices;
        p->bounds[0] = time_of(link, c->link);
        p->bounds[1] = time_of(update, c->update);
        p->bounds[2] = time_of(copy, c->copy);
        p->bounds[3] = c->compute;
        served = p->bounds[0] + p->bounds[2];
        if ((link <= 0 || c->link > 0) && (copy <= 0 || c->copy > 0) && c->update > 0 &&
            c->compute > 0)
                p->estimate =
                        p->bounds[1] + (c->gpus ? larger(served, c->compute) : served + c->compute);
        p->bound = -1;
        for (int i = 0; i < PLAN_BOUNDS; i++)
                if (p->bounds[i] > (p->bound < 0 ? 0 : p->bounds[p->bound]))
                        p->bound = i;
}

/* ---- all of it ------------------------------------------------------------------- */

/* As daemon/compute/optimizer names planes: by a number where tensors differ. */
static void name_moments(struct work *w)
{
        static const char *const numbers[PLAN_MOMENTS] = { "moment1", "moment2", "moment3" };
        struct plan *p = w->p;

        for (int i = 0; i < PLAN_MOMENTS; i++)
                for (uint32_t t = 0; t < zero_layout_tensors(w->m->layout); t++) {
                        const char *name = moment_name(w, t, i);

                        if (name && p->moments[i] && strcmp(name, p->moments[i]) != 0)
                                p->moments[i] = numbers[i];
                        else if (name)
                                p->moments[i] = name;
                }
}

static double state_bytes(const struct work *w)
{
        int64_t bytes = 0;

        for (uint32_t g = 0; g < w->p->groups; g++) {
                int64_t all = elements(w, g);

                bytes += format_bytes(master_format(w, g), trainable(w, g, 0, all));
                for (int i = 0; i < PLAN_MOMENTS; i++)
                        elements_with(w, g, 0, all, i, &bytes);
        }
        return w->p->trainable ? (double)bytes / (double)w->p->trainable : sizeof(float);
}

static void count(struct work *w)
{
        const struct zero_layout *l = w->m->layout;
        struct plan *p = w->p;

        p->groups = zero_layout_groups(l);
        for (uint32_t t = 0; t < zero_layout_tensors(l); t++)
                add(w, &p->parameters, (int64_t)zero_layout_tensor_elements(l, t), 1);
        for (uint32_t g = 0; g < p->groups; g++) {
                add(w, &p->elements, elements(w, g), 1);
                add(w, &p->trainable, trainable(w, g, 0, elements(w, g)), 1);
                p->eager |= eager(w, g);
                if (elements(w, g) > p->largest_group)
                        p->largest_group = elements(w, g);
        }
        name_moments(w);
        w->p->state_bytes = state_bytes(w);
        for (uint32_t g = 0; g < p->groups; g++) {
                const uint32_t *ranks;
                uint32_t n = zero_layout_group_ranks(l, g, &ranks);

                w->rank_sets |= n > 0;
                w->strangers |= n > 0 && ranks[n - 1] >= w->c->nodes * w->c->ranks;
        }
        /* one checkpoint a layer, 2 bytes an element (ZeRO-R, section 6.1 of the paper) */
        p->activations = 2;
        for (int64_t *by = (int64_t[]){ w->c->batch, w->c->seq, plan_hidden(w->m),
                                        plan_layers(w->m), -1 };
             *by >= 0; by++)
                w->overflow |= __builtin_mul_overflow(p->activations, *by, &p->activations);
        p->stash = w->c->stash < 0 ? p->activations : w->c->stash;
        w->large_stash = p->stash < 0 || p->stash > STASH_MAX;
        p->stash = w->large_stash ? 0 : p->stash;
        p->activations = p->stash ? 0 : p->activations;
}

static void work_deinit(struct work *w)
{
        free(w->owners);
        free(w->first);
        free(w->count);
}

int plan_make(const struct plan_model *m, const struct plan_cluster *c, struct plan *ret,
              const char **ret_flaw)
{
        struct work work = { .m = m, .c = c, .p = ret, .n_owners = c->owners * c->devices };
        struct work *w = &work;
        const char *flaw;
        int64_t slots = c->stage == 1 ? ZERO_GROUP_MAX : c->push, bytes;

        size_t shards = (size_t)w->n_owners * zero_layout_groups(m->layout) + 1;

        w->owners = calloc((size_t)w->n_owners, sizeof(*w->owners));
        w->first = calloc(shards, sizeof(*w->first));
        w->count = calloc(shards, sizeof(*w->count));
        if (!w->owners || !w->first || !w->count ||
            zero_layout_partition(m->layout, (uint32_t)w->n_owners, c->dtype, w->first, w->count)) {
                work_deinit(w);
                *ret_flaw = "out of memory";
                return CTL_FAILED;
        }
        memset(ret, 0, sizeof(*ret));
        count(w);
        walk_shards(w, -1);
        ret->largest_share = largest_share(w);
        count_flops(w);
        bytes = window_bytes(w, &slots, grad_size(w), false, false);
        ret->push_window = TRANSFER;
        add(w, &ret->push_window, c->gpus ? up(bytes, GPU_UNIT) : bytes, 1);
        ret->slots = slots_asked(w);
        window_bytes(w, &ret->slots, 0, true, false);
        make_nodes(w);
        make_bounds(ret, c);
        flaw = w->overflow ? "the model takes more than 2^63 bytes: give smaller numbers"
               : w->strangers
                       ? "groups of the job are of ranks that this cluster does not have: give "
                         "--nodes and --ranks such that it has all ranks of the job"
               : w->large_stash ? "a rank stashes at most 2^50 bytes"
               : c->stash < 0 && !ret->stash
                       ? "--stash auto needs --batch, and a model whose layers are known"
                       : NULL;
        work_deinit(w);
        if (!flaw)
                return CTL_OK;
        *ret_flaw = flaw;
        return CTL_FAILED;
}

struct plan_passes plan_passes(const struct plan_model *m, const struct plan_cluster *c,
                               struct plan *p, uint32_t group)
{
        const struct work w = { .m = m, .c = c, .p = p };

        return (struct plan_passes){ .dtype = group_dtype(&w, group),
                                     .gathers = gathers(&w, group, group, p->groups),
                                     .pushes = pushes(&w),
                                     .reduce_size = reduce_size(&w) };
}

bool plan_fits(const struct plan_cluster *c, const struct plan *p)
{
        return (!c->host_memory || p->host <= c->host_memory) &&
               (!c->gpu_memory || p->gpu <= c->gpu_memory);
}
