/* Memory for gradients in transit; see pool.h. */
#include "daemon/step/reduce/pool.h"

#include <stdio.h>
#include <stdlib.h>

#include "daemon/floor/base/log.h"
#include "daemon/floor/base/buffer.h"
#include "proto/cleanup.h"

enum { IDLE_MS = 5000 };

/* Another thread allocates a block. */
struct asking {
        struct list link; /* pool.asking */
        struct blocking_work work;
        struct job *job;
        struct pool *pool; /* NULL: it is gone */
        const char *what;
        struct pool_block *block;
        struct fault fault;
};

void pool_init(struct pool *p, struct job *job)
{
        p->job = job;
        list_init(&p->kept);
        list_init(&p->asking);
}

void pool_deinit(struct pool *p)
{
        pool_vacate(p);
        list_for_each (&p->asking, item) {
                list_remove(item);
                CONTAINER_OF(item, struct asking, link)->pool = NULL;
        }
}

bool pool_affords(const struct pool *p, uint64_t bytes, uint64_t default_budget)
{
        uint64_t budget = p->job->x->conf->reduce_buffers;

        return p->used + bytes <= (budget ? budget : default_budget);
}

void pool_discharge(struct pool *p, uint64_t bytes)
{
        p->used -= bytes;
        p->full = 0;
}

/* ---- blocks ---- */

struct pool_block *pool_block_new(uint64_t bytes)
{
        struct pool_block *block = calloc(1, sizeof *block);

        if (!block)
                return NULL;
        list_init(&block->link);
        block->bytes = bytes;
        block->memory = buffer_new(bytes);
        if (block->memory)
                return block;
        free(block);
        return NULL;
}

static void block_free(struct pool_block *block)
{
        list_remove(&block->link);
        if (place_is_host(block->place))
                buffer_free(block->memory);
        else
                place_free(block->memory);
        free(block);
}

/* Whether somebody is likely to need blocks again, or waits until it has them in several places. */
static bool pool_keeps(const struct pool *p)
{
        const struct job *job = p->job;

        if (job->n_attached || !list_empty(&p->asking))
                return true;
        for (uint32_t r = 0; r < job->world_size; r++)
                if (job->node_of_rank[r] == job->x->cluster->self)
                        return false; /* its last rank has left */
        return true;
}

static void keep(struct pool *p, struct pool_block *block)
{
        list_remove(&block->link);
        list_insert(p->kept.next, &block->link);
        p->kept_ms = engine_now(p->job->x);
}

void pool_give(struct pool *p, struct pool_block *block)
{
        uint32_t n = 0;

        list_for_each (&p->kept, item) {
                n += CONTAINER_OF(item, struct pool_block, link)->place == block->place;
        }
        if (place_is_host(block->place) || n >= BLOCKS_KEPT || !pool_keeps(p))
                block_free(block);
        else
                keep(p, block);
}

void pool_vacate(struct pool *p)
{
        list_for_each (&p->kept, item) {
                block_free(CONTAINER_OF(item, struct pool_block, link));
        }
}

void pool_tick(struct pool *p)
{
        if (!p->job->n_attached && list_empty(&p->asking) &&
            engine_now(p->job->x) - p->kept_ms > IDLE_MS)
                pool_vacate(p);
}

/* ---- away from the host ---- */

static void asking_run(struct blocking_work *work)
{
        struct asking *a = CONTAINER_OF(work, struct asking, work);
        char what[ZERO_NAME_MAX + 40];

        snprintf(what, sizeof what, "%s of job %s", a->what, a->job->name);
        place_alloc(a->block->place, a->block->bytes, what, &a->block->memory, &a->fault);
}

static void asking_done(struct blocking_work *work)
{
        struct asking *a = CONTAINER_OF(work, struct asking, work);
        struct pool *p = a->pool;
        struct job *job = a->job;

        list_remove(&a->link);
        if (p && !a->block->memory) {
                log_debug("job %s: %s: %s", job->name, p->instead, a->fault.text);
                p->full |= UINT64_C(1) << a->block->place;
        }
        if (p && a->block->memory)
                keep(p, a->block);
        else
                block_free(a->block);
        free(a);
        if (p && p->came)
                p->came(job);
        if (p && list_empty(&p->asking) && !pool_keeps(p)) /* the last rank left meanwhile */
                pool_vacate(p);
        job_unref(job);
}

static bool is_asked(const struct pool *p, uint32_t place)
{
        list_for_each ((struct list *)&p->asking, item) {
                if (CONTAINER_OF(item, struct asking, link)->block->place == place)
                        return true;
        }
        return false;
}

static enum block_found pool_ask(struct pool *p, uint32_t place, uint64_t bytes)
{
        struct asking *a;

        if (!bytes || p->full >> place & 1 || (!p->came && !pool_keeps(p)))
                return BLOCK_NONE;
        if (is_asked(p, place))
                return BLOCK_ASKED;
        a = calloc(1, sizeof *a);
        if (a)
                a->block = calloc(1, sizeof *a->block);
        if (!a || !a->block) {
                free(a);
                return BLOCK_NONE;
        }
        *a->block = (struct pool_block){ .bytes = bytes, .place = place };
        list_init(&a->block->link);
        a->job = p->job;
        job_ref(a->job);
        a->pool = p;
        a->what = p->what;
        a->work = (struct blocking_work){ .run = asking_run,
                                          .done = asking_done,
                                          .what = "to take memory for gradients of job",
                                          .of = a->job->name,
                                          .uid = a->job->uid };
        list_insert(&p->asking, &a->link);
        blocking_submit(a->job->x->blocking, LANE_DRIVERS, &a->work);
        return BLOCK_ASKED;
}

enum block_found pool_take(struct pool *p, uint32_t place, uint64_t bytes, uint64_t most,
                           struct pool_block **ret)
{
        list_for_each (&p->kept, item) {
                struct pool_block *block = CONTAINER_OF(item, struct pool_block, link);

                if (block->place != place)
                        continue;
                if (block->bytes >= bytes) {
                        list_remove(&block->link);
                        *ret = block;
                        return BLOCK_TAKEN;
                }
                block_free(block);
        }
        return pool_ask(p, place, most);
}
