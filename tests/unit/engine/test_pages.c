/* Blocks out of one region: never shared, and refused only where too few bytes are free. */
#include <criterion/criterion.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/step/stash/pages.h"

enum { BLOCKS = 300, STEPS = 20000 };

static uint32_t below(uint64_t *seed, uint32_t n)
{
        *seed = *seed * 6364136223846793005u + 1442695040888963407u;
        return (uint32_t)((*seed >> 33) % n);
}

static uint64_t block_bytes(const struct block *b)
{
        uint64_t bytes = 0;

        for (uint32_t i = 0; i < b->n; i++)
                bytes += b->extents[i].bytes;
        return bytes;
}

/* Marks the block's units in `map`; all were unmarked before, or marked if the block goes. */
static void mark(const struct pages *p, const struct block *b, uint8_t *map, bool here)
{
        for (uint32_t i = 0; i < b->n; i++)
                for (uint64_t at = b->extents[i].offset;
                     at < b->extents[i].offset + b->extents[i].bytes; at += p->unit) {
                        cr_assert_lt(at / p->unit, p->n);
                        cr_assert_eq(map[at / p->unit], !here);
                        map[at / p->unit] = here;
                }
}

/* Random blocks come and go in any order. */
Test(pages, random)
{
        static const uint64_t regions[] = { 1, 4096, 3 << 20, (1ull << 30) + 12345 };

        for (size_t k = 0; k < sizeof regions / sizeof regions[0]; k++) {
                struct block blocks[BLOCKS] = { 0 };
                uint64_t seed = k + 1;
                uint32_t used = 0;
                struct pages p;
                uint8_t *map;

                cr_assert_eq(pages_init(&p, regions[k]), 0);
                cr_assert(p.n * p.unit >= regions[k] && p.n * p.unit < regions[k] + p.unit);
                cr_assert_leq(p.n, PAGES_UNITS);
                map = calloc(p.n, 1);
                for (int i = 0; i < STEPS; i++) {
                        struct block *b = &blocks[below(&seed, BLOCKS)];
                        uint64_t bytes = 1 + below(&seed, (uint32_t)(regions[k] / 40 + 1));
                        uint32_t units = (uint32_t)(pages_round(&p, bytes) / p.unit);

                        if (b->n) {
                                mark(&p, b, map, false);
                                used -= (uint32_t)(block_bytes(b) / p.unit);
                                pages_give(&p, b);
                        } else if (units > p.n - used) {
                                cr_assert_eq(pages_take(&p, bytes, b), -ENOSPC);
                                cr_assert_eq(b->n, 0);
                        } else {
                                cr_assert_eq(pages_take(&p, bytes, b), 0);
                                cr_assert_eq(block_bytes(b), units * p.unit);
                                mark(&p, b, map, true);
                                used += units;
                        }
                        cr_assert_eq(p.used, used);
                        cr_assert_geq(p.most, used);
                }
                for (int i = 0; i < BLOCKS; i++)
                        pages_give(&p, &blocks[i]);
                cr_assert_eq(p.used, 0);
                free(map);
                pages_deinit(&p);
        }
}

/* Where a block must be one piece, one that fits no gap is refused; slots are apart from the rest.
 */
Test(pages, more_than_there_ever_is)
{
        const uint64_t sizes[] = { 9 * 4096, UINT32_MAX, 1ull << 50, UINT64_MAX - 63, UINT64_MAX };
        struct block b = { 0 };
        struct pages p;

        cr_assert_eq(pages_init(&p, 8 * 4096), 0);
        for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++)
                cr_assert_eq(pages_take(&p, sizes[i], &b), -ENOSPC);
        cr_assert(p.used == 0 && !b.extents);
        pages_deinit(&p);
}

Test(pages, contiguous)
{
        struct block blocks[8] = { 0 }, large = { 0 };
        struct pages p, slots;

        cr_assert_eq(pages_init(&p, 8 * 4096), 0);
        p.contiguous = true;
        cr_assert_eq(pages_init_slots(&slots, 8 * 4096, 3 * 4096, 2), 0);
        for (int i = 0; i < 8; i++)
                cr_assert_eq(pages_take(&p, 4096, &blocks[i]), 0);
        for (int i = 0; i < 8; i += 2)
                pages_give(&p, &blocks[i]);
        cr_assert_eq(pages_take(&p, 2 * 4096, &large), -ENOSPC);
        pages_give(&p, &blocks[3]);
        cr_assert_eq(pages_take(&p, 3 * 4096, &large), 0);
        cr_assert(large.n == 1 && large.extents[0].offset == 2 * 4096);
        pages_give(&p, &large);
        cr_assert_eq(pages_take(&slots, 3 * 4096, &large), 0);
        cr_assert(large.n == 1 && large.extents[0].offset == 8 * 4096);
        cr_assert_eq(pages_take(&slots, 4096, &blocks[0]), 0);
        cr_assert(blocks[0].extents[0].offset == 11 * 4096 &&
                  blocks[0].extents[0].bytes == 3 * 4096);
        cr_assert_eq(pages_take(&slots, 1, &blocks[2]), -ENOSPC);
        pages_give(&slots, &large);
        pages_give(&slots, &blocks[0]);
        cr_assert_eq(slots.used, 0);
        for (int i = 0; i < 8; i++)
                pages_give(&p, &blocks[i]);
        pages_deinit(&p);
        pages_deinit(&slots);
}

/* A block is one piece where a gap is large enough: in the order of a step no block is in pieces.
 */
Test(pages, last_in_first_out)
{
        struct block blocks[64] = { 0 };
        struct pages p;

        cr_assert_eq(pages_init(&p, 64 << 20), 0);
        for (int step = 0; step < 50; step++) {
                for (int i = 0; i < 64; i++) {
                        cr_assert_eq(pages_take(&p, (1 << 20) - step * 4096, &blocks[i]), 0);
                        cr_assert_eq(blocks[i].n, 1);
                }
                for (int i = 64; i-- > 0;)
                        pages_give(&p, &blocks[i]);
        }
        pages_deinit(&p);
}

/* Every second unit is free: a first-fit allocator would refuse two units with half of the region
 * free. */
Test(pages, gaps)
{
        struct block blocks[256] = { 0 }, large = { 0 };
        struct pages p;

        cr_assert_eq(pages_init(&p, 256 * 4096), 0);
        for (int i = 0; i < 256; i++)
                cr_assert_eq(pages_take(&p, 4096, &blocks[i]), 0);
        for (int i = 0; i < 256; i += 2)
                pages_give(&p, &blocks[i]);
        cr_assert_eq(pages_take(&p, 128 * 4096, &large), 0);
        cr_assert_eq(large.n, 128);
        cr_assert_eq(pages_take(&p, 1, &blocks[0]), -ENOSPC);
        pages_give(&p, &large);
        for (int i = 0; i < 256; i++)
                pages_give(&p, &blocks[i]);
        pages_deinit(&p);
}
