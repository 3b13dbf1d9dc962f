/*
 * Bytes from any memory to one address or several.
 *
 * Between GPUs: by a broadcast of NCCL where NCCL is loaded and the copy is worth a broadcast
 * (collective.c), else in rounds (moves.h).  Two GPUs copy by their copy engines, which run beside
 * trainers' kernels; NCCL's kernels take turns with those, on all GPUs at the same time.
 *
 * Bytes in host memory go to one GPU and from there to the others.  Addresses in host memory, and
 * a second one on one GPU, get a copy each.
 */
#include "daemon/compute/device/gpu/core.h"

/* Each is enqueued on the GPU that receives, which is another for each. */
static void copy_all(const struct move *moves, uint32_t n)
{
        for (uint32_t i = 0; i < n; i++)
                lane_copy_peer(&lanes_of(moves[i].to)[0], &moves[i]);
        for (uint32_t i = 0; i < n; i++)
                lane_wait(moves[i].to, &lanes_of(moves[i].to)[0]);
}

/* From the first peer to the others. */
static void spread_on_gpus(const struct peer *peers, uint32_t n_peers, size_t n)
{
        struct move moves[GPUS_MAX];
        uint32_t have = 1, n_moves;

        if (n == 0 || collective_broadcast(peers, n_peers, n))
                return;
        for (; have < n_peers; have += n_moves) {
                n_moves = moves_spread(peers, n_peers, have, n, moves);
                if (!collective_exchange(moves, n_moves))
                        copy_all(moves, n_moves);
        }
}

static int copy_device(const struct staged *s, void *const *at, size_t n, void *stream)
{
        return gpu_plugin->copy(at[0], at[1], n, stream);
}

static void copy_host(const struct staged *s, void *const *at, size_t n)
{
        gpu_host->copy(at[0], at[1], n);
}

void gpu_copy(void *dst, const void *src, size_t n)
{
        int to = gpu_of(dst), from = gpu_of(src);
        struct staged s;

        if (to != GPU_NONE && from != GPU_NONE && to != from) {
                const struct peer peers[] = { { (void *)src, (uint32_t)from },
                                              { dst, (uint32_t)to } };

                spread_on_gpus(peers, 2, n);
                return;
        }
        s.n_operands = 0;
        s.n = n;
        s.device = copy_device;
        s.host = copy_host;
        staged_add(&s, dst, 1, false, true);
        staged_add(&s, src, 1, true, false);
        staged_run(&s);
}

static bool has_peer(const struct peer *peers, uint32_t n, int gpu)
{
        for (uint32_t i = 0; i < n; i++)
                if ((int)peers[i].gpu == gpu)
                        return true;
        return false;
}

/* Adds a peer for each GPU that has none yet: the first of dst there.  Moves the others to the
 * front of dst, and returns their number. */
static uint32_t take_peers(struct peer *peers, uint32_t *n_peers, void **dst, uint32_t n_dst)
{
        uint32_t others = 0;

        for (uint32_t i = 0; i < n_dst; i++) {
                int gpu = gpu_of(dst[i]);

                if (gpu == GPU_NONE || has_peer(peers, *n_peers, gpu))
                        dst[others++] = dst[i];
                else
                        peers[(*n_peers)++] = (struct peer){ dst[i], (uint32_t)gpu };
        }
        return others;
}

void gpu_spread(void **dst, uint32_t n_dst, const void *src, size_t n)
{
        struct peer peers[GPUS_MAX];
        uint32_t n_peers = 0, others;
        int from = gpu_of(src);

        if (from != GPU_NONE)
                peers[n_peers++] = (struct peer){ (void *)src, (uint32_t)from };
        others = take_peers(peers, &n_peers, dst, n_dst);
        if (from == GPU_NONE && n_peers > 0)
                gpu_copy(peers[0].memory, src, n);
        if (n_peers > 1)
                spread_on_gpus(peers, n_peers, n);
        for (uint32_t i = 0; i < others; i++)
                gpu_copy(dst[i], src, n);
}
