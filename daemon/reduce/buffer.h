/* buffer.h - memory for gradients on their way. */
#pragma once

#include <stddef.h>

/* Contents are undefined; freed by free().  NULL: out of memory. */
void *buffer_new(size_t bytes);
