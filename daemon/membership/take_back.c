/*
 * Takes a change of owners back.
 *
 * Taking back is a change like any other, proposed because a node refuses its part of a job.  The
 * node keeps the first reason for clients that ask for the outcome of their change.
 */
#include "daemon/base/log.h"
#include "daemon/membership/membership.h"
#include "proto/cleanup.h"

static void back_done(struct membership_change *change, int status, const char *text)
{
        struct membership_back *b = CONTAINER_OF(change, struct membership_back, change);

        b->wished = false; /* the job's coordinator asks again while the node refuses */
        if (status == ZERO_OK)
                b->x->taken_back = b->note;
        else
                log_warning("cannot take the change of owners back yet: %s", text);
}

void membership_take_back(struct engine *x, const struct placement *before, const char *why)
{
        struct membership *v = x->membership;

        if (!v || v->back.wished || v->durable.chosen.epoch != x->placement.epoch)
                return;
        v->back = (struct membership_back){ .x = x,
                                            .wished = true,
                                            .note = { .epoch = x->placement.epoch } };
        snprintf(v->back.note.why, sizeof v->back.note.why, "%s", why);
        placement_init(&v->back.change.wanted, x->placement.epoch, before->node, before->n_owners,
                       x->cluster->mirror);
        v->back.change.done = back_done;
}

/* Waits for a client's change. */
void membership_back_tick(struct engine *x)
{
        struct membership *v = x->membership;

        if (v->back.wished && !v->change && membership_change(x, &v->back.change, NULL))
                v->back.wished = false;
}

void membership_back_forget(struct engine *x)
{
        if (x->membership && x->membership->back.wished)
                membership_forget(x, &x->membership->back.change);
}
