/*
 * The phases of a checkpoint.
 *
 * PREPARE, COPY and WRITE go to all owners at once.  PUBLISH goes to this node first and then to
 * the others: those that share its directory find the work done.
 */
#include "daemon/cluster/checkpoint/operation.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "daemon/floor/base/log.h"

static Zero__Snapshot phase_message(Zero__Snapshot__Phase phase)
{
        Zero__Snapshot s = ZERO__SNAPSHOT__INIT;

        s.phase = phase;
        return s;
}

/* NULL: the job was dropped since the last phase. */
static struct job *job_of(struct operation *op)
{
        struct job *job = job_find(op->x, op->job);

        if (!job)
                operation_end(op, ZERO_ENOJOB, "the job was dropped");
        return job;
}

/* ---- phases ------------------------------------------------------------------------ */

static void published(struct operation *op)
{
        operation_end(op, ZERO_OK, "");
}

static Zero__Snapshot publish_message(const struct operation *op)
{
        Zero__Snapshot s = phase_message(ZERO__SNAPSHOT__PHASE__PUBLISH);

        s.manifest = op->text;
        s.layout.data = op->layout;
        s.layout.len = op->manifest.layout_bytes;
        s.keep = op->keep;
        return s;
}

/* An owner of this node; if there is none, the first owner. */
static node_set publishes_first(const struct operation *op)
{
        int32_t own = placement_owner_on(&op->x->placement, op->x->cluster->self);

        return node_set_of(own == NO_OWNER ? 0 : (uint32_t)own);
}

static void published_here(struct operation *op)
{
        Zero__Snapshot s = publish_message(op);

        operation_ask(op, ~publishes_first(op), &s, published);
}

static int pack_layout(struct operation *op, const layout *l)
{
        Zero__Layout *m;
        int r = layout_to_message(l, &m);

        if (r)
                return r;
        op->manifest.layout_bytes = zero__layout__get_packed_size(m);
        op->layout = malloc(op->manifest.layout_bytes + 1);
        if (op->layout)
                zero__layout__pack(m, op->layout);
        zero__layout__free_unpacked(m, NULL);
        return op->layout ? 0 : -ENOMEM;
}

static uint64_t milliseconds(void)
{
        struct timespec t;

        clock_gettime(CLOCK_REALTIME, &t);
        return (uint64_t)t.tv_sec * 1000 + (uint64_t)t.tv_nsec / 1000000;
}

static int make_manifest(struct operation *op, const struct job *job)
{
        const struct engine *x = op->x;
        struct manifest *m = &op->manifest;
        int r = pack_layout(op, job->layout);

        if (r)
                return r;
        m->job = job->spec;
        m->job.layout = NULL;
        m->created_ms = milliseconds();
        m->parameters = job->layout->elements;
        optimizer_text(job->layout, m->optimizers, sizeof m->optimizers);
        m->n_owners = x->placement.n_owners;
        manifest_hash(m->layout_hash, op->layout, m->layout_bytes);
        layout_hash(job->layout, m->model_hash);
        for (uint32_t o = 0; o < x->placement.n_owners; o++) {
                const struct part *part = &op->parts[o];
                struct manifest_shard *shard = &m->shards[o];

                shard->bytes = part->bytes;
                memcpy(shard->hash, part->hash, MANIFEST_HASH);
                snprintf(shard->node, sizeof shard->node, "%s", node_name(x, x->placement.node[o]));
        }
        return manifest_format(m, &op->text);
}

static void written(struct operation *op)
{
        struct job *job = job_of(op);
        Zero__Snapshot s;

        if (!job)
                return;
        if (make_manifest(op, job)) {
                operation_end(op, ZERO_ENOMEM, "out of memory");
                return;
        }
        operation_enter(op, OPERATION_PUBLISHING);
        s = publish_message(op);
        operation_ask(op, publishes_first(op), &s, published_here);
}

/* Every owner has begun to copy.  If they are at different steps, the checkpoint fails. */
static void copied(struct operation *op)
{
        const struct engine *x = op->x;
        const struct part *first = &op->parts[0];
        Zero__Snapshot s = phase_message(ZERO__SNAPSHOT__PHASE__WRITE);
        char text[300];

        for (uint32_t o = 1; o < x->placement.n_owners; o++) {
                const struct part *part = &op->parts[o];

                if (part->version == first->version && part->attempt == first->attempt)
                        continue;
                snprintf(text, sizeof text,
                         "node %.60s stands at step %llu, node %.60s at %llu: try again when the "
                         "job has stepped",
                         node_name(x, x->placement.node[0]), (unsigned long long)first->version,
                         node_name(x, x->placement.node[o]), (unsigned long long)part->version);
                operation_end(op, ZERO_EABORTED, text);
                return;
        }
        op->manifest.version = first->version;
        op->manifest.attempt = first->attempt;
        operation_enter(op, OPERATION_WRITING);
        operation_ask(op, NODE_SET_ALL, &s, written);
}

static void prepared(struct operation *op)
{
        Zero__Snapshot s = phase_message(ZERO__SNAPSHOT__PHASE__COPY);
        uint64_t stall_us = 0;

        if (!job_of(op))
                return;
        for (uint32_t o = 0; o < op->x->placement.n_owners; o++) {
                const struct part *part = &op->parts[o];

                stall_us = part->stall_us > stall_us ? part->stall_us : stall_us;
        }
        log_info_for(op->uid,
                     "job %s: checkpoint of %llu bytes in %s; an update may wait for about %g s",
                     op->job, (unsigned long long)operation_bytes(op), op->directory,
                     (double)stall_us / 1e6);
        operation_enter(op, OPERATION_COPYING);
        operation_ask(op, NODE_SET_ALL, &s, copied);
}

/* ---- orders -------------------------------------------------------------------------- */

int order_check(struct engine *x, const struct order *order, struct fault *fault)
{
        struct snapshot_place place = { x->conf->checkpoint_dir, order->directory, order->uid };
        const struct job *job = job_find(x, order->job);

        if (!job || job->opening)
                return fault_set(fault, ZERO_ENOJOB, "there is no job '%.100s'", order->job);
        if (order->uid != 0 && order->uid != job->uid)
                return fault_set(fault, ZERO_EPERM, "job '%s' belongs to user %u", job->name,
                                 job->uid);
        return snapshot_place_check(&place, fault);
}

int checkpoint_order(struct engine *x, const struct order *order, uint64_t *ret_id,
                     struct fault *fault)
{
        Zero__Snapshot s = phase_message(ZERO__SNAPSHOT__PHASE__PREPARE);
        struct operation *op;
        int r = order_check(x, order, fault);

        if (r == 0)
                r = operation_new(x, order, false, &op, fault);
        if (r)
                return r;
        *ret_id = op->id;
        operation_ask(op, NODE_SET_ALL, &s, prepared);
        return 0;
}
