/*
 * plan.h - shared by the files of zeroctl plan, which computes what a model takes of a cluster
 * before there is one.
 *
 * zeroctl does not see the daemon, so plan_bytes.c has the rules of proto/slots.h,
 * daemon/store/plan.h and daemon/step/stash a second time.  tests/integration/plan.py compares
 * both.
 *
 * Numbers are bytes or elements in int64_t, as JSON has them.
 */
#pragma once

#include "ctl.h"

enum { PLAN_NODES_MAX = 4096 }; /* more than a cluster may have: zeroctl simulate */
enum { PLAN_PLANES = 7, PLAN_MOMENTS = 3, PLAN_FAMILY_SIZES = 32, PLAN_BOUNDS = 4 };

/* ---- the model (plan_model.c, plan_family.c) ---- */

struct plan_optimizer {
        const char *name;
        const char *moments[PLAN_MOMENTS]; /* NULL: it has no more */
};
/* NULL: there is none of that name. */
const struct plan_optimizer *plan_optimizer(const char *name);

struct plan_model {
        const struct zero_layout *layout;
        struct zero_layout *own;          /* the layout, unless a client owns it */
        const struct plan_family *family; /* NULL: not made from sizes */
        int64_t sizes[PLAN_FAMILY_SIZES]; /* of the family */
        int64_t tensors_left_out;         /* of types that are never trained */
        uint32_t layer_groups;            /* the first groups, each of a layer */
        bool muon;                        /* it updates the matrices of layers */
};

void plan_model_free(struct plan_model *m);
/* An empty layout for the model; CTL_OK or, silently, CTL_FAILED. */
int plan_model_init(struct plan_model *m);
/* Says on standard error why the model has no layout; CTL_FAILED. */
int plan_model_flaw(const struct plan_model *m);
/* All of these: CTL_OK, or CTL_FAILED and a sentence on standard error.  The caller frees *ret. */
int plan_model_job(struct ctl *ctl, struct plan_model *ret);
/* A safetensors file, its index, or a config.json of Hugging Face. */
int plan_model_file(const char *path, struct plan_model *ret);
/* A decoder with learned positions, as GPT-2. */
int plan_model_sizes(int64_t layers, int64_t hidden, int64_t vocab, int64_t seq,
                     struct plan_model *ret);
/* config: what the file has; path: for errors. */
int plan_model_config(const json_t *config, const char *path, struct plan_model *ret);
/* Another model of the same family that has so many layers; silent if zerod takes no such model. */
int plan_model_layers(const struct plan_model *m, int64_t layers, struct plan_model *ret);
/* As --optimizer muon; silent if zerod takes no such model. */
int plan_model_muon(struct plan_model *m);
/* 0: not known. */
int64_t plan_layers(const struct plan_model *m);
int64_t plan_hidden(const struct plan_model *m);

/* ---- the cluster ---- */

struct plan_cluster {
        int64_t nodes, owners, devices; /* owners: nodes that hold shards, the first ones */
        int64_t ranks, gpus;            /* of each node */
        int64_t stage, hold /* 0: not given */, push, micro_batches, batch, seq;
        int64_t stash;           /* bytes of a rank's checkpoints; 0: none; -1: one a layer */
        int64_t tensor_parallel; /* ranks that stash the same bytes; a divisor or multiple of ranks
                                  */
        bool mirror, states_on_gpu, eager, ema;          /* eager, ema: all groups are */
        enum zero_dtype dtype, grad_dtype, reduce_dtype; /* 0: as the model has it */
        bool wire;                                       /* owners' sums have reduce_dtype */
        const char *state,
                *master; /* formats of moments and master weights; NULL: as the model has */
        const struct plan_optimizer *optimizer; /* NULL: as the model has it */
        int64_t host_memory, gpu_memory;        /* bytes; 0: not given */
        double link, update, copy;              /* bytes a second; 0: not given */
        double compute;                         /* seconds; 0: not given */
};

/* ---- what the model takes of the cluster (plan_bytes.c) ---- */

struct plan_node {
        bool owner;
        int64_t planes[PLAN_PLANES];  /* master, moments, grad, serve, old values of eager groups */
        int64_t gather_window, slots; /* all windows of the node together */
        int64_t push_windows;         /* of all its ranks */
        int64_t sums, receive;        /* the most that buffers take */
        int64_t stash;                /* reserved */
        int64_t host, gpu;            /* together; gpu: of the GPU that has most to hold */
        struct {
                int64_t gather_sent, gather_received, reduce_sent, reduce_received; /* bytes */
                int64_t gather_elements, reduce_elements; /* received; sent */
                int64_t stash;                            /* bytes, as many sent as received */
                int64_t update, copy;                     /* bytes that are read and written */
        } step;
};

struct plan {
        int64_t parameters, elements, trainable; /* parameters: without the gaps of alignment */
        int64_t groups, largest_group;           /* largest_group: elements */
        int64_t slots;                           /* of a window that all groups go through */
        int64_t push_window;                     /* of each rank */
        int64_t activations, stash; /* of each rank; activations 0: not known, or in the stash */
        const char *moments[PLAN_MOMENTS];
        bool eager;           /* some group is */
        double state_bytes;   /* master weight and moments of a trained element, in the mean */
        double largest_share; /* bytes of an owner, over the mean */
        double flops;         /* of Newton-Schulz in a step */
        double largest_work;  /* flops of an owner, over the mean */
        struct plan_node nodes[PLAN_NODES_MAX];
        int64_t host, gpu;          /* of the node, or GPU, that has most to hold */
        double bounds[PLAN_BOUNDS]; /* seconds: link, update, copy, compute; 0: not known */
        int bound;                  /* the largest of them; -1: none is known */
        double estimate;            /* seconds; 0: one of them is not known */
};
extern const char *const plan_bounds[PLAN_BOUNDS];

/* CTL_OK, or CTL_FAILED and a sentence in *ret_flaw. */
int plan_make(const struct plan_model *m, const struct plan_cluster *c, struct plan *ret,
              const char **ret_flaw);
bool plan_fits(const struct plan_cluster *c, const struct plan *p);

/* Whether owners may keep moments, or master weights, in a format of that name. */
bool plan_format_of_state(const char *name);
bool plan_format_of_master(const char *name);

/* What every node does with a group in a step. */
struct plan_passes {
        enum zero_dtype dtype;
        int64_t gathers, pushes;
        int64_t reduce_size; /* bytes of an element of the gradient between nodes */
};
struct plan_passes plan_passes(const struct plan_model *m, const struct plan_cluster *c,
                               struct plan *p, uint32_t group);

/* ---- what is asked (plan.c) ---- */

/* Options of the model and the cluster, and who else takes them. */
extern const struct command_option plan_options[];
struct plan_asker {
        const char *name;
        long most_nodes, most_ranks; /* ranks: of all nodes */
        bool any_model, any_nodes;   /* may be left out: plan_model_asked() makes one of 10^12 */
};
/* CTL_OK, or CTL_USAGE and a sentence on standard error. */
int plan_check(const struct ctl *ctl, const struct plan_asker *asker);
/* After plan_check().  nodes, owners -1: not given. */
struct plan_cluster plan_cluster_asked(void);
int plan_model_asked(struct ctl *ctl, struct plan_model *ret);

/* ---- how fast a running cluster is (plan_measure.c) ---- */

/* Measures each rate of the cluster that is 0, and sets it to the slowest node's.  CTL_OK, or a
 * code and a sentence on standard error.  The caller releases *ret. */
int plan_measure(struct ctl *ctl, struct plan_cluster *c, json_t **ret);
void plan_measure_show(const struct ctl *ctl, FILE *out, const json_t *answer);

/* ---- for people (plan_show.c) ---- */

void plan_show(const struct ctl *ctl, FILE *out, const json_t *answer);

/* ---- advice (plan_advice.c) ---- */

/* The largest model that fits, by JSON; null if no memory is given. */
json_t *plan_largest(const struct plan_model *m, const struct plan_cluster *c,
                     const struct plan *p);
/* Each single change that makes the model fit, as an option of zeroctl plan. */
json_t *plan_advice(const struct plan_model *m, const struct plan_cluster *c);

/* ---- the paper's tables (plan_paper.c) ---- */

json_t *plan_paper(void);
void plan_paper_show(const struct ctl *ctl, FILE *out, const json_t *answer);
