/* Blocks in several pieces: one address, and the same bytes as in the segment. */
#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "proto/cleanup.h"
#include "proto/extents.h"

enum { PAGE = 4096, PAGES = 64 };

/* Byte i of the block lies where the extents say. */
static uint64_t place_of_byte(const struct extent *e, uint64_t i)
{
        while (i >= e->bytes)
                i -= (e++)->bytes;
        return e->offset + i;
}

Test(extents, cut)
{
        const struct extent all[] = { { 5 * PAGE, PAGE }, { 0, 2 * PAGE }, { 9 * PAGE, PAGE } };
        struct extent some[3];

        for (uint64_t first = 0; first <= 4 * PAGE; first += 517)
                for (uint64_t bytes = 0; first + bytes <= 4 * PAGE; bytes += 1023) {
                        uint32_t n = extents_cut(all, 3, first, bytes, some);
                        uint64_t seen = 0;

                        for (uint32_t i = 0; i < n; seen += some[i++].bytes)
                                cr_assert_eq(some[i].offset, place_of_byte(all, first + seen));
                        cr_assert_eq(seen, bytes);
                }
        cr_assert_eq(extents_cut(all, 3, 4 * PAGE, 1, some), 0);
        cr_assert_eq(extents_cut(all, 0, 0, 1, some), 0);
}

Test(extents, map)
{
        const struct extent pieces[] = { { 7 * PAGE, PAGE },
                                         { 3 * PAGE, 2 * PAGE },
                                         { 20 * PAGE, PAGE } };
        CLEANUP(cleanup_close) int fd = memfd_create("extents", MFD_CLOEXEC);
        uint8_t *base;
        void *at;

        cr_assert_eq(ftruncate(fd, PAGES * PAGE), 0);
        base = mmap(NULL, PAGES * PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
        for (size_t i = 0; i < PAGES * PAGE; i++)
                base[i] = (uint8_t)(i / PAGE * 31 + i);
        cr_assert_eq(extents_map(fd, base, pieces, 1, PROT_READ, &at), 0);
        cr_assert_eq((uint8_t *)at, base + 7 * PAGE);
        extents_unmap(at, pieces, 1);
        cr_assert_eq(base[7 * PAGE], (uint8_t)(7 * 31 + 7 * PAGE), "one extent stays mapped");
        cr_assert_eq(extents_map(fd, base, pieces, 3, PROT_READ | PROT_WRITE, &at), 0);
        for (uint64_t i = 0; i < 4 * PAGE; i++)
                cr_assert_eq(((uint8_t *)at)[i], base[place_of_byte(pieces, i)]);
        ((uint8_t *)at)[PAGE] ^= 1;
        cr_assert_eq(((uint8_t *)at)[PAGE], base[3 * PAGE]);
        extents_unmap(at, pieces, 3);
        munmap(base, PAGES * PAGE);
}
