/* See arena.h.  A piece of the buffer is not freed alone: arena_reset() frees all. */
#include "arena.h"

#include <stdlib.h>

static void *arena_alloc(void *data, size_t size)
{
        struct arena *arena = data;
        size_t begin = (arena->used + 15) & ~(size_t)15;

        if (begin > ARENA_SIZE || size > ARENA_SIZE - begin)
                return malloc(size);
        arena->used = begin + size;
        return arena->memory + begin;
}

static void arena_free(void *data, void *pointer)
{
        struct arena *arena = data;
        uintptr_t p = (uintptr_t)pointer, begin = (uintptr_t)arena->memory;

        if (p < begin || p >= begin + ARENA_SIZE)
                free(pointer);
}

void arena_init(struct arena *arena)
{
        arena->allocator = (ProtobufCAllocator){ arena_alloc, arena_free, arena };
        arena->used = 0;
}

void arena_reset(struct arena *arena)
{
        arena->used = 0;
}
