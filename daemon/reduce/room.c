/*
 * Memory that offers land in, within a budget.
 *
 * It is where the owner's sum is, if that is on a GPU with room for it: then what has landed is
 * added without a way through host memory.  Rooms on a GPU are large enough for any offer of the
 * holding, so that any will do, and are kept until the last local rank has left, or, where no ranks
 * are, until none has been used for a while.  The driver may take its time for one, so another
 * thread asks for it; until it is there offers land in host memory.
 *
 * The offer whose turn it is has room beyond the budget if need be: in host memory, unless it is
 * the only one.
 */
#include "daemon/reduce/accumulator.h"

#include <stdlib.h>

#include "daemon/base/log.h"
#include "daemon/core/disk.h"
#include "daemon/reduce/buffer.h"
#include "proto/cleanup.h"

enum { ROOM_IDLE_MS = 5000 };

static uint64_t offer_bytes(const struct holding *h, uint32_t group)
{
        return accumulator_range(h, group).count * dtype_size(accumulator_dtype(h));
}

static uint64_t largest_bytes(const struct holding *h)
{
        uint64_t largest = 0;

        for (uint32_t g = 0; g < h->job->layout->n_groups; g++)
                if (offer_bytes(h, g) > largest)
                        largest = offer_bytes(h, g);
        return largest;
}

/* Room for four of the largest offers from every node, if not configured. */
static bool budget_has(const struct holding *h, uint64_t largest, uint64_t bytes)
{
        const struct engine *x = h->job->x;
        uint64_t budget = x->conf->reduce_buffers;

        if (!budget)
                budget = 4 * largest * x->cluster->n_nodes;
        return h->accumulator->room_bytes + bytes <= budget;
}

/* ---- on a GPU --------------------------------------------------------------------- */

/* Whether offers are to be expected. */
static bool rooms_are_kept(const struct job *job)
{
        for (uint32_t r = 0; !job->n_attached && r < job->world_size; r++)
                if (job->node_of_rank[r] == job->x->cluster->self)
                        return false; /* its last rank has left */
        return true;
}

static bool keep(struct accumulator *l, const struct job *job, struct room room)
{
        if (!rooms_are_kept(job) || l->n_kept_rooms == ROOMS_KEPT)
                return false;
        l->kept_rooms[l->n_kept_rooms++] = room;
        l->kept_ms = engine_now(job->x);
        return true;
}

/* One that was kept; what does not do goes. */
static bool kept_take(struct accumulator *l, uint32_t gpu, uint64_t bytes, struct room *ret)
{
        while (l->n_kept_rooms) {
                struct room room = l->kept_rooms[--l->n_kept_rooms];

                if (room.gpu == (int)gpu && room.bytes >= bytes) {
                        *ret = room;
                        return true;
                }
                gpu_free(room.memory);
        }
        return false;
}

/* A room that is asked for. */
struct room_asking {
        struct disk_job disk;
        struct job *job;
        const struct holding *holding; /* perhaps of the job no more */
        struct room room;
        struct fault fault;
};

static void asking_run(struct disk_job *disk)
{
        struct room_asking *a = CONTAINER_OF(disk, struct room_asking, disk);
        char what[ZERO_NAME_MAX + 40];

        snprintf(what, sizeof what, "accumulator of job %s", a->job->name);
        if (gpu_alloc((uint32_t)a->room.gpu, a->room.bytes, what, &a->room.memory, &a->fault))
                a->room.memory = NULL;
}

static void asking_done(struct disk_job *disk)
{
        struct room_asking *a = CONTAINER_OF(disk, struct room_asking, disk);
        struct job *job = a->job;

        if (!a->room.memory)
                log_debug("job %s: gradients land in host memory: %s", job->name, a->fault.text);
        for_holdings (job, h) {
                struct accumulator *l = h == a->holding ? h->accumulator : NULL;

                if (!l)
                        continue;
                l->room_asked = false;
                if (a->room.memory && keep(l, job, a->room))
                        a->room.memory = NULL;
        }
        gpu_free(a->room.memory);
        free(a);
        job_unref(job);
}

static void gpu_ask(struct holding *h, uint32_t gpu, uint64_t bytes)
{
        struct room_asking *a = h->accumulator->room_asked ? NULL : calloc(1, sizeof *a);

        if (!a)
                return;
        h->accumulator->room_asked = true;
        a->job = h->job;
        job_ref(a->job);
        a->holding = h;
        a->room = (struct room){ NULL, bytes, (int)gpu };
        a->disk.run = asking_run;
        a->disk.done = asking_done;
        disk_submit(h->job->x->loop, &a->disk);
}

static bool gpu_take(struct holding *h, uint64_t bytes, struct room *ret)
{
        int gpu = gpu_of(h->state->grad);

        if (gpu < 0)
                return false;
        if (kept_take(h->accumulator, (uint32_t)gpu, bytes, ret))
                return true;
        if (bytes && rooms_are_kept(h->job)) /* else it would not be kept */
                gpu_ask(h, (uint32_t)gpu, bytes);
        return false;
}

void accumulator_vacate(struct accumulator *l)
{
        while (l->n_kept_rooms)
                gpu_free(l->kept_rooms[--l->n_kept_rooms].memory);
}

void accumulator_tick(struct holding *h)
{
        struct accumulator *l = h->accumulator;

        if (l->n_kept_rooms && !h->job->n_attached &&
            engine_now(h->job->x) - l->kept_ms > ROOM_IDLE_MS)
                accumulator_vacate(l);
}

/* ---- of an offer ------------------------------------------------------------------- */

static bool host_take(uint64_t bytes, struct room *ret)
{
        void *memory = buffer_new(bytes);

        if (memory)
                *ret = (struct room){ memory, bytes, ROOM_ON_HOST };
        return memory;
}

bool room_take(struct holding *h, uint32_t group, bool its_turn, struct room *ret)
{
        struct accumulator *l = h->accumulator;
        uint64_t bytes = offer_bytes(h, group), largest = largest_bytes(h);
        bool only = its_turn && l->room_bytes == 0, ok = false;
        struct room room;

        if (state_on_gpu(h->state) && (only || budget_has(h, largest, largest)))
                ok = gpu_take(h, largest, &room);
        if (!ok && (its_turn || budget_has(h, largest, bytes)))
                ok = host_take(bytes, &room);
        if (!ok)
                return false;
        l->room_bytes += room.bytes;
        *ret = room;
        return true;
}

void room_give(struct holding *h, struct room *room)
{
        struct accumulator *l = h->accumulator;
        struct room old = *room;

        if (!old.memory)
                return;
        *room = (struct room){ 0 };
        l->room_bytes -= old.bytes;
        if (old.gpu == ROOM_ON_HOST)
                buffer_free(old.memory);
        else if (!keep(l, h->job, old))
                gpu_free(old.memory);
}
