/*
 * The kernel clears fresh memory first, which takes half as long as copying a payload.  So a freed
 * buffer is kept for the next one of its size.  Large buffers use huge pages, since faults of small
 * pages cost as much as moving the bytes.  Buffers begin with a page, as pushed gradients do: a
 * copy takes twice as long if the two addresses differ by a few bytes within the page.
 *
 * Invariant: buffers in use and kept buffers together never take more than buffers in use have once
 * taken.
 */
#include "daemon/floor/base/buffer.h"

#include <pthread.h>
#include <stdbool.h>
#include <sys/mman.h>

#include "proto/cleanup.h"

enum {
        PAGE = 4 << 10, /* bytes */
        UNIT = BUFFER_KEPT,
        HUGE = 2 << 20, /* only an alignment where huge pages have another size */
        LARGE = 2 * HUGE,
        SLOTS = 32, /* of buffers beyond these, none is kept */
        RESTS = 16,
};

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static struct slot {
        void *memory; /* NULL: the slot is empty */
        size_t bytes;
        bool used;
        uint32_t rests; /* since the last use */
} slots[SLOTS];
static size_t used, held, most; /* bytes: in use; in use and kept; the most ever in use */

static void slot_empty(struct slot *slot)
{
        held -= slot->bytes;
        free(STEAL(slot->memory));
}

void buffers_rest(uint32_t rests)
{
        pthread_mutex_lock(&mutex);
        for (uint32_t i = 0; i < SLOTS; i++) {
                struct slot *slot = &slots[i];

                slot->rests += rests;
                if (!slot->memory || slot->used || slot->rests < RESTS)
                        continue;
                slot_empty(slot);
                most = held;
        }
        pthread_mutex_unlock(&mutex);
}

void buffers_vacate(void)
{
        buffers_rest(RESTS);
}

/* Frees kept buffers so that fresh memory fits. */
static void make_way(size_t bytes)
{
        for (uint32_t i = 0; i < SLOTS && held + bytes > most; i++)
                if (slots[i].memory && !slots[i].used)
                        slot_empty(&slots[i]);
}

/* A kept buffer of that size; 0: an empty slot. */
static struct slot *find(size_t bytes)
{
        for (uint32_t i = 0; i < SLOTS; i++)
                if (!slots[i].used && (slots[i].memory ? slots[i].bytes : 0) == bytes)
                        return &slots[i];
        return NULL;
}

static void *fresh(size_t bytes)
{
        void *memory = aligned_alloc(bytes < LARGE ? PAGE : HUGE, bytes);

        if (memory && bytes >= LARGE)
                madvise(memory, bytes, MADV_HUGEPAGE); /* best effort */
        return memory;
}

static void *take(size_t whole)
{
        struct slot *slot = find(whole);

        if (!slot) {
                make_way(whole);
                slot = find(0);
                if (!slot)
                        return fresh(whole);
                *slot = (struct slot){ .memory = fresh(whole), .bytes = whole };
                if (!slot->memory)
                        return NULL;
                held += whole;
        }
        slot->used = true;
        used += whole;
        most = used > most ? used : most;
        return slot->memory;
}

void *buffer_kept(size_t bytes)
{
        size_t unit = bytes < LARGE ? UNIT : HUGE;
        void *buffer;

        pthread_mutex_lock(&mutex);
        buffer = take((bytes + unit - 1) / unit * unit);
        pthread_mutex_unlock(&mutex);
        return buffer;
}

/* False: the buffer has no slot. */
static bool give(const void *buffer)
{
        for (uint32_t i = 0; i < SLOTS; i++)
                if (slots[i].memory == buffer) {
                        slots[i].used = false;
                        slots[i].rests = 0;
                        used -= slots[i].bytes;
                        return true;
                }
        return false;
}

void buffer_free(void *buffer)
{
        bool given;

        if (!buffer)
                return;
        pthread_mutex_lock(&mutex);
        given = give(buffer);
        pthread_mutex_unlock(&mutex);
        if (!given)
                free(buffer);
}
