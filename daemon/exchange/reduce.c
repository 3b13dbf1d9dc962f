/*
 * This node's side of a gradient.
 *
 * Contributions are keyed (attempt, group, micro-batch, rank).  When every local rank of a
 * group has pushed a micro-batch, or will not, the pushed ones are summed in fp32 in rank
 * order and rounded once to the wire dtype: a parcel.  A parcel is offered to every owner of the
 * group; it lives until each has taken its range.  One contribution that has the wire dtype already is
 * its own parcel, in place: nothing is copied.
 *
 * Invariants: a contribution is acknowledged when its memory is free again, exactly
 * once; parcels of a group are offered in the order of micro-batches; the last is marked.
 */
#include "daemon/exchange/exchange.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "proto/cleanup.h"

/* What a rank pushed for one micro-batch. */
struct contribution {
        struct list link;        /* contributor.queue */
        struct job *job;
        struct push_window *window;
        uint32_t slot;           /* of the window */
        const void *data;
        struct request *request; /* to acknowledge; NULL if its session is gone */
        uint8_t *present;        /* [tensor of the group]; NULL: all */
        uint32_t micro_batch;
        bool last;
};

/* A local rank of a group. */
struct contributor {
        struct list queue;
        uint32_t pushed;   /* micro-batches so far */
        bool finished;     /* pushed its last, or closed */
};

struct reduce_group {
        uint32_t micro_batch; /* next to be reduced */
        bool ended;           /* its last parcel was offered */
};

struct reduce {
        struct job *job;
        struct reduce_group *groups;       /* [group] */
        struct contributor *contributors;  /* [group * world_size + rank] */
        struct list parcels;               /* all, in the order of making */
        uint64_t buffer_bytes;             /* of sums */
        uint64_t elements_sent;
};

struct parcel {
        struct list link;      /* reduce.parcels */
        struct offload_task task;
        struct job *job;
        uint32_t group, micro_batch;
        uint64_t attempt;
        bool last, summing, offered, starved, void_;
        uint32_t untaken;      /* owners that have not taken their range yet */
        uint32_t readers;      /* payloads and copies under way */
        uint8_t *present;      /* one bit a tensor */
        void *buffer;          /* the sum; NULL: in place */
        const void *data;
        uint32_t n_sources;
        struct contribution *sources[];
};

static void reduce_advance(struct job *job, uint32_t group);

int reduce_new(struct job *job, struct reduce **ret)
{
        size_t n = (size_t)job->layout->n_groups * job->world_size;
        struct reduce *r = calloc(1, sizeof *r);

        if (!r)
                return -ENOMEM;
        r->job = job;
        list_init(&r->parcels);
        r->groups = calloc(job->layout->n_groups, sizeof *r->groups);
        r->contributors = calloc(n, sizeof *r->contributors);
        if (!r->groups || !r->contributors) {
                reduce_free(r);
                return -ENOMEM;
        }
        for (size_t i = 0; i < n; i++)
                list_init(&r->contributors[i].queue);
        *ret = r;
        return 0;
}

void reduce_free(struct reduce *r)
{
        if (!r)
                return;
        assert(list_empty(&r->parcels));
        free(r->groups);
        free(r->contributors);
        free(r);
}

uint64_t reduce_elements_sent(const struct reduce *r)
{
        return r->elements_sent;
}

static struct contributor *contributor_of(struct reduce *r, uint32_t group, uint32_t rank)
{
        return &r->contributors[(size_t)group * r->job->world_size + rank];
}

static bool is_local(const struct job *job, uint32_t group, uint32_t rank)
{
        return job->node_of_rank[rank] == job->x->cluster->self &&
               layout_group_has_rank(&job->layout->groups[group], rank);
}

/* ---- contributions ------------------------------------------------------- */

static void contribution_free(struct contribution *c, int status, const char *text)
{
        if (c->request) {
                c->request->subject = NULL;
                request_end(c->request, status, "%s", text);
        }
        push_window_unref(c->window);
        free(c->present);
        free(c);
}

/* The session that pushed is gone, or was told of the deadline: no one to acknowledge to. */
static void push_forget(struct request *r)
{
        struct contribution *c = r->subject;

        if (c)
                c->request = NULL;
}

static int push_describe(const struct request *r, struct wait_line *ret)
{
        const struct contribution *c = r->subject;
        int status = job_describe(c->job, ret);

        snprintf(ret->what, sizeof ret->what, "gradient of group '%.80s', micro-batch %u",
                 c->job->layout->groups[r->group].name, c->micro_batch);
        return status;
}

static int push_check(const struct rank *rank, const Zero__Push *push, struct fault *fault)
{
        struct job *job = rank->job;
        const struct layout_group *g;
        const struct contributor *c;
        const struct slots *slots = rank->window->slots;

        if (push->group >= job->layout->n_groups)
                return fault_set(fault, ZERO_ENOGROUP, "there is no group %u", push->group);
        g = &job->layout->groups[push->group];
        if (push->attempt != job->attempt)
                return fault_set(fault, ZERO_EABORTED, "attempt %llu is over, replay the step",
                                 (unsigned long long)push->attempt);
        if (!layout_group_trainable(job->layout, push->group))
                return fault_set(fault, ZERO_EINVAL, "group '%s' is frozen: it takes no gradient", g->name);
        if (!layout_group_has_rank(g, rank->rank))
                return fault_set(fault, ZERO_ERANK, "rank %u is not in the rank set of group '%s'",
                                 rank->rank, g->name);
        c = contributor_of(job->reduce, push->group, rank->rank);
        if (rank->closed || c->finished)
                return fault_set(fault, ZERO_EORDER, "group '%s': its last gradient of this step was pushed",
                                 g->name);
        if (push->micro_batch != c->pushed)
                return fault_set(fault, ZERO_EORDER, "group '%s': micro-batch %u where %u is next", g->name,
                                 push->micro_batch, c->pushed);
        if (push->micro_batch + 1 >= MICRO_BATCHES_MAX) /* the last place is for the mark of the end */
                return fault_set(fault, ZERO_ERANGE, "group '%s': a step has at most %d micro-batches",
                                 g->name, MICRO_BATCHES_MAX - 1);
        if (slots->whole ? push->slot != push->group : push->slot >= slots->n)
                return fault_set(fault, ZERO_ERANGE, "group '%s': slot %u is not its place", g->name,
                                 push->slot);
        if (push->present.len && push->present.len != g->n_tensors)
                return fault_set(fault, ZERO_EINVAL, "group '%s': mask of %zu bytes for %u tensors", g->name,
                                 push->present.len, g->n_tensors);
        return 0;
}

static bool contribution_is_in(const struct contribution *c, const struct rank *rank,
                               uint32_t slot)
{
        return c && c->window == rank->window && c->slot == slot;
}

/* Places of empty groups coincide with others', so slots are compared, not addresses. */
static bool slot_busy(const struct rank *rank, uint32_t slot)
{
        struct job *job = rank->job;

        for (uint32_t g = 0; g < job->layout->n_groups; g++)
                list_for_each(&contributor_of(job->reduce, g, rank->rank)->queue, item)
                {
                        if (contribution_is_in(CONTAINER_OF(item, struct contribution, link), rank, slot))
                                return true;
                }
        list_for_each(&job->reduce->parcels, item)
        {
                struct parcel *p = CONTAINER_OF(item, struct parcel, link);

                for (uint32_t i = 0; i < p->n_sources; i++)
                        if (contribution_is_in(p->sources[i], rank, slot))
                                return true;
        }
        return false;
}

int reduce_push(struct rank *rank, const Zero__Push *push, struct request *r, struct fault *fault)
{
        struct job *job = rank->job;
        struct contributor *contributor;
        struct contribution *c;
        const void *data;
        int status = push_check(rank, push, fault);

        if (status)
                return status;
        data = (const char *)rank->window->segment.data + rank->window->transfer_bytes +
               slots_offset(rank->window->slots, push->slot);
        if (slot_busy(rank, push->slot))
                return fault_set(fault, ZERO_EBUSY, "slot %u is still being read", push->slot);
        c = calloc(1, sizeof *c);
        if (!c)
                return fault_set(fault, ZERO_ENOMEM, "out of memory");
        if (push->present.len) {
                c->present = malloc(push->present.len);
                if (!c->present) {
                        free(c);
                        return fault_set(fault, ZERO_ENOMEM, "out of memory");
                }
                memcpy(c->present, push->present.data, push->present.len);
        }
        c->job = job;
        c->window = rank->window;
        c->window->references++;
        c->slot = push->slot;
        c->data = data;
        c->micro_batch = push->micro_batch;
        c->last = push->last;
        c->request = r;
        r->subject = c;
        r->group = push->group;
        r->describe = push_describe;
        r->forget = push_forget;
        contributor = contributor_of(job->reduce, push->group, rank->rank);
        list_insert(&contributor->queue, &c->link);
        contributor->pushed++;
        contributor->finished = push->last;
        reduce_advance(job, push->group);
        return 0;
}

void reduce_close(struct job *job, uint32_t rank)
{
        for (uint32_t g = 0; g < job->layout->n_groups; g++) {
                if (!is_local(job, g, rank))
                        continue;
                contributor_of(job->reduce, g, rank)->finished = true;
                reduce_advance(job, g);
        }
}

/* ---- parcels ----------------------------------------------------------------- */

static void parcel_free(struct parcel *p)
{
        struct reduce *r = p->job->reduce;

        for (uint32_t i = 0; i < p->n_sources; i++)
                if (p->sources[i])
                        contribution_free(p->sources[i], p->void_ ? ZERO_EABORTED : ZERO_OK,
                                          p->void_ ? "the attempt is over" : "");
        if (p->buffer) {
                r->buffer_bytes -= p->job->layout->groups[p->group].elements *
                                   dtype_size(p->job->reduce_dtype);
                free(p->buffer);
        }
        list_remove(&p->link);
        free(p->present);
        job_unref(p->job);
        free(p);
}

static bool source_has(const struct contribution *c, uint32_t tensor_in_group)
{
        return !c->present || c->present[tensor_in_group];
}

/* Offload thread: tensor by tensor, the present contributions in rank order. */
static void parcel_sum(struct offload_task *task, uint32_t worker)
{
        struct parcel *p = CONTAINER_OF(task, struct parcel, task);
        const struct job *job = p->job;
        const struct layout_group *g = &job->layout->groups[p->group];
        size_t wire = dtype_size(job->reduce_dtype);
        const void **src = malloc(p->n_sources * sizeof *src);

        if (!src)
                abort(); /* a few bytes on a worker: nothing sensible is left to do */
        for (uint32_t i = 0; i < g->n_tensors; i++) {
                const struct layout_tensor *t = &job->layout->tensors[g->first_tensor + i];
                enum zero_dtype from = job->grad_dtype;
                uint32_t k = 0;

                for (uint32_t s = 0; s < p->n_sources; s++)
                        if (!t->frozen && source_has(p->sources[s], i))
                                src[k++] = (const char *)p->sources[s]->data + t->offset * dtype_size(from);
                if (k && t->elements)
                        job->x->ops->sum(job->reduce_dtype, (char *)p->buffer + t->offset * wire, from, src,
                                         k, t->elements);
        }
        free(src);
}

static void parcel_offer(struct parcel *p);

static void parcel_summed(struct offload_task *task)
{
        struct parcel *p = CONTAINER_OF(task, struct parcel, task);

        p->summing = false;
        if (p->void_) {
                parcel_free(p);
                return;
        }
        for (uint32_t i = 0; i < p->n_sources; i++) {
                contribution_free(p->sources[i], ZERO_OK, "");
                p->sources[i] = NULL;
        }
        parcel_offer(p);
}

/* Sums have a budget; one is always allowed, so that the oldest goes on. */
static uint64_t sum_budget(const struct job *job)
{
        uint64_t largest = 0;

        if (job->x->conf->reduce_buffers)
                return job->x->conf->reduce_buffers;
        for (uint32_t g = 0; g < job->layout->n_groups; g++)
                if (job->layout->groups[g].elements > largest)
                        largest = job->layout->groups[g].elements;
        return 4 * largest * dtype_size(job->reduce_dtype);
}

static void parcel_start(struct parcel *p)
{
        struct job *job = p->job;
        struct reduce *r = job->reduce;
        uint64_t bytes = job->layout->groups[p->group].elements * dtype_size(job->reduce_dtype);

        p->starved = false;
        if (p->n_sources == 1 && job->grad_dtype == job->reduce_dtype) {
                p->data = p->sources[0]->data;
                parcel_offer(p);
                return;
        }
        if (r->buffer_bytes && r->buffer_bytes + bytes > sum_budget(job)) {
                p->starved = true;
                return;
        }
        p->buffer = malloc(bytes ? bytes : 1);
        if (!p->buffer) {
                p->starved = true;
                return;
        }
        r->buffer_bytes += bytes;
        p->data = p->buffer;
        p->summing = true;
        p->task.run = parcel_sum;
        p->task.done = parcel_summed;
        offload_submit(job->x->offload, &p->task);
}

/* A buffer has become free: the oldest parcels without one go on. */
static void reduce_feed(struct reduce *r)
{
        list_for_each(&r->parcels, item)
        {
                struct parcel *p = CONTAINER_OF(item, struct parcel, link);

                if (p->starved)
                        parcel_start(p);
        }
}

static void parcel_taken(struct parcel *p)
{
        struct job *job = p->job;

        assert(p->untaken > 0);
        if (--p->untaken)
                return;
        job_ref(job);
        parcel_free(p);
        reduce_feed(job->reduce);
        job_unref(job);
}

void parcel_read_begin(struct parcel *p)
{
        p->readers++;
}

void parcel_read_end(struct parcel *p, bool taken)
{
        assert(p->readers > 0);
        p->readers--;
        if (p->void_ && p->readers == 0)
                parcel_free(p);
        else if (!p->void_ && taken)
                parcel_taken(p);
}

const void *parcel_data(const struct parcel *p, uint64_t first)
{
        return (const char *)p->data + first * dtype_size(p->job->reduce_dtype);
}

/* Tells one owner. An empty offer has no parcel: there is nothing to take. */
static void offer_send(struct job *job, uint32_t group, uint32_t owner, uint32_t micro_batch,
                       bool last, struct parcel *p)
{
        Zero__LinkMessage m = job_message(job);
        Zero__Offer offer = ZERO__OFFER__INIT;

        offer.attempt = job->attempt;
        offer.group = group;
        offer.owner = owner;
        offer.micro_batch = micro_batch;
        offer.last = last;
        offer.empty = p == NULL;
        if (p) {
                offer.present.data = p->present;
                offer.present.len = (job->layout->groups[group].n_tensors + 7) / 8;
        }
        if ((int32_t)owner == job->x->owner) {
                int r = landing_offer(job, job->x->cluster->self, &offer, p);

                assert(r == 0); /* what this node offers keeps the rules */
                (void)r;
                return;
        }
        m.body_case = ZERO__LINK_MESSAGE__BODY_OFFER;
        m.offer = &offer;
        fabric_send(job->x->fabric, job->x->owner_node[owner], &m);
}

static void offer_all(struct job *job, uint32_t group, uint32_t micro_batch, bool last,
                      struct parcel *p)
{
        uint32_t n = job->partition->slices[group];

        for (uint32_t i = 0; i < n; i++)
                offer_send(job, group, partition_owner(job->partition, group, i), micro_batch, last, p);
}

static void parcel_offer(struct parcel *p)
{
        p->offered = true;
        p->untaken = p->job->partition->slices[p->group];
        if (p->untaken == 0) { /* a group of empty tensors */
                p->untaken = 1;
                parcel_taken(p);
                return;
        }
        offer_all(p->job, p->group, p->micro_batch, p->last, p);
}

/* One parcel of what the local ranks have queued for the group's next micro-batch. */
static struct parcel *parcel_new(struct job *job, uint32_t group)
{
        const struct layout_group *g = &job->layout->groups[group];
        struct reduce *r = job->reduce;
        struct parcel *p = calloc(1, sizeof *p + job->n_local * sizeof(struct contribution *));

        if (!p)
                return NULL;
        p->present = calloc(1, (g->n_tensors + 7) / 8 + 1);
        if (!p->present) {
                free(p);
                return NULL;
        }
        p->job = job;
        p->group = group;
        p->micro_batch = r->groups[group].micro_batch;
        p->attempt = job->attempt;
        p->last = true;
        for (uint32_t rank = 0; rank < job->world_size; rank++) {
                struct contributor *c = contributor_of(r, group, rank);

                if (!is_local(job, group, rank) || list_empty(&c->queue)) {
                        p->last = p->last && (!is_local(job, group, rank) || c->finished);
                        continue;
                }
                p->sources[p->n_sources] = CONTAINER_OF(c->queue.next, struct contribution, link);
                list_remove(c->queue.next);
                for (uint32_t i = 0; i < g->n_tensors; i++)
                        if (source_has(p->sources[p->n_sources], i))
                                p->present[i / 8] |= (uint8_t)(1u << (i % 8));
                p->n_sources++;
                p->last = p->last && c->finished && list_empty(&c->queue);
        }
        list_insert(&r->parcels, &p->link);
        job_ref(job);
        return p;
}

/* Reduces every micro-batch of the group that no local rank is missing from any more. */
static void reduce_advance(struct job *job, uint32_t group)
{
        struct reduce *r = job->reduce;
        struct reduce_group *g = &r->groups[group];

        while (!g->ended) {
                uint32_t queued = 0, local = 0;
                struct parcel *p;

                for (uint32_t rank = 0; rank < job->world_size; rank++) {
                        struct contributor *c = contributor_of(r, group, rank);

                        if (!is_local(job, group, rank))
                                continue;
                        local++;
                        if (list_empty(&c->queue) && !c->finished)
                                return;
                        queued += !list_empty(&c->queue);
                }
                if (local == 0)
                        return;
                if (queued == 0) {
                        g->ended = true;
                        if (layout_group_trainable(job->layout, group))
                                offer_all(job, group, g->micro_batch, true, NULL);
                        return;
                }
                p = parcel_new(job, group);
                if (!p)
                        return; /* out of memory: the step's deadline will say so */
                g->micro_batch++;
                g->ended = p->last;
                parcel_start(p);
        }
}

void reduce_reset(struct job *job)
{
        struct reduce *r = job->reduce;
        size_t n = (size_t)job->layout->n_groups * job->world_size;

        for (size_t i = 0; i < n; i++) {
                struct contributor *c = &r->contributors[i];

                while (!list_empty(&c->queue)) {
                        struct contribution *x = CONTAINER_OF(c->queue.next, struct contribution, link);

                        list_remove(&x->link);
                        contribution_free(x, ZERO_EABORTED, "the attempt is over");
                }
                c->pushed = 0;
                c->finished = false;
        }
        memset(r->groups, 0, job->layout->n_groups * sizeof *r->groups);
        list_for_each(&r->parcels, item)
        {
                struct parcel *p = CONTAINER_OF(item, struct parcel, link);

                if (p->void_)
                        continue;
                p->void_ = true;
                if (!p->summing && p->readers == 0)
                        parcel_free(p);
        }
}

/* ---- owners take their ranges ----------------------------------------------- */

/* One range of a parcel on its way to its owner. */
struct delivery {
        struct job *job;
        struct parcel *parcel;
        uint64_t elements;
};

static void delivery_sent(void *arg, int status)
{
        struct delivery *d = arg;
        struct job *job = d->job;
        struct parcel *p = d->parcel;

        if (status == 0)
                job->reduce->elements_sent += d->elements;
        free(d);
        parcel_read_end(p, status == 0);
        job_unref(job);
}

static struct parcel *parcel_find(struct job *job, const Zero__Pull *request)
{
        list_for_each(&job->reduce->parcels, item)
        {
                struct parcel *p = CONTAINER_OF(item, struct parcel, link);

                if (p->offered && !p->void_ && p->group == request->group &&
                    p->attempt == request->attempt && p->micro_batch == request->micro_batch)
                        return p;
        }
        return NULL;
}

void reduce_pull_message(struct job *job, uint32_t node, const Zero__Pull *request)
{
        struct parcel *p = parcel_find(job, request);
        struct delivery *d;
        struct range range;

        if (!p || request->owner >= job->x->n_owners || job->x->owner_node[request->owner] != node) {
                ask_refuse(job, node, request->transfer, ZERO_EABORTED, "no such gradient is offered");
                return;
        }
        range = partition_range(job->partition, request->group, request->owner);
        if (request->first != range.first || request->count != range.count) {
                ask_refuse(job, node, request->transfer, ZERO_EPROTO, "not this owner's range");
                return;
        }
        d = calloc(1, sizeof *d);
        if (!d) {
                ask_refuse(job, node, request->transfer, ZERO_ENOMEM, "out of memory");
                return;
        }
        *d = (struct delivery){ job, p, range.count };
        job_ref(job);
        parcel_read_begin(p);
        if (fabric_payload(job->x->fabric, node, request->transfer, TRAFFIC_REDUCE,
                           parcel_data(p, range.first), range.count * dtype_size(job->reduce_dtype),
                           delivery_sent, d) == 0)
                return;
        parcel_read_end(p, false);
        free(d);
        job_unref(job);
}
