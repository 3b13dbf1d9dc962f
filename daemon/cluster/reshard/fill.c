/*
 * Fills, at the job's coordinator.
 *
 * A fill is a call to the holder's node and ends with the call.  A node that stays silent although
 * its link stands is given up: the caller is told, and the call runs on to its end.
 */
#include "daemon/cluster/reshard/fill_target.h"

#include <stdlib.h>
#include <string.h>

#include "daemon/floor/base/log.h"
#include "proto/cleanup.h"

enum { FILL_CALL_MS = 7 * 24 * 3600 * 1000 }; /* silence is noticed much earlier */

struct fill {
        struct list link; /* reshard.fills */
        struct engine *x;
        char job[ZERO_NAME_MAX + 1];
        uint32_t node;
        uint64_t id;
        uint64_t bytes, total, moved; /* as the holder last told */
        uint64_t heard_ms;            /* loop time of its last sign */
        fill_done *done;              /* NULL once it was called */
        void *arg;
};

static void fill_over(struct fill *f, int status, const char *text, const Zero__Standing *standing)
{
        fill_done *done = STEAL(f->done);

        if (done)
                done(f->arg, status, text, standing);
}

static void fill_called(void *arg, int status, const char *text, const Zero__LinkMessage *m)
{
        struct fill *f = arg;
        bool filled = !status && m->body_case == ZERO__LINK_MESSAGE__BODY_FILLED;

        list_remove(&f->link);
        if (filled && m->filled->standing)
                fill_over(f, ZERO_OK, "", m->filled->standing);
        else
                fill_over(f, status ? status : ZERO_EPROTO,
                          status ? text : "the node did not say where its state stands", NULL);
        free(f);
}

/* ---- asking ------------------------------------------------------------------------------- */

static size_t sources_fill(const struct fill_order *o, Zero__FillSource *sources,
                           Zero__FillSource **pointers)
{
        size_t n = 0;

        for (uint32_t h = 0; h < placement_holders(o->from); h++) {
                if (!o->readable[h])
                        continue;
                zero__fill_source__init(&sources[n]);
                sources[n].owner = holder_owner(o->from, h);
                sources[n].copy = holder_copy(o->from, h);
                sources[n].puts = o->source_puts[h];
                pointers[n] = &sources[n];
                n++;
        }
        return n;
}

static void fill_send(struct fill *f, const struct fill_order *o)
{
        Zero__LinkMessage m = job_message(f->job);
        Zero__Fill fill = ZERO__FILL__INIT;
        Zero__Placement from, to;
        Zero__FillSource sources[HOLDER_MAX], *pointers[HOLDER_MAX];

        placement_to_message(o->from, &from);
        placement_to_message(o->to, &to);
        fill.id = f->id;
        JOB_SPEC_WRITE(&fill, o->job);
        fill.layout = o->layout;
        fill.from = &from;
        fill.to = &to;
        fill.owner = holder_owner(o->to, o->holder);
        fill.copy = holder_copy(o->to, o->holder);
        fill.version = o->version;
        fill.attempt = o->attempt;
        fill.last = o->last;
        fill.puts = o->puts;
        fill.n_sources = sources_fill(o, sources, pointers);
        fill.sources = pointers;
        m.body_case = ZERO__LINK_MESSAGE__BODY_FILL;
        m.fill = &fill;
        call_send(f->x, f->node, &m, FILL_CALL_MS, fill_called, f);
}

struct fill *fill_start(struct engine *x, const struct fill_order *order, fill_done *done,
                        void *arg)
{
        struct fill *f = calloc(1, sizeof *f);

        if (!f)
                return NULL;
        *f = (struct fill){ .x = x,
                            .node = holder_node(order->to, order->holder),
                            .id = ++x->reshard->last_fill,
                            .heard_ms = engine_now(x),
                            .done = done,
                            .arg = arg };
        snprintf(f->job, sizeof f->job, "%s", order->job->name);
        list_insert(&x->reshard->fills, &f->link);
        fill_send(f, order);
        return f;
}

void fill_cancel(struct fill *f)
{
        Zero__LinkMessage m = job_message(f->job);
        Zero__Fill fill = ZERO__FILL__INIT;

        fill.id = f->id;
        fill.cancel = true;
        m.body_case = ZERO__LINK_MESSAGE__BODY_FILL;
        m.fill = &fill;
        fabric_send(f->x->fabric, f->node, &m);
}

/* ---- progress ------------------------------------------------------------------------ */

void fill_progress(const struct fill *f, uint64_t *ret_bytes, uint64_t *ret_total,
                   uint64_t *ret_moved)
{
        *ret_bytes = f->bytes;
        *ret_total = f->total;
        *ret_moved = f->moved;
}

void fill_progress_message(struct engine *x, uint32_t node, const Zero__LinkMessage *m)
{
        list_for_each (&x->reshard->fills, item) {
                struct fill *f = CONTAINER_OF(item, struct fill, link);

                if (f->node != node || f->id != m->fill_progress->id)
                        continue;
                f->bytes = m->fill_progress->bytes;
                f->total = m->fill_progress->total;
                f->moved = m->fill_progress->moved;
                f->heard_ms = engine_now(x);
        }
}

void fills_tick(struct engine *x)
{
        struct list *item = x->reshard->fills.next;
        char text[200];

        while (item != &x->reshard->fills) {
                struct fill *f = CONTAINER_OF(item, struct fill, link);

                item = item->next;
                if (!f->done || engine_now(x) - f->heard_ms < FILL_SILENCE_MS)
                        continue;
                snprintf(text, sizeof text, "the node was silent for %d s", FILL_SILENCE_MS / 1000);
                fill_cancel(f);
                fill_over(f, ZERO_EDEADLINE, text, NULL);
        }
}
