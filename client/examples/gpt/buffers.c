/*
 * The link to the next free buffer lies in the free buffer itself.
 */
#include "buffers.h"

#include <errno.h>
#include <stdlib.h>

struct buffer {
        struct buffer *next;
};

void buffers_init(struct buffers *buffers, size_t elements)
{
        *buffers = (struct buffers){ .elements = elements };
}

void buffers_deinit(struct buffers *buffers)
{
        while (buffers->free) {
                struct buffer *next = buffers->free->next;
                free(buffers->free);
                buffers->free = next;
        }
}

int buffers_take(struct buffers *buffers, real **ret_buffer)
{
        struct buffer *buffer = buffers->free;
        if (buffer) {
                buffers->free = buffer->next;
        } else {
                size_t bytes = buffers->elements * sizeof(real) + sizeof(*buffer);
                buffer = aligned_alloc(64, (bytes + 63) / 64 * 64);
        }
        if (!buffer)
                return -ENOMEM;
        *ret_buffer = (real *)(void *)buffer;
        return 0;
}

void buffers_give(struct buffers *buffers, real *buffer)
{
        if (!buffer)
                return;
        struct buffer *head = (struct buffer *)(void *)buffer;
        head->next = buffers->free;
        buffers->free = head;
}
