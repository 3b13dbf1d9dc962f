/*
 * How a job begins: ranks join, the first join opens the job on all nodes, and when every node is
 * ready and every rank is there, the job starts.
 */
#include "daemon/exchange/coordinator.h"

#include <stdlib.h>
#include <string.h>

#include "daemon/base/log.h"
#include "proto/cleanup.h"

struct opening {
        struct coordinator *c;
        uint32_t node;
};

/* ---- answering joins ------------------------------------------------------------- */

void join_end(struct coordinator *c, struct join *j, int status, const char *text)
{
        Zero__LinkMessage m = coordinator_to(c);

        m.call = j->call;
        answer(c->x, j->node, &m, status, text);
        list_remove(&j->link);
        free(j);
}

static void joins_end(struct coordinator *c, int status, const char *text)
{
        while (!list_empty(&c->joins))
                join_end(c, CONTAINER_OF(c->joins.next, struct join, link), status, text);
}

void coordinator_close(struct coordinator *c, int status, const char *text)
{
        c->dead = true;
        joins_end(c, status, text);
        list_remove(&c->link);
        coordinator_unref(c);
}

/* Every rank is there: a new epoch, a new attempt. */
static void coordinator_start(struct coordinator *c)
{
        Zero__LinkMessage m = coordinator_to(c);
        Zero__Start start = ZERO__START__INIT;

        start.epoch = c->step.epoch;
        start.version = c->step.version;
        start.attempt = c->step.attempt;
        start.loss_scale = c->step.loss_scale;
        start.n_node_of_rank = c->step.world_size;
        start.node_of_rank = c->step.node_of_rank;
        m.body_case = ZERO__LINK_MESSAGE__BODY_START;
        m.start = &start;
        send_all(c->x, &m);
        log_info("job %s: all %u ranks are there, version %llu", c->name, c->step.world_size,
                 (unsigned long long)c->step.version);
        joins_end(c, ZERO_OK, "");
}

/* All are looked at before any is answered: one that claims a taken rank is refused. */
static void joins_admit(struct coordinator *c)
{
        bool start = false;

        list_for_each (&c->joins, item) {
                struct join *j = CONTAINER_OF(item, struct join, link);
                enum step_action action;
                struct fault fault;
                int r;

                if (j->admitted)
                        continue;
                r = step_join(&c->step, j->rank, j->node, &action, &fault);
                if (r) {
                        join_end(c, j, r, fault.text);
                        continue;
                }
                j->admitted = true;
                start = start || action == STEP_START;
        }
        if (start)
                coordinator_start(c);
}

/* ---- opening the job on all nodes --------------------------------------------------- */

static void open_fail(struct coordinator *c, int status, const char *text)
{
        Zero__LinkMessage m = coordinator_to(c);
        Zero__Drop drop = ZERO__DROP__INIT;

        c->phase = OPEN_FAILED;
        m.body_case = ZERO__LINK_MESSAGE__BODY_DROP;
        m.drop = &drop;
        for (uint32_t n = 0; n < c->x->cluster->n_nodes; n++)
                if (c->created[n])
                        fabric_send(c->x->fabric, n, &m);
        coordinator_close(c, status, text);
}

static void open_note(struct coordinator *c, uint32_t node, const Zero__Opened *o)
{
        struct step *s = &c->step;

        c->created[node] = o->created;
        if (!o->owner)
                return;
        if (c->version_known && o->version != s->version) {
                fault_set(&c->fault, ZERO_ECONFLICT,
                          "node %s has the job at version %llu, others at %llu: it needs recovery",
                          node_name(c->x, node), (unsigned long long)o->version,
                          (unsigned long long)s->version);
                return;
        }
        c->version_known = true;
        s->version = o->version;
        if (o->attempt > s->attempt)
                s->attempt = o->attempt;
        if (o->loss_scale > 0) /* else no step was decided yet */
                s->loss_scale = o->loss_scale;
        s->good_steps = o->good_steps;
        s->skipped = o->skipped;
}

static void open_answered(void *arg, int status, const char *text, const Zero__LinkMessage *m)
{
        struct opening *o = arg;
        struct coordinator *c = o->c;
        uint32_t node = o->node;

        free(o);
        if (!c->dead && status == ZERO_EPEER) {
                c->nodes[node] = NODE_UNASKED; /* again when it is up */
        } else if (!c->dead && (status || !m || m->body_case != ZERO__LINK_MESSAGE__BODY_OPENED)) {
                char why[400];

                snprintf(why, sizeof why, "node %s: %.300s", node_name(c->x, node), text);
                open_fail(c, status ? status : ZERO_EPROTO, why);
        } else if (!c->dead) {
                c->nodes[node] = NODE_OPEN;
                open_note(c, node, m->opened);
                c->phase = OPEN_DONE;
                for (uint32_t n = 0; n < c->x->cluster->n_nodes; n++)
                        if (c->nodes[n] != NODE_OPEN)
                                c->phase = OPEN_ASKING;
                if (c->phase == OPEN_DONE && c->fault.status)
                        open_fail(c, c->fault.status, c->fault.text);
                else if (c->phase == OPEN_DONE)
                        joins_admit(c);
        }
        coordinator_unref(c);
}

void open_ask(struct coordinator *c, uint32_t node)
{
        Zero__LinkMessage m = coordinator_to(c);
        Zero__Open open = ZERO__OPEN__INIT;
        struct opening *o = malloc(sizeof *o);

        if (!o)
                return;
        *o = (struct opening){ c, node };
        c->references++;
        c->nodes[node] = NODE_ASKED;
        open.uid = c->uid;
        open.world_size = c->step.world_size;
        open.reduce_dtype = c->reduce_dtype;
        open.layout = c->message;
        m.body_case = ZERO__LINK_MESSAGE__BODY_OPEN;
        m.open = &open;
        call_send(c->x, node, &m, 10 * CALL_MS, open_answered, o);
}

static double first_loss_scale(const layout *l)
{
        for (uint32_t g = 0; g < l->n_groups; g++)
                if (l->groups[g].dtype == ZERO_FP16)
                        return 65536;
        return 1;
}

static struct coordinator *coordinator_new(struct exchange *x, const char *name,
                                           const Zero__Join *join, layout *l)
{
        struct coordinator *c = calloc(1, sizeof *c);

        if (!c)
                return NULL;
        if (step_init(&c->step, join->world_size, x->cluster->n_nodes, x->n_owners) ||
            layout_to_message(l, &c->message)) {
                step_deinit(&c->step);
                free(c);
                return NULL;
        }
        c->x = x;
        c->references = 1;
        c->layout = l;
        c->uid = join->uid;
        c->reduce_dtype = join->reduce_dtype;
        c->step.loss_scale = first_loss_scale(l);
        snprintf(c->name, sizeof c->name, "%s", name);
        list_init(&c->joins);
        list_insert(&x->coordinators, &c->link);
        for (uint32_t n = 0; n < x->cluster->n_nodes; n++)
                open_ask(c, n);
        return c;
}

/* A job that exists takes only ranks that mean the same job. */
static int join_check(const struct coordinator *c, const Zero__Join *join, const layout *l,
                      struct fault *fault)
{
        char text[300];

        if (c->uid != join->uid && join->uid != 0)
                return fault_set(fault, ZERO_EPERM, "job '%s' belongs to user %u", c->name, c->uid);
        if (c->step.world_size != join->world_size)
                return fault_set(fault, ZERO_ECONFLICT,
                                 "world size %u here, %u so far in job '%s' (zeroctl drop ends it)",
                                 join->world_size, c->step.world_size, c->name);
        if (c->reduce_dtype != join->reduce_dtype)
                return fault_set(
                        fault, ZERO_ECONFLICT, "reduce_dtype %s here, %s so far in job '%s'",
                        dtype_name(join->reduce_dtype), dtype_name(c->reduce_dtype), c->name);
        if (!layout_equal(l, c->layout, text, sizeof text))
                return fault_set(fault, ZERO_ELAYOUT,
                                 "the layout of rank %u differs from job '%s' (zeroctl drop ends "
                                 "it): %s",
                                 join->rank, c->name, text);
        return 0;
}

void coordinator_join(struct exchange *x, uint32_t node, const Zero__LinkMessage *m)
{
        struct coordinator *c = coordinator_find(x, m->job);
        const Zero__Join *join = m->join;
        layout *l = NULL;
        struct join *j;
        struct fault fault;
        int r;

        if (!job_name_valid(m->job) || join->world_size < 1 || join->world_size > ZERO_RANK_MAX ||
            !join->layout || !dtype_valid(join->reduce_dtype)) {
                answer(x, node, m, ZERO_EPROTO, "malformed join");
                return;
        }
        r = layout_from_message(join->layout, &l, &fault);
        if (!r && c)
                r = join_check(c, join, l, &fault);
        if (!r && !c) {
                c = coordinator_new(x, m->job, join, l);
                if (c)
                        l = NULL;
                else
                        r = fault_set(&fault, ZERO_ENOMEM, "out of memory");
        }
        layout_free(l);
        j = r ? NULL : calloc(1, sizeof *j);
        if (!j) {
                answer(x, node, m, r ? r : ZERO_ENOMEM, r ? fault.text : "out of memory");
                return;
        }
        *j = (struct join){ .node = node, .rank = join->rank, .call = m->call };
        list_insert(&c->joins, &j->link);
        if (c->phase == OPEN_DONE)
                joins_admit(c);
}

/* ---- ranks leave -------------------------------------------------------------------- */

/* A session that ended while it attached wants no answer any more. */
void join_forget(struct coordinator *c, uint32_t node, uint32_t rank)
{
        list_for_each (&c->joins, item) {
                struct join *j = CONTAINER_OF(item, struct join, link);

                if (j->node != node || j->rank != rank)
                        continue;
                join_end(c, j, ZERO_ECLOSED, "the rank's session has ended");
                return;
        }
}
