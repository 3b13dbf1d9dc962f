/* Creates jobs that their coordinator opens. */
#include "daemon/cluster/checkpoint/checkpoint.h"
#include "daemon/cluster/engine/engine.h"
#include "daemon/cluster/membership/membership.h"
#include "daemon/job/core/shut.h"

#include <stdlib.h>
#include <string.h>

#include "daemon/floor/base/crash.h"
#include "daemon/floor/base/log.h"
#include "proto/cleanup.h"

/* Creates the job's state on an offload thread; then Open is answered. */
struct make {
        struct offload_task task;
        struct job *job;
        uint32_t node;
        uint64_t call;
        int status;
        struct fault fault;
};

static void opened_add(Zero__Opened *opened, const struct replica *h,
                       struct standing_message *standings)
{
        if (opened->n_standings == STATES_MAX)
                return;
        opened->standings[opened->n_standings] =
                standing_fill(h->state, &standings[opened->n_standings]);
        opened->n_standings++;
}

static void opened_answer(struct engine *x, uint32_t node, uint64_t call, const struct job *job,
                          bool created)
{
        Zero__LinkMessage m = job_message(job->name);
        Zero__Opened opened = ZERO__OPENED__INIT;
        struct standing_message standings[STATES_MAX];
        Zero__Standing *pointers[STATES_MAX];

        opened.created = created;
        opened.known = true;
        opened.attempt = job->attempt;
        opened.standings = pointers;
        for_replicas (job, h)
                opened_add(&opened, h, standings);
        list_for_each ((struct list *)&job->old_replicas, item) {
                opened_add(&opened, CONTAINER_OF(item, struct replica, link), standings);
        }
        m.answer = call;
        m.body_case = ZERO__LINK_MESSAGE__BODY_OPENED;
        m.opened = &opened;
        crash_point(CRASH_OPEN_ANSWERING);
        fabric_send(x->fabric, node, &m);
        crash_point(CRASH_OPEN_ANSWERED);
}

static int replica_make(struct replica *h, struct fault *fault)
{
        struct job *job = h->job;
        struct engine *x = job->x;
        int r = shards_make(x, &job->spec, &job->placement, job->partition, h->owner, h->copy,
                            false, &h->state, fault);

        if (r)
                return r;
        for (uint32_t g = 0; r == 0 && g < job->layout->n_groups; g++)
                r = state_init_group(h->state, job->layout, g, x->ops);
        if (r)
                return fault_errno(fault, r, "cannot write the first values");
        state_abort(h->state, JOB_FILLED); /* from here on a restart takes the state up */
        return 0;
}

static void make_run(struct offload_task *task, uint32_t worker)
{
        struct make *make = CONTAINER_OF(task, struct make, task);

        for_replicas (make->job, h)
                if (!make->status)
                        make->status = replica_make(h, &make->fault);
}

static uint64_t held_bytes(const struct job *job)
{
        uint64_t bytes = 0;

        for_replicas (job, h)
                bytes += state_bytes(h->state);
        return bytes;
}

static void make_done(struct offload_task *task)
{
        struct make *make = CONTAINER_OF(task, struct make, task);
        struct job *job = make->job;
        struct engine *x = job->x;
        Zero__LinkMessage m = job_message(job->name);

        job->opening = JOB_OPEN;
        m.call = make->call;
        if (job->dead) {
                job->drop_state = true;
                answer(x, make->node, &m, ZERO_ENOJOB,
                       "the job was dropped while it was being created");
        } else if (make->status) {
                log_error_for(job->uid, "job %s: %s", job->name, make->fault.text);
                answer(x, make->node, &m, make->status, make->fault.text);
                job->drop_state = true; /* nothing of a failed creation stays */
                job_detach(job);
        } else {
                log_info_for(
                        job->uid,
                        "job %s: opened, %llu parameters in %u groups, %llu bytes of state here",
                        job->name, (unsigned long long)job->layout->elements, job->layout->n_groups,
                        (unsigned long long)held_bytes(job));
                job->attempt = JOB_FILLED;
                opened_answer(x, make->node, make->call, job, true);
        }
        free(make);
        job_unref(job);
}

static void job_make(struct job *job, uint32_t node, uint64_t call)
{
        struct make *make = calloc(1, sizeof *make);
        Zero__LinkMessage m = ZERO__LINK_MESSAGE__INIT;

        if (!make) {
                m.call = call;
                answer(job->x, node, &m, ZERO_ENOMEM, "out of memory");
                job_detach(job);
                return;
        }
        *make = (struct make){ .task = { .run = make_run, .done = make_done },
                               .job = job,
                               .node = node,
                               .call = call };
        job_ref(job);
        job_compute(job, OFFLOAD_MAKE, &make->task);
}

static void unknown_answer(struct engine *x, uint32_t node, const Zero__LinkMessage *open,
                           bool later)
{
        Zero__LinkMessage m = job_message(open->job);
        Zero__Opened opened = ZERO__OPENED__INIT;

        m.answer = open->call;
        m.body_case = ZERO__LINK_MESSAGE__BODY_OPENED;
        m.opened = &opened;
        opened.later = later;
        fabric_send(x->fabric, node, &m);
}

/* A job of that name on this node must be the same job. */
static int open_check(const struct job *job, const struct job_spec *spec, struct fault *fault)
{
        if (job->opening)
                return fault_set(fault, ZERO_EBUSY, "job '%s' is being created: try again",
                                 job->name);
        return job_spec_compare(spec, &job->spec, fault);
}

/*
 * Whether the job may go for another one of its user's and its name.  Nobody has worked on it or
 * looks at it, and its coordinator knows another one: an opening that did not come to its end left
 * this one.
 */
static bool gives_way(const struct job *job, uint32_t uid)
{
        return job->uid == uid && !job->opening && !job->n_attached &&
               job->holders == job->onlookers && job_fresh(job);
}

/* The node has a job of that name. */
static void open_answer(struct job *job, uint32_t node, const Zero__LinkMessage *m,
                        const struct job_spec *spec)
{
        struct fault fault;
        int r = open_check(job, spec, &fault);

        if (!r) {
                opened_answer(job->x, node, m->call, job, false);
        } else if (gives_way(job, spec->uid)) {
                log_warning("job %s: deleted here, where nobody has worked on it: %s", job->name,
                            fault.text);
                unknown_answer(job->x, node, m, true);
                job_discard(job->x, m->job);
        } else {
                answer(job->x, node, m, r, fault.text);
        }
}

/* Makes a replica for everything that this node holds of the job. */
static bool replicas_new(struct job *job)
{
        const struct placement *placement = &job->placement;
        struct replica *h;

        for (uint32_t i = 0; i < placement_holders(placement); i++)
                if (holder_node(placement, i) == job->x->cluster->self &&
                    replica_new(job, holder_owner(placement, i), holder_copy(placement, i), &h))
                        return false;
        return true;
}

/* A coordinator of the release before does not ask again. */
static bool asks_again(const struct engine *x, uint32_t coordinator)
{
        struct fabric_info info;

        fabric_info(x->fabric, coordinator, &info);
        return coordinator == x->cluster->self || info.link.speaks >= MESSAGES_GOODBYE;
}

static bool is_owner(const struct engine *x)
{
        return placement_owner_on(&x->placement, x->cluster->self) != NO_OWNER;
}

/*
 * Whether the node has to wait with its answer until a change of owners is decided.  A state that
 * an owner made meanwhile would be of the old epoch, without those of the others: an owner refuses.
 */
static bool open_waits(const struct engine *x, uint32_t node, const Zero__Open *open)
{
        return membership_changing(x) && asks_again(x, node) && !(open->create && is_owner(x));
}

/* Whether a job with that layout may be created. */
static int open_new_check(struct engine *x, uint32_t node, const struct job_spec *spec,
                          struct fault *fault)
{
        uint64_t bytes = job_layout_bytes(spec->layout);
        char what[ZERO_NAME_MAX + 40];
        int r = job_admit(x, spec->name, spec->uid, spec->layout, fault);

        /* the change came behind the coordinator's first question: the ranks join again */
        if (r && membership_changing(x) && asks_again(x, node))
                return fault->status = ZERO_EABORTED;
        if (r || !bytes)
                return r;
        snprintf(what, sizeof what, "the layout of job '%s'", spec->name);
        return store_admit(x->store, bytes, bytes, what, fault);
}

/* Answers if the node has a state file of the job that it does not use. */
static bool open_is_shut(struct engine *x, uint32_t node, const Zero__LinkMessage *m)
{
        const char *why = job_find(x, m->job) ? NULL : shut_why(x, m->job);

        if (shut_has(x, m->job))
                answer(x, node, m, ZERO_EPEER, "the job's state on this node waits for memory");
        else if (why && (is_owner(x) || !m->open->create))
                answer(x, node, m, ZERO_EIO, why);
        else
                return false;
        return true;
}

void job_open_message(struct engine *x, uint32_t node, const Zero__LinkMessage *m)
{
        const Zero__Open *open = m->open;
        struct job *job = job_find(x, m->job);
        struct job_spec spec = job_spec_named(m->job);
        struct fault fault;
        bool waits = !job && open_waits(x, node, open);
        int r = 0;

        JOB_SPEC_READ(&spec, open);
        if (!job_name_valid(m->job) || !open->layout || job_spec_check(&spec, &fault) ||
            node != coordinator_of(x, m->job)) {
                answer(x, node, m, ZERO_EPROTO,
                       "the request to create the job is malformed or not from the job's "
                       "coordinator");
                return;
        }
        if (open_is_shut(x, node, m))
                return;
        if (waits || (!job && drop_only_ends(x, m->job))) {
                unknown_answer(x, node, m, waits || open->create);
                return;
        }
        r = job ? 0 : drop_check(x, m->job, &fault);
        if (!r && !job && !open->create) {
                unknown_answer(x, node, m, false);
                return;
        }
        if (!r)
                r = optimizer_layout(open->layout, &spec.layout, &fault);
        if (!r && job) {
                open_answer(job, node, m, &spec);
                layout_free(spec.layout);
                return;
        }
        if (!r)
                r = open_new_check(x, node, &spec, &fault);
        if (r) {
                layout_free(spec.layout);
                answer(x, node, m, r, fault.text);
                return;
        }
        job = job_new(x, &spec);
        if (!job || !replicas_new(job)) {
                if (job)
                        job_unref(job);
                answer(x, node, m, ZERO_ENOMEM, "out of memory");
                return;
        }
        list_insert(&x->jobs, &job->link);
        if (!list_empty(&job->replicas)) {
                job_make(job, node, m->call);
                return;
        }
        job->opening = JOB_OPEN;
        opened_answer(x, node, m->call, job, true);
}
