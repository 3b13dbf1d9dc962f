/*
 * How a window is cut into slots for groups; daemon and client compute the same result.  In a whole
 * window every group has a slot of its own size.  Other windows have n equal slots of the largest
 * group's size, so that they cannot fragment.  Offsets are multiples of SLOTS_ALIGN bytes.
 */
#pragma once

#include "proto/layout.h"

enum { SLOTS_ALIGN = 4096 };

struct slots {
        bool whole;
        uint32_t n;          /* slots */
        uint64_t slot_bytes; /* where not whole */
        uint64_t common;   /* where not whole: groups of at most this size have half of all bytes */
        uint64_t *offsets; /* where whole: [group] */
        uint64_t bytes;    /* of all */
};

/*
 * A window for `wanted` groups at the same time, at least 1; from the number of groups on it is
 * whole. dtype 0: each group in its own dtype.  skip (may be NULL): groups with skip[group] need no
 * slot.
 */
int slots_new(const layout *l, uint32_t wanted, uint32_t dtype, const bool *skip,
              struct slots **ret);
/* As slots_new(), but whole also where equal slots would take as much as all groups.  Daemons
 * choose by this, and tell a client the number of slots. */
int slots_new_bounded(const layout *l, uint32_t wanted, uint32_t dtype, const bool *skip,
                      struct slots **ret);
/* A whole window in a form: [group] has the group's enum zero_dtype there; 0: it needs no slot. */
int slots_new_form(const layout *l, const uint8_t *form, struct slots **ret);
void slots_free(struct slots *s);
/* Of a group in its slot, up to a multiple of SLOTS_ALIGN; dtype 0: the group's own. */
uint64_t slots_group_bytes(const layout *l, uint32_t group, uint32_t dtype);
/* Where slot i begins; if whole, i is the group. */
uint64_t slots_offset(const struct slots *s, uint32_t i);
