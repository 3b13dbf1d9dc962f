/* The chunk that a cache gives. */
#include <criterion/criterion.h>
#include <unistd.h>

#include "daemon/floor/base/chunk.h"

Test(chunk, takes_at_most_a_quarter_of_a_cache_that_has_room_for_the_least)
{
        for (uint64_t kib = 0; kib < 42; kib++)
                cr_assert_eq(chunk_of_cache(kib << 10), CHUNK_LEAST);
        for (uint64_t kib = 42; kib <= 1024; kib++) {
                uint64_t n = chunk_of_cache(kib << 10);

                cr_assert_eq(n % CHUNK_STEP, 0);
                cr_assert_leq(n * 28 * 4, kib << 10, "%u KiB", (unsigned)kib);
                cr_assert_gt((n + CHUNK_STEP) * 28 * 4, kib << 10, "%u KiB", (unsigned)kib);
        }
}

Test(chunk, of_common_caches)
{
        cr_assert_eq(chunk_of_cache(32 << 10), 384);
        cr_assert_eq(chunk_of_cache(48 << 10), 384);
        cr_assert_eq(chunk_of_cache(64 << 10), 512);
}

Test(chunk, stays_within_the_option_for_any_cache)
{
        cr_assert_eq(chunk_of_cache(1), CHUNK_LEAST);
        cr_assert_eq(chunk_of_cache(UINT64_MAX), CHUNK_MOST);
}

Test(chunk, the_default_follows_the_cpu)
{
        long bytes = sysconf(_SC_LEVEL1_DCACHE_SIZE);

        cr_assert_eq(chunk_default(), chunk_of_cache(bytes > 0 ? (uint64_t)bytes : 0));
}
