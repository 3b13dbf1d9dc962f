/*
 * optimizer.h - the optimizers: each one's planes beside master, its hyperparameters, and the
 * scalars of its update.  Pure.
 *
 * An optimizer is a row (struct optimizer) in a file of its own, listed in OPTIMIZER_MAP.  A group
 * of the layout names its optimizer, and says whether it keeps an average of its weights (ema),
 * which goes with any optimizer (rules.h).  All other code asks here how many moments a group has,
 * what their names are, and whether a set of hyperparameters is valid.  Moment i of every group
 * lies in the plane of that index; groups that have fewer moments have no part in the later
 * planes.  The average lies behind the optimizer's own moments, as the group's last one.
 *
 * To add one: a file here and its line in OPTIMIZER_MAP, a rule in daemon/compute/device/rules.h
 * with its kernels, and its struct and its row of ZERO_OPTIMIZER_MAP in zero.h.
 */
#pragma once

#include "daemon/compute/device/device.h"
#include "daemon/compute/optimizer/plane.h"
#include "proto/layout.h"

/* OPTIMIZER_MOMENTS: with the average.  OPTIMIZER_VALUES: with its decay. */
enum { OPTIMIZER_MOMENTS = UPDATE_PLANES - 1, OPTIMIZER_VALUES = 8 };

/* What a hyperparameter may be. */
enum hyper_bound {
        HYPER_FP32,    /* an fp32 number >= 0 */
        HYPER_DIVISOR, /* the same, and > 0 from a rank: moments that are 0 are divided by it */
        HYPER_DECAY,   /* an fp32 number >= 0, and so is its product with lr */
        HYPER_UNIT,    /* in [0, 1) */
        HYPER_FLAG,    /* 0 or 1 */
        HYPER_NONE,    /* 0: only another optimizer with the same struct in zero.h uses it */
};

struct optimizer {
        const char *name; /* in layouts, messages and checkpoints */
        enum update_rule rule;
        /* names of its planes beside master; ends with NULL */
        const char *moments[OPTIMIZER_MOMENTS];
        struct hyper {
                const char *name;
                enum hyper_bound bound;
        } values[OPTIMIZER_VALUES]; /* the first is lr; ends with name NULL */
        /* t counts a tensor's updates from 1.  Leaves ema_rate 0. */
        struct update_scalars (*scalars)(const double *value, uint64_t t, double grad_scale);
};

/* One of a step's sets of hyperparameters.  State files hold it, so the table of optimizers only
 * grows at its end. */
struct hyper_set {
        uint32_t optimizer; /* its number in the table */
        uint32_t unused;
        double value[OPTIMIZER_VALUES]; /* the optimizer's own, then ema_decay, then 0 */
};

/* "" names the first one.  NULL: there is no optimizer of that name. */
const struct optimizer *optimizer_find(const char *name);
const struct optimizer *optimizer_of(const layout *l, uint32_t group);
/* Planes of a group besides master: the optimizer's moments and the average. */
uint32_t optimizer_moments(const layout *l, uint32_t group);
/* NULL: the group has no moment i. */
const char *optimizer_moment(const layout *l, uint32_t group, uint32_t i);
/* layout_from_message(), with a check of the optimizers.  ZERO_EINVAL names an unknown optimizer
 * and those that exist. */
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
/* The message points into the set. */
void hyper_to_message(const struct hyper_set *set, Zero__HyperSet *ret);
/* Whether a set from a file has an optimizer that this zerod knows. */
bool hyper_known(const struct hyper_set *set);
/* Whether the set belongs to the optimizer. */
bool hyper_fits(const struct hyper_set *set, const struct optimizer *o);
const char *hyper_optimizer(const struct hyper_set *set);
/* If the sets differ, text names the first difference ("lr 0.1 and 0.2"). */
bool hyper_equal(const struct hyper_set *a, const struct hyper_set *b, char *text, size_t size);
/* ema: of a group that keeps an average. */
struct update_scalars hyper_scalars(const struct hyper_set *set, bool ema, uint64_t t,
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
        X("adam-ema", optimizer_adam)

#define X(name, row) extern const struct optimizer row;
OPTIMIZER_MAP(X)
#undef X
