/* See mapping.h. */
#include "mapping.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

struct remains {
        struct remains *next;
        void *base;
        uint64_t bytes;
};

static uint64_t whole_pages(uint64_t bytes)
{
        uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE);

        return (bytes + page - 1) / page * page;
}

static int keep_descriptor(int fd, uint64_t bytes, struct mapping *ret)
{
        int copy = fcntl(fd, F_DUPFD_CLOEXEC, 0);

        if (copy < 0)
                return -errno;
        *ret = (struct mapping){ .bytes = bytes, .kept = true, .fd = copy };
        return 0;
}

int mapping_open(int fd, uint64_t bytes, int protection, bool lazy, struct mapping *ret)
{
        uint8_t *base;

        if (bytes == 0 || bytes > SIZE_MAX / 2)
                return -EINVAL;
        if (protection == PROT_NONE)
                return keep_descriptor(fd, bytes, ret);
        base = mmap(NULL, bytes, protection, MAP_SHARED | (lazy ? 0 : MAP_POPULATE), fd, 0);
        if (base == MAP_FAILED)
                return -errno;
        *ret = (struct mapping){
                .base = base,
                .bytes = bytes,
                .reserved = whole_pages(bytes),
                .protection = protection,
        };
        return 0;
}

void mapping_take(void *memory, uint64_t bytes, void (*unmap)(void *memory), struct mapping *ret)
{
        *ret = (struct mapping){ .base = memory, .bytes = bytes, .unmap = unmap };
}

static void deinit_on_gpu(struct mapping *m)
{
        if (m->before)
                m->unmap(m->before);
        if (m->base)
                m->unmap(m->base);
        m->base = NULL;
}

void mapping_deinit(struct mapping *m)
{
        if (m->unmap)
                deinit_on_gpu(m);
        while (m->remains) {
                struct remains *r = m->remains;

                m->remains = r->next;
                munmap(r->base, r->bytes);
                free(r);
        }
        if (m->base)
                munmap(m->base, m->reserved);
        if (m->kept)
                close(m->fd);
        *m = (struct mapping){ 0 };
}

/* Replaces the window from this byte, the begin of a page, with zeros. */
static int blank(struct mapping *m, uint64_t from)
{
        if (from == m->reserved)
                return 0;
        return mmap(m->base + from, m->reserved - from, m->protection,
                    MAP_FIXED | MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0) == MAP_FAILED
                       ? -errno
                       : 0;
}

static int take_address(struct mapping *m, struct mapping *next)
{
        assert(next->reserved <= m->reserved && next->protection == m->protection);
        if (mremap(next->base, next->reserved, next->reserved, MREMAP_MAYMOVE | MREMAP_FIXED,
                   m->base) == MAP_FAILED)
                return -errno;
        m->bytes = next->bytes;
        next->base = NULL;
        return blank(m, next->reserved);
}

/* The next window needs more room than the last one has reserved. */
static int move_away(struct mapping *m, struct mapping *next)
{
        struct remains *r = malloc(sizeof(*r));
        int error;

        if (!r)
                return -ENOMEM;
        error = blank(m, 0);
        if (error) {
                free(r);
                return error;
        }
        *r = (struct remains){ m->remains, m->base, m->reserved };
        next->remains = r;
        *m = *next;
        return 0;
}

static void replace_on_gpu(struct mapping *m, struct mapping *next)
{
        if (!next->base) {
                m->bytes = 0;
                return;
        }
        assert(next->unmap);
        if (m->before)
                m->unmap(m->before);
        next->before = m->base;
        *m = *next;
}

static int replace_mapped(struct mapping *m, struct mapping *next)
{
        if (!next->base) {
                m->bytes = 0;
                return blank(m, 0);
        }
        return next->reserved <= m->reserved ? take_address(m, next) : move_away(m, next);
}

int mapping_replace(struct mapping *m, struct mapping *next)
{
        int r = 0;

        if (m->unmap) {
                replace_on_gpu(m, next);
        } else if (m->base) {
                r = replace_mapped(m, next);
                if (r)
                        return r;
        } else {
                if (m->kept)
                        close(m->fd);
                *m = *next;
        }
        *next = (struct mapping){ 0 };
        return 0;
}
