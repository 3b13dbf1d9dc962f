/* See push.h. */
#include "push.h"

#include <assert.h>
#include <errno.h>
#include <string.h>
#include <sys/mman.h>

#include "proto/cleanup.h"

enum {
        GIVE_BACK_MIN = 1 << 20
}; /* bytes; of less, the system call would cost more than it is worth */

static int make_slots(struct push *p, const layout *l, uint32_t wanted, enum zero_dtype dtype)
{
        CLEANUP(cleanup_free) bool *skip = calloc(l->n_groups, sizeof(*skip));

        if (!skip)
                return -ENOMEM;
        for (uint32_t g = 0; g < l->n_groups; g++)
                skip[g] = !layout_group_trainable(l, g);
        return slots_new(l, wanted, dtype, skip, &p->slots);
}

int push_init(struct push *p, const layout *l, uint32_t wanted, enum zero_dtype dtype)
{
        int r;

        memset(p, 0, sizeof(*p));
        p->n_groups = l->n_groups;
        r = make_slots(p, l, wanted, dtype);
        if (r < 0)
                return r;
        p->n = p->slots->whole ? l->n_groups : p->slots->n;
        p->busy = calloc(p->n, sizeof(*p->busy));
        p->free = calloc(p->n, sizeof(*p->free));
        p->of_group = malloc(l->n_groups * sizeof(*p->of_group));
        if (!p->busy || !p->free || !p->of_group) {
                push_deinit(p);
                return -ENOMEM;
        }
        memset(p->of_group, 0xff, p->n_groups * sizeof(*p->of_group));
        for (; p->n_free < p->n; p->n_free++)
                p->free[p->n_free] = p->n - 1 - p->n_free;
        return 0;
}

void push_deinit(struct push *p)
{
        slots_free(p->slots);
        free(p->busy);
        free(p->of_group);
        free(p->free);
        memset(p, 0, sizeof(*p));
}

uint32_t push_take(struct push *p, uint32_t group)
{
        assert(group < p->n_groups);
        if (p->of_group[group] != PUSH_NONE)
                return p->of_group[group];
        if (p->slots->whole)
                p->of_group[group] = p->busy[group] ? PUSH_NONE : group;
        else if (p->n_free > 0)
                p->of_group[group] = p->free[--p->n_free];
        return p->of_group[group];
}

bool push_may_wait(const struct push *p, uint32_t group)
{
        return p->slots->whole ? p->busy[group] : p->n_busy > 0;
}

uint32_t push_send(struct push *p, uint32_t group)
{
        uint32_t slot = p->of_group[group];

        assert(slot < p->n && !p->busy[slot]);
        p->of_group[group] = PUSH_NONE;
        p->busy[slot] = true;
        p->n_busy++;
        return slot;
}

static void push_free_slot(struct push *p, uint32_t slot)
{
        if (!p->slots->whole)
                p->free[p->n_free++] = slot;
}

void push_done(struct push *p, uint32_t slot)
{
        assert(slot < p->n && p->busy[slot] && p->n_busy > 0);
        p->busy[slot] = false;
        p->n_busy--;
        push_free_slot(p, slot);
}

void push_drop(struct push *p, uint32_t group)
{
        if (p->of_group[group] == PUSH_NONE)
                return;
        push_free_slot(p, p->of_group[group]);
        p->of_group[group] = PUSH_NONE;
}

void push_reset(struct push *p)
{
        for (uint32_t g = 0; g < p->n_groups; g++)
                push_drop(p, g);
}

void push_give_back(const struct push *p, uint8_t *base, uint32_t slot, uint64_t bytes)
{
        uint64_t common = p->slots->common;

        if (!p->slots->whole && bytes >= common + GIVE_BACK_MIN)
                madvise(base + slots_offset(p->slots, slot) + common, p->slots->slot_bytes - common,
                        MADV_REMOVE);
}

bool push_in_use(const struct push *p)
{
        for (uint32_t g = 0; g < p->n_groups; g++)
                if (p->of_group[g] != PUSH_NONE)
                        return true;
        return p->n_busy > 0;
}
