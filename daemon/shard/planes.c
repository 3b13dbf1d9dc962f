/* Where the planes of a replica lie. */
#include "daemon/shard/shard.h"

const struct device_ops *replica_ops(const struct replica *h)
{
        return state_on_gpu(h->state) ? gpu_ops() : h->job->x->ops;
}

int plane_payload(struct replica *h, uint32_t node, uint64_t transfer, enum traffic kind,
                  const void *p, size_t n, bulk_done *done, void *arg)
{
        return staged_payload(h->job, state_on_gpu(h->state), node, transfer, kind, p, n, done,
                              arg);
}

const void *plane_read(const struct replica *h, const void *p, size_t n, void *buffer)
{
        if (!state_on_gpu(h->state))
                return p;
        gpu_ops()->copy(buffer, p, n);
        return buffer;
}
