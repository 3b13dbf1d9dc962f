/*
 * Large buffers are of huge pages, since faults of small ones cost as much as the bytes' way there.
 * Even huge pages have to be cleared first, which takes half as long as a payload's copy: so a
 * buffer that is freed is kept for the next one of its size.
 *
 * Invariant: kept buffers and those in use never take more than was once in use at the same time,
 * since a buffer of another size frees what is kept before it takes fresh memory.
 */
#include "daemon/reduce/buffer.h"

#include <stdbool.h>
#include <stdlib.h>
#include <sys/mman.h>

#include "proto/cleanup.h"

enum {
        HUGE = 2 << 20, /* bytes; where pages have another size, this is merely an alignment */
        LARGE = 2 * HUGE,
        PLACES = 32, /* further buffers are not kept */
        RESTS = 16,
};

static struct place {
        void *memory; /* NULL: the place is empty */
        size_t bytes;
        bool used;
        uint32_t rests; /* since it was used */
} places[PLACES];

void buffers_rest(uint32_t rests)
{
        for (uint32_t i = 0; i < PLACES; i++) {
                struct place *place = &places[i];

                place->rests += rests;
                if (!place->used && place->rests >= RESTS)
                        free(STEAL(place->memory));
        }
}

void buffers_vacate(void)
{
        buffers_rest(RESTS);
}

/* One of that size that is kept; 0: an empty place. */
static struct place *find(size_t bytes)
{
        for (uint32_t i = 0; i < PLACES; i++)
                if (!places[i].used && (places[i].memory ? places[i].bytes : 0) == bytes)
                        return &places[i];
        return NULL;
}

static void *fresh(size_t bytes)
{
        void *memory = aligned_alloc(HUGE, bytes);

        if (memory)
                madvise(memory, bytes, MADV_HUGEPAGE); /* a wish */
        return memory;
}

void *buffer_new(size_t bytes)
{
        size_t whole = (bytes + HUGE - 1) / HUGE * HUGE;
        struct place *place;

        if (bytes < LARGE)
                return malloc(bytes ? bytes : 1);
        place = find(whole);
        if (!place) {
                buffers_vacate();
                place = find(0);
                if (!place)
                        return fresh(whole);
                *place = (struct place){ .memory = fresh(whole), .bytes = whole };
        }
        place->used = place->memory;
        return place->memory;
}

void buffer_free(void *buffer)
{
        for (uint32_t i = 0; buffer && i < PLACES; i++)
                if (places[i].memory == buffer) {
                        places[i].used = false;
                        places[i].rests = 0;
                        return;
                }
        free(buffer);
}
