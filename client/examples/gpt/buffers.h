/*
 * A stack of equal buffers for frequent use: their pages stay mapped.
 */
#pragma once

#include "real.h"

struct buffer;

struct buffers {
        size_t elements; /* of each */
        struct buffer *free;
};

void buffers_init(struct buffers *buffers, size_t elements);
/* Frees the buffers that were given back. */
void buffers_deinit(struct buffers *buffers);
/* Contents are undefined.  Returns 0 or -ENOMEM. */
int buffers_take(struct buffers *buffers, real **ret_buffer);
/* NULL is allowed. */
void buffers_give(struct buffers *buffers, real *buffer);
