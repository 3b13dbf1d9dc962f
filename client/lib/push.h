/*
 * The slots of a push window: which is free, which the trainer writes to, which the
 * daemon still reads.  Pure bookkeeping.
 *
 * A group has at most one slot that it writes to.  A slot goes free -> taken
 * (push_take) -> busy (push_send) -> free (push_done), or back from taken (push_drop, push_reset).
 * push_forget() frees all of them.
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
/* The group's slot, taken now if it has none; PUSH_NONE if all that would do are in use. */
uint32_t push_take(struct push *p, uint32_t group);
/* Whether a slot for the group becomes free when the daemon is done with one. */
bool push_may_wait(const struct push *p, uint32_t group);
/* The group's slot, which the daemon now reads; the group must have one. */
uint32_t push_send(struct push *p, uint32_t group);
void push_done(struct push *p, uint32_t slot);
/* The group's slot, if it has one, is free again without having been sent. */
void push_drop(struct push *p, uint32_t group);
/* Takes back the slots that are written to. */
void push_reset(struct push *p);
/* Takes back all slots: who read them is gone. */
void push_forget(struct push *p);
/* Some slot is written to or being read. */
bool push_in_use(const struct push *p);
