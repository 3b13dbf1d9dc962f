/*
 * copy.h - the copy of a base on a GPU: one for all processes of the base's user that ask for it.
 *
 * The daemon makes the memory, fills it from the base, and passes a descriptor.  Nothing seals
 * memory of a GPU, so a process with the descriptor can map the memory writable.  The copy is as
 * safe from the user's own processes as these are from each other.  libzero maps it for reading.
 *
 * Loop thread; making and filling run as blocking work, a piece at a time.
 */
#pragma once

#include "daemon/step/bases/bases.h"

/* What a copy needs of its base. */
struct base_source {
        struct engine *x;
        uint32_t *n_working; /* blocking work in flight */
        struct list *copies; /* the base's copies */
        uint32_t uid;
        int fd;
        uint64_t bytes;
        const uint8_t *hash;
};

/* Asks for a copy.  The request ends when the copy is whole.  If the request is refused the use has
 * no copy, and keeps the base. */
int base_copy_ask(const struct base_source *of, uint32_t place, struct base_use *use,
                  struct request *r, struct fault *fault);
/* The session no longer needs the copy, if it has one. */
void base_copy_leave(struct base_use *use);
