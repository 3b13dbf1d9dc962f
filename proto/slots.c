/*
 * Slots of a window; see slots.h for the rule.
 *
 * Invariant: slots do not overlap and lie within `bytes`.
 */
#include "proto/slots.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>

#include "proto/cleanup.h"
#include "proto/dtype.h"

DEFINE_CLEANUP(struct slots *, slots_free)

void slots_free(struct slots *s)
{
        if (!s)
                return;
        free(s->offsets);
        free(s);
}

uint64_t slots_group_bytes(const layout *l, uint32_t group, uint32_t dtype)
{
        const struct layout_group *g = &l->groups[group];
        uint64_t bytes = dtype_bytes(dtype ? dtype : g->dtype, g->elements);

        return (bytes + SLOTS_ALIGN - 1) / SLOTS_ALIGN * SLOTS_ALIGN;
}

static uint64_t slot_size(const layout *l, uint32_t group, uint32_t dtype, const bool *skip)
{
        return skip && skip[group] ? 0 : slots_group_bytes(l, group, dtype);
}

static int lay_whole(struct slots *s, const layout *l, uint32_t dtype, const bool *skip)
{
        s->whole = true;
        s->n = l->n_groups;
        s->offsets = calloc((size_t)l->n_groups + 1, sizeof(*s->offsets));
        if (!s->offsets)
                return -ENOMEM;
        for (uint32_t g = 0; g < l->n_groups; g++) {
                s->offsets[g] = s->bytes;
                s->bytes += slot_size(l, g, dtype, skip);
        }
        return 0;
}

/* Bytes of all groups of at most that size. */
static uint64_t bytes_of(const layout *l, uint32_t dtype, const bool *skip, uint64_t most)
{
        uint64_t sum = 0;

        for (uint32_t g = 0; g < l->n_groups; g++) {
                uint64_t bytes = slot_size(l, g, dtype, skip);

                sum += bytes <= most ? bytes : 0;
        }
        return sum;
}

static uint64_t common_size(const layout *l, uint32_t dtype, const bool *skip, uint64_t largest)
{
        uint64_t all = bytes_of(l, dtype, skip, largest), low = 0, high = largest;

        while (low < high) {
                uint64_t middle = low + (high - low) / 2;

                if (bytes_of(l, dtype, skip, middle) >= all - all / 2)
                        high = middle;
                else
                        low = middle + 1;
        }
        return low;
}

static void lay_equal(struct slots *s, const layout *l, uint32_t wanted, uint32_t dtype,
                      const bool *skip)
{
        s->n = wanted;
        for (uint32_t g = 0; g < l->n_groups; g++) {
                uint64_t bytes = slot_size(l, g, dtype, skip);
                if (bytes > s->slot_bytes)
                        s->slot_bytes = bytes;
        }
        s->common = common_size(l, dtype, skip, s->slot_bytes);
        s->bytes = wanted * s->slot_bytes;
}

int slots_new(const layout *l, uint32_t wanted, uint32_t dtype, const bool *skip,
              struct slots **ret)
{
        if (wanted == 0 || (dtype && !dtype_valid(dtype)))
                return -EINVAL;

        CLEANUP(cleanup_slots_free) struct slots *s = calloc(1, sizeof(*s));
        if (!s)
                return -ENOMEM;
        if (wanted >= l->n_groups) {
                int r = lay_whole(s, l, dtype, skip);
                if (r < 0)
                        return r;
        } else {
                lay_equal(s, l, wanted, dtype, skip);
        }
        *ret = STEAL(s);
        return 0;
}

int slots_new_bounded(const layout *l, uint32_t wanted, uint32_t dtype, const bool *skip,
                      struct slots **ret)
{
        CLEANUP(cleanup_slots_free) struct slots *s = NULL;
        int r = slots_new(l, wanted, dtype, skip, &s);

        if (r < 0)
                return r;
        if (!s->whole && s->bytes >= bytes_of(l, dtype, skip, s->slot_bytes))
                return slots_new(l, l->n_groups, dtype, skip, ret);
        *ret = STEAL(s);
        return 0;
}

int slots_new_form(const layout *l, const uint8_t *form, struct slots **ret)
{
        int r = slots_new(l, l->n_groups, 0, NULL, ret);

        if (r < 0)
                return r;
        (*ret)->bytes = 0;
        for (uint32_t g = 0; g < l->n_groups; g++) {
                (*ret)->offsets[g] = (*ret)->bytes;
                (*ret)->bytes += form[g] ? slots_group_bytes(l, g, form[g]) : 0;
        }
        return 0;
}

uint64_t slots_offset(const struct slots *s, uint32_t i)
{
        assert(i < s->n);
        return s->whole ? s->offsets[i] : i * s->slot_bytes;
}
