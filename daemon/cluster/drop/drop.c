/*
 * Drops a job on all nodes.
 *
 * A node that holds shards under the owner list in force keeps the drop.  Before it deletes
 * anything, it writes down which nodes may have some of the job (note_write()).  It then tells
 * each of them, and forgets the drop when all have answered.  A node that is away hears of the drop
 * when it comes up, from any node that keeps it, and before anybody asks that node for the job.
 *
 * Rule: until then this node neither makes nor takes up a job of that name.  So a node that hears
 * of a drop late has nothing of a new job of that name: nobody can make one without the nodes that
 * hold shards.
 */
#include "daemon/cluster/drop/drop.h"
#include "daemon/job/core/shut.h"
#include "daemon/job/shard/shard.h"

#include <stdlib.h>
#include <string.h>

#include "daemon/floor/base/crash.h"
#include "daemon/floor/base/log.h"
#include "proto/cleanup.h"

/* Bounds on the drops that some node has not heard of. */
enum { UNTOLD_MAX = 4096, UNTOLD_USER_MAX = 1024 };

struct drops {
        struct list noted, waits;
};

/* A drop that this node keeps. */
struct drop {
        struct list link; /* drops.noted */
        struct engine *x;
        char job[ZERO_NAME_MAX + 1];
        uint32_t uid;
        node_set untold; /* nodes that may have some of the job */
        node_set asked; /* those with a call in progress, which refers to this drop; this node while
                           it deletes the job */
};

/* Waits until the job is gone. */
struct drop_wait {
        struct list link; /* drops.waits */
        char job[ZERO_NAME_MAX + 1];
        uint32_t node;
        uint64_t call;
        drop_told *told; /* NULL: another node asks whether the job is gone here */
};

static struct drop *drop_find(struct engine *x, const char *job)
{
        list_for_each (&x->drops->noted, item) {
                struct drop *d = CONTAINER_OF(item, struct drop, link);

                if (strcmp(d->job, job) == 0)
                        return d;
        }
        return NULL;
}

static bool keeps_drops(const struct engine *x)
{
        return node_set_has(placement_nodes(&x->placement), x->cluster->self);
}

/* Root, where this node has nothing of the job. */
static uint32_t owner_of(struct engine *x, const char *name)
{
        const struct job *job = job_find(x, name);
        uint32_t uid = 0;
        struct fault fault;

        if (job)
                return job->uid;
        if (shut_has(x, name) || shut_why(x, name))
                shut_uid(x, name, &uid, &fault);
        return uid;
}

int drop_admit(struct engine *x, const char *job, struct fault *fault)
{
        uint32_t uid = owner_of(x, job), n = 0, n_user = 0;
        node_set away = NODE_SET_NONE;

        if (!keeps_drops(x) || drop_find(x, job))
                return 0;
        list_for_each (&x->drops->noted, item) {
                const struct drop *d = CONTAINER_OF(item, struct drop, link);

                if (!node_set_any(d->untold & ~x->placement.dead & ~x->up))
                        continue;
                away |= d->untold & ~x->placement.dead & ~x->up;
                n++;
                n_user += d->uid == uid;
        }
        if (n < UNTOLD_MAX && n_user < UNTOLD_USER_MAX)
                return 0;
        return fault_set(fault, ZERO_EQUOTA,
                         "%u dropped jobs, %u of them of user %u, wait for absent nodes to hear of "
                         "the drop; at most %d may wait, %d of one user: start the daemon of node "
                         "%s, or take the node out of the membership",
                         n, n_user, uid, UNTOLD_MAX, UNTOLD_USER_MAX,
                         node_name(x, node_set_first(away)));
}

/* Whether something in flight needs the job's state, or its memory is being freed. */
static bool is_dying(struct engine *x, const char *job)
{
        list_for_each (&x->dead_jobs, item) {
                const struct job *dead = CONTAINER_OF(item, struct job, link);

                if (strcmp(dead->name, job) == 0 && dead->references > dead->holders)
                        return true;
        }
        return false;
}

static void drop_forget(struct drop *d)
{
        note_delete(d->x->store, NOTE_DROP, d->job);
        list_remove(&d->link);
        free(d);
}

static void drops_check(struct engine *x);

/* ---- telling others -------------------------------------------------------------- */

struct tell {
        struct drop *drop;
        uint32_t node;
};

static void tell_answered(void *arg, int status, const char *text, const Zero__LinkMessage *m)
{
        struct tell *t = arg;
        struct engine *x = t->drop->x;

        node_set_remove(&t->drop->asked, t->node);
        if (status == ZERO_OK)
                node_set_remove(&t->drop->untold, t->node);
        free(t);
        drops_check(x);
}

static void drop_tell(struct drop *d, uint32_t node)
{
        Zero__LinkMessage m = job_message(d->job);
        Zero__Drop drop = ZERO__DROP__INIT;
        struct tell *t = malloc(sizeof *t);

        if (!t)
                return; /* tried again at the next tick */
        *t = (struct tell){ d, node };
        node_set_add(&d->asked, node);
        m.body_case = ZERO__LINK_MESSAGE__BODY_DROP;
        m.drop = &drop;
        call_send(d->x, node, &m, CALL_MS, tell_answered, t);
}

static void drops_tell(struct engine *x)
{
        list_for_each (&x->drops->noted, item) {
                struct drop *d = CONTAINER_OF(item, struct drop, link);

                for (uint32_t n = 0; n < x->cluster->n_nodes; n++)
                        if (node_set_has(d->untold & ~d->asked & x->up, n))
                                drop_tell(d, n);
        }
}

/* ---- dropping here --------------------------------------------------------------- */

static void drop_here(struct engine *x, const char *name)
{
        const struct job *job;

        job_name_dropped(x, name, false);
        shut_drop(x, name);
        job = job_find(x, name);
        if (job)
                log_info_for(job->uid, "job %s: dropped", name);
        job_discard(x, name);
}

static void wait_add(struct engine *x, const char *job, uint32_t node, uint64_t call,
                     drop_told *told)
{
        struct drop_wait *w = calloc(1, sizeof *w);
        Zero__LinkMessage m = job_message(job);

        if (!w) {
                m.call = call;
                answer(x, node, &m, ZERO_ENOMEM, "out of memory");
                return;
        }
        snprintf(w->job, sizeof w->job, "%s", job);
        w->node = node;
        w->call = call;
        w->told = told;
        list_insert(&x->drops->waits, &w->link);
}

static void wait_end(struct engine *x, struct drop_wait *w, const struct drop *d)
{
        Zero__LinkMessage m = job_message(w->job);

        list_remove(&w->link);
        m.call = w->call;
        if (w->told)
                w->told(x, w->node, w->call, d != NULL, d ? d->untold : NODE_SET_NONE);
        else
                answer(x, w->node, &m, ZERO_OK, "");
        free(w);
}

static bool is_over(const struct drop *d)
{
        return !node_set_any(d->untold & ~d->x->placement.dead) && !node_set_any(d->asked) &&
               !is_dying(d->x, d->job);
}

/* Deletes files first: a node that hears that the job is dropped finds none. */
static void drops_check(struct engine *x)
{
        list_for_each (&x->drops->noted, item) {
                const struct drop *d = CONTAINER_OF(item, struct drop, link);

                if (is_over(d))
                        note_delete(x->store, NOTE_DROP, d->job);
        }
        list_for_each (&x->drops->waits, item) {
                struct drop_wait *w = CONTAINER_OF(item, struct drop_wait, link);
                const struct drop *d = w->told ? drop_find(x, w->job) : NULL;

                if (!(d && node_set_any(d->asked)) && !is_dying(x, w->job))
                        wait_end(x, w, d);
        }
        list_for_each (&x->drops->noted, item) {
                struct drop *d = CONTAINER_OF(item, struct drop, link);

                if (is_over(d))
                        drop_forget(d);
        }
}

/* ---- keeping drops ------------------------------------------------------------------ */

static struct drop *drop_new(struct engine *x, const char *job, uint32_t uid, node_set untold)
{
        struct drop *d = drop_find(x, job);

        if (!d) {
                d = calloc(1, sizeof *d);
                if (!d)
                        return NULL;
                d->x = x;
                d->uid = uid;
                snprintf(d->job, sizeof d->job, "%s", job);
                list_insert(&x->drops->noted, &d->link);
        }
        d->untold |= untold;
        return d;
}

/* A note has three lines: the job, the nodes and the job's user. */
static void drop_write(const struct drop *d)
{
        char text[NOTE_SIZE]; /* 64 nodes, whose names have 63 characters at most, and a job */
        struct fault fault;
        size_t n = (size_t)snprintf(text, sizeof text, "%s\n", d->job);

        for (uint32_t i = 0; i < d->x->cluster->n_nodes; i++)
                if (node_set_has(d->untold, i))
                        n += (size_t)snprintf(text + n, sizeof text - n, "%s ", node_name(d->x, i));
        snprintf(text + n, sizeof text - n, "\n%u\n", d->uid);
        if (note_write(d->x->store, NOTE_DROP, d->job, text, &fault))
                log_error("job %s: cannot write down the drop: %s; if this daemon ends before all "
                          "nodes have heard of the drop, drop the job again",
                          d->job, fault.text);
}

/* Any node that is not declared dead may have some of the job. */
static struct drop *drop_keep(struct engine *x, const char *job)
{
        node_set others = node_set_first_n(x->cluster->n_nodes) & ~node_set_of(x->cluster->self);
        struct drop *d = NULL;

        if (keeps_drops(x))
                d = drop_new(x, job, owner_of(x, job), others & ~x->placement.dead);
        if (d)
                drop_write(d);
        return d;
}

void drop_order(struct engine *x, const char *job, uint32_t node, uint64_t call, drop_told *told)
{
        struct drop *d = drop_keep(x, job);

        if (d)
                /* or else the drop could be forgotten before the job has gone here */
                node_set_add(&d->asked, x->cluster->self);
        crash_point(CRASH_DROP_NOTED);
        drop_here(x, job);
        crash_point(CRASH_DROP_DELETED);
        if (d)
                node_set_remove(&d->asked, x->cluster->self);
        drops_tell(x);
        for (uint32_t n = 0; d && n < x->cluster->n_nodes; n++)
                if (node_set_has(d->untold & ~d->asked, n))
                        log_warning("job %s: node %s is away and drops the job when it comes up",
                                    job, node_name(x, n));
        wait_add(x, job, node, call, told);
        drops_check(x);
}

/* Only the coordinator takes back what its opening makes or has made, and only if nobody has worked
 * on it.  What is being taken up is of an earlier process. */
static bool may_take_back(const struct engine *x, uint32_t node, const struct job *job)
{
        if (!job || node != coordinator_of(x, job->name))
                return false;
        return job->opening ? job->opening == JOB_OPENING : job_fresh(job);
}

void drop_message(struct engine *x, uint32_t node, const Zero__LinkMessage *m)
{
        if (m->drop->made && may_take_back(x, node, job_find(x, m->job)))
                job_discard(x, m->job);
        else if (!m->drop->made)
                drop_here(x, m->job);
        if (m->call)
                wait_add(x, m->job, node, m->call, NULL);
        drops_check(x);
}

/* While no owner list has replaced the first, nodes without shards have nothing but ranks. */
static node_set that_hold(const struct engine *x)
{
        return x->placement.epoch ? NODE_SET_ALL : placement_nodes(&x->placement);
}

static node_set that_must_hear(const struct engine *x, const struct drop *d)
{
        return d ? d->untold & ~x->placement.dead & that_hold(x) : NODE_SET_NONE;
}

bool drop_only_ends(struct engine *x, const char *job)
{
        const struct drop *d = drop_find(x, job);

        return !node_set_any(that_must_hear(x, d)) && !(d && node_set_any(d->asked)) &&
               is_dying(x, job);
}

int drop_check(struct engine *x, const char *job, struct fault *fault)
{
        struct drop *d = drop_find(x, job);
        node_set untold = that_must_hear(x, d), away = untold & ~x->up;

        if (node_set_any(away))
                return fault_set(fault, ZERO_EBUSY,
                                 "job '%s' was dropped, and node %s, which is away, has not heard "
                                 "of the drop: start the node's daemon",
                                 job, node_name(x, node_set_first(away)));
        if (node_set_any(untold) || (d && node_set_any(d->asked)) || is_dying(x, job))
                return fault_set(fault, ZERO_EBUSY, "job '%s' is still being dropped: try again",
                                 job);
        if (d)
                drop_forget(d);
        return 0;
}

/* ---- what an earlier process left ------------------------------------------------- */

static node_set nodes_parse(const struct engine *x, const char *names)
{
        node_set nodes = NODE_SET_NONE;

        for (size_t n; *names; names += n + strspn(names + n, " ")) {
                n = strcspn(names, " ");
                for (uint32_t i = 0; i < x->cluster->n_nodes; i++)
                        if (strncmp(node_name(x, i), names, n) == 0 && !node_name(x, i)[n])
                                node_set_add(&nodes, i);
        }
        return nodes & ~node_set_of(x->cluster->self);
}

/* A node that was declared dead keeps no drops: the others may have made a new job of that name. */
static void resume_note(char *job, void *arg)
{
        char *nodes = strchr(job, '\n'), *end = nodes ? strchr(nodes + 1, '\n') : NULL;
        struct engine *x = arg;

        if (!end)
                return;
        *nodes = *end = 0;
        if (!job_name_valid(job))
                return;
        if (node_set_has(x->placement.dead, x->cluster->self)) {
                note_delete(x->store, NOTE_DROP, job);
                return;
        }
        if (drop_new(x, job, (uint32_t)strtoul(end + 1, NULL, 10), nodes_parse(x, nodes + 1)))
                drop_here(x, job);
}

void drops_resume(struct engine *x)
{
        notes_each(x->store, NOTE_DROP, resume_note, x);
        drops_check(x);
}

void drops_free(struct engine *x)
{
        while (!list_empty(&x->drops->waits)) {
                struct drop_wait *w = CONTAINER_OF(x->drops->waits.next, struct drop_wait, link);

                list_remove(&w->link);
                free(w);
        }
        list_for_each (&x->drops->noted, item) {
                struct drop *d = CONTAINER_OF(item, struct drop, link);

                list_remove(&d->link);
                free(d);
        }
}

/* ---- what the node goes through -------------------------------------------------- */

static void drops_node_up(struct engine *x, uint32_t node)
{
        drops_tell(x);
}

static int drops_admit(struct engine *x, const char *name, uint32_t uid, uint64_t *n_jobs,
                       struct fault *fault)
{
        return drop_check(x, name, fault);
}

/* The first module: a node that comes up hears of drops before anybody asks it for a job. */
static void drops_init(struct engine *x)
{
        list_init(&x->drops->noted);
        list_init(&x->drops->waits);
}

const struct module drop_module = { .node_at = offsetof(struct engine, drops),
                                    .node_bytes = sizeof(struct drops),
                                    .node_init = drops_init,
                                    .progress = drops_tell,
                                    .node_up = drops_node_up,
                                    .job_admit = drops_admit,
                                    .job_left = drops_check };
