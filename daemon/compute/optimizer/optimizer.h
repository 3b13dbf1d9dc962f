/*
 * optimizer.h - the optimizers: each one's planes beside master, its hyperparameters, and the
 * scalars of its update.  Pure.
 *
 * An optimizer is a row (struct optimizer) in a file of its own, listed in OPTIMIZER_MAP.  A group
 * of the layout names the optimizer of its tensors, and a tensor may name another one.  The group
 * says if it keeps an average of its weights (ema), which goes with any optimizer (rules.h).  All
 * other code asks here how many moments a tensor has, what their names are, and whether a set of
 * hyperparameters is valid.  Moment i of every tensor lies in the plane of that index; tensors that
 * have fewer moments have no part in the later planes.  The average lies behind the optimizer's own
 * moments, as the tensor's last one.
 *
 * To add one: a file here and its line in OPTIMIZER_MAP, a rule in daemon/compute/device/rules.h
 * with its kernels, and its struct and its row of ZERO_OPTIMIZER_MAP in zero.h.
 */
#pragma once

#include "daemon/compute/device/device.h"
#include "daemon/compute/optimizer/muon.h"
#include "daemon/compute/optimizer/plane.h"
#include "proto/partition.h"

/* OPTIMIZER_MOMENTS: with the average.  OPTIMIZER_VALUES: with its decay. */
enum { OPTIMIZER_MOMENTS = UPDATE_PLANES - 1, OPTIMIZER_VALUES = 8, OPTIMIZER_COUNTS = 4 };

/* What a hyperparameter may be. */
enum hyper_bound {
        HYPER_FP32,    /* an fp32 number >= 0 */
        HYPER_DIVISOR, /* the same, and > 0 from a rank: moments that are 0 are divided by it */
        HYPER_DECAY,   /* an fp32 number >= 0, and so is its product with lr */
        HYPER_UNIT,    /* in [0, 1) */
        HYPER_FLAG,    /* 0 or 1 */
        HYPER_NORM,    /* an fp32 number >= 0, and > 0 in bf16 from a rank: matrices of zeros are
                        * divided by it */
        HYPER_COUNT,   /* a whole number, 0 to hyper.most */
        HYPER_SIGNED,  /* an fp32 number */
        HYPER_NONE,    /* 0: only another optimizer with the same struct in zero.h uses it */
};

struct optimizer {
        const char *name; /* in layouts, messages and checkpoints */
        enum update_rule rule;
        /* names of its planes beside master; ends with NULL */
        const char *moments[OPTIMIZER_MOMENTS];
        bool squares; /* the last of these is a second moment */
        struct hyper {
                const char *name;
                enum hyper_bound bound;
                uint8_t most;                          /* HYPER_COUNT */
        } values[OPTIMIZER_VALUES + OPTIMIZER_COUNTS]; /* the first is lr; ends with name NULL */
        /* t counts a tensor's updates from 1.  Leaves ema_rate 0. */
        struct update_scalars (*scalars)(const double *value, uint64_t t, double grad_scale);
        bool matrices; /* updates whole matrices, from their directions (muon.c) */
};

/* One of a step's sets of hyperparameters.  State files hold it, so the table of optimizers only
 * grows at its end. */
struct hyper_set {
        uint32_t optimizer;               /* its number in the table */
        uint8_t counts[OPTIMIZER_COUNTS]; /* its HYPER_COUNT, in their order, then 0 */
        double value[OPTIMIZER_VALUES];   /* the others, then ema_decay, then 0 */
};

/* The hyperparameters in the order of the row, then ema_decay. */
struct hyper_values {
        double value[OPTIMIZER_VALUES + OPTIMIZER_COUNTS];
};

/* "" names the first one.  NULL: there is no optimizer of that name. */
const struct optimizer *optimizer_find(const char *name);
const struct optimizer *optimizer_of(const layout *l, uint32_t tensor);
/* Planes of a tensor besides master: the optimizer's moments and the average. */
uint32_t optimizer_moments(const layout *l, uint32_t tensor);
/* The most that a trainable tensor of the group has; without one, what the group's optimizer has.
 */
uint32_t optimizer_group_moments(const layout *l, uint32_t group);
/* The name of moment i; "moment1" or the like if tensors of the group differ.  NULL: none has it.
 */
const char *optimizer_group_moment(const layout *l, uint32_t group, uint32_t i);
/* Of a moment that the tensor has. */
enum format optimizer_format(const layout *l, uint32_t tensor, uint32_t i);
enum format optimizer_master(const struct layout_group *g);
/* Bytes of moment i in a range of a group, gaps behind tensors included; see plan.h. */
uint64_t optimizer_moment_bytes(const layout *l, uint32_t group, struct range range, uint32_t i);
/* layout_from_message(), with a check of the optimizers.  ZERO_EINVAL names an unknown optimizer
 * and those that exist, or a tensor that its optimizer cannot update. */
int optimizer_layout(const Zero__Layout *m, layout **ret, struct fault *fault);
/* The name of a layout's plane; "moment1" or the like if groups differ.  NULL: no group has the
 * plane. */
const char *optimizer_plane_name(const layout *l, struct plane plane);
/* "adamw (master, exp_avg, exp_avg_sq)" for each optimizer of a layout. */
void optimizer_text(const layout *l, char *text, size_t size);

/* Whether the value is >= 0 and in the range of fp32.  The kernels compute in fp32: a larger value
 * would turn parameters into NaN. */
bool fp32_holds(double value);
/* number: the set's number, for the fault. */
int hyper_from_message(const Zero__HyperSet *m, size_t number, struct hyper_set *ret,
                       struct fault *fault);
/* Whether a rank may hand in the set; number: as above. */
int hyper_given(const struct hyper_set *set, size_t number, struct fault *fault);
struct hyper_values hyper_values(const struct hyper_set *set);
/* The message points into the values. */
void hyper_to_message(const struct hyper_set *set, struct hyper_values *values,
                      Zero__HyperSet *ret);
/* Whether a set from a file has an optimizer that this zerod knows. */
bool hyper_known(const struct hyper_set *set);
/* Whether the set belongs to the optimizer. */
bool hyper_fits(const struct hyper_set *set, const struct optimizer *o);
const char *hyper_optimizer(const struct hyper_set *set);
/* If the sets differ, text names the first difference ("lr 0.1 and 0.2"). */
bool hyper_equal(const struct hyper_set *a, const struct hyper_set *b, char *text, size_t size);
/* ema: of a group that keeps an average; narrow: whose moments are not in fp32 (rules.h). */
struct update_scalars hyper_scalars(const struct hyper_set *set, bool ema, bool narrow, uint64_t t,
                                    double grad_scale);

/*
 * X(name, row).  Append only: state files hold the numbers, messages the names.  A layout that
 * names no optimizer gets the first.  A set that averages weights has a name "...-ema" of the five
 * optimizers that an earlier release had so.
 */
#define OPTIMIZER_MAP(X)                              \
        X("adamw", optimizer_adamw)                   \
        X("lion", optimizer_lion)                     \
        X("sgd", optimizer_sgd)                       \
        X("sgd-momentum", optimizer_sgd_momentum)     \
        X("adam", optimizer_adam)                     \
        X("adamw-ema", optimizer_adamw)               \
        X("lion-ema", optimizer_lion)                 \
        X("sgd-ema", optimizer_sgd)                   \
        X("sgd-momentum-ema", optimizer_sgd_momentum) \
        X("adam-ema", optimizer_adam)                 \
        X("muon", optimizer_muon)                     \
        X("muon-ema", optimizer_muon)

#define X(name, row) extern const struct optimizer row;
OPTIMIZER_MAP(X)
#undef X
