/* Places 1, 2... are the GPUs 0, 1... */
#include "daemon/device/place/place.h"

#include <stdio.h>

#include "daemon/device/gpu/gpu.h"

_Static_assert((int)TRANSIT_BYTES == (int)GPU_BUFFER, "such buffers are pinned");

uint32_t place_of(const void *memory)
{
        return (uint32_t)(1 + gpu_of(memory));
}

const char *place_name(uint32_t place, char ret[static PLACE_NAME])
{
        if (place_is_host(place))
                snprintf(ret, PLACE_NAME, "host");
        else
                snprintf(ret, PLACE_NAME, "GPU %u", place - 1);
        return ret;
}

const struct device_ops *place_ops(void)
{
        return gpu_ops();
}

const void *place_read(const void *p, size_t n, void *buffer)
{
        if (place_is_host(place_of(p)))
                return p;
        gpu_ops()->copy(buffer, p, n);
        return buffer;
}

int place_alloc(uint32_t place, uint64_t bytes, const char *what, void **ret, struct fault *fault)
{
        return gpu_alloc(place - 1, bytes, what, ret, fault);
}

void place_free(void *memory)
{
        gpu_free(memory);
}

void place_update(const struct update_piece *pieces, size_t n)
{
        gpu_update(pieces, n);
}

void place_updated(uint32_t place)
{
        gpu_updated(place - 1);
}

void *transit_new(size_t bytes)
{
        return gpu_buffer_new(bytes);
}

void transit_free(void *buffer)
{
        gpu_buffer_free(buffer);
}
