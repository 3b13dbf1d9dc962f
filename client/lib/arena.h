/*
 * Memory for unpacking one reply at a time.  Small replies fit a fixed buffer, so that the hot
 * path does not allocate; the rest is malloc'ed.  Free everything through the allocator before
 * arena_reset().
 */
#pragma once

#include <protobuf-c/protobuf-c.h>
#include <stddef.h>
#include <stdint.h>

enum { ARENA_SIZE = 2048 };

struct arena {
        ProtobufCAllocator allocator;
        size_t used;
        _Alignas(16) uint8_t memory[ARENA_SIZE];
};

/* The arena must not move afterwards. */
void arena_init(struct arena *arena);
void arena_reset(struct arena *arena);
