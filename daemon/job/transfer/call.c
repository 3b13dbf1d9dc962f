/*
 * Calls: messages that expect an answer.  Each ends exactly once: with its answer, with the link,
 * or at its deadline.
 */
#include "daemon/job/transfer/staging.h"

#include <stdlib.h>

#include "daemon/floor/base/log.h"
#include "proto/cleanup.h"
#include "proto/sure.h"

struct call {
        struct list link; /* transfer.calls */
        uint64_t id, deadline_ms;
        uint32_t node;
        bool unsent; /* the node was not up: the call ends at the next tick */
        call_done *done;
        void *arg;
};

void call_send(struct engine *x, uint32_t node, Zero__LinkMessage *m, uint64_t timeout_ms,
               call_done *done, void *arg)
{
        struct call *call = sure_realloc(NULL, sizeof *call); /* keeps the promise to call done() */

        *call = (struct call){ .id = ++x->transfer->last_call,
                               .deadline_ms = engine_now(x) + timeout_ms,
                               .node = node,
                               .done = done,
                               .arg = arg };
        list_insert(&x->transfer->calls, &call->link);
        m->call = call->id;
        call->unsent = !node_set_has(x->up, node) || fabric_send(x->fabric, node, m) != 0;
}

static void call_end(struct call *call, int status, const char *text, const Zero__LinkMessage *m)
{
        list_remove(&call->link);
        call->done(call->arg, status, text, m);
        free(call);
}

void calls_answer(struct engine *x, uint32_t node, const Zero__LinkMessage *m)
{
        list_for_each (&x->transfer->calls, item) {
                struct call *call = CONTAINER_OF(item, struct call, link);

                if (call->id == m->answer && call->node == node) {
                        call_end(call, (int)m->status, m->text, m);
                        return;
                }
        }
        log_debug("node %s answered a call that is over", node_name(x, node));
}

/* Ending a call may start or end others, so callers search again after each. */
static struct call *call_find(struct engine *x, bool (*match)(const struct call *, uint64_t),
                              uint64_t key)
{
        list_for_each (&x->transfer->calls, item) {
                struct call *call = CONTAINER_OF(item, struct call, link);

                if (match(call, key))
                        return call;
        }
        return NULL;
}

static bool call_is_of_node(const struct call *call, uint64_t node)
{
        return call->node == node;
}

static bool call_is_unsent(const struct call *call, uint64_t node)
{
        return call->unsent && call->node == node;
}

static bool call_is_late(const struct call *call, uint64_t now)
{
        return call->unsent || call->deadline_ms <= now;
}

/* Ends calls from before the node came up, so that their callers can try again. */
static void calls_up(struct engine *x, uint32_t node)
{
        struct call *call;

        while ((call = call_find(x, call_is_unsent, node)))
                call_end(call, ZERO_EPEER, "the node was not up", NULL);
}

void calls_down(struct engine *x, uint32_t node, const char *why)
{
        struct call *call;
        char text[256];

        snprintf(text, sizeof text, "node %s is not reachable: %s", node_name(x, node), why);
        while ((call = call_find(x, call_is_of_node, node)))
                call_end(call, ZERO_EPEER, text, NULL);
}

static void calls_expire(struct engine *x)
{
        struct call *call;
        char text[256];

        while ((call = call_find(x, call_is_late, engine_now(x)))) {
                snprintf(text, sizeof text, "node %s %s", node_name(x, call->node),
                         call->unsent ? "is not reachable" : "did not answer in time");
                call_end(call, call->unsent ? ZERO_EPEER : ZERO_EDEADLINE, text, NULL);
        }
}

void answer(struct engine *x, uint32_t node, const Zero__LinkMessage *m, int status,
            const char *text)
{
        Zero__LinkMessage a = ZERO__LINK_MESSAGE__INIT;

        if (m->call == 0)
                return;
        a.answer = m->call;
        a.status = (uint32_t)status;
        a.text = (char *)(text ? text : "");
        a.job = m->job;
        fabric_send(x->fabric, node, &a);
}

void send_some(struct engine *x, node_set nodes, const Zero__LinkMessage *m)
{
        for (uint32_t n = 0; n < x->cluster->n_nodes; n++)
                if (node_set_has(nodes, n))
                        fabric_send(x->fabric, n, m);
}

void send_all(struct engine *x, const Zero__LinkMessage *m)
{
        send_some(x, NODE_SET_ALL, m);
}

static bool calls_idle(const struct engine *x)
{
        const struct transfer *t = x->transfer;

        return list_empty(&t->calls) && list_empty(&t->asks) && list_empty(&t->staged);
}

static void transfer_down(struct engine *x, uint32_t node, const char *why)
{
        calls_down(x, node, why);
        staging_down(x, node);
}

static void transfer_init(struct engine *x)
{
        list_init(&x->transfer->calls);
        list_init(&x->transfer->asks);
        list_init(&x->transfer->staged);
}

const struct module transfer_module = { .node_at = offsetof(struct engine, transfer),
                                        .node_bytes = sizeof(struct transfer),
                                        .node_init = transfer_init,
                                        .tick = calls_expire,
                                        .node_up = calls_up,
                                        .node_down = transfer_down,
                                        .idle = calls_idle,
                                        .job_dropped = asks_forget };
