/* optimizers.h - hyperparameters on their way to the daemon, which has their names and bounds. */
#pragma once

#include "zero.h"

#include "proto/layout.h"

/* The optimizer of a group that names none. */
const char *optimizer_default(void);
/* A set as a message, which points to the values. */
struct optimizer_values {
        Zero__HyperSet message;
        double values[16];
};
_Static_assert(sizeof(struct zero_set) + sizeof(struct zero_newton_schulz) < 16 * sizeof(double),
               "all values of a set");

/* Whether it updates the matrices of tensors. */
bool optimizer_has_matrices(const char *name);

/* ZERO_EINVAL: the name is one of a message, which says that the group keeps an average. */
int optimizer_check_name(const char *name, struct fault *fault);
/* ret: one for each set.  ZERO_EINVAL: an optimizer is unknown, or a group keeps an average and no
 * set of its optimizer has ema_decay. */
int optimizer_messages(const layout *l, const struct zero_set *sets, uint32_t n_sets,
                       struct optimizer_values *ret, struct fault *fault);
/* The plane that the daemon has for a plane of the tensor: EMA is a moment there. */
enum zero_plane optimizer_plane(const layout *l, uint32_t tensor, enum zero_plane plane);
