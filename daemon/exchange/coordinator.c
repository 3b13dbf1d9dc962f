/*
 * Drives job/step.c for the jobs that this node coordinates: joins come in, the job is opened on
 * all nodes, votes are collected, decisions go out, and everybody is told who is late.
 */
#include "daemon/exchange/exchange.h"

#include <stdlib.h>
#include <string.h>

#include "daemon/base/log.h"
#include "proto/cleanup.h"

enum open_phase { OPEN_ASKING, OPEN_DONE, OPEN_FAILED };
enum node_open { NODE_UNASKED, NODE_ASKED, NODE_OPEN };

/* What a node last reported to be late on it. */
struct report {
        bool waiting;
        uint32_t n;
        struct wait_line lines[WAIT_LINES];
};

struct coordinator {
        struct list link; /* exchange.coordinators */
        struct exchange *x;
        uint32_t references;  /* itself, and calls under way */
        bool dead;
        char name[ZERO_NAME_MAX + 1];
        uint32_t uid, reduce_dtype;
        Zero__Layout *message;
        layout *layout;
        struct step step;
        enum open_phase phase;
        enum node_open nodes[ZERO_NODE_MAX];
        bool created[ZERO_NODE_MAX]; /* made there by this opening: nothing is lost if it is dropped */
        bool version_known;   /* some owner has told where its state stands */
        struct fault fault;   /* why opening failed */
        struct list joins;
        struct report reports[ZERO_NODE_MAX];
        bool told;            /* the last summary was not empty */
};

/* A join that waits for its answer. */
struct join {
        struct list link;
        uint32_t node, rank;
        uint64_t call;
        bool admitted;
};

struct opening {
        struct coordinator *c;
        uint32_t node;
};

static struct coordinator *coordinator_find(const struct exchange *x, const char *name)
{
        list_for_each(&x->coordinators, item)
        {
                struct coordinator *c = CONTAINER_OF(item, struct coordinator, link);

                if (strcmp(c->name, name) == 0)
                        return c;
        }
        return NULL;
}

const struct step *coordinator_step(const struct exchange *x, const char *job)
{
        const struct coordinator *c = coordinator_find(x, job);

        return c ? &c->step : NULL;
}

static void coordinator_unref(struct coordinator *c)
{
        if (--c->references)
                return;
        step_deinit(&c->step);
        layout_free(c->layout);
        if (c->message)
                zero__layout__free_unpacked(c->message, NULL);
        free(c);
}

static Zero__LinkMessage coordinator_to(const struct coordinator *c)
{
        Zero__LinkMessage m = ZERO__LINK_MESSAGE__INIT;

        m.job = (char *)c->name;
        m.epoch = c->step.epoch;
        return m;
}

/* ---- answering joins ------------------------------------------------------------- */

static void join_end(struct coordinator *c, struct join *j, int status, const char *text)
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

static void coordinator_close(struct coordinator *c, int status, const char *text)
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

        list_for_each(&c->joins, item)
        {
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

static void open_ask(struct coordinator *c, uint32_t node)
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
                return fault_set(fault, ZERO_ECONFLICT, "world size %u here, %u so far in job '%s'",
                                 join->world_size, c->step.world_size, c->name);
        if (c->reduce_dtype != join->reduce_dtype)
                return fault_set(fault, ZERO_ECONFLICT, "reduce_dtype %s here, %s so far in job '%s'",
                                 dtype_name(join->reduce_dtype), dtype_name(c->reduce_dtype), c->name);
        if (!layout_equal(l, c->layout, text, sizeof text))
                return fault_set(fault, ZERO_ELAYOUT, "the layout of rank %u differs from job '%s': %s",
                                 join->rank, c->name, text);
        return 0;
}

static void coordinator_join(struct exchange *x, uint32_t node, const Zero__LinkMessage *m)
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
static void join_forget(struct coordinator *c, uint32_t node, uint32_t rank)
{
        list_for_each(&c->joins, item)
        {
                struct join *j = CONTAINER_OF(item, struct join, link);

                if (j->node != node || j->rank != rank)
                        continue;
                join_end(c, j, ZERO_ECLOSED, "the rank's session has ended");
                return;
        }
}

static void coordinator_part(struct coordinator *c, uint32_t node, uint32_t rank, bool orderly)
{
        Zero__LinkMessage m = coordinator_to(c);
        Zero__Part part = ZERO__PART__INIT;

        join_forget(c, node, rank);
        if (rank >= c->step.world_size || c->step.node_of_rank[rank] != node)
                return;
        step_part(&c->step, rank, orderly);
        part.rank = rank;
        part.orderly = orderly;
        part.told = true;
        m.body_case = ZERO__LINK_MESSAGE__BODY_PART;
        m.part = &part;
        send_all(c->x, &m);
        if (!orderly)
                log_warning("job %s: rank %u on %s was lost", c->name, rank, node_name(c->x, node));
}

/* ---- steps ----------------------------------------------------------------------------- */

static void coordinator_prepare(struct coordinator *c)
{
        Zero__LinkMessage m = coordinator_to(c);
        Zero__Prepare prepare = ZERO__PREPARE__INIT;
        struct step_params_message params;

        prepare.attempt = c->step.attempt;
        if (!c->step.norm_only)
                prepare.params = step_params_to_message(&c->step.params, &params);
        m.body_case = ZERO__LINK_MESSAGE__BODY_PREPARE;
        m.prepare = &prepare;
        for (uint32_t o = 0; o < c->x->n_owners; o++)
                fabric_send(c->x->fabric, c->x->owner_node[o], &m);
}

static void coordinator_decide(struct coordinator *c)
{
        const struct step *s = &c->step;
        Zero__LinkMessage m = coordinator_to(c);
        Zero__Decision d = ZERO__DECISION__INIT;
        struct step_params_message params;

        d.norm_only = s->norm_only;
        if (s->norm_only) {
                d.attempt = s->attempt;
                d.grad_norm = s->norm;
                d.finite = s->norm == s->norm;
        } else {
                d.attempt = s->attempt - 1;
                d.commit = s->decision.commit;
                d.finite = s->decision.finite;
                d.overflow = s->decision.overflow;
                d.grad_norm = s->decision.grad_norm;
                d.clip = s->decision.clip;
                d.good_steps = s->decision.good_steps;
                d.params = step_params_to_message(&s->params, &params);
        }
        d.version = s->version;
        d.loss_scale = s->loss_scale;
        m.body_case = ZERO__LINK_MESSAGE__BODY_DECISION;
        m.decision = &d;
        send_all(c->x, &m);
}

static void coordinator_ready(struct coordinator *c, uint32_t node, const Zero__LinkMessage *m)
{
        const Zero__Ready *ready = m->ready;
        struct step_params params;
        enum step_action action = STEP_NOTHING;
        struct fault fault;
        int r = 0;

        if (ready->params)
                r = step_params_from_message(ready->params, &params, &fault);
        if (!r)
                r = step_ready(&c->step, node, ready->attempt, ready->params ? &params : NULL,
                               ready->rank, &action, &fault);
        answer(c->x, node, m, r, r ? fault.text : "");
        if (action == STEP_PREPARE)
                coordinator_prepare(c);
}

static void coordinator_vote(struct coordinator *c, uint32_t node, const Zero__Prepared *p)
{
        struct votes vote = { .finite = p->finite };
        enum step_action action;

        if (p->owner >= c->x->n_owners || c->x->owner_node[p->owner] != node ||
            p->n_norm != EXACT_SUM_BINS || p->closing == c->step.norm_only)
                return;
        exact_sum_init(&vote.norm);
        memcpy(vote.norm.bin, p->norm, sizeof vote.norm.bin);
        step_vote(&c->step, p->owner, p->attempt, &vote, &action);
        if (action == STEP_DECIDE)
                coordinator_decide(c);
}

/* ---- who is late -------------------------------------------------------------------------- */

static void coordinator_report(struct coordinator *c, uint32_t node, const Zero__Progress *p)
{
        struct report *r = &c->reports[node];
        uint64_t now = exchange_now(c->x);

        *r = (struct report){ .waiting = p->waiting };
        for (size_t i = 0; i < p->n_waits && r->n < WAIT_LINES; i++) {
                struct wait_line *line = &r->lines[r->n++];

                snprintf(line->who, sizeof line->who, "%s", p->waits[i]->who);
                snprintf(line->what, sizeof line->what, "%s", p->waits[i]->what);
                line->since_ms = now > p->waits[i]->since_ms ? now - p->waits[i]->since_ms : 0;
        }
}

static void summary_add(struct wait_line *lines, uint32_t *n, const struct wait_line *line)
{
        if (*n < WAIT_LINES)
                lines[(*n)++] = *line;
}

/* Missing ranks first, then what the nodes report. */
static uint32_t coordinator_summary(const struct coordinator *c, struct wait_line *lines)
{
        const struct step *s = &c->step;
        uint64_t now = exchange_now(c->x);
        uint32_t n = 0;

        for (uint32_t r = 0; r < s->world_size; r++) {
                struct wait_line line = { .since_ms = now, .lost = s->rank_lost[r] };

                if (s->node_of_rank[r] != RANK_ABSENT)
                        continue;
                snprintf(line.who, sizeof line.who, "rank %u", r);
                snprintf(line.what, sizeof line.what, "%s",
                         line.lost ? "it was lost: its session ended" : "to attach");
                summary_add(lines, &n, &line);
        }
        for (uint32_t i = 0; i < c->x->cluster->n_nodes; i++)
                for (uint32_t k = 0; k < c->reports[i].n; k++)
                        summary_add(lines, &n, &c->reports[i].lines[k]);
        return n;
}

static bool coordinator_is_waited_for(const struct coordinator *c)
{
        if (!list_empty(&c->joins))
                return true;
        for (uint32_t i = 0; i < c->x->cluster->n_nodes; i++)
                if (c->reports[i].waiting)
                        return true;
        return false;
}

static void coordinator_tell(struct coordinator *c)
{
        Zero__LinkMessage m = coordinator_to(c);
        Zero__Progress progress = ZERO__PROGRESS__INIT;
        Zero__Wait waits[WAIT_LINES], *pointers[WAIT_LINES];
        struct wait_line lines[WAIT_LINES];
        uint32_t n = coordinator_is_waited_for(c) ? coordinator_summary(c, lines) : 0;

        if (n == 0 && !c->told)
                return;
        for (uint32_t i = 0; i < n; i++) {
                zero__wait__init(&waits[i]);
                waits[i].who = lines[i].who;
                waits[i].what = lines[i].what;
                waits[i].since_ms = exchange_now(c->x) - lines[i].since_ms;
                waits[i].lost = lines[i].lost;
                pointers[i] = &waits[i];
        }
        progress.summary = true;
        progress.n_waits = n;
        progress.waits = pointers;
        m.body_case = ZERO__LINK_MESSAGE__BODY_PROGRESS;
        m.progress = &progress;
        send_all(c->x, &m);
        c->told = n > 0;
}

/* ---- events ---------------------------------------------------------------------------------- */

void coordinator_tick(struct exchange *x)
{
        list_for_each(&x->coordinators, item)
        {
                coordinator_tell(CONTAINER_OF(item, struct coordinator, link));
        }
}

void coordinator_message(struct exchange *x, uint32_t node, const Zero__LinkMessage *m)
{
        struct coordinator *c;

        if (m->body_case == ZERO__LINK_MESSAGE__BODY_JOIN) {
                coordinator_join(x, node, m);
                return;
        }
        c = coordinator_find(x, m->job);
        if (!c) {
                answer(x, node, m, ZERO_ENOJOB, "the job's coordinator does not know it");
                return;
        }
        switch (m->body_case) {
        case ZERO__LINK_MESSAGE__BODY_PART:
                coordinator_part(c, node, m->part->rank, m->part->orderly);
                break;
        case ZERO__LINK_MESSAGE__BODY_READY:
                coordinator_ready(c, node, m);
                break;
        case ZERO__LINK_MESSAGE__BODY_PREPARED:
                coordinator_vote(c, node, m->prepared);
                break;
        case ZERO__LINK_MESSAGE__BODY_DONE:
                step_done(&c->step, m->done->owner, m->done->attempt);
                break;
        case ZERO__LINK_MESSAGE__BODY_PROGRESS:
                coordinator_report(c, node, m->progress);
                break;
        default:
                break;
        }
}

void coordinator_up(struct exchange *x, uint32_t node)
{
        list_for_each(&x->coordinators, item)
        {
                struct coordinator *c = CONTAINER_OF(item, struct coordinator, link);

                if (c->phase == OPEN_ASKING && c->nodes[node] == NODE_UNASKED)
                        open_ask(c, node);
        }
}

/* Its ranks are lost, and so are the joins that it sent. */
void coordinator_down(struct exchange *x, uint32_t node)
{
        list_for_each(&x->coordinators, item)
        {
                struct coordinator *c = CONTAINER_OF(item, struct coordinator, link);

                for (uint32_t r = 0; r < c->step.world_size; r++)
                        coordinator_part(c, node, r, false);
                c->reports[node] = (struct report){ 0 };
                list_for_each(&c->joins, waiting)
                {
                        struct join *j = CONTAINER_OF(waiting, struct join, link);

                        if (j->node == node)
                                join_end(c, j, ZERO_EPEER, "");
                }
        }
}

void coordinator_drop(struct exchange *x, const char *job)
{
        struct coordinator *c = coordinator_find(x, job);

        if (c)
                coordinator_close(c, ZERO_ENOJOB, "the job was dropped");
}

void coordinators_free(struct exchange *x)
{
        list_for_each(&x->coordinators, item)
        {
                coordinator_close(CONTAINER_OF(item, struct coordinator, link), ZERO_ECLOSED,
                                  "the daemon stops");
        }
}
