/* See extents.h. */
#include "proto/extents.h"

#include <errno.h>
#include <stddef.h>
#include <sys/mman.h>

uint32_t extents_cut(const struct extent *extents, uint32_t n, uint64_t first, uint64_t bytes,
                     struct extent *ret)
{
        uint32_t used = 0;

        for (uint32_t i = 0; i < n && bytes; i++) {
                uint64_t skip = first < extents[i].bytes ? first : extents[i].bytes;
                uint64_t here = extents[i].bytes - skip;

                first -= skip;
                here = here < bytes ? here : bytes;
                bytes -= here;
                if (here)
                        ret[used++] = (struct extent){ extents[i].offset + skip, here };
        }
        return used;
}

static uint64_t extents_bytes(const struct extent *extents, uint32_t n)
{
        uint64_t bytes = 0;

        for (uint32_t i = 0; i < n; i++)
                bytes += extents[i].bytes;
        return bytes;
}

int extents_map(int fd, void *base, const struct extent *extents, uint32_t n, int protection,
                void **ret)
{
        uint64_t bytes = extents_bytes(extents, n), at = 0;
        char *space;

        if (n == 1) {
                *ret = (char *)base + extents->offset;
                return 0;
        }
        space = mmap(NULL, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (space == MAP_FAILED)
                return -errno;
        for (uint32_t i = 0; i < n; i++) {
                if (mmap(space + at, extents[i].bytes, protection, MAP_SHARED | MAP_FIXED, fd,
                         (off_t)extents[i].offset) == MAP_FAILED) {
                        int error = errno;

                        munmap(space, bytes);
                        return -error;
                }
                at += extents[i].bytes;
        }
        *ret = space;
        return 0;
}

void extents_unmap(void *address, const struct extent *extents, uint32_t n)
{
        if (n > 1)
                munmap(address, extents_bytes(extents, n));
}
