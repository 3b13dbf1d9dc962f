#include "daemon/floor/base/chunk.h"

#include <unistd.h>

uint32_t chunk_of_cache(uint64_t bytes)
{
        uint64_t n = bytes / CHUNK_SHARE / CHUNK_ELEMENT_BYTES;

        n -= n % CHUNK_STEP;
        return n < CHUNK_LEAST ? CHUNK_LEAST : n > CHUNK_MOST ? CHUNK_MOST : (uint32_t)n;
}

uint32_t chunk_default(void)
{
        long bytes = sysconf(_SC_LEVEL1_DCACHE_SIZE);

        return chunk_of_cache(bytes > 0 ? (uint64_t)bytes : 0);
}
