/*
 * A large buffer is fresh memory each time, so that what a step needed is given back after it.
 * Huge pages make that cheap: faults of small ones cost as much as the bytes' way there.
 */
#include "daemon/reduce/buffer.h"

#include <stdlib.h>
#include <sys/mman.h>

enum {
        HUGE = 2 << 20, /* bytes; where pages have another size, this is merely an alignment */
        LARGE = 2 * HUGE,
};

void *buffer_new(size_t bytes)
{
        size_t whole = (bytes + HUGE - 1) / HUGE * HUGE;
        void *buffer;

        if (bytes < LARGE)
                return malloc(bytes ? bytes : 1);
        buffer = aligned_alloc(HUGE, whole);
        if (buffer)
                madvise(buffer, whole, MADV_HUGEPAGE); /* a wish */
        return buffer;
}
