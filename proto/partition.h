/*
 * partition(layout, owners) -> ranges: who holds which part of every group.  A pure function that
 * every side computes for itself; there is no metadata service.
 *
 * Each group is cut into contiguous slices over all owners, at multiples of LAYOUT_ALIGN elements.
 * A slice has at least PARTITION_SLICE_MIN bytes, so a small group uses fewer owners.  The owner of
 * the first slice advances from group to group, which keeps owners balanced.
 *
 * No cut divides a whole tensor or a matrix: it moves to the nearer edge (proto/runs.h).  An edge
 * between two matrices counts where it is a multiple of LAYOUT_ALIGN.  Slices of groups with such
 * tensors then differ, and owners have them in any order.  The largest are dealt first, each to the
 * owner with least memory, of those without a slice of that group.  Then the fullest and the
 * emptiest owner exchange slices of a group as long as that helps, within a bound on the work.
 *
 * Owners share two loads.  Memory: a trained element weighs as much as four frozen ones, or as
 * three in a matrix, which has one moment.  Work: operations of Newton-Schulz on matrices.  In a
 * layout with matrices, a piece of a group costs the larger of its parts of both, and slices of a
 * group cost about the same.  Groups that are cut freely come last there: they fill up the owners
 * that have least memory.
 *
 * Layouts without matrices are cut as in every release: their state files depend on that.
 */
#pragma once

#include <stdbool.h>

#include "proto/layout.h"

enum { PARTITION_SLICE_MIN = 65536 };

struct range {
        uint64_t first, count; /* elements of the group's flat array */
};

struct partition {
        uint32_t n_groups, n_owners;
        struct range *ranges; /* [group * n_owners + owner]; count 0: holds nothing */
        uint32_t *owners;     /* [group * n_owners + i]: of the i-th slice in address order */
        uint32_t *slices;     /* how many owners hold each group; 0 for an empty group */
};

int partition_new(const layout *l, uint32_t n_owners, struct partition **ret);
void partition_free(struct partition *p);
struct range partition_range(const struct partition *p, uint32_t group, uint32_t owner);
/* The intersection of two ranges; count 0: none. */
struct range range_common(struct range a, struct range b);
/* Elements that both have. */
uint64_t range_overlap(struct range a, struct range b);
/* Whether inner has elements and outer has all of them; safe for any numbers. */
bool range_within(struct range inner, struct range outer);
/*
 * How many parts `count` elements need so that no part has more than `most`; at least one.  Both
 * are multiples of LAYOUT_ALIGN.
 */
uint32_t range_parts(uint64_t count, uint64_t most);
/* One of `parts` parts of about the same size, cut at multiples of LAYOUT_ALIGN elements. */
struct range range_part(struct range whole, uint32_t part, uint32_t parts);
/* The owner of the i-th slice in address order, i < slices[group]. */
uint32_t partition_owner(const struct partition *p, uint32_t group, uint32_t i);
/*
 * Parts that a slice of the group, which has elements, is fetched in: as few as have at most `most`
 * bytes each.  But where few owners have the group, it comes in up to GROUP_PARTS parts, if each has
 * a quarter of that at least: while one travels, others are made ready and verified.
 */
enum { GROUP_PARTS = 8 };
uint32_t partition_slice_parts(const struct partition *p, const layout *l, uint32_t group,
                               struct range slice, uint64_t most);
/* The same of the group's largest slice. */
uint32_t partition_most_parts(const struct partition *p, const layout *l, uint32_t group,
                              uint64_t most);
/* Trainable elements in a range of a group, gaps behind trainable tensors included. */
uint64_t partition_trainable(const layout *l, uint32_t group, struct range range);
/* Elements an owner holds of all groups. */
uint64_t partition_elements(const struct partition *p, uint32_t owner);
