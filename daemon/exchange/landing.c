/*
 * An owner's side of a gradient.
 *
 * Nodes offer what their ranks contributed to a group; the owner pulls its range of each
 * offer into a landing buffer and accumulates micro-batch by micro-batch, within each in node
 * order, in fp32: the result depends on no timing.  Offers out of turn are pulled
 * ahead while the budget lasts; the one whose turn it is may always be pulled, so a
 * full budget cannot stop the order.
 *
 * When all nodes of a group have sent their last, the group's norm is taken; when all
 * groups are complete and the coordinator has asked, the owner votes.
 *
 * Offers of the next attempt may come before this owner has heard of the decision, and while
 * the group's old gradient is still being read by the update: they wait.
 */
#include "daemon/exchange/exchange.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "proto/cleanup.h"

enum offer_phase { OFFER_WAITING, OFFER_PULLING, OFFER_LANDED };

struct offer {
        struct list link; /* landing_group.queues[node], or landing.early */
        struct ask ask;
        struct offload_task task;
        struct job *job;
        enum offer_phase phase;
        uint32_t node, group, micro_batch;
        uint64_t attempt;
        bool last, empty;
        bool void_;           /* its attempt is over: freed when its payload has ended */
        uint64_t generation;  /* of the landing, when its accumulation began */
        struct parcel *parcel; /* of this node's own ranks */
        uint8_t *present;     /* one bit a tensor */
        size_t present_bytes;
        void *buffer;         /* landing buffer */
};

struct landing_group {
        struct list *queues;  /* [node] */
        uint32_t *offered;    /* [node]: micro-batches offered so far */
        bool *finished;       /* [node]: its last was accumulated, or it has no ranks */
        uint32_t micro_batch, cursor; /* whose turn it is */
        bool busy;            /* an accumulation or the norm is running */
        bool complete, measured;
        struct exact_sum norm;
        bool finite;
};

struct landing {
        struct job *job;
        struct landing_group *groups; /* [group] */
        uint8_t *present;      /* [tensor]: has a gradient in this attempt */
        struct list early;     /* offers of attempts that this node has not heard of yet */
        uint32_t n_early;
        uint64_t buffer_bytes;
        bool preparing;        /* the coordinator wants this owner's vote */
        bool have_params;      /* ... to end the step, not for the norm only */
        struct step_params params;
        uint64_t generation;   /* tasks of an older one end in nothing */
};

/* The norm of one group, on an offload thread. */
struct measure {
        struct offload_task task;
        struct job *job;
        uint32_t group;
        uint64_t generation;
        struct exact_sum norm;
        bool finite;
};

static void landing_advance(struct job *job, uint32_t group);

int landing_new(struct job *job, struct landing **ret)
{
        uint32_t n = job->layout->n_groups, nodes = job->x->cluster->n_nodes;
        struct landing *l = calloc(1, sizeof *l);

        if (!l)
                return -ENOMEM;
        l->job = job;
        list_init(&l->early);
        l->groups = calloc(n, sizeof *l->groups);
        l->present = calloc(job->layout->n_tensors + 1, 1);
        if (!l->groups || !l->present)
                goto out_of_memory;
        for (uint32_t g = 0; g < n; g++) {
                struct landing_group *lg = &l->groups[g];

                lg->queues = malloc(nodes * sizeof *lg->queues);
                lg->offered = calloc(nodes, sizeof *lg->offered);
                lg->finished = calloc(nodes, sizeof *lg->finished);
                for (uint32_t i = 0; lg->queues && i < nodes; i++)
                        list_init(&lg->queues[i]);
                if (!lg->queues || !lg->offered || !lg->finished)
                        goto out_of_memory;
        }
        *ret = l;
        return 0;
out_of_memory:
        landing_free(l);
        return -ENOMEM;
}

void landing_free(struct landing *l)
{
        if (!l)
                return;
        for (uint32_t g = 0; l->groups && g < l->job->layout->n_groups; g++) {
                free(l->groups[g].queues);
                free(l->groups[g].offered);
                free(l->groups[g].finished);
        }
        free(l->groups);
        free(l->present);
        free(l);
}

/* Whether this owner reduces the group at all. */
static bool landing_has(const struct job *job, uint32_t group)
{
        return job->state->plan->shards[group].range.count > 0 &&
               layout_group_trainable(job->layout, group);
}

static bool node_contributes(const struct job *job, uint32_t group, uint32_t node)
{
        for (uint32_t r = 0; r < job->world_size; r++)
                if (job->node_of_rank[r] == node &&
                    layout_group_has_rank(&job->layout->groups[group], r))
                        return true;
        return false;
}

static uint64_t landing_bytes(const struct job *job, uint32_t group)
{
        return job->state->plan->shards[group].range.count * dtype_size(job->reduce_dtype);
}

/* Room for four of the largest ranges from every node, if not configured. */
static uint64_t landing_budget(const struct job *job)
{
        uint64_t largest = 0;

        if (job->x->conf->reduce_buffers)
                return job->x->conf->reduce_buffers;
        for (uint32_t g = 0; g < job->layout->n_groups; g++)
                if (landing_bytes(job, g) > largest)
                        largest = landing_bytes(job, g);
        return 4 * largest * job->x->cluster->n_nodes;
}

/* ---- offers ------------------------------------------------------------------ */

static void offer_drop_buffer(struct offer *o)
{
        if (!o->buffer)
                return;
        o->job->landing->buffer_bytes -= landing_bytes(o->job, o->group);
        free(STEAL(o->buffer));
}

static void offer_free(struct offer *o)
{
        offer_drop_buffer(o);
        list_remove(&o->link);
        free(o->present);
        job_unref(o->job);
        free(o);
}

static void offer_landed(struct ask *ask, int status)
{
        struct offer *o = CONTAINER_OF(ask, struct offer, ask);

        if (o->void_) {
                offer_free(o);
                return;
        }
        if (status) { /* the link ended, or the node's attempt is over: the job says which */
                offer_drop_buffer(o);
                o->phase = OFFER_WAITING;
                return;
        }
        o->phase = OFFER_LANDED;
        landing_advance(o->job, o->group);
}

/* its_turn: beyond the budget if need be. */
static void offer_pull(struct offer *o, bool its_turn)
{
        struct job *job = o->job;
        struct landing *l = job->landing;
        struct range range = job->state->plan->shards[o->group].range;
        uint64_t bytes = landing_bytes(job, o->group);
        Zero__Pull pull = ZERO__PULL__INIT;

        if (o->phase != OFFER_WAITING || o->empty || o->parcel)
                return;
        if (!its_turn && l->buffer_bytes + bytes > landing_budget(job))
                return;
        o->buffer = malloc(bytes);
        if (!o->buffer)
                return;
        l->buffer_bytes += bytes;
        pull.kind = ZERO__PULL__KIND__GRAD;
        pull.group = o->group;
        pull.owner = (uint32_t)job->x->owner;
        pull.attempt = o->attempt;
        pull.micro_batch = o->micro_batch;
        pull.first = range.first;
        pull.count = range.count;
        o->ask.done = offer_landed;
        if (ask_send(&o->ask, job, o->node, TRAFFIC_REDUCE, &pull, o->buffer, bytes)) {
                offer_drop_buffer(o);
                return;
        }
        o->phase = OFFER_PULLING;
}

/* Whether the rules allow the offer, now that its attempt is the current one. */
static bool offer_allowed(const struct offer *o, size_t present_bytes)
{
        const struct job *job = o->job;

        return landing_has(job, o->group) && node_contributes(job, o->group, o->node) &&
               (o->empty || present_bytes == (job->layout->groups[o->group].n_tensors + 7) / 8) &&
               o->micro_batch == job->landing->groups[o->group].offered[o->node] &&
               o->micro_batch < MICRO_BATCHES_MAX;
}

static int offer_queue(struct offer *o)
{
        struct landing_group *lg = &o->job->landing->groups[o->group];

        if (!offer_allowed(o, o->present_bytes)) {
                offer_free(o);
                return -EPROTO;
        }
        lg->offered[o->node]++;
        list_insert(&lg->queues[o->node], &o->link);
        offer_pull(o, false);
        return 0;
}

static struct offer *offer_new(struct job *job, uint32_t node, const Zero__Offer *m,
                               struct parcel *parcel)
{
        struct offer *o = calloc(1, sizeof *o);

        if (!o)
                return NULL;
        o->present = malloc(m->present.len + 1);
        if (!o->present) {
                free(o);
                return NULL;
        }
        if (m->present.len)
                memcpy(o->present, m->present.data, m->present.len);
        o->present_bytes = m->present.len;
        list_init(&o->link);
        o->job = job;
        job_ref(job);
        o->node = node;
        o->group = m->group;
        o->micro_batch = m->micro_batch;
        o->attempt = m->attempt;
        o->last = m->last;
        o->empty = m->empty;
        o->parcel = parcel;
        return o;
}

/* So many that no node which keeps the rules is cut: all of them may be far ahead. */
static uint64_t early_max(const struct job *job)
{
        return (uint64_t)job->x->cluster->n_nodes * (MICRO_BATCHES_MAX + job->layout->n_groups);
}

int landing_offer(struct job *job, uint32_t node, const Zero__Offer *m, struct parcel *parcel)
{
        struct landing *l = job->landing;
        struct offer *o;
        int r;

        if (!l || m->group >= job->layout->n_groups || (int32_t)m->owner != job->x->owner)
                return -EPROTO;
        if (m->attempt < job->attempt)
                return 0; /* of an attempt that is over */
        if (m->attempt > job->attempt && l->n_early >= early_max(job))
                return -EPROTO;
        o = offer_new(job, node, m, parcel);
        if (!o)
                return -ENOMEM;
        if (m->attempt > job->attempt) {
                list_insert(&l->early, &o->link);
                l->n_early++;
                return 0;
        }
        r = offer_queue(o);
        if (r == 0)
                landing_advance(job, m->group);
        return r;
}

/* ---- accumulation -------------------------------------------------------------- */

/* Real elements of a segment: the gap behind the tensor has no gradient. */
static uint64_t segment_elements(const struct layout_tensor *t, const struct plan_segment *s)
{
        uint64_t first = s->in_group - t->offset;

        if (first >= t->elements)
                return 0;
        return s->count < t->elements - first ? s->count : t->elements - first;
}

static bool offer_has(const struct offer *o, uint32_t tensor)
{
        uint32_t i = tensor - o->job->layout->groups[o->group].first_tensor;

        return o->present[i / 8] >> (i % 8) & 1;
}

/* Offload thread. landing.present is only touched by the one task of a group's tensors. */
static void offer_accumulate(struct offload_task *task, uint32_t worker)
{
        struct offer *o = CONTAINER_OF(task, struct offer, task);
        struct job *job = o->job;
        const struct state *state = job->state;
        const struct plan_shard *shard = &state->plan->shards[o->group];
        const char *src = o->parcel ? parcel_data(o->parcel, shard->range.first) : o->buffer;

        for (uint32_t i = 0; i < shard->n_segments; i++) {
                const struct plan_segment *s = &state->plan->segments[shard->first_segment + i];
                const struct layout_tensor *t = &job->layout->tensors[s->tensor];
                uint64_t n = segment_elements(t, s);

                if (t->frozen || !offer_has(o, s->tensor))
                        continue;
                if (n)
                        job->x->ops->accumulate(state->grad + s->moment, job->reduce_dtype,
                                                src + (s->in_group - shard->range.first) *
                                                              dtype_size(job->reduce_dtype),
                                                n, !job->landing->present[s->tensor]);
                job->landing->present[s->tensor] = 1;
        }
}

/* No tensor of the group has a gradient any more. */
static void landing_forget_present(struct job *job, uint32_t group)
{
        const struct layout_group *g = &job->layout->groups[group];

        memset(job->landing->present + g->first_tensor, 0, g->n_tensors);
}

static void offer_accumulated(struct offload_task *task)
{
        struct offer *o = CONTAINER_OF(task, struct offer, task);
        struct job *job = o->job;
        struct landing_group *lg = &job->landing->groups[o->group];
        uint32_t group = o->group;

        lg->busy = false;
        if (o->parcel)
                parcel_read_end(o->parcel, true);
        if (o->generation == job->landing->generation) {
                lg->finished[o->node] = o->last;
                lg->cursor++;
        } else {
                landing_forget_present(job, group);
        }
        job_ref(job);
        offer_free(o);
        landing_advance(job, group);
        job_unref(job);
}

static void offer_submit(struct offer *o)
{
        o->job->landing->groups[o->group].busy = true;
        o->generation = o->job->landing->generation;
        list_remove(&o->link);
        if (o->parcel)
                parcel_read_begin(o->parcel);
        o->task.run = offer_accumulate;
        o->task.done = offer_accumulated;
        offload_submit(o->job->x->offload, &o->task);
}

/* ---- completion and vote ---------------------------------------------------------- */

static void measure_run(struct offload_task *task, uint32_t worker)
{
        struct measure *m = CONTAINER_OF(task, struct measure, task);
        const struct job *job = m->job;
        const struct plan_shard *shard = &job->state->plan->shards[m->group];
        double divisor = layout_group_divisor(&job->layout->groups[m->group], job->world_size);

        for (uint32_t i = 0; i < shard->n_segments; i++) {
                const struct plan_segment *s = &job->state->plan->segments[shard->first_segment + i];
                uint64_t n = segment_elements(&job->layout->tensors[s->tensor], s);

                if (n && !job->layout->tensors[s->tensor].frozen && job->landing->present[s->tensor])
                        job->x->ops->norm(job->state->grad + s->moment, n, 1 / (divisor * divisor),
                                          &m->norm, &m->finite);
        }
}

/* The vote, with all it follows from, into memory that outlives the process. */
static void landing_record(struct job *job, const struct exact_sum *sum, bool finite)
{
        const struct step_params *params = &job->landing->params;
        struct state_record record;

        if (job->state->record->attempt < job->attempt) /* attempts were aborted meanwhile */
                state_abort(job->state, job->attempt);
        record = *job->state->record;
        memcpy(job->state->present, job->landing->present, job->layout->n_tensors);
        record.finite = finite;
        record.norm = *sum;
        record.n_sets = params->n_sets;
        for (uint32_t i = 0; i < params->n_sets; i++) {
                record.sets[i].lr = params->sets[i].lr;
                record.sets[i].beta1 = params->sets[i].beta1;
                record.sets[i].beta2 = params->sets[i].beta2;
                record.sets[i].eps = params->sets[i].eps;
                record.sets[i].weight_decay = params->sets[i].weight_decay;
        }
        state_prepare(job->state, &record);
}

static void landing_vote(struct job *job)
{
        struct landing *l = job->landing;
        Zero__LinkMessage m = job_message(job);
        Zero__Prepared vote = ZERO__PREPARED__INIT;
        struct exact_sum sum;
        bool finite = true;

        if (!l->preparing || update_running(job->update))
                return;
        exact_sum_init(&sum);
        for (uint32_t g = 0; g < job->layout->n_groups; g++) {
                if (!landing_has(job, g))
                        continue;
                if (!l->groups[g].measured)
                        return;
                exact_sum_merge(&sum, &l->groups[g].norm);
                finite = finite && l->groups[g].finite;
        }
        exact_sum_normalize(&sum);
        l->preparing = false;
        if (l->have_params)
                landing_record(job, &sum, finite);
        vote.attempt = job->attempt;
        vote.owner = (uint32_t)job->x->owner;
        vote.finite = finite;
        vote.closing = l->have_params;
        vote.n_norm = EXACT_SUM_BINS;
        vote.norm = sum.bin;
        m.body_case = ZERO__LINK_MESSAGE__BODY_PREPARED;
        m.prepared = &vote;
        fabric_send(job->x->fabric, job->coordinator, &m);
}

static void measure_done(struct offload_task *task)
{
        struct measure *m = CONTAINER_OF(task, struct measure, task);
        struct job *job = m->job;
        struct landing_group *lg = &job->landing->groups[m->group];

        lg->busy = false;
        if (m->generation == job->landing->generation) {
                lg->norm = m->norm;
                lg->finite = m->finite;
                lg->measured = true;
                if (!job->dead)
                        landing_vote(job);
        } else {
                landing_forget_present(job, m->group);
                landing_advance(job, m->group);
        }
        free(m);
        job_unref(job);
}

static void landing_measure(struct job *job, uint32_t group)
{
        struct measure *m = calloc(1, sizeof *m);

        if (!m)
                return;
        m->job = job;
        job_ref(job);
        m->group = group;
        m->generation = job->landing->generation;
        m->finite = true;
        exact_sum_init(&m->norm);
        m->task.run = measure_run;
        m->task.done = measure_done;
        job->landing->groups[group].complete = true;
        job->landing->groups[group].busy = true;
        offload_submit(job->x->offload, &m->task);
}

/* The next node in order that still contributes to the current micro-batch; false if none is left. */
static bool landing_turn(struct job *job, uint32_t group)
{
        struct landing_group *lg = &job->landing->groups[group];
        uint32_t nodes = job->x->cluster->n_nodes;

        for (uint32_t tries = 0; tries <= nodes; tries++) {
                for (; lg->cursor < nodes; lg->cursor++)
                        if (!lg->finished[lg->cursor] && node_contributes(job, group, lg->cursor))
                                return true;
                lg->cursor = 0;
                lg->micro_batch++;
        }
        return false;
}

/* Moves a group on as far as it goes now. */
static void landing_advance(struct job *job, uint32_t group)
{
        struct landing_group *lg = &job->landing->groups[group];

        if (job->dead || !job->started || lg->busy || lg->complete || !landing_has(job, group) ||
            update_reads(job->update, group))
                return;
        while (landing_turn(job, group)) {
                struct list *queue = &lg->queues[lg->cursor];
                struct offer *o;

                if (list_empty(queue))
                        return;
                o = CONTAINER_OF(queue->next, struct offer, link);
                if (o->empty) {
                        lg->finished[o->node] = o->last;
                        lg->cursor++;
                        offer_free(o);
                        continue;
                }
                if (o->parcel || o->phase == OFFER_LANDED)
                        offer_submit(o);
                else
                        offer_pull(o, true);
                return;
        }
        landing_measure(job, group);
}

void landing_prepare(struct job *job, uint64_t attempt, const struct step_params *params)
{
        struct landing *l = job->landing;

        if (!l || attempt != job->attempt)
                return;
        l->preparing = true;
        l->have_params = params != NULL;
        if (params)
                l->params = *params;
        landing_vote(job);
}

/* ---- attempts ---------------------------------------------------------------------- */

static void offer_void(struct offer *o)
{
        if (o->phase == OFFER_PULLING) {
                o->void_ = true;
                list_remove(&o->link);
                fabric_forget(o->job->x->fabric, o->ask.node, o->ask.transfer);
        } else {
                offer_free(o);
        }
}

static void landing_reset_group(struct job *job, struct landing_group *lg)
{
        uint32_t nodes = job->x->cluster->n_nodes;

        for (uint32_t n = 0; n < nodes; n++)
                while (!list_empty(&lg->queues[n]))
                        offer_void(CONTAINER_OF(lg->queues[n].next, struct offer, link));
        memset(lg->offered, 0, nodes * sizeof *lg->offered);
        memset(lg->finished, 0, nodes * sizeof *lg->finished);
        lg->micro_batch = lg->cursor = 0;
        lg->complete = lg->measured = false;
}

/* Offers whose attempt has begun now; those of attempts that never will are dropped. */
static void landing_take_early(struct job *job)
{
        struct landing *l = job->landing;

        list_for_each(&l->early, item)
        {
                struct offer *o = CONTAINER_OF(item, struct offer, link);
                uint32_t node = o->node;

                if (!job->dead && o->attempt > job->attempt)
                        continue;
                list_remove(&o->link);
                l->n_early--;
                if (job->dead || o->attempt < job->attempt)
                        offer_free(o);
                else if (offer_queue(o))
                        fabric_cut(job->x->fabric, node, "it offered a gradient against the rules");
        }
}

void landing_reset(struct job *job)
{
        struct landing *l = job->landing;

        l->generation++;
        l->preparing = l->have_params = false;
        for (uint32_t g = 0; g < job->layout->n_groups; g++) {
                landing_reset_group(job, &l->groups[g]);
                if (!l->groups[g].busy) /* else when its task ends */
                        landing_forget_present(job, g);
        }
        landing_take_early(job);
        for (uint32_t g = 0; g < job->layout->n_groups; g++)
                landing_advance(job, g);
}

void landing_group_free(struct job *job, uint32_t group)
{
        landing_advance(job, group);
}

void landing_updated(struct job *job)
{
        for (uint32_t g = 0; g < job->layout->n_groups; g++)
                landing_advance(job, g);
        landing_vote(job);
}

/* ---- names --------------------------------------------------------------------------- */

uint32_t landing_waits(struct job *job, struct wait_line *lines, uint32_t n)
{
        struct landing *l = job->landing;

        if (!l || !l->preparing || n == 0)
                return 0;
        for (uint32_t g = 0; g < job->layout->n_groups; g++) {
                struct landing_group *lg = &l->groups[g];

                if (!landing_has(job, g) || lg->measured)
                        continue;
                snprintf(lines[0].who, sizeof lines[0].who, "node %.60s",
                         node_name(job->x, lg->complete ? job->x->cluster->self : lg->cursor));
                snprintf(lines[0].what, sizeof lines[0].what, "gradient of group '%.80s'",
                         job->layout->groups[g].name);
                return 1;
        }
        return 0;
}
