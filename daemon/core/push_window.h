/* push_window.h - memory of one session that its trainer writes: a transfer area, and slots for
 * gradients. */
#pragma once

#include "daemon/store/segment.h"
#include "proto/fault.h"
#include "proto/slots.h"

/* Memory of one session that its trainer writes; lives as long as somebody reads it. */
struct push_window {
        uint32_t references;
        struct segment segment; /* a transfer area, then the slots unless they are on a GPU */
        uint64_t transfer_bytes;
        uint32_t puts;            /* of which copies exist; at most PUTS_MAX */
        uint32_t gets;            /* that have not ended; at most GETS_MAX */
        struct segment gpu_slots; /* bytes 0: there are none, or they are in host memory */
        struct slots *slots;      /* NULL for observers */
};
void push_window_unref(struct push_window *w);
/* A transfer area only. */
int push_window_new(struct push_window **ret, struct fault *fault);
/* Of a rank: slots too, unless they are to be on a GPU. */
int push_window_new_rank(const layout *l, uint32_t n_slots, enum zero_dtype dtype, bool on_gpu,
                         struct push_window **ret, struct fault *fault);
/* Not for the CPU if the slots are on a GPU. */
const void *push_window_slot(const struct push_window *w, uint32_t slot);
