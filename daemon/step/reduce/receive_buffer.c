/*
 * Memory that receives offers, within a budget.
 *
 * The buffer lies where the owner's sum does, if there is free memory: what comes is added without
 * a detour.  A buffer away from the host is large enough for any offer of the replica, so that any
 * buffer fits.  Such buffers are kept until the last local rank has left, or, on a node without
 * ranks, until none has been used for a while.  It may take time to allocate one, so another thread
 * does that; meanwhile offers come to host memory.
 *
 * The offer whose turn it is gets a buffer even beyond the budget: in host memory, unless it is the
 * only one.
 */
#include "daemon/step/reduce/accumulator.h"

#include <stdlib.h>

#include "daemon/floor/base/log.h"
#include "daemon/step/reduce/buffer.h"
#include "proto/cleanup.h"

enum { RECEIVE_BUFFER_IDLE_MS = 5000 };

static uint64_t offer_bytes(const struct replica *h, uint32_t group)
{
        return accumulator_range(h, group).count * dtype_size(accumulator_dtype(h));
}

static uint64_t largest_bytes(const struct replica *h)
{
        uint64_t largest = 0;

        for (uint32_t g = 0; g < h->job->layout->n_groups; g++)
                if (offer_bytes(h, g) > largest)
                        largest = offer_bytes(h, g);
        return largest;
}

/* Without a configured budget: four of the largest offers from every node. */
static bool budget_has(const struct replica *h, uint64_t largest, uint64_t bytes)
{
        const struct engine *x = h->job->x;
        uint64_t budget = x->conf->reduce_buffers;

        if (!budget)
                budget = 4 * largest * x->cluster->n_nodes;
        return h->accumulator->receive_buffer_bytes + bytes <= budget;
}

/* ---- away from the host ------------------------------------------------------------- */

/* Whether more offers are likely. */
static bool receive_buffers_are_kept(const struct job *job)
{
        for (uint32_t r = 0; !job->n_attached && r < job->world_size; r++)
                if (job->node_of_rank[r] == job->x->cluster->self)
                        return false; /* its last rank has left */
        return true;
}

static bool keep(struct accumulator *l, const struct job *job, struct receive_buffer buffer)
{
        if (!receive_buffers_are_kept(job) || l->n_kept_receive_buffers == RECEIVE_BUFFERS_KEPT)
                return false;
        l->kept_receive_buffers[l->n_kept_receive_buffers++] = buffer;
        l->kept_ms = engine_now(job->x);
        return true;
}

/* Takes a kept buffer; frees those that do not fit. */
static bool kept_take(struct accumulator *l, uint32_t place, uint64_t bytes,
                      struct receive_buffer *ret)
{
        while (l->n_kept_receive_buffers) {
                struct receive_buffer buffer = l->kept_receive_buffers[--l->n_kept_receive_buffers];

                if (buffer.place == place && buffer.bytes >= bytes) {
                        *ret = buffer;
                        return true;
                }
                place_free(buffer.memory);
        }
        return false;
}

/* Another thread allocates a receive buffer. */
struct receive_buffer_asking {
        struct blocking_work work;
        struct job *job;
        const struct replica *replica; /* perhaps gone from the job */
        struct receive_buffer buffer;
        struct fault fault;
};

static void asking_run(struct blocking_work *work)
{
        struct receive_buffer_asking *a = CONTAINER_OF(work, struct receive_buffer_asking, work);
        char what[ZERO_NAME_MAX + 40];

        snprintf(what, sizeof what, "accumulator of job %s", a->job->name);
        if (place_alloc(a->buffer.place, a->buffer.bytes, what, &a->buffer.memory, &a->fault))
                a->buffer.memory = NULL;
}

static void asking_done(struct blocking_work *work)
{
        struct receive_buffer_asking *a = CONTAINER_OF(work, struct receive_buffer_asking, work);
        struct job *job = a->job;

        if (!a->buffer.memory)
                log_debug("job %s: received gradients go to host memory: %s", job->name,
                          a->fault.text);
        for_replicas (job, h) {
                struct accumulator *l = h == a->replica ? h->accumulator : NULL;

                if (!l)
                        continue;
                l->receive_buffer_asked = false;
                if (a->buffer.memory && keep(l, job, a->buffer))
                        a->buffer.memory = NULL;
        }
        place_free(a->buffer.memory);
        free(a);
        job_unref(job);
}

static void buffer_ask(struct replica *h, uint64_t bytes)
{
        struct receive_buffer_asking *a =
                h->accumulator->receive_buffer_asked ? NULL : calloc(1, sizeof *a);

        if (!a)
                return;
        h->accumulator->receive_buffer_asked = true;
        a->job = h->job;
        job_ref(a->job);
        a->replica = h;
        a->buffer = (struct receive_buffer){ NULL, bytes, h->state->id.place };
        a->work = (struct blocking_work){ .run = asking_run,
                                          .done = asking_done,
                                          .what = "to take memory for gradients of job",
                                          .of = a->job->name,
                                          .uid = a->job->uid };
        blocking_submit(h->job->x->blocking, LANE_DRIVERS, &a->work);
}

static bool away_take(struct replica *h, uint64_t bytes, struct receive_buffer *ret)
{
        if (kept_take(h->accumulator, h->state->id.place, bytes, ret))
                return true;
        if (bytes && receive_buffers_are_kept(h->job)) /* otherwise nobody would keep it */
                buffer_ask(h, bytes);
        return false;
}

void accumulator_vacate(struct accumulator *l)
{
        while (l->n_kept_receive_buffers)
                place_free(l->kept_receive_buffers[--l->n_kept_receive_buffers].memory);
}

void accumulator_tick(struct replica *h)
{
        struct accumulator *l = h->accumulator;

        if (l->n_kept_receive_buffers && !h->job->n_attached &&
            engine_now(h->job->x) - l->kept_ms > RECEIVE_BUFFER_IDLE_MS)
                accumulator_vacate(l);
}

/* ---- of an offer ------------------------------------------------------------------- */

static bool host_take(uint64_t bytes, struct receive_buffer *ret)
{
        void *memory = buffer_new(bytes);

        if (memory)
                *ret = (struct receive_buffer){ memory, bytes };
        return memory;
}

bool receive_buffer_take(struct replica *h, uint32_t group, bool its_turn,
                         struct receive_buffer *ret)
{
        struct accumulator *l = h->accumulator;
        uint64_t bytes = offer_bytes(h, group), largest = largest_bytes(h);
        bool only = its_turn && l->receive_buffer_bytes == 0, ok = false;
        struct receive_buffer buffer;

        if (!state_in_file(h->state) && (only || budget_has(h, largest, largest)))
                ok = away_take(h, largest, &buffer);
        if (!ok && (its_turn || budget_has(h, largest, bytes)))
                ok = host_take(bytes, &buffer);
        if (!ok)
                return false;
        l->receive_buffer_bytes += buffer.bytes;
        *ret = buffer;
        return true;
}

void receive_buffer_give(struct replica *h, struct receive_buffer *buffer)
{
        struct accumulator *l = h->accumulator;
        struct receive_buffer old = *buffer;

        if (!old.memory)
                return;
        *buffer = (struct receive_buffer){ 0 };
        l->receive_buffer_bytes -= old.bytes;
        if (place_is_host(old.place))
                buffer_free(old.memory);
        else if (!keep(l, h->job, old))
                place_free(old.memory);
}
