/*
 * How a window is cut into slots for groups; computed alike by daemon and client.
 * Whole: every group has its own slot of its own size.  Else n equal slots of
 * the largest group's size, so that a window cannot fragment.
 * Offsets are multiples of SLOTS_ALIGN bytes.
 */
#pragma once

#include "proto/layout.h"

enum { SLOTS_ALIGN = 4096 };

struct slots {
        bool whole;
        uint32_t n;             /* slots */
        uint64_t slot_bytes;    /* where not whole */
        uint64_t *offsets;      /* where whole: [group] */
        uint64_t bytes;         /* of all */
};

/*
 * Room for `wanted` groups at once (at least 1; >= the number of groups: whole).  dtype 0: each
 * group in its own dtype.  skip (may be NULL): skip[group] true needs no slot.
 */
int slots_new(const layout *l, uint32_t wanted, uint32_t dtype, const bool *skip,
              struct slots **ret);
void slots_free(struct slots *s);
/* Where slot i begins; if whole, i is the group. */
uint64_t slots_offset(const struct slots *s, uint32_t i);
