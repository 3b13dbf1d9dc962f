/*
 * Private views: each group has an address range of its own for the client's life.
 *
 * While the group is held, its bytes in a window are mapped there copy-on-write.  What the caller
 * writes is the caller's own, and gone with the mapping.  Otherwise the range is inaccessible.
 *
 * Rule: places in a window begin at a page.  The pages are mapped read-only first, so that
 * all are resident without a copy, and then made writable.
 */
#pragma once

#include <stdbool.h>

#include "proto/layout.h"

struct views {
        uint8_t *space;   /* reserved for all groups; NULL: views are not private */
        uint64_t *places; /* [group]: bytes in the space; one more, its end */
        bool *mapped;     /* [group] */
        uint32_t n_groups;
};

/* -ENOMEM: no address space for so many bytes, or no memory. */
int views_init(struct views *v, const layout *l);
void views_deinit(struct views *v);
/*
 * Maps a group that is not mapped, from offset in a window's descriptor.  -EINVAL: offset does
 * not begin a page; -errno from the system.  After a failure nobody may touch the range.
 */
int views_map(struct views *v, uint32_t group, int fd, uint64_t offset, const void **ret_view);
/* No system call if the group is not mapped.  Errors as of views_map(). */
int views_unmap(struct views *v, uint32_t group);
