/* Plans which part of a sum is made in which place. */
#include "daemon/step/reduce/parts.h"

#include <assert.h>

/* The i-th place of a set, modulo its size. */
static uint32_t nth_of(uint64_t set, uint32_t i)
{
        i %= (uint32_t)__builtin_popcountll(set);
        for (; i; i--)
                set &= set - 1;
        return (uint32_t)__builtin_ctzll(set);
}

void parts_plan(const struct parts_rule *rule, uint32_t group, struct part *parts)
{
        const struct partition *p = rule->partition;
        uint64_t used[PLACES_MAX] = { 0 };

        assert(rule->sources);
        for (uint32_t i = 0, turn = 0; i < p->slices[group]; i++) {
                uint32_t owner = partition_owner(p, group, i);
                uint32_t place = rule->place_of_owner[owner];
                struct part *part = &parts[i];

                part->range = partition_range(p, group, owner);
                part->place = place_is_host(place) ? nth_of(rule->sources, turn++) : place;
                assert(part->place < PLACES_MAX);
                part->at = used[part->place];
                used[part->place] +=
                        (part->range.count * rule->size + PART_ALIGN - 1) / PART_ALIGN * PART_ALIGN;
        }
}

uint64_t parts_places(const struct part *parts, uint32_t n)
{
        uint64_t set = 0;

        for (uint32_t i = 0; i < n; i++)
                set |= UINT64_C(1) << parts[i].place;
        return set;
}

uint64_t parts_bytes(const struct part *parts, uint32_t n, uint32_t place, size_t size)
{
        uint64_t bytes = 0;

        for (uint32_t i = 0; i < n; i++)
                if (parts[i].place == place && parts[i].at + parts[i].range.count * size > bytes)
                        bytes = parts[i].at + parts[i].range.count * size;
        return bytes;
}

const struct part *parts_find(const struct part *parts, uint32_t n, uint64_t element)
{
        for (uint32_t i = 0; i < n; i++)
                if (element - parts[i].range.first < parts[i].range.count)
                        return &parts[i];
        assert(!"an element is in one of the parts");
        return NULL;
}
