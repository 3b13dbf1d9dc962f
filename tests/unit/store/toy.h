/*
 * Updates for tests of the store, one set for each optimizer: gradients are a function of the
 * version and the element, new values of the old ones and the gradient.  Some tensors have no
 * gradient in some steps; some attempts are skipped.
 */
#pragma once

#include "daemon/store/store.h"

/* The instruction set of the kernels; NULL: the host's best. */
extern const struct device_ops *toy_ops;

/* The hyperparameter sets of an attempt; fixture_layout() has a group for the optimizer of each. */
enum { TOY_SETS = 6 };
extern const struct hyper_set toy_sets[TOY_SETS];

/* First values in every plane. */
void toy_init(struct state *s);
/* The gradients of an open attempt. */
void toy_push(struct state *s, const layout *l);
/* Brings the attempt from any phase to its decision, with the gradients that were pushed. */
void toy_decide(struct state *s);
/* The same as toy_update(), before the decision; all groups are eager. */
void toy_update_ahead(struct state *s, uint32_t slot, uint32_t first, uint32_t stride);
/* After the decision: updates every `stride`-th chunk from `first` on that is at the old version,
 * or puts back what is ahead of a skipped step. */
void toy_update(struct state *s, uint32_t slot, uint32_t first, uint32_t stride);
/* Brings the attempt from any phase to its end. */
void toy_attempt(struct state *s, const layout *l);
/* Whether the two have the same record, planes and tensor steps; prints the difference. */
bool toy_equal(const struct state *a, const struct state *b);
