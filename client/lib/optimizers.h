/* optimizers.h - hyperparameters on their way to the daemon, which has their names and bounds. */
#pragma once

#include "zero.h"

#include "proto/layout.h"

/* The optimizer of a group that names none. */
const char *optimizer_default(void);
/* A set as a message, which points to the values. */
struct optimizer_values {
        Zero__HyperSet message;
        double values[sizeof(struct zero_set) / sizeof(double)];
};

/* ZERO_EINVAL: the name is one of a message, which says that the group keeps an average. */
int optimizer_check_name(const char *name, struct fault *fault);
/* ret: one for each set.  ZERO_EINVAL: an optimizer is unknown, or a group keeps an average and no
 * set of its optimizer has ema_decay. */
int optimizer_messages(const layout *l, const struct zero_set *sets, uint32_t n_sets,
                       struct optimizer_values *ret, struct fault *fault);
/* The plane that the daemon has for a plane of the group: EMA is a moment there. */
enum zero_plane optimizer_plane(const struct layout_group *g, enum zero_plane plane);
