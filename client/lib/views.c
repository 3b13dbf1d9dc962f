/* See views.h. */
#include "views.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "proto/dtype.h"

enum { RESERVED = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE };

static uint64_t page_bytes(void)
{
        return (uint64_t)sysconf(_SC_PAGESIZE);
}

/* Gives each group whole pages; the bytes of all. */
static uint64_t lay_out(struct views *v, const layout *l)
{
        uint64_t page = page_bytes(), end = 0;

        for (uint32_t g = 0; g < l->n_groups; g++) {
                uint64_t bytes = layout_group_bytes(&l->groups[g], l->groups[g].elements);

                v->places[g] = end;
                end += (bytes + page - 1) / page * page;
        }
        v->places[l->n_groups] = end;
        return end;
}

int views_init(struct views *v, const layout *l)
{
        uint64_t bytes;
        void *space;

        *v = (struct views){ .n_groups = l->n_groups };
        v->places = malloc(((size_t)l->n_groups + 1) * sizeof(*v->places));
        v->mapped = calloc(l->n_groups, sizeof(*v->mapped));
        if (!v->places || !v->mapped) {
                views_deinit(v);
                return -ENOMEM;
        }
        bytes = lay_out(v, l);
        space = mmap(NULL, bytes ? bytes : 1, PROT_NONE, RESERVED, -1, 0);
        if (space == MAP_FAILED) {
                views_deinit(v);
                return -ENOMEM;
        }
        v->space = space;
        return 0;
}

void views_deinit(struct views *v)
{
        if (v->space)
                munmap(v->space, v->places[v->n_groups] ? v->places[v->n_groups] : 1);
        free(v->places);
        free(v->mapped);
        *v = (struct views){ 0 };
}

static size_t range_bytes(const struct views *v, uint32_t group)
{
        return v->places[group + 1] - v->places[group];
}

int views_map(struct views *v, uint32_t group, int fd, uint64_t offset, const void **ret_view)
{
        uint8_t *at = v->space + v->places[group];
        size_t bytes = range_bytes(v, group);

        assert(!v->mapped[group] && bytes > 0);
        if (offset % page_bytes() || offset > INT64_MAX)
                return -EINVAL;
        if (mmap(at, bytes, PROT_READ, MAP_FIXED | MAP_PRIVATE | MAP_NORESERVE | MAP_POPULATE, fd,
                 (off_t)offset) == MAP_FAILED)
                return -errno;
        v->mapped[group] = true;
        if (mprotect(at, bytes, PROT_READ | PROT_WRITE) < 0)
                return -errno;
        *ret_view = at;
        return 0;
}

int views_unmap(struct views *v, uint32_t group)
{
        if (!v->space || !v->mapped[group])
                return 0;
        if (mmap(v->space + v->places[group], range_bytes(v, group), PROT_NONE,
                 MAP_FIXED | RESERVED, -1, 0) == MAP_FAILED)
                return -errno;
        v->mapped[group] = false;
        return 0;
}
