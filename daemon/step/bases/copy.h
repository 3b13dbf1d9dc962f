/*
 * copy.h - the copy of a base on a GPU: one for all processes of the base's user that ask for it.
 *
 * The daemon makes the memory and fills it from the base.  It passes a descriptor: whoever has that
 * can map the memory writable, for nothing seals memory of a GPU, so the copy is as safe from the
 * user's own processes as they are from each other.  libzero maps it for reading.
 *
 * Loop thread; making and filling run as blocking work, a piece at a time.
 */
#pragma once

#include "daemon/step/bases/bases.h"

/* What of a base a copy needs. */
struct base_source {
        struct engine *x;
        uint32_t *n_working; /* blocking work in flight */
        struct list *copies; /* of the base */
        uint32_t uid;
        int fd;
        uint64_t bytes;
        const uint8_t *hash;
};

/* The request ends when the copy is whole.  Refused: the use has no copy, and keeps the base. */
int base_copy_ask(const struct base_source *of, uint32_t place, struct base_use *use,
                  struct request *r, struct fault *fault);
/* The session needs the copy no more, if it has one. */
void base_copy_leave(struct base_use *use);
