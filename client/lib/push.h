/*
 * The slots of a push window: which are free, which the trainer writes to, which the
 * daemon still reads.  Bookkeeping, and what memory slots take.
 *
 * A group writes to at most one slot.  A slot goes free -> taken (push_take) -> busy (push_send)
 * -> free (push_done), or from taken back to free (push_drop, push_reset).
 *
 * In host memory a free slot keeps the memory that most gradients need.  The rest of it, which a
 * large group has touched, goes back to the system.
 */
#pragma once

#include "proto/slots.h"

enum { PUSH_NONE = UINT32_MAX };

struct push {
        struct slots *slots;
        uint32_t n;         /* slots; groups if slots->whole */
        bool *busy;         /* [slot] */
        uint32_t *of_group; /* [group]: the slot it writes to, or PUSH_NONE */
        uint32_t *free;     /* stack of free slots; unused if whole */
        uint32_t n_free, n_busy;
        uint32_t n_groups;
};

/* -ENOMEM, -EINVAL (slots_new()). */
int push_init(struct push *p, const layout *l, uint32_t wanted, enum zero_dtype dtype);
void push_deinit(struct push *p);
/* The group's slot; takes one if the group has none.  PUSH_NONE if all suitable slots are in use.
 */
uint32_t push_take(struct push *p, uint32_t group);
/* Whether a slot for the group becomes free when the daemon is done with a push. */
bool push_may_wait(const struct push *p, uint32_t group);
/* Hands the group's slot to the daemon; the group must have one. */
uint32_t push_send(struct push *p, uint32_t group);
void push_done(struct push *p, uint32_t slot);
/* Frees the group's slot, if it has one, without a push. */
void push_drop(struct push *p, uint32_t group);
/* Frees the slots that the trainer writes to. */
void push_reset(struct push *p);
/*
 * Behind push_done(): the slot, of the slots at base, had a gradient of `bytes`.  A failure costs
 * memory only.
 */
void push_give_back(const struct push *p, uint8_t *base, uint32_t slot, uint64_t bytes);
/* Whether any slot is taken or busy. */
bool push_in_use(const struct push *p);
