/*
 * Brings states to where the placement in force wants them: asks nodes to settle old states, has
 * holders filled, and tells the coordinator the outcome (coordinator.h).
 */
#include "daemon/cluster/coordinator/coordinator.h"

#include <stdlib.h>

#include "daemon/floor/base/crash.h"
#include "daemon/floor/base/log.h"
#include "proto/sure.h"

/* A question or a fill without an answer yet. */
struct asked {
        struct coordinated *c;
        uint32_t of;    /* node, or holder */
        uint64_t epoch; /* of the states in the answer */
};

static struct asked *asked_new(struct coordinated *c, uint32_t of, uint64_t epoch)
{
        struct asked *a = sure_realloc(NULL, sizeof *a);

        *a = (struct asked){ c, of, epoch };
        coordinated_ref(c);
        return a;
}

static void settle_answered(void *arg, int status, const char *text, const Zero__LinkMessage *m)
{
        struct asked *a = arg;

        coordinated_event(a->c, (struct coordinator_event){ .kind = COORDINATOR_SETTLED,
                                                            .node = a->of,
                                                            .epoch = a->epoch,
                                                            .status = status,
                                                            .text = text });
        coordinated_unref(a->c);
        free(a);
}

void placing_settle(struct coordinated *c, uint32_t node)
{
        const uint64_t epoch = c->state.old_placement->placement.epoch;
        Zero__LinkMessage m = job_message(c->name);
        Zero__Settle settle = ZERO__SETTLE__INIT;
        Zero__Decision last;

        settle.epoch = epoch;
        settle.last = decision_last(c, &last);
        m.body_case = ZERO__LINK_MESSAGE__BODY_SETTLE;
        m.settle = &settle;
        call_send(c->x, node, &m, CALL_MS, settle_answered, asked_new(c, node, epoch));
}

static void filled(struct coordinated *c, uint32_t holder, int status, const char *text,
                   const Zero__Standing *standing)
{
        struct standing s;
        struct told_state told;
        struct coordinator_event e = {
                .kind = COORDINATOR_FILLED, .holder = holder, .n_states = 1, .states = &told
        };
        struct fault fault;

        c->fills[holder] = NULL;
        e.status = status ? status : standing_read(standing, &told, &s, &fault);
        e.text = status ? text : fault.text;
        coordinated_event(c, e);
}

static void fill_ended(void *arg, int status, const char *text, const Zero__Standing *standing)
{
        struct asked *a = arg;

        filled(a->c, a->of, status, text, standing);
        coordinated_unref(a->c);
        free(a);
}

void placing_fill(struct coordinated *c, const struct coordinator_action *action)
{
        struct coordinator_sources sources;
        Zero__Decision last;
        struct fill_order order = { .job = &c->spec,
                                    .layout = c->shared->message,
                                    .to = &c->state.step.placement,
                                    .holder = action->holder,
                                    .version = c->state.step.version,
                                    .attempt = action->attempt,
                                    .last = decision_last(c, &last) };
        struct asked *a;

        coordinator_sources(&c->state, action->holder, &sources);
        order.from = sources.from;
        order.readable = sources.readable;
        order.source_puts = sources.puts;
        order.puts = sources.puts_then;
        a = asked_new(c, action->holder, sources.from->epoch);
        c->fills[action->holder] = fill_start(c->x, &order, fill_ended, a);
        if (c->fills[action->holder])
                return;
        fill_ended(a, ZERO_EBUSY, "out of memory", NULL);
}

void placing_placed(struct coordinated *c, uint32_t node)
{
        Zero__LinkMessage m = job_message(c->name);
        Zero__Placed placed = ZERO__PLACED__INIT;

        placed.epoch = c->state.step.placement.epoch;
        m.body_case = ZERO__LINK_MESSAGE__BODY_PLACED;
        m.placed = &placed;
        fabric_send(c->x->fabric, node, &m);
}

void placing_whole(struct coordinated *c)
{
        crash_point(CRASH_MOVE_WHOLE);
        log_info_for(c->uid, "job %s: all its shards are where owner list %llu wants them", c->name,
                     (unsigned long long)c->state.step.placement.epoch);
        coordinated_tell(c); /* says that the job no longer moves */
}

void placing_take_back(struct coordinated *c, bool first)
{
        const struct coordinator *s = &c->state;

        if (first)
                log_error("%s; the earlier owners (epoch %llu) come back", s->refused.text,
                          (unsigned long long)s->old_placement->placement.epoch);
        membership_take_back(c->x, &s->old_placement->placement, s->refused.text);
}
