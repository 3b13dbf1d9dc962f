/*
 * What an owner does with a complete sum.
 *
 * The owner offers the sum to its mirror.  Once all groups are complete and the coordinator has
 * asked, the owner records everything that its vote depends on, and votes.
 *
 * Nodes offer their gradients only to an owner.  Its mirror pulls the owner's sum in parts, in
 * the dtype of the owner's plane, takes the norm itself, votes and runs the same update.  That
 * costs at most four bytes per parameter and step instead of the twelve of the states, and the
 * mirror's vote must equal the owner's.
 *
 * Invariant: nobody overwrites a sum while it is being sent.  So what a mirror has taken is the sum
 * of the attempt that offered it.
 */
#include "daemon/step/reduce/accumulator.h"
#include "daemon/step/reduce/node_gradient.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/floor/base/crash.h"
#include "daemon/job/core/progress.h"
#include "proto/cleanup.h"
#include "proto/dtype.h"
#include "proto/sure.h"

/* ---- the mirror ---- */

/* A part of a group's sum on its way to the mirror. */
struct sending {
        struct replica *replica;
        uint32_t node, group;
        uint64_t transfer;
        struct range range; /* elements of the sum */
        struct mapping sum;
};

/* Whether any tensor of the group has a gradient. */
static bool group_present(const struct replica *h, uint32_t group, uint8_t *ret)
{
        const struct layout_group *g = &h->job->layout->groups[group];
        bool some = false;

        for (uint32_t i = 0; i < g->n_tensors; i++) {
                if (!h->accumulator->present[g->first_tensor + i])
                        continue;
                ret[i / 8] |= (uint8_t)(1u << (i % 8));
                some = true;
        }
        return some;
}

/* The group's sum is complete. */
static void mirror_offer(struct replica *h, uint32_t group)
{
        const struct job *job = h->job;
        const struct placement *placement = &job->placement;
        size_t bytes = (job->layout->groups[group].n_tensors + 7) / 8;
        Zero__LinkMessage m = job_message(job->name);
        Zero__Offer offer = ZERO__OFFER__INIT;
        bool some;

        if (h->copy != 0 || placement->copies < 2)
                return;
        CLEANUP(cleanup_free) uint8_t *present = sure_realloc(NULL, bytes);
        memset(present, 0, bytes);
        some = group_present(h, group, present);
        offer.attempt = job->attempt;
        offer.group = group;
        offer.owner = h->owner;
        offer.copy = 1;
        offer.last = true;
        offer.empty = !some || h->state->plan->shards[group].moment_count == 0;
        offer.present.data = present;
        offer.present.len = offer.empty ? 0 : bytes;
        m.body_case = ZERO__LINK_MESSAGE__BODY_OFFER;
        m.offer = &offer;
        fabric_send(job->x->fabric, holder_node(placement, holder_of(placement, h->owner, 1)), &m);
        crash_point(CRASH_MIRROR_OFFERED);
}

static void sum_sent(void *arg, int status)
{
        struct sending *s = arg;
        struct replica *h = s->replica;
        struct job *job = h->job;

        state_unmap(&s->sum);
        accumulator_read_end(h, s->group);
        free(s);
        job_unref(job);
}

static void sum_ready(struct mapping *sum)
{
        struct sending *s = CONTAINER_OF(sum, struct sending, sum);

        enum zero_dtype dtype = s->replica->state->plan->grad_dtype;

        if (staged_payload(s->replica->job, s->node, s->transfer, TRAFFIC_REDUCE,
                           (char *)sum->at + dtype_bytes(dtype, s->range.first),
                           dtype_bytes(dtype, s->range.count), false, sum_sent, s))
                sum_sent(s, -ECANCELED); /* the node is gone */
        else
                crash_point(CRASH_MIRROR_SENDING);
}

/* Whether the pull comes from the mirror and stays within the offer. */
static bool pull_fits(const struct job *job, const struct replica *h, uint32_t node,
                      const Zero__Pull *request)
{
        const struct placement *placement = &job->placement;

        return h && placement->copies > 1 && request->group < job->layout->n_groups &&
               holder_node(placement, holder_of(placement, h->owner, 1)) == node &&
               request->attempt == job->attempt && h->accumulator->groups[request->group].measured;
}

void mirror_pull_message(struct job *job, uint32_t node, const Zero__Pull *request)
{
        struct replica *h = replica_of_copy(job, request->owner, 0);
        struct range range = { request->first, request->count };
        const struct plan_shard *shard;
        struct sending *s;

        if (!pull_fits(job, h, node, request)) {
                ask_refuse(job, node, request->transfer, ZERO_EABORTED,
                           "the sum is not on offer: its attempt may be over");
                return;
        }
        shard = &h->state->plan->shards[request->group];
        if (!range_within(range, (struct range){ 0, shard->moment_count })) {
                ask_refuse(job, node, request->transfer, ZERO_EPROTO,
                           "the range reaches beyond this owner's");
                return;
        }
        s = malloc(sizeof *s);
        if (!s) {
                ask_refuse(job, node, request->transfer, ZERO_ENOMEM, "out of memory");
                return;
        }
        *s = (struct sending){ .replica = h,
                               .node = node,
                               .group = request->group,
                               .transfer = request->transfer,
                               .range = range };
        job_ref(job);
        accumulator_read_begin(h, request->group);
        state_want(&s->sum, h->state, plane_grad, request->group, shard->range, sum_ready);
}

/* ---- sums that nobody writes ---- */

/*
 * If all contributions to a group lie where the states do, away from the host, and may stay there,
 * the owner takes only the norm of the sum, and the update adds the contributions up.  That saves
 * writing and reading the sum, and costs a second reading of the contributions.
 *
 * A push of such a group begins no work.  An offer that need not be the last waits until the ranks
 * end the step, or until one of them needs its slot for another micro-batch (node_gradient.h); then
 * it is added as usual.  The norm of all deferred sums is taken at once, when the coordinator asks
 * for the vote.
 *
 * Invariants: a deferred sum keeps the pushed memory until the group's update has ended, or until
 * there will be no update.  Whoever gives the memory back earlier writes the sum first (settles
 * it).  That happens where nobody knows the outcome of this owner's vote, so that a state with a
 * recorded vote or decision has what it needs wherever it is opened; and where a rank leaves before
 * the vote, so that its successor finds its memory free.  No vote counts a group while it is being
 * settled.  States away from the host end with their process.
 */

/* Whether the sum need not be written if nothing follows.  A mirror would need the sum, and so
 * would an update ahead of the decision. */
static bool offer_may_stay(const struct offer *o)
{
        const struct replica *h = o->replica;
        const struct layout_group *g = &h->job->layout->groups[o->group];

        return !h->accumulator->left && !g->eager && o->node_gradient &&
               !state_survives(h->state) && h->job->placement.copies == 1 &&
               node_gradient_may_stay(o->node_gradient, h->state->id.place) &&
               !memchr(h->accumulator->present + g->first_tensor, 1, g->n_tensors) &&
               offer_is_alone(o);
}

bool offer_defers(const struct offer *o)
{
        return o->last && offer_may_stay(o);
}

bool offer_waits(const struct offer *o)
{
        if (o->last || !offer_may_stay(o) || !node_gradient_may_wait(o->node_gradient))
                return false;
        node_gradient_keep(o->node_gradient);
        return true;
}

void deferred_keep(struct offer *o)
{
        struct accumulator_group *lg = &o->replica->accumulator->groups[o->group];

        offer_mark_present(o);
        node_gradient_keep(o->node_gradient);
        o->replica->job->reduce->deferred++;
        lg->cursor++;
        lg->deferred = o;
}

struct offer *deferred_take(struct replica *h, uint32_t group)
{
        return STEAL(h->accumulator->groups[group].deferred);
}

void deferred_release(struct offer *o)
{
        if (!o)
                return;
        /* reduce_reset() frees the node gradient, with all others of the attempt */
        node_gradient_read_end(o->node_gradient, o->replica->owner, 0);
        offer_free(o);
}

const struct node_gradient *deferred_node_gradient(const struct offer *o)
{
        return o->node_gradient;
}

bool reduce_could_defer(const struct job *job, uint32_t place)
{
        bool owns = false;

        for_replicas (job, h) {
                if (!h->state || state_survives(h->state) || h->state->id.place != place)
                        return false;
                owns = true;
        }
        return owns && job->world_size == 1 && job->placement.copies == 1;
}

/* Takes the norm of all on an offload thread. */
struct deferred_task {
        struct offload_task task;
        struct replica *replica;
        uint64_t generation;
        struct group_norm norm;
        uint32_t n;
        struct offer *offers[];
};

static void deferred_run(struct offload_task *task, uint32_t worker)
{
        struct deferred_task *t = CONTAINER_OF(task, struct deferred_task, task);

        deferred_norm(t->replica, t->offers, t->n, &t->norm);
}

/* The attempt is over, or the group's pushed memory is wanted back: nobody may take the offer while
 * its norm was being taken. */
static void deferred_go_on(struct replica *h, struct offer *o, bool over)
{
        struct accumulator_group *lg = &h->accumulator->groups[o->group];
        uint32_t group = o->group;

        lg->busy = false;
        lg->measured = !over;
        if (over) {
                accumulator_forget_added(h, group);
                deferred_release(deferred_take(h, group));
                accumulator_advance(h, group);
        } else if (h->accumulator->left) {
                offer_settle(deferred_take(h, group));
        }
}

/* The sum of squares is one number for all groups: the first one keeps it. */
static void deferred_done(struct offload_task *task)
{
        struct deferred_task *t = CONTAINER_OF(task, struct deferred_task, task);
        struct replica *h = t->replica;
        struct job *job = h->job;
        bool over = t->generation != h->accumulator->generation;

        if (!over)
                h->accumulator->groups[t->offers[0]->group].norm = t->norm;
        for (uint32_t i = 0; i < t->n; i++)
                deferred_go_on(h, t->offers[i], over);
        free(t);
        if (!over) {
                accumulator_vote(h);
                shard_settled(job);
        }
        job_unref(job);
}

static bool is_unmeasured(const struct accumulator_group *lg)
{
        return lg->deferred && !lg->measured && !lg->busy;
}

/* 0 as long as a sum is not complete. */
static uint32_t unmeasured(const struct replica *h)
{
        uint32_t n = 0;

        for (uint32_t g = 0; g < h->job->layout->n_groups; g++) {
                const struct accumulator_group *lg = &h->accumulator->groups[g];

                if (accumulator_has(h, g) && !lg->complete)
                        return 0;
                n += is_unmeasured(lg);
        }
        return n;
}

/* Begins to take the norm of all deferred sums that have none, once every sum is complete. */
static void deferred_measure(struct replica *h)
{
        struct accumulator *l = h->accumulator;
        uint32_t n = unmeasured(h);
        struct deferred_task *t = n ? calloc(1, sizeof *t + n * sizeof t->offers[0]) : NULL;

        h->job->reduce->lacking = h->job->reduce->lacking || (n && !t);
        if (!t)
                return;
        t->replica = h;
        job_ref(h->job);
        t->generation = l->generation;
        for (uint32_t g = 0; g < h->job->layout->n_groups; g++) {
                if (!is_unmeasured(&l->groups[g]))
                        continue;
                l->groups[g].busy = true;
                group_norm_init(&l->groups[g].norm, h->job, g);
                t->offers[t->n++] = l->groups[g].deferred;
        }
        group_norm_init(&t->norm, h->job, t->offers[0]->group);
        t->task.run = deferred_run;
        t->task.done = deferred_done;
        job_compute(h->job, OFFLOAD_STEP, &t->task);
}

/* ---- the vote ---- */

/* Stores the ranks' blobs in memory that outlives the process. */
static int accumulator_keep(struct replica *h, struct fault *fault)
{
        const struct job *job = h->job;

        if (h->accumulator->kept_lost)
                return fault_set(fault, ZERO_ENOMEM, "no memory for the ranks' blobs of the step");
        for (uint32_t r = 0; r < job->world_size; r++) {
                const struct blob *k = &h->accumulator->kept[r];
                int status = state_blob_stage(h->state, r, job->attempt, k->data, k->bytes);

                if (status)
                        return fault_set(fault, status == -EDQUOT ? ZERO_EQUOTA : ZERO_ESHM,
                                         "no memory for the ranks' blobs of the step: %s",
                                         strerror(-status));
        }
        return 0;
}

/* Stores the vote, with everything that it depends on, in memory that outlives the process. */
static void accumulator_record(struct replica *h, const struct owner_record *to,
                               const struct exact_sum *sum, bool finite, struct fault *fault)
{
        const struct job *job = h->job;
        struct state_record record;

        if (h->state->record->attempt < to->attempt) /* attempts were aborted meanwhile */
                state_abort(h->state, to->attempt);
        record = *h->state->record;
        memcpy(h->state->present, h->accumulator->present, job->layout->n_tensors);
        if (accumulator_keep(h, fault))
                return;
        crash_point(CRASH_VOTE_KEPT);
        record.finite = finite;
        record.norm = *sum;
        record.world_size = job->world_size;
        record_params(&record, &h->accumulator->params);
        state_prepare(h->state, &record);
        assert(record_stands(h, to));
        crash_point(CRASH_VOTE_RECORDED);
}

/* Checks that the step has a hyperparameter set for every tensor that is updated here. */
static int accumulator_check(const struct replica *h, struct fault *fault)
{
        const struct job *job = h->job;
        uint32_t n_sets = h->accumulator->params.n_sets, t;
        uint64_t set;

        if (!h->accumulator->have_params || n_sets == 0)
                return 0;
        t = state_check_sets(h->state, h->accumulator->params.sets, n_sets);
        if (t == job->layout->n_tensors)
                return 0;
        set = h->state->tensor_set[t];
        if (set < n_sets)
                return fault_set(
                        fault, ZERO_EINVAL,
                        "tensor '%.200s' uses hyperparameter set %llu, which is of %s, but "
                        "its optimizer is %s",
                        job->layout->tensors[t].name, (unsigned long long)set,
                        hyper_optimizer(&h->accumulator->params.sets[set]),
                        optimizer_of(job->layout, t)->name);
        return fault_set(fault, ZERO_EINVAL,
                         "tensor '%.200s' uses hyperparameter set %llu, but the step has %u",
                         job->layout->tensors[t].name, (unsigned long long)set, n_sets);
}

static void vote_send(const struct replica *h, struct exact_sum *sum, bool finite,
                      struct fault *fault)
{
        const struct job *job = h->job;
        Zero__LinkMessage m = job_message(job->name);
        Zero__Prepared vote = ZERO__PREPARED__INIT;

        vote.status = (uint32_t)fault->status;
        vote.text = fault->text;
        vote.attempt = job->attempt;
        vote.owner = h->owner;
        vote.copy = h->copy;
        vote.finite = finite;
        vote.closing = h->accumulator->have_params;
        vote.n_norm = EXACT_SUM_BINS;
        vote.norm = sum->bin;
        m.body_case = ZERO__LINK_MESSAGE__BODY_PREPARED;
        m.prepared = &vote;
        fabric_send(job->x->fabric, job->coordinator, &m);
        crash_point(CRASH_VOTE_SENT);
}

bool accumulator_summed(const struct replica *h, uint32_t group, uint8_t *ret_present)
{
        const struct accumulator_group *lg = &h->accumulator->groups[group];
        const struct layout_group *g = &h->job->layout->groups[group];

        if (!accumulator_has(h, group) || !lg->measured || lg->busy || !lg->norm.finite)
                return false;
        memcpy(ret_present + g->first_tensor, h->accumulator->present + g->first_tensor,
               g->n_tensors);
        return true;
}

/* False: some group's sum is not complete. */
static bool sums_add_up(const struct replica *h, struct exact_sum *ret_sum, bool *ret_finite)
{
        const struct accumulator *l = h->accumulator;

        exact_sum_init(ret_sum);
        *ret_finite = true;
        for (uint32_t g = 0; g < h->job->layout->n_groups; g++) {
                if (!accumulator_has(h, g))
                        continue;
                if (!l->groups[g].measured || l->groups[g].busy) /* a task may be writing its sum */
                        return false;
                exact_sum_merge(ret_sum, &l->groups[g].norm.sum);
                *ret_finite = *ret_finite && l->groups[g].norm.finite;
        }
        exact_sum_normalize(ret_sum);
        return true;
}

void accumulator_vote(struct replica *h)
{
        const struct owner_event e = { .kind = OWNER_SUMMED };
        struct accumulator *l = h->accumulator;
        struct owner_actions actions;
        struct owner o;
        struct exact_sum sum;
        struct fault fault = { 0 };
        bool finite;

        if (!l->preparing) /* saves adding up all groups each time one is complete */
                return;
        deferred_measure(h);
        owner_of_replica(h, &o);
        o.replicas[0].asked = true;
        o.replicas[0].closing = l->have_params;
        o.replicas[0].summed = sums_add_up(h, &sum, &finite);
        owner_step(&o, &e, &actions);
        if (!actions.n)
                return;
        l->preparing = false; /* OWNER_VOTE */
        if (accumulator_check(h, &fault) == 0 && l->have_params)
                accumulator_record(h, &actions.items[0].record, &sum, finite, &fault);
        l->voted = l->have_params;
        job_waited(h->job, WAIT_vote, h->owner, NO_GROUP, l->asked_ns);
        vote_send(h, &sum, finite, &fault);
}

void accumulator_complete(struct replica *h, uint32_t group)
{
        struct accumulator_group *lg = &h->accumulator->groups[group];

        lg->complete = true;
        lg->measured = !lg->deferred;
        if (h->job->dead)
                return;
        mirror_offer(h, group);
        for_observers (h->job->x, o)
                if (o->summed)
                        o->summed(h, group);
        accumulator_vote(h);
}

/* Takes the ranks' blobs of the step; false: out of memory. */
static bool kept_take(struct replica *h, const Zero__Prepare *m)
{
        const struct job *job = h->job;
        struct accumulator *l = h->accumulator;

        if (l->n_kept != job->world_size) {
                struct blob *kept = calloc(job->world_size, sizeof *kept);

                if (!kept)
                        return false;
                accumulator_forget_kept(l);
                l->kept = kept;
                l->n_kept = job->world_size;
        }
        for (uint32_t r = 0; r < l->n_kept; r++)
                blob_clear(&l->kept[r]);
        for (size_t i = 0; i < m->n_kept; i++)
                if (m->kept[i]->rank >= l->n_kept || m->kept[i]->blob.len > ZERO_BLOB_MAX ||
                    blob_set(&l->kept[m->kept[i]->rank], m->kept[i]->blob.data,
                             m->kept[i]->blob.len))
                        return false;
        return true;
}

void accumulator_prepare(struct replica *h, const Zero__Prepare *m,
                         const struct step_params *params)
{
        struct accumulator *l = h->accumulator;

        l->kept_lost = params && !kept_take(h, m);
        l->preparing = true;
        l->asked_ns = uv_hrtime();
        l->have_params = params != NULL;
        if (params)
                l->params = *params;
        accumulator_vote(h);
}
