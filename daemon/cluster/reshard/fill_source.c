/*
 * Sends this node's replicas to others that are being filled.
 *
 * A replica is sent only while its state is the expected one: at that version and decision, with
 * the same puts, and while no update runs.  A group is pinned while its bytes are read.
 */
#include "daemon/cluster/reshard/fill_source.h"
#include "daemon/step/update/update.h"

#include <stdlib.h>
#include <string.h>

#include "daemon/floor/base/crash.h"
#include "proto/cleanup.h"

/* ---- whether ----------------------------------------------------------------------------- */

struct replica *fill_source_find(const struct job *job, const struct fill_source *g,
                                 struct fault *fault)
{
        struct replica *h = replica_of_epoch(job, g->epoch, g->owner, g->copy);
        const struct state_record *r;

        if (!h || job->opening) {
                fault_set(fault, ZERO_ENOJOB, "it does not have these shards");
                return NULL;
        }
        r = h->state->record;
        if (r->phase == ATTEMPT_DECIDED || r->version != g->version ||
            r->decided_attempt != g->attempt) {
                fault_set(fault, ZERO_EABORTED, "its state is at version %llu, attempt %llu",
                          (unsigned long long)r->version, (unsigned long long)r->decided_attempt);
                return NULL;
        }
        update_undo(h);
        if (update_holds(h)) {
                fault_set(fault, ZERO_EABORTED, "it puts back what was updated ahead of a step");
                return NULL;
        }
        if (state_putting(h->state) || h->state->puts != g->puts) {
                fault_set(fault, ZERO_EABORTED, "a client has written to its state meanwhile");
                return NULL;
        }
        return h;
}

uint64_t fill_source_bytes(const struct replica *h, struct plane plane, uint32_t group,
                           struct range part)
{
        const struct plan *plan = h->state->plan;

        if (group >= plan->n_groups || !plan_has(plan, group, plane) || part.first % LAYOUT_ALIGN ||
            part.count % LAYOUT_ALIGN || !range_within(part, plan->shards[group].range))
                return 0;
        return plan_bytes(plan, plane, group, part).count;
}

/* ---- planes ------------------------------------------------------------------------------ */

/* A payload in progress. */
struct sending {
        struct shard_part part;
        uint32_t node;
        uint64_t transfer;
};

static void payload_sent(void *arg, int status)
{
        struct sending *sending = arg;
        struct job *job = sending->part.replica->job;

        shard_part_end(&sending->part);
        job_unref(job);
        free(sending);
}

static void payload_ready(struct shard_part *part)
{
        struct sending *sending = CONTAINER_OF(part, struct sending, part);

        crash_point(CRASH_FILL_SENDING);
        if (staged_payload(part->replica->job, sending->node, sending->transfer, TRAFFIC_STATE,
                           part->bytes.at, part->bytes.bytes, false, payload_sent, sending))
                payload_sent(sending, -ENOTCONN); /* the node is gone, and its request with it */
}

void fill_source_pull_message(struct job *job, uint32_t node, const Zero__Pull *request)
{
        const struct fill_source g = { .epoch = request->placement_epoch,
                                       .owner = request->owner,
                                       .copy = request->copy,
                                       .version = request->version,
                                       .attempt = request->attempt,
                                       .puts = request->puts };
        struct fault fault;
        struct replica *h = fill_source_find(job, &g, &fault);
        struct range range = { request->first, request->count };
        struct plane plane = plane_from(request->plane);
        struct sending *sending;

        if (!h) {
                ask_refuse(job, node, request->transfer, fault.status, fault.text);
                return;
        }
        if (!fill_source_bytes(h, plane, request->group, range)) {
                ask_refuse(job, node, request->transfer, ZERO_EPROTO,
                           "the range reaches beyond these shards");
                return;
        }
        sending = malloc(sizeof *sending);
        if (!sending) {
                ask_refuse(job, node, request->transfer, ZERO_ENOMEM, "out of memory");
                return;
        }
        *sending = (struct sending){ .node = node, .transfer = request->transfer };
        job_ref(job);
        shard_want(&sending->part, h, plane, request->group, range, payload_ready);
}

/* ---- the rest ------------------------------------------------------------------------------- */

static size_t blobs_fill(const struct state *state, Zero__RankBlob *kept, Zero__RankBlob **pointers)
{
        size_t n = 0;

        for (uint32_t r = 0; r < state_blob_ranks(state); r++) {
                size_t bytes;
                const void *p = state_blob(state, r, &bytes);

                if (bytes == 0)
                        continue;
                zero__rank_blob__init(&kept[n]);
                kept[n].rank = r;
                kept[n].blob = (ProtobufCBinaryData){ bytes, (uint8_t *)p };
                pointers[n] = &kept[n];
                n++;
        }
        return n;
}

static void tables_send(const struct replica *h, uint32_t node, const Zero__LinkMessage *m)
{
        const struct state *state = h->state;
        uint32_t n_ranks = m->fill_info->kept ? state_blob_ranks(state) : 0;
        Zero__LinkMessage a = job_message(h->job->name);
        Zero__FillTables tables = ZERO__FILL_TABLES__INIT;
        CLEANUP(cleanup_free) Zero__RankBlob *kept = calloc(n_ranks + 1, sizeof *kept);
        CLEANUP(cleanup_free) Zero__RankBlob **pointers = calloc(n_ranks + 1, sizeof *pointers);

        if (!kept || !pointers) {
                answer(h->job->x, node, m, ZERO_ENOMEM, "out of memory");
                return;
        }
        tables.n_steps = tables.n_sets = h->job->layout->n_tensors;
        tables.steps = (uint64_t *)state->tensor_step;
        tables.sets = (uint64_t *)state->tensor_set;
        tables.n_kept = n_ranks ? blobs_fill(state, kept, pointers) : 0;
        tables.kept = pointers;
        a.answer = m->call;
        a.body_case = ZERO__LINK_MESSAGE__BODY_FILL_TABLES;
        a.fill_tables = &tables;
        fabric_send(h->job->x->fabric, node, &a);
}

void fill_source_info_message(struct job *job, uint32_t node, const Zero__LinkMessage *m)
{
        const Zero__FillInfo *i = m->fill_info;
        const struct fill_source g = { .epoch = i->epoch,
                                       .owner = i->owner,
                                       .copy = i->copy,
                                       .version = i->version,
                                       .attempt = i->attempt,
                                       .puts = i->puts };
        struct fault fault;
        const struct replica *h = fill_source_find(job, &g, &fault);

        if (h)
                tables_send(h, node, m);
        else
                answer(job->x, node, m, fault.status, fault.text);
}
