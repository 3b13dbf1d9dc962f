/*
 * The same bytes to several places.
 *
 * Copies from one GPU to others are enqueued for all of them before any is waited for, each on a
 * stream of the GPU that receives.  What lies in host memory, or comes from there, goes one by one.
 */
#include "daemon/device/gpu/core.h"

void peer_copy(struct lane *lane, void *dst, uint32_t dst_gpu, const void *src, uint32_t src_gpu,
               size_t n)
{
        lane->busy = true;
        gpu_must(dst_gpu, "a copy from another GPU was refused",
                 gpu_plugin->copy_peer(dst, gpu_ordinal(dst_gpu), src, gpu_ordinal(src_gpu), n,
                                       lane->stream));
}

static bool by_peers(const void *dst, const void *src)
{
        int to = gpu_of(dst), from = gpu_of(src);

        return to != GPU_NONE && from != GPU_NONE && to != from;
}

void gpu_spread(void *const *dst, uint32_t n_dst, const void *src, size_t n)
{
        for (uint32_t i = 0; i < n_dst; i++)
                if (by_peers(dst[i], src)) {
                        uint32_t to = (uint32_t)gpu_of(dst[i]);

                        peer_copy(&lanes_of(to)[0], dst[i], to, src, (uint32_t)gpu_of(src), n);
                }
        for (uint32_t i = 0; i < n_dst; i++)
                if (by_peers(dst[i], src))
                        lane_wait((uint32_t)gpu_of(dst[i]), &lanes_of((uint32_t)gpu_of(dst[i]))[0]);
                else
                        gpu_ops()->copy(dst[i], src, n);
}
