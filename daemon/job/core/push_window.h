/* push_window.h - the memory of one session that its trainer writes to: a transfer area, and
 * slots for gradients. */
#pragma once

#include "daemon/compute/device/segment/segment.h"
#include "proto/fault.h"
#include "proto/slots.h"

/* Lives as long as somebody reads it. */
struct push_window {
        uint32_t references;
        struct segment segment; /* a transfer area, then the slots unless they lie apart */
        uint64_t transfer_bytes;
        uint32_t puts;        /* puts in progress, and copies of their values on their way; at most
                                 PUTS_MAX */
        uint32_t gets;        /* gets in progress; at most GETS_MAX */
        struct segment apart; /* the slots, in another place; bytes 0: none */
        struct slots *slots;  /* NULL for observers */
        /* The client counts the slots as the answer to its attach does, knows that a slot may come
         * back with its step (Noted), and says when it needs the slot before (Reclaim). */
        bool keeps_slots;
};
void push_window_unref(struct push_window *w);
/* With a transfer area only. */
int push_window_new(struct push_window **ret, struct fault *fault);
/* For a rank: with slots, too, unless the slots lie apart. */
int push_window_new_rank(const layout *l, uint32_t n_slots, enum zero_dtype dtype, bool apart,
                         bool keeps_slots, struct push_window **ret, struct fault *fault);
/* Room for the gradients of n_slots groups; ZERO_ALL: of all.  bounded: slots_new_bounded(). */
int push_window_slots(const layout *l, uint32_t n_slots, enum zero_dtype dtype, bool bounded,
                      struct slots **ret);
/* In any place. */
const void *push_window_slot(const struct push_window *w, uint32_t slot);
