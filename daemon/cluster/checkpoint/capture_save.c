/*
 * An owner's copy of its planes where memory suffices for all of them: no update waits for it.
 *
 * Between two updates some of the compute threads copy the stream piece by piece.  An update that
 * reaches a group before they do saves the rest of it (save_order.h), chunk by chunk.  It has the
 * old values at hand, so that saving costs a write, while a copy costs a read as well.
 */
#include "daemon/cluster/checkpoint/capture.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>

#include "daemon/step/update/update.h"
#include "proto/cleanup.h"

/* An update waits for one piece at most: a quarter of a millisecond. */
enum { PIECE_BYTES = 4 << 20 };

struct piece {
        struct offload_task task;
        struct capture *t;
        struct save_piece cut;
        bool busy;
};

/* Leaves threads for gathers and sums. */
static uint32_t pieces_most(const struct capture *t)
{
        uint32_t workers = offload_workers(t->x->offload);

        return workers < 2 ? 1 : workers / 2;
}

int capture_save_prepare(struct capture *t)
{
        t->pieces = calloc(pieces_most(t), sizeof *t->pieces);
        return t->pieces ? save_order_init(&t->order, &t->map) : -ENOMEM;
}

void capture_save_deinit(struct capture *t)
{
        free(STEAL(t->pieces));
        save_order_deinit(&t->order);
}

bool capture_saves_now(const struct capture *t)
{
        return t->order.copying || t->order.saving;
}

/* ---- between updates ------------------------------------------------------------------- */

static void piece_run(struct offload_task *task, uint32_t worker)
{
        const struct piece *p = CONTAINER_OF(task, struct piece, task);
        const struct capture *t = p->t;

        snapshot_copy(&t->map, t->replica->state, t->x->ops, p->cut.offset,
                      t->buffer + p->cut.offset, p->cut.bytes);
}

static void piece_done(struct offload_task *task)
{
        struct piece *p = CONTAINER_OF(task, struct piece, task);
        struct capture *t = p->t;

        p->busy = false;
        save_order_copied(&t->order);
        shard_unpin(t->replica, p->cut.group);
        capture_advance(t);
}

static bool piece_submit(struct capture *t, struct piece *p)
{
        struct save_piece cut;

        if (!save_order_cut(&t->order, PIECE_BYTES, &cut))
                return false;
        *p = (struct piece){
                .task = { .run = piece_run, .done = piece_done }, .t = t, .cut = cut, .busy = true
        };
        shard_pin(t->replica, cut.group);
        job_compute(t->replica->job, OFFLOAD_STEP, &p->task);
        return true;
}

void capture_save_advance(struct capture *t)
{
        uint32_t most = pieces_most(t), i = 0;

        if (t->whole || update_holds(t->replica))
                return;
        while (i < most && (t->pieces[i].busy || piece_submit(t, &t->pieces[i])))
                i++;
        if (!save_order_over(&t->order))
                return;
        t->copied = t->n_blocks;
        capture_copy_over(t);
}

/* ---- updates ------------------------------------------------------------------------------ */

uint64_t capture_save_begin(struct replica *h, uint32_t group)
{
        struct capture *t = h->capture;

        if (!t || t->phase != CAPTURE_WRITING || !t->saves || t->whole)
                return UINT64_MAX;
        assert(h->pins[group] == 0);
        return save_order_begin(&t->order, group);
}

void capture_save(const struct replica *h, uint32_t chunk, struct undo_values old, uint64_t from)
{
        const struct capture *t = h->capture;

        snapshot_save_chunk(&t->map, h->state->plan, t->x->ops, chunk, old, from, t->buffer);
}

void capture_save_end(struct replica *h)
{
        save_order_saved(&h->capture->order);
        capture_advance(h->capture);
}
