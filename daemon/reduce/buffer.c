/*
 * The kernel clears fresh memory first, which takes half as long as copying a payload.  So a freed
 * buffer is kept for the next one of its size.  Large buffers use huge pages, since faults of small
 * pages cost as much as moving the bytes.  Buffers begin with a page, as pushed gradients do: a
 * copy takes twice as long if the two addresses differ by a few bytes within the page.
 *
 * Invariant: buffers in use and kept buffers together never take more than buffers in use have once
 * taken.
 */
#include "daemon/reduce/buffer.h"

#include <stdbool.h>
#include <stdlib.h>
#include <sys/mman.h>

#include "proto/cleanup.h"

enum {
        PAGE = 4 << 10,  /* bytes */
        UNIT = 32 << 10, /* malloc() handles smaller ones well */
        HUGE = 2 << 20,  /* only an alignment where huge pages have another size */
        LARGE = 2 * HUGE,
        PLACES = 32, /* of buffers beyond these, none is kept */
        RESTS = 16,
};

static struct place {
        void *memory; /* NULL: the place is empty */
        size_t bytes;
        bool used;
        uint32_t rests; /* since the last use */
} places[PLACES];
static size_t used, held, most; /* bytes: in use; in use and kept; the most ever in use */

static void place_empty(struct place *place)
{
        held -= place->bytes;
        free(STEAL(place->memory));
}

void buffers_rest(uint32_t rests)
{
        for (uint32_t i = 0; i < PLACES; i++) {
                struct place *place = &places[i];

                place->rests += rests;
                if (!place->memory || place->used || place->rests < RESTS)
                        continue;
                place_empty(place);
                most = held;
        }
}

void buffers_vacate(void)
{
        buffers_rest(RESTS);
}

/* Frees kept buffers so that fresh memory fits. */
static void make_way(size_t bytes)
{
        for (uint32_t i = 0; i < PLACES && held + bytes > most; i++)
                if (places[i].memory && !places[i].used)
                        place_empty(&places[i]);
}

/* A kept buffer of that size; 0: an empty place. */
static struct place *find(size_t bytes)
{
        for (uint32_t i = 0; i < PLACES; i++)
                if (!places[i].used && (places[i].memory ? places[i].bytes : 0) == bytes)
                        return &places[i];
        return NULL;
}

static void *fresh(size_t bytes)
{
        void *memory = aligned_alloc(bytes < LARGE ? PAGE : HUGE, bytes);

        if (memory && bytes >= LARGE)
                madvise(memory, bytes, MADV_HUGEPAGE); /* best effort */
        return memory;
}

void *buffer_new(size_t bytes)
{
        size_t unit = bytes < LARGE ? UNIT : HUGE, whole = (bytes + unit - 1) / unit * unit;
        struct place *place;

        if (bytes < UNIT)
                return malloc(bytes ? bytes : 1);
        place = find(whole);
        if (!place) {
                make_way(whole);
                place = find(0);
                if (!place)
                        return fresh(whole);
                *place = (struct place){ .memory = fresh(whole), .bytes = whole };
                if (!place->memory)
                        return NULL;
                held += whole;
        }
        place->used = true;
        used += whole;
        most = used > most ? used : most;
        return place->memory;
}

void buffer_free(void *buffer)
{
        for (uint32_t i = 0; buffer && i < PLACES; i++)
                if (places[i].memory == buffer) {
                        places[i].used = false;
                        places[i].rests = 0;
                        used -= places[i].bytes;
                        return;
                }
        free(buffer);
}
