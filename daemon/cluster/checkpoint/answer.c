/* What an owner's node tells the coordinator about its part of a checkpoint or restore. */
#include "daemon/cluster/checkpoint/operation.h"

void snapshot_answer(struct engine *x, uint32_t node, uint64_t call, Zero__Snapshotted *s)
{
        Zero__LinkMessage m = ZERO__LINK_MESSAGE__INIT;

        m.answer = call;
        m.body_case = ZERO__LINK_MESSAGE__BODY_SNAPSHOTTED;
        m.snapshotted = s;
        fabric_send(x->fabric, node, &m);
}

void snapshot_send_progress(struct engine *x, const char *job, uint32_t node, uint64_t id,
                            uint32_t owner, uint64_t bytes)
{
        Zero__LinkMessage m = job_message(job);
        Zero__SnapshotProgress p = ZERO__SNAPSHOT_PROGRESS__INIT;

        p.id = id;
        p.bytes = bytes;
        p.owner = owner;
        m.body_case = ZERO__LINK_MESSAGE__BODY_SNAPSHOT_PROGRESS;
        m.snapshot_progress = &p;
        fabric_send(x->fabric, node, &m);
}
