/*
 * The same bytes to several places: by a broadcast of NCCL, where there is one and it is worth it
 * (collective.c), else in rounds (moves.h).  Between two GPUs a copy is done by their copy engines,
 * which needs no turn of either beside trainers' kernels, as NCCL's kernels do, which run on all
 * GPUs at the same time.
 *
 * From host memory the bytes go to one GPU, and on from there; to host memory, and to a second
 * place on one GPU, one by one.
 */
#include "daemon/device/gpu/core.h"

void peer_copy(struct lane *lane, const struct move *m)
{
        lane->busy = true;
        gpu_must(m->to, "a copy from another GPU was refused",
                 gpu_plugin->copy_peer(m->dst, gpu_ordinal(m->to), m->src, gpu_ordinal(m->from),
                                       m->n, lane->stream));
}

/* Each is enqueued on the GPU that receives, which is another for each. */
static void copy_all(const struct move *moves, uint32_t n)
{
        for (uint32_t i = 0; i < n; i++)
                peer_copy(&lanes_of(moves[i].to)[0], &moves[i]);
        for (uint32_t i = 0; i < n; i++)
                lane_wait(moves[i].to, &lanes_of(moves[i].to)[0]);
}

/* From the first place to the others. */
static void spread_on_gpus(const struct place *places, uint32_t n_places, size_t n)
{
        struct move moves[GPUS_MAX];
        uint32_t have = 1, n_moves;

        if (n == 0 || collective_broadcast(places, n_places, n))
                return;
        for (; have < n_places; have += n_moves) {
                n_moves = moves_spread(places, n_places, have, n, moves);
                if (!collective_exchange(moves, n_moves))
                        copy_all(moves, n_moves);
        }
}

static bool has_place(const struct place *places, uint32_t n, int gpu)
{
        for (uint32_t i = 0; i < n; i++)
                if ((int)places[i].gpu == gpu)
                        return true;
        return false;
}

/* The first of dst on each GPU that has none yet come to the places, the others to the front of
 * dst; returns how many these are. */
static uint32_t take_places(struct place *places, uint32_t *n_places, void **dst, uint32_t n_dst)
{
        uint32_t others = 0;

        for (uint32_t i = 0; i < n_dst; i++) {
                int gpu = gpu_of(dst[i]);

                if (gpu == GPU_NONE || has_place(places, *n_places, gpu))
                        dst[others++] = dst[i];
                else
                        places[(*n_places)++] = (struct place){ dst[i], (uint32_t)gpu };
        }
        return others;
}

void gpu_spread(void **dst, uint32_t n_dst, const void *src, size_t n)
{
        struct place places[GPUS_MAX];
        uint32_t n_places = 0, others;
        int from = gpu_of(src);

        if (from != GPU_NONE)
                places[n_places++] = (struct place){ (void *)src, (uint32_t)from };
        others = take_places(places, &n_places, dst, n_dst);
        if (from == GPU_NONE && n_places > 0)
                gpu_ops()->copy(places[0].memory, src, n);
        if (n_places > 1)
                spread_on_gpus(places, n_places, n);
        for (uint32_t i = 0; i < others; i++)
                gpu_ops()->copy(dst[i], src, n);
}
