/*
 * Private views: every group has an address range of its own for the client's life.
 *
 * While the group is held, its bytes in a window are mapped there copy-on-write: what the
 * caller writes is its own, and gone with the mapping.  Otherwise nobody can touch the range.
 *
 * Rule: places in a window begin at a page.  The pages are mapped read-only first, so that
 * all are there without a copy, and made writable then.
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

/* -ENOMEM: there is no address space for so many bytes, or no memory. */
int views_init(struct views *v, const layout *l);
void views_deinit(struct views *v);
/*
 * Maps the group from offset in a window's descriptor, and tells where.  For a group that is not
 * mapped.  -EINVAL where offset does not begin a page, -errno from the system: the range is not
 * to be touched any more then.
 */
int views_map(struct views *v, uint32_t group, int fd, uint64_t offset, const void **ret_view);
/* No system call where nothing is mapped.  Like views_map() where it fails. */
int views_unmap(struct views *v, uint32_t group);
