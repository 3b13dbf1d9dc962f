/*
 * Memory for the sums of parcels, within a budget.
 *
 * It is host memory; but where the gradients lie on a GPU, and so do those of an owner of this
 * node, it is that GPU's, so that they do not go through the host's.  Pieces on a GPU have the size
 * of the largest group, so that any will do, and are kept until the last local rank has left.
 */
#include "daemon/exchange/reduce/reduce.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>

#include "daemon/base/log.h"
#include "daemon/exchange/reduce/buffer.h"
#include "proto/cleanup.h"

bool parcel_pushed_on_gpu(const struct parcel *p)
{
        for (uint32_t i = 0; i < p->n_sources; i++)
                if (contribution_on_gpu(p->sources[i]))
                        return true;
        return false;
}

bool parcel_stays_on_gpu(const struct parcel *p)
{
        for_holdings (p->job, h)
                if (h->state && state_on_gpu(h->state))
                        return parcel_pushed_on_gpu(p);
        return false;
}

static uint64_t group_bytes(const struct job *job, uint32_t group)
{
        return job->layout->groups[group].elements * dtype_size(job->reduce_dtype);
}

static uint64_t largest_bytes(const struct job *job)
{
        uint64_t largest = 0;

        for (uint32_t g = 0; g < job->layout->n_groups; g++)
                if (group_bytes(job, g) > largest)
                        largest = group_bytes(job, g);
        return largest;
}

/* One sum is always allowed, so that the oldest goes on. */
static bool budget_has(const struct job *job, uint64_t bytes)
{
        uint64_t used = job->reduce->buffer_bytes, budget = job->x->conf->reduce_buffers;

        return !used || used + bytes <= (budget ? budget : SUMS_KEPT * largest_bytes(job));
}

/* NULL: the GPU has no room. */
static void *gpu_take(struct job *job, uint64_t bytes)
{
        struct reduce *r = job->reduce;
        char what[ZERO_NAME_MAX + 40];
        struct fault fault;
        void *memory;

        while (r->n_kept) {
                memory = r->kept[--r->n_kept];
                if (gpu_of(memory) == (int)job->windows.gpu)
                        return memory;
                gpu_free(memory); /* ranks of another place have left it */
        }
        snprintf(what, sizeof what, "sums of gradients of job %s", job->name);
        if (gpu_alloc(job->windows.gpu, bytes, what, &memory, &fault) == 0)
                return memory;
        log_debug("job %s: summed in host memory: %s", job->name, fault.text);
        return NULL;
}

static bool sum_set(struct parcel *p, void *buffer, uint64_t bytes, bool on_gpu)
{
        p->data = p->buffer = buffer;
        p->buffer_bytes = buffer ? bytes : 0;
        p->on_gpu = buffer && on_gpu;
        p->job->reduce->buffer_bytes += p->buffer_bytes;
        return buffer;
}

bool sum_take(struct parcel *p)
{
        struct job *job = p->job;
        uint64_t bytes = largest_bytes(job);

        if (parcel_stays_on_gpu(p)) {
                if (!budget_has(job, bytes))
                        return false;
                if (sum_set(p, gpu_take(job, bytes), bytes, true))
                        return true;
                if (job->reduce->buffer_bytes) /* there will be room */
                        return false;
        }
        bytes = group_bytes(job, p->group);
        return budget_has(job, bytes) && sum_set(p, buffer_new(bytes), bytes, false);
}

void sum_give(struct parcel *p)
{
        struct reduce *r = p->job->reduce;
        void *buffer = STEAL(p->buffer);

        if (!buffer)
                return;
        r->buffer_bytes -= p->buffer_bytes;
        if (!p->on_gpu)
                free(buffer);
        else if (p->job->n_attached && r->n_kept < SUMS_KEPT)
                r->kept[r->n_kept++] = buffer;
        else
                gpu_free(buffer);
}

void reduce_vacate(struct reduce *r)
{
        while (r->n_kept)
                gpu_free(r->kept[--r->n_kept]);
}
