/*
 * Takes a change of owners back.
 *
 * That is a change like any other, proposed because a node refuses its part of a job.  The first
 * reason is kept, for those who ask what became of their change.
 */
#include "daemon/base/log.h"
#include "daemon/membership/membership.h"
#include "proto/cleanup.h"

static void back_done(struct view_change *change, int status, const char *text)
{
        struct view_back *b = CONTAINER_OF(change, struct view_back, change);

        b->wished = false; /* the job's coordinator asks again as long as that makes sense */
        if (status == ZERO_OK)
                b->x->taken_back = b->note;
        else
                log_warning("cannot take the change of owners back yet: %s", text);
}

void view_take_back(struct engine *x, const struct placement *before, const char *why)
{
        struct views *v = x->views;

        if (!v || v->back.wished || v->durable.chosen.epoch != x->placement.epoch)
                return;
        v->back = (struct view_back){ .x = x,
                                      .wished = true,
                                      .note = { .epoch = x->placement.epoch } };
        snprintf(v->back.note.why, sizeof v->back.note.why, "%s", why);
        placement_init(&v->back.change.wanted, x->placement.epoch, before->node, before->n_owners,
                       x->cluster->mirror);
        v->back.change.done = back_done;
}

/* Waits for a client's change. */
void view_back_tick(struct engine *x)
{
        struct views *v = x->views;

        if (v->back.wished && !v->change && view_change(x, &v->back.change, NULL))
                v->back.wished = false;
}

void view_back_forget(struct engine *x)
{
        if (x->views && x->views->back.wished)
                view_forget(x, &x->views->back.change);
}
