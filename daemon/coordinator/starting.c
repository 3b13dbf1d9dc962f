/* A new attempt: every node hears where the job stands, and what its ranks kept with the last step.
 */
#include "daemon/coordinator/coordinator.h"

#include <stdlib.h>

#include "daemon/base/crash.h"
#include "daemon/base/log.h"
#include "daemon/store/blobs.h"
#include "proto/cleanup.h"

/* What all ranks kept with the last decision is in this node's own state: it is an owner. */
static size_t start_kept(const struct coordinator *c, Zero__Kept *kept, Zero__Kept **pointers)
{
        const struct job *job = job_find(c->x, c->name);
        const struct holding *h = job ? holding_first(job) : NULL;
        size_t n = 0;

        for (uint32_t r = 0; h && r < c->step.world_size; r++) {
                size_t bytes = 0;
                const void *data = state_blob(h->state, r, &bytes);

                if (bytes == 0)
                        continue;
                zero__kept__init(&kept[n]);
                kept[n].rank = r;
                kept[n].blob = (ProtobufCBinaryData){ bytes, (uint8_t *)data };
                pointers[n] = &kept[n];
                n++;
        }
        return n;
}

static void start_send(struct coordinator *c, Zero__Kept *kept, Zero__Kept **pointers)
{
        Zero__LinkMessage m = coordinator_to(c);
        Zero__Start start = ZERO__START__INIT;
        Zero__Decision last = ZERO__DECISION__INIT;

        start.epoch = c->step.epoch;
        start.version = c->step.version;
        start.attempt = c->step.attempt;
        start.loss_scale = c->step.loss_scale;
        start.n_node_of_rank = c->step.world_size;
        start.node_of_rank = c->step.node_of_rank;
        start.n_kept = start_kept(c, kept, pointers);
        start.kept = pointers;
        if (c->step.decided_attempt) {
                decision_fill(c, &last);
                start.last = &last;
        }
        m.body_case = ZERO__LINK_MESSAGE__BODY_START;
        m.start = &start;
        send_all(c->x, &m);
}

void coordinator_advance(struct coordinator *c)
{
        Zero__Kept *kept, **pointers;

        if (!c->settled || c->fault.status || !step_startable(&c->step))
                return;
        kept = calloc(c->step.world_size, sizeof *kept);
        pointers = calloc(c->step.world_size, sizeof *pointers);
        if (kept && pointers) { /* else again at the next tick */
                step_start(&c->step);
                crash_point(CRASH_COORDINATOR_STARTING);
                start_send(c, kept, pointers);
                crash_point(CRASH_COORDINATOR_STARTED);
                log_info_for(c->uid, "job %s: all %u ranks are there, version %llu", c->name,
                             c->step.world_size, (unsigned long long)c->step.version);
                joins_started(c);
        }
        free(kept);
        free(pointers);
}
