/*
 * optimizer.h - the optimizers: the planes each has beside master, its hyperparameters, the scalars
 * of its update.  Pure.
 *
 * An optimizer is a row (struct optimizer) in a file of its own, listed in optimizer.c.  A group of
 * the layout names its optimizer; everybody else asks the row: how many moments a group has, what
 * they are called, whether a set of hyperparameters is one.  Moment i of every group lies in plane
 * ZERO_PLANE_MOMENT1 + i; groups whose optimizer has fewer moments have no part in the later
 * planes.
 *
 * To add one: a file here and its line in optimizer.c, a rule in daemon/device/rules.h with its
 * kernels, its struct in zero.h and its row in client/lib/optimizers.c.
 */
#pragma once

#include "daemon/device/device.h"
#include "proto/layout.h"

enum { OPTIMIZER_MOMENTS = UPDATE_PLANES - 1, OPTIMIZER_VALUES = 8 };

/* What a hyperparameter may be. */
enum hyper_bound {
        HYPER_FP32,  /* an fp32 number >= 0 */
        HYPER_DECAY, /* the same, also times the first hyperparameter, which is lr */
        HYPER_UNIT,  /* in [0, 1) */
        HYPER_FLAG,  /* 0 or 1 */
        HYPER_NONE,  /* 0: another optimizer of the same struct in zero.h has it */
};

struct optimizer {
        const char *name; /* in layouts, messages and checkpoints */
        enum update_rule rule;
        const char *moments[OPTIMIZER_MOMENTS +
                            1]; /* names of its planes beside master; ends with NULL */
        struct hyper {
                const char *name;
                enum hyper_bound bound;
        } values[OPTIMIZER_VALUES + 1]; /* the first is lr; ends with name NULL */
        /* t counts a tensor's updates from 1. */
        struct update_scalars (*scalars)(const double *value, uint64_t t, double grad_scale);
};

/* One of a step's sets of hyperparameters; in state files too: optimizers are only ever appended.
 */
struct hyper_set {
        uint32_t optimizer; /* its number in the table */
        uint32_t unused;
        double value[OPTIMIZER_VALUES]; /* those it does not have are 0 */
};

/* "": the first one.  NULL: there is none of that name. */
const struct optimizer *optimizer_find(const char *name);
const struct optimizer *optimizer_of(const layout *l, uint32_t group);
/* Planes besides master. */
static inline uint32_t optimizer_moments(const struct optimizer *o)
{
        return update_planes(o->rule) - 1;
}
/* layout_from_message(), of optimizers that there are.  ZERO_EINVAL names one that is not, and
 * those that are. */
int optimizer_layout(const Zero__Layout *m, layout **ret, struct fault *fault);
/* What a layout's plane is called; "moment1" or the like where groups differ.  NULL: no group has
 * it. */
const char *optimizer_plane_name(const layout *l, uint32_t plane);
/* "adamw (master, exp_avg, exp_avg_sq)" of each optimizer of a layout. */
void optimizer_text(const layout *l, char *text, size_t size);

/* >= 0.  The kernels compute in fp32: a value beyond it would turn parameters into NaN. */
bool fp32_holds(double value);
/* number: of the set, for the fault. */
int hyper_from_message(const Zero__HyperSet *m, size_t number, struct hyper_set *ret,
                       struct fault *fault);
/* The message refers to the set. */
void hyper_to_message(const struct hyper_set *set, Zero__HyperSet *ret);
/* A set that lay in a file: of an optimizer that there is. */
bool hyper_known(const struct hyper_set *set);
/* The set is one of the group's optimizer. */
bool hyper_fits(const struct hyper_set *set, const struct optimizer *o);
const char *hyper_optimizer(const struct hyper_set *set);
/* True if equal; else text names the first difference ("lr 0.1 and 0.2"). */
bool hyper_equal(const struct hyper_set *a, const struct hyper_set *b, char *text, size_t size);
struct update_scalars hyper_scalars(const struct hyper_set *set, uint64_t t, double grad_scale);

/* base^n by squaring and not by pow(), which may differ by an ulp between C libraries and CPUs:
 * owners on different machines must agree to the bit. */
double optimizer_power(double base, uint64_t n);

extern const struct optimizer optimizer_adam, optimizer_adamw, optimizer_lion, optimizer_sgd,
        optimizer_sgd_momentum;
