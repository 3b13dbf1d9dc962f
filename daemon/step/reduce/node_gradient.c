/* Node gradients: made from contributions, summed, read by the owners, and freed with the last
 * reader. */
#include "daemon/step/reduce/node_gradient.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/floor/base/crash.h"
#include "proto/cleanup.h"
#include "proto/sure.h"

/* Pushes of a session that may wait for their step: as many calls again fit into it. */
enum { KEPT_MAX = 2048 };

/* ---- node gradients ----------------------------------------------------------------- */

void node_gradient_free(struct node_gradient *p)
{
        for (uint32_t i = 0; i < p->n_sources; i++)
                if (p->sources[i] && p->aborted)
                        contribution_abort(p->sources[i], p->job);
                else if (p->sources[i])
                        contribution_free(p->sources[i], ZERO_OK, "");
        sum_give(p);
        list_remove(&p->link);
        free(p->present);
        free(p->untaken);
        free(p->sums);
        job_unref(p->job);
        free(p);
}

static bool source_has(const struct contribution *c, uint32_t tensor_in_group)
{
        return !c->present || c->present[tensor_in_group];
}

/* Whether two tensors of the group have the same sources. */
static bool same_sources(const struct node_gradient *p, uint32_t a, uint32_t b)
{
        const struct layout_group *g = &p->job->layout->groups[p->group];
        const struct layout_tensor *t = &p->job->layout->tensors[g->first_tensor];

        if (t[a].frozen != t[b].frozen)
                return false;
        for (uint32_t s = 0; s < p->n_sources; s++)
                if (source_has(p->sources[s], a) != source_has(p->sources[s], b))
                        return false;
        return true;
}

/* The sources that have the tensor; returns their number. */
static uint32_t sources_of(const struct node_gradient *p, uint32_t tensor, uint64_t element,
                           const void **src)
{
        uint32_t k = 0;

        for (uint32_t s = 0; s < p->n_sources; s++)
                if (source_has(p->sources[s], tensor))
                        src[k++] = (const char *)p->sources[s]->data +
                                   element * dtype_size(p->grad_dtype);
        return k;
}

/* Sums a range whose elements all come from the sources of that tensor. */
static void range_sum(const struct node_gradient *p, uint32_t tensor, struct range range, void *dst,
                      const void **src)
{
        const struct job *job = p->job;
        uint32_t k = sources_of(p, tensor, range.first, src);

        if (k && range.count)
                job->x->ops->sum(job->reduce_dtype, dst, p->grad_dtype, src, k, range.count);
}

/* Sums a run of tensors into the block, as far as it belongs there. */
static void run_sum(const struct node_gradient *p, const struct pool_block *block, uint32_t tensor,
                    struct range run, const void **src)
{
        uint32_t n = p->job->partition->slices[p->group];

        if (!p->parts)
                range_sum(p, tensor, run,
                          (char *)block->memory + run.first * dtype_size(p->job->reduce_dtype),
                          src);
        for (uint32_t i = 0; p->parts && i < n; i++) {
                const struct part *part = &p->parts[i];
                struct range range = range_common(part->range, run);

                if (part->place == block->place && range.count)
                        range_sum(p, tensor, range, sum_at(p, part, range.first), src);
        }
}

/* On an offload thread: sums the contributions in rank order, in as few runs as they allow. */
static void node_gradient_sum(struct offload_task *task, uint32_t worker)
{
        const struct node_gradient_sum *sum = CONTAINER_OF(task, struct node_gradient_sum, task);
        const struct node_gradient *p = sum->node_gradient;
        const struct layout_group *g = &p->job->layout->groups[p->group];
        const struct layout_tensor *t = &p->job->layout->tensors[g->first_tensor];
        const void **src = sure_realloc(NULL, p->n_sources * sizeof *src);

        for (uint32_t first = 0, end; first < g->n_tensors; first = end) {
                uint64_t offset = t[first].offset;

                for (end = first + 1; end < g->n_tensors && same_sources(p, first, end); end++)
                        ;
                if (!t[first].frozen)
                        run_sum(p, sum->block, first,
                                (struct range){ offset,
                                                t[end - 1].offset + t[end - 1].elements - offset },
                                src);
        }
        free(src);
}

static void node_gradient_summed(struct offload_task *task)
{
        struct node_gradient *p = CONTAINER_OF(task, struct node_gradient_sum, task)->node_gradient;

        if (--p->summing)
                return;
        if (p->void_) {
                node_gradient_free(p);
                return;
        }
        for (uint32_t i = 0; i < p->n_sources; i++) {
                contribution_free(p->sources[i], ZERO_OK, "");
                p->sources[i] = NULL;
        }
        p->ready = true;
        crash_point(CRASH_PUSH_SUMMED);
        p->job->reduce->ready(p->job, p->group);
}

/* One task for each block. */
static bool node_gradient_submit(struct node_gradient *p)
{
        struct node_gradient_sum *sum;
        uint32_t n = 0;

        list_for_each (&p->blocks, item) {
                n++;
        }
        sum = p->sums = calloc(n, sizeof *p->sums);
        if (!p->sums)
                return false;
        p->summing = n;
        list_for_each (&p->blocks, item) {
                sum->node_gradient = p;
                sum->block = CONTAINER_OF(item, struct pool_block, link);
                sum->task.run = node_gradient_sum;
                sum->task.done = node_gradient_summed;
                job_compute(p->job, OFFLOAD_STEP, &sum++->task);
        }
        return true;
}

/* Whether owners take the only contribution as it is, and can use it where it lies. */
static bool node_gradient_in_place(const struct node_gradient *p)
{
        return p->n_sources == 1 && p->grad_dtype == p->job->reduce_dtype &&
               node_gradient_is_away(p) == node_gradient_stays_away(p);
}

/* Whether all ranks of the job and all owners of the group are on this node. */
static bool job_is_alone(const struct job *job, uint32_t group)
{
        uint32_t self = job->x->cluster->self;

        for (uint32_t i = 0; i < job->partition->slices[group]; i++)
                if (job->placement.node[partition_owner(job->partition, group, i)] != self)
                        return false;
        for (uint32_t rank = 0; rank < job->world_size; rank++)
                if (job->node_of_rank[rank] != self)
                        return false;
        return true;
}

/*
 * Whether the owners add the contributions up themselves, in their own pass: the contributions lie
 * where the states do, and the owners wait for no other node.
 */
static bool node_gradient_for_owners(const struct node_gradient *p)
{
        if (!job_is_alone(p->job, p->group))
                return false;
        for_replicas (p->job, h)
                for (uint32_t i = 0; i < p->n_sources; i++)
                        if (!h->state || h->state->id.place != place_of(p->sources[i]->data))
                                return false;
        return true;
}

void node_gradient_start(struct node_gradient *p)
{
        struct job *job = p->job;

        p->starved = false;
        if (p->n_sources == 0) { /* no rank has a gradient */
                p->ready = true;
                job->reduce->ready(job, p->group);
                return;
        }
        if (node_gradient_in_place(p)) {
                p->data = p->sources[0]->data;
                p->ready = true;
                job->reduce->ready(job, p->group);
                return;
        }
        if (node_gradient_for_owners(p)) {
                p->ready = true;
                job->reduce->ready(job, p->group);
                return;
        }
        if (sum_take(p)) {
                if (node_gradient_submit(p))
                        return;
                sum_give(p);
                job->reduce->lacking = true;
        }
        p->starved = true;
}

void reduce_feed(struct job *job)
{
        list_for_each (&job->reduce->node_gradients, item) {
                struct node_gradient *p = CONTAINER_OF(item, struct node_gradient, link);

                if (p->starved)
                        node_gradient_start(p);
        }
}

/* The owner has taken more of its range.  What one owner takes twice does not count for the others.
 */
static void node_gradient_taken(struct node_gradient *p, uint32_t owner, uint64_t elements)
{
        uint64_t *left = &p->untaken[owner];

        if (elements && *left && elements >= *left)
                p->takers--;
        *left -= elements < *left ? elements : *left;
}

/* Frees the node gradient once nobody needs it. */
void node_gradient_check(struct node_gradient *p)
{
        struct job *job = p->job;

        if (p->takers || p->readers)
                return;
        job_ref(job);
        node_gradient_free(p);
        reduce_feed(job);
        job_unref(job);
}

void node_gradient_read_begin(struct node_gradient *p)
{
        p->readers++;
}

void node_gradient_read_end(struct node_gradient *p, uint32_t owner, uint64_t taken)
{
        assert(p->readers > 0);
        p->readers--;
        if (p->void_ && p->readers == 0) {
                node_gradient_free(p);
        } else if (!p->void_) {
                node_gradient_taken(p, owner, taken);
                node_gradient_check(p);
        }
}

bool node_gradient_may_stay(const struct node_gradient *p, uint32_t place)
{
        if (!list_empty(&p->blocks) || p->job->layout->n_groups > KEPT_MAX ||
            p->n_sources * dtype_size(p->grad_dtype) >= 2 * sizeof(float))
                return false;
        for (uint32_t i = 0; i < p->n_sources; i++) {
                const struct contribution *c = p->sources[i];

                if (!c->window || !c->window->slots->whole || !c->window->keeps_slots ||
                    place_of(c->data) != place)
                        return false;
        }
        return true;
}

bool node_gradient_may_wait(const struct node_gradient *p)
{
        return !p->job->reduce->groups[p->group].several;
}

void node_gradient_keep(struct node_gradient *p)
{
        for (uint32_t i = 0; i < p->n_sources; i++) {
                struct request *r = p->sources[i]->request;

                if (!r || r->deadline_ms == UINT64_MAX)
                        continue;
                r->deadline_ms = UINT64_MAX;
                if (r->noted && !r->gone)
                        r->noted(r);
        }
}

bool node_gradient_is_pushed_memory(const struct node_gradient *p)
{
        return p->n_sources == 1 && p->sources[0] && p->sources[0]->window &&
               p->data == p->sources[0]->data;
}

const void *node_gradient_data(const struct node_gradient *p, uint64_t first)
{
        uint32_t n = p->job->partition->slices[p->group];

        if (p->parts)
                return sum_at(p, parts_find(p->parts, n, first), first);
        return (const char *)p->data + first * dtype_size(p->job->reduce_dtype);
}

/* False: owners take the contributions themselves. */
static bool node_gradient_is_sum(const struct node_gradient *p)
{
        return p->data || p->parts;
}

size_t node_gradient_sources(const struct node_gradient *p, uint32_t tensor, uint64_t first,
                             const void **ret_src)
{
        if (!node_gradient_is_sum(p))
                return sources_of(p, tensor - p->job->layout->groups[p->group].first_tensor, first,
                                  ret_src);
        ret_src[0] = node_gradient_data(p, first);
        return 1;
}

size_t node_gradient_sources_max(const struct node_gradient *p)
{
        return node_gradient_is_sum(p) ? 1 : p->n_sources;
}

enum zero_dtype node_gradient_dtype(const struct node_gradient *p)
{
        return node_gradient_is_sum(p) ? p->job->reduce_dtype : p->grad_dtype;
}

/* Marks the tensors that the contribution has; false if it has none. */
static bool source_mark(const struct contribution *c, uint32_t n_tensors, uint8_t *present)
{
        bool some = false;

        for (uint32_t i = 0; i < n_tensors; i++) {
                if (!source_has(c, i))
                        continue;
                present[i / 8] |= (uint8_t)(1u << (i % 8));
                some = true;
        }
        return some;
}

/* Adds a rank's next micro-batch to the node gradient, unless it is empty. */
static void node_gradient_take(struct node_gradient *p, struct contributor *from)
{
        struct contribution *c = CONTAINER_OF(from->queue.next, struct contribution, link);

        if (c->more > 0) {
                c->more--;
                return;
        }
        contribution_take(c);
        if (c->data && source_mark(c, p->job->layout->groups[p->group].n_tensors, p->present))
                p->sources[p->n_sources++] = c;
        else
                contribution_free(c, ZERO_OK, "");
}

struct node_gradient *node_gradient_new(struct job *job, uint32_t group, uint32_t queued)
{
        const struct layout_group *g = &job->layout->groups[group];
        struct reduce *r = job->reduce;
        struct node_gradient *p = calloc(1, sizeof *p + queued * sizeof(struct contribution *));

        if (!p)
                return NULL;
        p->present = calloc(1, (g->n_tensors + 7) / 8 + 1);
        p->untaken = calloc(job->partition->n_owners, sizeof *p->untaken);
        if (!p->present || !p->untaken) {
                free(p->present);
                free(p->untaken);
                free(p);
                return NULL;
        }
        p->job = job;
        p->group = group;
        p->micro_batch = r->groups[group].micro_batch;
        p->attempt = job->attempt;
        p->grad_dtype = r->grad_dtype;
        list_init(&p->blocks);
        list_init(&p->announced);
        p->last = true;
        for (uint32_t rank = 0; rank < job->world_size; rank++) {
                struct contributor *c = contributor_of(r, group, rank);

                if (!is_local(job, group, rank) || list_empty(&c->queue)) {
                        p->last = p->last && (!is_local(job, group, rank) || c->finished);
                        continue;
                }
                node_gradient_take(p, c);
                p->last = p->last && c->finished && list_empty(&c->queue);
        }
        list_insert(&r->node_gradients, &p->link);
        job_ref(job);
        return p;
}
