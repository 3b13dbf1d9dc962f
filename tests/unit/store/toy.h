/*
 * Updates for tests of the store, one set for each optimizer: gradients depend on the version and the element alone, new values
 * on the old ones and the gradient.  Some tensors have no gradient in some steps; some attempts are
 * skipped.
 */
#pragma once

#include "daemon/store/store.h"

/* Whose kernels; NULL: the best of the host. */
extern const struct device_ops *toy_ops;

/* Of an attempt; fixture_layout() has a group of the optimizer of each. */
enum { TOY_SETS = 5 };
extern const struct hyper_set toy_sets[TOY_SETS];

/* First values in every plane. */
void toy_init(struct state *s);
/* The gradients of an open attempt. */
void toy_push(struct state *s, const layout *l);
/* Brings the attempt, whatever it has come to, to the decision, with what was pushed. */
void toy_decide(struct state *s);
/* Updates every `stride`-th chunk from `first` on that is at the old version. */
void toy_update(struct state *s, uint32_t slot, uint32_t first, uint32_t stride);
/* All of it: from any phase to the end of the attempt. */
void toy_attempt(struct state *s, const layout *l);
/* Whether the two have the same record, planes and tensor steps; says what differs. */
bool toy_equal(const struct state *a, const struct state *b);
