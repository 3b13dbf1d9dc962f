/* buffer.h - memory for gradients and other bytes in transit.  Any thread. */
#pragma once

#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

/* Bytes from which a buffer is kept: malloc() handles smaller ones well. */
enum { BUFFER_KEPT = 32 << 10 };

/* buffer_new() of at least so many bytes. */
void *buffer_kept(size_t bytes);
/* Contents are undefined.  NULL: out of memory. */
static inline void *buffer_new(size_t bytes)
{
        return bytes < BUFFER_KEPT ? malloc(bytes ? bytes : 1) : buffer_kept(bytes);
}

/* Keeps a buffer for the next one of its size. */
void buffer_free(void *buffer);
/* Called with 1 three times a second: frees what nobody has used for five seconds. */
void buffers_rest(uint32_t rests);
/* Frees what is kept. */
void buffers_vacate(void);
