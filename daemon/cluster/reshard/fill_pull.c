/*
 * Pulls the bytes of a fill: the planes of a bounded number of pieces at a time, each straight into
 * its place in the draft; then, source by source, what does not lie in planes.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/cluster/reshard/fill_target.h"
#include "daemon/cluster/reshard/fill_source.h"
#include "proto/cleanup.h"

/* What the fill expects of the source. */
static struct fill_source source_of(const struct fill_target *f, uint32_t holder)
{
        return (struct fill_source){ .epoch = f->from.epoch,
                                     .owner = holder_owner(&f->from, holder),
                                     .copy = holder_copy(&f->from, holder),
                                     .version = f->record.version,
                                     .attempt = f->record.decided_attempt,
                                     .puts = f->source_puts[holder] };
}

static void source_failed(struct fill_target *f, uint32_t holder, int status, const char *why)
{
        struct fault fault;

        fault_set(&fault, status, "node %s does not send its shards of owner %u: %.200s",
                  node_name(f->x, holder_node(&f->from, holder)), holder_owner(&f->from, holder),
                  why);
        fill_target_fail(f, status, fault.text);
}

/* ---- planes ------------------------------------------------------------------------------- */

static void transfer_end(struct fill_target_transfer *t, bool ok)
{
        struct fill_target *f = t->f;
        uint64_t bytes = t->to.bytes;

        t->busy = false;
        state_unmap(&t->to);
        f->pulling--;
        if (ok) {
                f->bytes += bytes;
                f->moved += t->remote ? bytes : 0;
        }
        if (f->phase == FILL_TARGET_PULLING)
                fill_target_pull(f);
        fill_target_part_ended(f);
}

static void copy_done(struct offload_task *task)
{
        struct fill_target_transfer *t = CONTAINER_OF(task, struct fill_target_transfer, copy.task);

        shard_part_end(&t->from);
        transfer_end(t, true);
}

static void copy_ready(struct shard_part *from)
{
        struct fill_target_transfer *t = CONTAINER_OF(from, struct fill_target_transfer, from);

        job_copy(t->f->job, &t->copy, t->to.at, from->bytes.at, t->to.bytes, copy_done);
}

static void transfer_landed(struct ask *ask, int status)
{
        struct fill_target_transfer *t = CONTAINER_OF(ask, struct fill_target_transfer, ask);
        struct fault fault;

        if (status) {
                fault_set(&fault, ask->status ? ask->status : ZERO_EPEER,
                          "node %s did not send a part of its shards: %s",
                          node_name(t->f->x, ask->node),
                          ask->status ? zero_status_name(ask->status)
                                      : "the link was lost during the fill");
                fill_target_fail(t->f, fault.status, fault.text);
        }
        transfer_end(t, status == 0);
}

static int start_copy(struct fill_target_transfer *t)
{
        struct fill_target *f = t->f;
        const struct piece *piece = t->piece;
        struct fill_source g = source_of(f, piece->source);
        struct range part = { piece->first, piece->count };
        struct fault fault;
        struct replica *h = fill_source_find(f->job, &g, &fault);

        if (!h) {
                source_failed(f, piece->source, fault.status, fault.text);
                return fault.status;
        }
        if (fill_source_bytes(h, t->plane, piece->group, part) != t->to.bytes) {
                source_failed(f, piece->source, ZERO_EPROTO, "it has other shards than expected");
                return ZERO_EPROTO;
        }
        shard_want(&t->from, h, t->plane, piece->group, part, copy_ready);
        return 0;
}

static int start_pull(struct fill_target_transfer *t)
{
        struct fill_target *f = t->f;
        const struct piece *piece = t->piece;
        const struct fill_source g = source_of(f, piece->source);
        Zero__Pull pull = ZERO__PULL__INIT;
        int r;

        pull.kind = ZERO__PULL__KIND__STATE;
        pull.placement_epoch = g.epoch;
        pull.owner = g.owner;
        pull.copy = g.copy;
        pull.version = g.version;
        pull.attempt = g.attempt;
        pull.puts = g.puts;
        pull.group = piece->group;
        pull.plane = plane_number(t->plane);
        pull.first = piece->first;
        pull.count = piece->count;
        t->ask.done = transfer_landed;
        r = ask_send(&t->ask, f->job, holder_node(&f->from, piece->source), TRAFFIC_STATE, &pull,
                     t->to.at, t->to.bytes);
        if (r == -ENOMEM)
                fill_target_fail(f, ZERO_ENOMEM, "out of memory");
        else if (r)
                source_failed(f, piece->source, ZERO_EPEER, "it is not reachable");
        return r;
}

static void transfer_ready(struct mapping *to)
{
        struct fill_target_transfer *t = CONTAINER_OF(to, struct fill_target_transfer, to);

        if (t->f->phase != FILL_TARGET_PULLING || (t->remote ? start_pull(t) : start_copy(t)))
                transfer_end(t, false);
}

/* Begins the next plane of the current piece; there is one. */
static void transfer_begin(struct fill_target *f, struct fill_target_transfer *t)
{
        const struct piece *piece = &f->pieces->items[f->next_piece];
        struct range part = { piece->first, piece->count };

        *t = (struct fill_target_transfer){
                .f = f,
                .piece = piece,
                .plane = plan_kept(f->state->plan, piece->group, f->next_plane),
                .remote = holder_node(&f->from, piece->source) != f->x->cluster->self
        };
        list_init(&t->ask.link);
        if (plan_kept(f->state->plan, piece->group, ++f->next_plane).kind == PLANE_NONE) {
                f->next_plane = 0;
                f->next_piece++;
        }
        if (plan_bytes(f->state->plan, t->plane, piece->group, part).count == 0)
                return; /* frozen: no moments */
        t->busy = true;
        f->pulling++;
        f->busy++;
        state_want(&t->to, f->state, t->plane, piece->group, part, transfer_ready);
}

static struct fill_target_transfer *transfer_free(struct fill_target *f)
{
        for (uint32_t i = 0; i < FILL_TARGET_FLIGHT; i++)
                if (!f->transfers[i].busy)
                        return &f->transfers[i];
        return NULL;
}

void fill_target_pull(struct fill_target *f)
{
        struct fill_target_transfer *t;

        f->busy++; /* a transfer that fails at once ends the fill */
        while (f->phase == FILL_TARGET_PULLING && f->next_piece < f->pieces->n &&
               (t = transfer_free(f)))
                transfer_begin(f, t);
        if (f->phase == FILL_TARGET_PULLING && f->pulling == 0)
                fill_target_pulled(f);
        fill_target_part_ended(f);
}

void fill_target_forget_pulls(struct fill_target *f)
{
        for (uint32_t i = 0; i < FILL_TARGET_FLIGHT; i++) {
                struct fill_target_transfer *t = &f->transfers[i];

                if (t->busy && t->remote)
                        ask_forget(&t->ask);
        }
}

/* ---- what does not lie in planes ----------------------------------------------------- */

struct question {
        struct fill_target *f;
        uint32_t holder;
};

/* Sets the tensors that the piece has parts of. */
static void take_piece(struct fill_target *f, const struct piece *piece, const Zero__FillTables *t)
{
        const struct plan *plan = f->state->plan;
        const struct plan_shard *shard = &plan->shards[piece->group];

        for (uint32_t i = 0; i < shard->n_segments; i++) {
                const struct plan_segment *s = &plan->segments[shard->first_segment + i];

                if (s->in_group >= piece->first + piece->count ||
                    s->in_group + s->count <= piece->first)
                        continue;
                state_put_step(f->state, s->tensor, t->steps[s->tensor]);
                state_put_set(f->state, s->tensor, t->sets[s->tensor]);
        }
}

static bool tables_valid(const struct fill_target *f, const Zero__FillTables *t)
{
        uint32_t n = f->job->layout->n_tensors;

        if (t->n_steps != n || t->n_sets != n)
                return false;
        for (uint32_t i = 0; i < n; i++)
                if (t->steps[i] > STATE_STEP_MAX || t->sets[i] >= ZERO_SET_MAX)
                        return false;
        return true;
}

static int tables_take(struct fill_target *f, uint32_t holder, const Zero__FillTables *t)
{
        int r = 0;

        for (uint32_t i = 0; i < f->pieces->n; i++)
                if (f->pieces->items[i].source == holder)
                        take_piece(f, &f->pieces->items[i], t);
        for (size_t i = 0; r == 0 && i < t->n_kept; i++)
                r = state_blob_stage(f->state, t->kept[i]->rank, f->record.decided_attempt,
                                     t->kept[i]->blob.data, t->kept[i]->blob.len);
        return r;
}

static void question_answered(void *arg, int status, const char *text, const Zero__LinkMessage *m)
{
        struct question *q = arg;
        struct fill_target *f = q->f;
        uint32_t holder = q->holder;
        struct fault fault;
        int r;

        free(q);
        f->asking--;
        if (f->phase != FILL_TARGET_ASKING) {
                ;
        } else if (status) {
                source_failed(f, holder, status, text);
        } else if (m->body_case != ZERO__LINK_MESSAGE__BODY_FILL_TABLES ||
                   !tables_valid(f, m->fill_tables)) {
                source_failed(f, holder, ZERO_EPROTO, "its tables cannot be read");
        } else if ((r = tables_take(f, holder, m->fill_tables))) {
                fault_errno(&fault, r, "cannot store the ranks' blobs");
                fill_target_fail(f, fault.status, fault.text);
        } else if (f->asking == 0) {
                fill_target_asked(f);
        }
        fill_target_part_ended(f);
}

static void question_send(struct fill_target *f, uint32_t holder, bool kept)
{
        const struct fill_source g = source_of(f, holder);
        Zero__LinkMessage m = job_message(f->job->name);
        Zero__FillInfo info = ZERO__FILL_INFO__INIT;
        struct question *q = malloc(sizeof *q);

        if (!q) {
                fill_target_fail(f, ZERO_ENOMEM, "out of memory");
                return;
        }
        *q = (struct question){ f, holder };
        info.epoch = g.epoch;
        info.owner = g.owner;
        info.copy = g.copy;
        info.version = g.version;
        info.attempt = g.attempt;
        info.puts = g.puts;
        info.kept = kept && g.attempt; /* without a decision there are no blobs */
        m.body_case = ZERO__LINK_MESSAGE__BODY_FILL_INFO;
        m.fill_info = &info;
        f->asking++;
        f->busy++;
        call_send(f->x, holder_node(&f->from, holder), &m, CALL_MS, question_answered, q);
}

/* Asks every source, and one of them for the blobs as well.  If there are no pieces, asks any
 * readable holder for the blobs. */
void fill_target_ask(struct fill_target *f)
{
        bool needed[HOLDER_MAX] = { false };
        uint32_t keeper = 0;

        while (keeper < placement_holders(&f->from) - 1 && !f->readable[keeper])
                keeper++;
        if (f->pieces->n)
                keeper = f->pieces->items[0].source;
        needed[keeper] = f->readable[keeper];
        for (uint32_t i = 0; i < f->pieces->n; i++)
                needed[f->pieces->items[i].source] = true;
        for (uint32_t h = 0; h < placement_holders(&f->from) && f->phase == FILL_TARGET_ASKING; h++)
                if (needed[h])
                        question_send(f, h, h == keeper);
        if (f->asking == 0 && f->phase == FILL_TARGET_ASKING)
                fill_target_asked(f);
}
