/*
 * partition(layout, owners) -> ranges: who holds which part of every group.  A pure
 * function, computed alike by every side; there is no metadata service.
 *
 * Each group is cut into contiguous slices over all owners, of at least
 * PARTITION_SLICE_MIN bytes (a small group uses fewer owners), cut at multiples of
 * LAYOUT_ALIGN elements, and the first slice's owner moves on from group to
 * group so that owners stay balanced.
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
        struct range *ranges;   /* [group * n_owners + owner]; count 0: holds nothing */
        uint32_t *start;        /* owner of each group's first slice */
        uint32_t *slices;       /* how many owners hold each group; 0 for an empty group */
};

int partition_new(const layout *l, uint32_t n_owners, struct partition **ret);
void partition_free(struct partition *p);
struct range partition_range(const struct partition *p, uint32_t group, uint32_t owner);
/* Whether inner has elements, and all of them are outer's; whatever its numbers. */
bool range_within(struct range inner, struct range outer);
/*
 * Into how many parts a number of elements is cut, so that none has more than so many: both
 * multiples of LAYOUT_ALIGN.  At least one.
 */
uint32_t range_parts(uint64_t count, uint64_t most);
/* One of so many parts of about the same size, cut at multiples of LAYOUT_ALIGN elements. */
struct range range_part(struct range whole, uint32_t part, uint32_t parts);
/* The owner of the i-th slice in address order, i < slices[group]. */
uint32_t partition_owner(const struct partition *p, uint32_t group, uint32_t i);
/* The one owner of the whole group, or -1 if there are several (or none). */
int partition_sole_owner(const struct partition *p, uint32_t group);
/* Elements an owner holds of all groups. */
uint64_t partition_elements(const struct partition *p, uint32_t owner);
