/*
 * Node gradients: made from contributions, summed, read by the owners, and freed with the last
 * reader.
 *
 * Sums are in host memory.  If both gradients and an owner of this node lie in other places, the
 * sums lie there, too, and need no detour through the host: each owner's part is in the owner's
 * place (parts.h).  Each place has a block, large enough for any group.  The node gradient that
 * needs a block waits, as it does while all blocks are in use.
 */
#include "daemon/step/reduce/node_gradient.h"

#include <assert.h>
#include <stdlib.h>

#include "daemon/floor/base/crash.h"
#include "proto/cleanup.h"
#include "proto/sure.h"

/* Pushes of a session that may wait for their step: as many calls again fit into it. */
enum { KEPT_MAX = 2048 };

/* ---- memory of a sum ---- */

/* Bits of the places away from the host that hold its sources. */
static uint64_t places_of_sources(const struct node_gradient *p)
{
        uint64_t set = 0;

        for (uint32_t i = 0; i < p->n_sources; i++) {
                uint32_t place = place_of(p->sources[i]->data);

                set |= place_is_host(place) ? 0 : UINT64_C(1) << place;
        }
        return set;
}

static bool node_gradient_is_away(const struct node_gradient *p)
{
        return places_of_sources(p);
}

static bool node_gradient_stays_away(const struct node_gradient *p)
{
        for_replicas (p->job, h)
                if (h->state && !place_is_host(h->state->id.place))
                        return node_gradient_is_away(p);
        return false;
}

static uint64_t group_bytes(const struct job *job, uint32_t group)
{
        return job_spec_sum_bytes(&job->spec, job->layout->groups[group].elements);
}

static uint64_t largest_bytes(const struct job *job)
{
        uint64_t largest = 0;

        for (uint32_t g = 0; g < job->layout->n_groups; g++)
                if (group_bytes(job, g) > largest)
                        largest = group_bytes(job, g);
        return largest;
}

/* One sum is always allowed, so that the oldest node gradient goes on. */
static bool budget_has(const struct job *job, uint64_t bytes)
{
        const struct pool *pool = &job->reduce->pool;

        return !pool->used || pool_affords(pool, bytes, BLOCKS_KEPT * largest_bytes(job));
}

/* [owner]: as in parts_rule; NULL: out of memory. */
static uint32_t *places_of_owners(const struct job *job)
{
        uint32_t *places = calloc(job->placement.n_owners, sizeof *places);

        for (uint32_t o = 0; places && o < job->placement.n_owners; o++) {
                const struct replica *h = replica_of_copy(job, o, 0);

                places[o] = h && h->state ? h->state->id.place : 0;
        }
        return places;
}

/* Bytes of the largest block that any group needs in that place; 0: out of memory. */
static uint64_t block_bytes_most(const struct job *job, const struct parts_rule *rule,
                                 uint32_t place)
{
        uint64_t most = 0;

        for (uint32_t g = 0; g < job->layout->n_groups; g++) {
                uint32_t n = job->partition->slices[g];
                CLEANUP(cleanup_free) struct part *parts = calloc(n + 1, sizeof *parts);
                uint64_t bytes;

                if (!parts)
                        return 0;
                parts_plan(rule, g, parts);
                bytes = parts_bytes(parts, n, place, rule->size);
                most = bytes > most ? bytes : most;
        }
        return most;
}

static enum block_found block_take(struct node_gradient *p, const struct parts_rule *rule,
                                   uint32_t place)
{
        uint32_t n = p->job->partition->slices[p->group];
        uint64_t bytes = parts_bytes(p->parts, n, place, rule->size);
        struct pool *pool = &p->job->reduce->pool;
        struct pool_block *block = NULL;
        enum block_found found = pool_take(pool, place, bytes, 0, &block);

        if (!block) /* only then: the largest block takes time to count */
                found = pool_take(pool, place, bytes, block_bytes_most(p->job, rule, place), &block);
        if (block)
                list_insert(&p->blocks, &block->link);
        return found;
}

static void blocks_give(struct node_gradient *p)
{
        while (!list_empty(&p->blocks))
                pool_give(&p->job->reduce->pool,
                          CONTAINER_OF(p->blocks.next, struct pool_block, link));
        free(STEAL(p->parts));
}

/* Takes all blocks, or none; returns the worst result. */
static enum block_found blocks_take(struct node_gradient *p)
{
        const struct job *job = p->job;
        uint32_t n = job->partition->slices[p->group];
        CLEANUP(cleanup_free) uint32_t *owners = places_of_owners(job);
        struct parts_rule rule = { .partition = job->partition,
                                   .place_of_owner = owners,
                                   .sources = places_of_sources(p),
                                   .size = job_spec_sum_bytes(&job->spec, 1) };
        enum block_found found = BLOCK_TAKEN;

        p->parts = calloc(n + 1, sizeof *p->parts);
        if (!owners || !p->parts) {
                blocks_give(p);
                return BLOCK_NONE;
        }
        parts_plan(&rule, p->group, p->parts);
        for (uint64_t left = parts_places(p->parts, n); left; left &= left - 1) {
                enum block_found f = block_take(p, &rule, (uint32_t)__builtin_ctzll(left));

                found = f > found ? f : found;
        }
        if (found != BLOCK_TAKEN)
                blocks_give(p);
        return found;
}

static void *sum_at(const struct node_gradient *p, const struct part *part, uint64_t element)
{
        list_for_each ((struct list *)&p->blocks, item) {
                const struct pool_block *block = CONTAINER_OF(item, struct pool_block, link);

                if (block->place == part->place)
                        return (char *)block->memory + part->at +
                               job_spec_sum_bytes(&p->job->spec, element - part->range.first);
        }
        assert(!"a part has its block");
        return NULL;
}

static bool sum_charge(struct node_gradient *p, uint64_t bytes)
{
        p->sum_bytes = bytes;
        p->job->reduce->pool.used += bytes;
        return true;
}

static bool host_take(struct node_gradient *p, uint64_t bytes)
{
        struct pool_block *block = pool_block_new(bytes);

        if (!block) {
                p->job->reduce->lacking = true;
                return false;
        }
        list_insert(&p->blocks, &block->link);
        p->data = block->memory;
        return sum_charge(p, bytes);
}

static bool sum_take(struct node_gradient *p)
{
        const struct job *job = p->job;
        uint64_t bytes = group_bytes(job, p->group), largest = largest_bytes(job);
        enum block_found found;

        if (bytes && node_gradient_stays_away(p)) { /* a group without elements has no parts */
                if (!budget_has(job, largest))
                        return false;
                found = blocks_take(p);
                if (found == BLOCK_TAKEN)
                        return sum_charge(p, largest);
                if (found == BLOCK_ASKED || job->reduce->pool.used) /* memory will become free */
                        return false;
        }
        return budget_has(job, bytes) && host_take(p, bytes);
}

static void sum_give(struct node_gradient *p)
{
        pool_discharge(&p->job->reduce->pool, p->sum_bytes);
        p->sum_bytes = 0;
        blocks_give(p);
}

/* ---- sums ---- */

void node_gradient_free(struct node_gradient *p)
{
        for (uint32_t i = 0; i < p->n_sources; i++)
                if (p->sources[i] && p->aborted)
                        contribution_abort(p->sources[i], p->job);
                else if (p->sources[i])
                        contribution_free(p->sources[i], ZERO_OK, "");
        sum_give(p);
        if (p->void_) /* a gradient of the next attempt may wait for this memory */
                p->job->reduce->lacking = true;
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
                                   dtype_bytes(p->grad_dtype, element);
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
                          (char *)block->memory + job_spec_sum_bytes(&p->job->spec, run.first),
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

/* ---- readers ---- */

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
            p->n_sources * dtype_bytes(p->grad_dtype, 1) >= 2 * sizeof(float))
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
        return (const char *)p->data + job_spec_sum_bytes(&p->job->spec, first);
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

/* ---- making ---- */

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
