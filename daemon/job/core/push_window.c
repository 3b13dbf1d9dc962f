/*
 * The memory of a session: the transfer area, and a rank's slots for gradients.
 *
 * Both lie in one memfd, unless the slots lie in another place (rank/setup.c).
 */
#include "daemon/job/core/push_window.h"

#include <errno.h>
#include <stdlib.h>

#include "proto/cleanup.h"

DEFINE_CLEANUP(struct push_window *, push_window_unref)

/* untouched pages take no memory */
enum { TRANSFER_BYTES = 4 << 20 };

void push_window_unref(struct push_window *w)
{
        if (!w || --w->references)
                return;
        segment_free(&w->segment);
        segment_free(&w->apart);
        slots_free(w->slots);
        free(w);
}

static struct push_window *window_alloc(void)
{
        struct push_window *w = calloc(1, sizeof *w);

        if (!w)
                return NULL;
        w->references = 1;
        w->segment.fd = w->apart.fd = -1;
        w->transfer_bytes = TRANSFER_BYTES;
        return w;
}

static int window_map(struct push_window *w, uint64_t slots_bytes, struct fault *fault)
{
        return segment_new("zerod-session", w->transfer_bytes + slots_bytes,
                           SEGMENT_SHARED | SEGMENT_SPARSE, &w->segment, fault);
}

int push_window_new(struct push_window **ret, struct fault *fault)
{
        CLEANUP(cleanup_push_window_unref) struct push_window *w = window_alloc();
        int r;

        if (!w)
                return fault_set(fault, ZERO_ENOMEM, "out of memory");
        r = window_map(w, 0, fault);
        if (r)
                return r;
        *ret = STEAL(w);
        return 0;
}

int push_window_slots(const layout *l, uint32_t n, enum zero_dtype dtype, bool bounded,
                      struct slots **ret)
{
        CLEANUP(cleanup_free) bool *skip = calloc(l->n_groups, sizeof *skip);

        if (!skip)
                return -ENOMEM;
        for (uint32_t g = 0; g < l->n_groups; g++)
                skip[g] = !layout_group_trainable(l, g);
        return (bounded ? slots_new_bounded : slots_new)(l, n, dtype, skip, ret);
}

int push_window_new_rank(const layout *l, uint32_t n_slots, enum zero_dtype dtype, bool apart,
                         bool keeps_slots, struct push_window **ret, struct fault *fault)
{
        CLEANUP(cleanup_push_window_unref) struct push_window *w = window_alloc();
        int r;

        if (!w || push_window_slots(l, n_slots, dtype, keeps_slots, &w->slots))
                return fault_set(fault, ZERO_ENOMEM, "out of memory");
        w->keeps_slots = keeps_slots;
        r = window_map(w, apart ? 0 : w->slots->bytes, fault);
        if (r)
                return r;
        *ret = STEAL(w);
        return 0;
}

const void *push_window_slot(const struct push_window *w, uint32_t slot)
{
        const char *slots =
                w->apart.bytes ? w->apart.data : (char *)w->segment.data + w->transfer_bytes;

        return slots + slots_offset(w->slots, slot);
}
