/*
 * A client's memory of the versions that it follows; see zero_follow().  Private to libzero.
 *
 * A copy's memory stays mapped until the daemon has other memory under the copy's number.
 */
#pragma once

#include "mapping.h"
#include "proto/slots.h"

enum { FOLLOW_COPIES = 16 }; /* of a job on a node at most */

struct copy_memory {
        struct mapping mapping;
        uint64_t serial;
        bool known;
};

struct follow {
        uint8_t *form;       /* zero_follow_form(), for slots_new_form() */
        struct slots *slots; /* where groups lie in a copy; NULL: nothing was asked for yet */
        struct copy_memory copies[FOLLOW_COPIES];
};

/* All groups, in their own dtypes.  -ENOMEM. */
int follow_new(const layout *l, struct follow **ret);
/* Unmaps all versions.  NULL is allowed. */
void follow_free(struct follow *f);
/* Maps a copy's memory unless it is mapped already.  fd stays the caller's.  -EBADF: it is no
 * memory of that size; or another -errno. */
int follow_map(struct follow *f, uint32_t copy, uint64_t serial, int fd);
