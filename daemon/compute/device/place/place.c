/* Places beside the host are the GPUs. */
#include "daemon/compute/device/place/place.h"

#include <stdio.h>
#include <string.h>

#include "daemon/compute/device/gpu/gpu.h"

_Static_assert((int)TRANSIT_BYTES == (int)GPU_BUFFER, "such buffers are pinned");

uint32_t place_of(const void *memory)
{
        int gpu = gpu_of(memory);

        return gpu < 0 ? 0 : gpu_place((uint32_t)gpu);
}

uint32_t places_like(uint32_t place)
{
        return place_is_host(place) ? 1 : gpus_count();
}

uint32_t place_nth(uint32_t i)
{
        return gpu_place(i % gpus_count());
}

struct place_name place_name(uint32_t place)
{
        struct place_name ret = { "host" };

        if (!place_is_host(place))
                snprintf(ret.text, sizeof ret.text, "GPU %u", place_gpu(place));
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
        return gpu_alloc(place_gpu(place), bytes, what, ret, fault);
}

void place_free(void *memory)
{
        gpu_free(memory);
}

uint64_t place_left(uint32_t place)
{
        uint64_t left, total;

        return gpu_memory(place_gpu(place), &left, &total) ? 0 : left;
}

int place_use(uint32_t place)
{
        return gpu_use(place_gpu(place));
}

void place_spread(void **dst, uint32_t n_dst, const void *src, size_t n)
{
        if (gpus_count()) {
                gpu_spread(dst, n_dst, src, n);
                return;
        }
        for (uint32_t i = 0; i < n_dst; i++)
                memcpy(dst[i], src, n);
}

void place_update(const struct update_piece *pieces, size_t n)
{
        gpu_update(pieces, n);
}

void place_product(const struct product *p)
{
        gpu_product(p);
}

void place_divide(uint16_t *to, const uint16_t *from, float by, size_t n)
{
        gpu_divide(to, from, by, n);
}

void place_unpack(enum format format, enum zero_dtype to, void *dst, const void *src, size_t skip,
                  size_t n)
{
        gpu_unpack(format, to, dst, src, skip, n);
}

void place_updated(uint32_t place)
{
        gpu_updated(place_gpu(place));
}

void *transit_new(size_t bytes)
{
        return gpu_buffer_new(bytes);
}

void transit_free(void *buffer)
{
        gpu_buffer_free(buffer);
}
