/* buffer.h - memory for gradients in transit.  Loop thread. */
#pragma once

#include <stddef.h>
#include <stdint.h>

/* Contents are undefined.  NULL: out of memory. */
void *buffer_new(size_t bytes);
/* Keeps a buffer of at least 32 KiB for the next one of its size. */
void buffer_free(void *buffer);
/* Called with 1 three times a second: frees what nobody has used for five seconds. */
void buffers_rest(uint32_t rests);
/* Frees what is kept. */
void buffers_vacate(void);
