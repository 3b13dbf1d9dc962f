/*
 * Tells which nodes hold shards, and changes the list for people who ask.  The node that is asked
 * proposes the change, and answers when it is decided.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/cluster/membership/membership.h"
#include "daemon/face/rpc/query.h"
#include "proto/cleanup.h"

struct wanted {
        struct membership_change change;
        struct engine *x;
        struct pending_call *call;
};

static const struct {
        const char *what;
        enum membership_kind kind;
} kinds[] = { { "add-node", MEMBERSHIP_ADD },
              { "remove-node", MEMBERSHIP_REMOVE },
              { "takeover", MEMBERSHIP_TAKEOVER } };

static void membership_answer(struct engine *x, struct pending_call *call)
{
        struct arena arena = { NULL };
        struct status_membership membership;

        report_membership(&arena, x, &membership);
        query_end_record(call, status_membership_type(), &membership, &arena);
}

static void wanted_done(struct membership_change *change, int status, const char *text)
{
        struct wanted *w = CONTAINER_OF(change, struct wanted, change);

        if (status)
                request_end(&w->call->request, status, "%s", text);
        else
                membership_answer(w->x, w->call);
        free(w);
}

static void wanted_forget(struct request *r)
{
        struct wanted *w = r->subject;

        membership_forget(w->x, &w->change);
        free(w);
}

static int wanted_describe(const struct request *r, struct wait_line *ret)
{
        const struct wanted *w = r->subject;

        membership_describe(w->x, w->change.dead, ret);
        return ZERO_EDEADLINE;
}

static int wanted_start(struct pending_call *call, enum membership_kind kind, const char *argument,
                        struct fault *fault)
{
        struct engine *x = call->session->rpc->x;
        CLEANUP(cleanup_free) struct wanted *w = calloc(1, sizeof *w);
        int r = session_allowed(call->session, "change the owners", fault);

        if (!w)
                return fault_set(fault, ZERO_ENOMEM, "out of memory");
        w->x = x;
        w->call = call;
        if (!r)
                r = membership_plan(x, kind, argument, &w->change, fault);
        w->change.done = wanted_done;
        if (!r)
                r = membership_change(x, &w->change, fault);
        if (r)
                return r;
        call->request.subject = w;
        call->request.describe = wanted_describe;
        call->request.forget = wanted_forget;
        w = NULL; /* wanted_done() frees it */
        return 0;
}

/* ---- draining, and a look at it, on the node that is named ---- */

struct draining {
        struct drained_change change;
        struct engine *x;
        uint32_t node;
        uint64_t call;
};

static void drain_answer(struct drained_change *change, int error)
{
        struct draining *d = CONTAINER_OF(change, struct draining, change);
        struct engine *x = d->x;
        struct arena arena = { NULL };
        const struct drained_rank *ranks = NULL;
        struct status_drained drained = { .node = node_name(x, x->cluster->self),
                                          .drained = membership_drained(x) };
        Zero__LinkMessage m = ZERO__LINK_MESSAGE__INIT;
        uint32_t n = 0;
        char text[200];

        arena.failed = drained_ranks(x, &ranks, &n) != 0;
        for (uint32_t i = 0; i < n; i++) {
                struct status_drained_rank *rank = LIST_ADD(&arena, &drained.ranks);

                if (rank)
                        *rank = (struct status_drained_rank){ ranks[i].job, ranks[i].rank,
                                                              ranks[i].pid };
        }
        m.call = d->call;
        snprintf(text, sizeof text, "node %s is %sdrained; membership_dir: %s", drained.node,
                 drained.drained ? "" : "not ", strerror(error));
        if (error)
                answer(x, d->node, &m, ZERO_EIO, text);
        else
                query_answer_record(x, d->node, d->call, status_drained_type(), &drained, &arena);
        arena_deinit(&arena);
        free(d);
}

void drain_question(struct engine *x, struct job *job, uint32_t node, const Zero__LinkMessage *m)
{
        struct draining *d;

        if (x->cluster->n_nodes == 1) {
                answer(x, node, m, ZERO_EINVAL, "a node without peers cannot be drained");
                return;
        }
        d = malloc(sizeof *d);
        if (!d) {
                answer(x, node, m, ZERO_ENOMEM, "out of memory");
                return;
        }
        *d = (struct draining){ .change = { .on = strcmp(m->query->what, "drain") == 0,
                                            .done = drain_answer },
                                .x = x,
                                .node = node,
                                .call = m->call };
        if (strcmp(m->query->what, "drained") == 0)
                drain_answer(&d->change, 0);
        else
                drained_set(x, &d->change);
}

int membership_query(struct pending_call *call, const char *what, const char *argument,
                     struct fault *fault)
{
        for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++)
                if (strcmp(what, kinds[i].what) == 0)
                        return wanted_start(call, kinds[i].kind, argument, fault);
        membership_answer(call->session->rpc->x, call);
        return 0;
}
