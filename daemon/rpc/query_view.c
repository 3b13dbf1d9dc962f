/*
 * Which nodes hold shards, and changes of that, as people ask for them.  A change is proposed by
 * the node that is asked, and answered when it is decided.
 */
#include <stdlib.h>
#include <string.h>

#include "daemon/membership/view.h"
#include "daemon/rpc/report.h"
#include "daemon/rpc/session.h"
#include "proto/cleanup.h"

struct wanted {
        struct view_change change;
        struct exchange *x;
        struct pending_call *call;
};

static const struct {
        const char *what;
        enum view_kind kind;
} kinds[] = { { "add-node", VIEW_ADD },
              { "remove-node", VIEW_REMOVE },
              { "takeover", VIEW_TAKEOVER } };

enum { KINDS = sizeof kinds / sizeof kinds[0] };

/* ---- the view as JSON ---- */

static json_t *name(const struct exchange *x, uint32_t node)
{
        return json_string(node_name(x, node));
}

static json_t *report_owners(const struct exchange *x, const struct placement *p)
{
        json_t *owners = json_array();

        for (uint32_t o = 0; o < p->n_owners; o++)
                json_array_append_new(owners, name(x, p->node[o]));
        return owners;
}

static json_t *report_mirrors(const struct exchange *x, const struct placement *p)
{
        json_t *mirrors = json_array();

        for (uint32_t h = p->n_owners; h < placement_holders(p); h++) {
                json_t *m = json_object();

                json_object_set_new(m, "owner", name(x, p->node[holder_owner(p, h)]));
                json_object_set_new(m, "node", name(x, holder_node(p, h)));
                json_array_append_new(mirrors, m);
        }
        return mirrors;
}

static json_t *report_nodes(const struct exchange *x)
{
        uint64_t owners = placement_nodes(&x->views->durable.chosen);
        json_t *nodes = json_array();

        for (uint32_t n = 0; n < x->cluster->n_nodes; n++) {
                json_t *j = json_object();
                bool self = n == x->cluster->self;

                json_object_set_new(j, "node", name(x, n));
                json_object_set_new(j, "self", json_boolean(self));
                json_object_set_new(j, "up", json_boolean(self || x->linked >> n & 1));
                json_object_set_new(j, "owner", json_boolean(owners >> n & 1));
                json_array_append_new(nodes, j);
        }
        return nodes;
}

json_t *report_view(const struct exchange *x)
{
        const struct view_register *r = &x->views->r;
        const struct placement *view = &x->views->durable.chosen; /* in force, or about to be */
        uint32_t needed = register_quorum(x->cluster->n_nodes, 0);
        uint32_t there =
                1 + (uint32_t)__builtin_popcountll(x->linked & ~(1ull << x->cluster->self));
        json_t *j = json_object();

        json_object_set_new(j, "epoch", json_integer((json_int_t)view->epoch));
        json_object_set_new(j, "owners", report_owners(x, view));
        json_object_set_new(j, "mirrors", report_mirrors(x, view));
        json_object_set_new(j, "nodes", report_nodes(x));
        json_object_set_new(j, "votes_needed", json_integer(needed));
        json_object_set_new(j, "votes_reachable", json_integer(there));
        json_object_set_new(j, "majority", json_boolean(there >= needed));
        json_object_set_new(j, "voter", json_boolean(r->record.voter));
        json_object_set_new(j, "undecided",
                            register_undecided(r) ? report_owners(x, &r->record.view)
                                                  : json_null());
        return j;
}

/* ---- changes ---- */

static void wanted_done(struct view_change *change, int status, const char *text)
{
        struct wanted *w = CONTAINER_OF(change, struct wanted, change);

        if (status)
                request_end(&w->call->request, status, "%s", text);
        else
                query_end(w->call, report_view(w->x));
        free(w);
}

static void wanted_forget(struct request *r)
{
        struct wanted *w = r->subject;

        view_forget(w->x, &w->change);
        free(w);
}

static int wanted_describe(const struct request *r, struct wait_line *ret)
{
        const struct wanted *w = r->subject;

        view_describe(w->x, w->change.dead, ret);
        return ZERO_EDEADLINE;
}

static int allowed(const struct session *session, struct fault *fault)
{
        if (session->uid == 0 || session->uid == geteuid())
                return 0;
        return fault_set(fault, ZERO_EPERM,
                         "the owners are changed by root or the user zerod runs as, %u",
                         (unsigned)geteuid());
}

static int wanted_start(struct pending_call *call, enum view_kind kind, const char *argument,
                        struct fault *fault)
{
        struct exchange *x = call->session->rpc->x;
        CLEANUP(cleanup_free) struct wanted *w = calloc(1, sizeof *w);
        int r = allowed(call->session, fault);

        if (!w)
                return fault_set(fault, ZERO_ENOMEM, "out of memory");
        w->x = x;
        w->call = call;
        if (!r)
                r = view_plan(x, kind, argument, &w->change, fault);
        w->change.done = wanted_done;
        if (!r)
                r = view_change(x, &w->change, fault);
        if (r)
                return r;
        call->request.subject = w;
        call->request.describe = wanted_describe;
        call->request.forget = wanted_forget;
        w = NULL; /* wanted_done() frees it */
        return 0;
}

bool view_is_query(const char *what)
{
        for (size_t i = 0; i < KINDS; i++)
                if (strcmp(what, kinds[i].what) == 0)
                        return true;
        return strcmp(what, "view") == 0;
}

int view_query(struct pending_call *call, const char *what, const char *argument,
               struct fault *fault)
{
        for (size_t i = 0; i < KINDS; i++)
                if (strcmp(what, kinds[i].what) == 0)
                        return wanted_start(call, kinds[i].kind, argument, fault);
        query_end(call, report_view(call->session->rpc->x));
        return 0;
}
