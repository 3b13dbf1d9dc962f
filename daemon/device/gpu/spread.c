/*
 * The same bytes to several places, in rounds: whoever has them passes them on to one that has not,
 * so that each round doubles those that do, and no GPU sends to two at once.  Between two GPUs that
 * is a copy by their copy engines, which needs no turn of either beside trainers' kernels, as a
 * collective that runs as kernels on all GPUs at the same time would.
 *
 * From host memory the bytes go to one GPU, and on from there; to host memory one by one.
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

/* Enqueued on the GPU that receives. */
static void copy_begin(void *dst, const void *src, size_t n)
{
        uint32_t to = (uint32_t)gpu_of(dst), from = (uint32_t)gpu_of(src);
        struct lane *lane = &lanes_of(to)[0];

        if (to != from) {
                peer_copy(lane, dst, to, src, from, n);
                return;
        }
        lane->busy = true;
        gpu_must(to, "a copy was refused", gpu_plugin->copy(dst, src, n, lane->stream));
}

static void copy_wait(const void *dst)
{
        uint32_t gpu = (uint32_t)gpu_of(dst);

        lane_wait(gpu, &lanes_of(gpu)[0]);
}

/* One round: src and the first `have` of dst pass on to those behind; how many have it then. */
static uint32_t spread_round(void *const *dst, uint32_t have, uint32_t n_dst, const void *src,
                             size_t n)
{
        uint32_t senders = have + 1, end = have;

        for (uint32_t i = 0; i < senders && end < n_dst; i++)
                copy_begin(dst[end++], i ? dst[i - 1] : src, n);
        for (uint32_t i = have; i < end; i++)
                copy_wait(dst[i]);
        return end;
}

static void spread_on_gpus(void *const *dst, uint32_t n_dst, const void *src, size_t n)
{
        uint32_t have = 0;

        if (n_dst && gpu_of(src) == GPU_NONE) {
                gpu_ops()->copy(dst[0], src, n);
                src = *dst++;
                n_dst--;
        }
        while (have < n_dst)
                have = spread_round(dst, have, n_dst, src, n);
}

/* Those on GPUs come first; their number. */
static uint32_t gpus_first(void **dst, uint32_t n_dst)
{
        uint32_t n = 0;

        for (uint32_t i = 0; i < n_dst; i++)
                if (gpu_of(dst[i]) != GPU_NONE) {
                        void *other = dst[n];

                        dst[n++] = dst[i];
                        dst[i] = other;
                }
        return n;
}

void gpu_spread(void **dst, uint32_t n_dst, const void *src, size_t n)
{
        uint32_t n_gpus = gpus_first(dst, n_dst);

        spread_on_gpus(dst, n_gpus, src, n);
        for (uint32_t i = n_gpus; i < n_dst; i++)
                gpu_ops()->copy(dst[i], src, n);
}
