/*
 * Computes the directions of a group's matrices; see directions.h.
 *
 * As many matrices are under way as there are threads, and as fit the memory of the largest one.
 * Each goes through stages: its momentum is
 * read, Newton-Schulz has stages of its own (compute/matrix), and the result is copied to where the
 * update looks for it.  The parts of a stage are tasks.  A stage begins on the loop thread, when
 * all parts of the one before have ended.  A small matrix goes through all stages in one task.
 */
#include "daemon/step/update/directions.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "daemon/job/core/progress.h"
#include "daemon/step/update/matrices.h"
#include "proto/cleanup.h"
#include "proto/dtype.h"

enum {
        PASS = 1 << 18, /* elements of a part of the first and the last stage */
        PIECE = 512,    /* that stay in the L1 cache */
};

/* A matrix that is under way. */
struct work {
        struct directions *of;
        bool busy, small;
        struct ortho ortho;
        void *memory;
        size_t bytes;
        uint32_t stage, part, parts, running; /* part: the next one to begin */
        struct shard_matrix matrix;
        struct update_scalars scalars;
        bool nesterov;
};

struct directions {
        struct replica *replica;
        uint32_t group;
        uint64_t version;
        const struct update_scalars *scalars; /* [tensor] */
        void (*done)(struct replica *h);
        struct matrix_walk walk; /* behind the last matrix that has begun */
        bool begun;              /* all of them */
        uint32_t left;           /* matrices under way */
        size_t bytes, taken;     /* of values; of the works' memory */
        uint16_t *values;        /* bf16, by element of the shard's gradient */
        uint32_t n_works;
        struct work works[];
};

struct part_task {
        struct offload_task task;
        struct work *work;
        uint32_t part;
};

/* Memory that the kernel gives back at once. */
static void *pages_new(size_t bytes)
{
        void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

        return p == MAP_FAILED ? NULL : p;
}

static void pages_free(void *p, size_t bytes)
{
        if (p)
                munmap(p, bytes);
}

/* ---- stages, on an offload thread ---------------------------------------------------- */

/* Records of the momentum that have a piece of a matrix, in fp32. */
struct records {
        uint64_t first;     /* of the run */
        size_t n, elements; /* elements: of the tensor; behind it is a gap */
        float momentum[PIECE + LAYOUT_ALIGN], grad[PIECE + LAYOUT_ALIGN];
};

/* What the update leaves in the file.  A chunk that has its new momentum already shows no more. */
static void update_packed(const struct work *w, struct records *r)
{
        const struct state *state = w->of->replica->state;
        const struct device_ops *ops = w->of->replica->job->x->ops;
        enum format format = w->matrix.run->formats[0];
        uint8_t packed[(PIECE + LAYOUT_ALIGN) * sizeof(float)];
        float *const planes[] = { r->momentum };

        ops->update(UPDATE_MOMENTUM, &w->scalars, r->elements, planes, r->grad, NULL);
        if (format == FORMAT_FP32)
                return;
        ops->pack(format, packed, NULL, r->momentum, r->n,
                  dither_at(1, state->tensor_step[w->matrix.tensor],
                            w->matrix.run->in_group + r->first));
        ops->unpack(format, r->momentum, NULL, packed, r->n);
}

/* The momentum after the update, or with Nesterov what is one step ahead of it.  b, g: of the run.
 */
static void read_piece(const struct work *w, const uint8_t *b, const uint8_t *g, uint64_t at,
                       uint64_t n, bool reached, uint16_t *to)
{
        const struct directions *d = w->of;
        const struct device_ops *ops = d->replica->job->x->ops;
        const struct layout_tensor *t = &d->replica->job->layout->tensors[w->matrix.tensor];
        enum zero_dtype dtype = d->replica->state->plan->grad_dtype;
        enum format format = w->matrix.run->formats[0];
        uint64_t skip = format == FORMAT_FP32 ? 0 : at % LAYOUT_ALIGN;
        struct records r = { .first = at - skip, .n = skip + n };
        float *const planes[] = { r.momentum };
        uint64_t left = t->offset + t->elements - (w->matrix.run->in_group + r.first);

        if (format != FORMAT_FP32)
                r.n = (r.n + LAYOUT_ALIGN - 1) / LAYOUT_ALIGN * LAYOUT_ALIGN;
        r.elements = r.n < left ? r.n : left;
        ops->cast(ZERO_FP32, r.grad, dtype, g + dtype_bytes(dtype, r.first), r.elements);
        format_read(ops, format, b, NULL, r.first, r.n, r.momentum);
        if (!reached)
                update_packed(w, &r);
        if (w->nesterov)
                ops->update(UPDATE_MOMENTUM, &w->scalars, r.elements, planes, r.grad, NULL);
        ops->cast(ZERO_BF16, to, ZERO_FP32, r.momentum + skip, n);
}

static void read_part(const struct work *w, uint64_t first, uint64_t end)
{
        const struct state *state = w->of->replica->state;
        const struct plan_shard *shard = &state->plan->shards[w->of->group];
        struct mapping buffer = state_map(state, plane_updated(1), w->of->group, shard->range);
        struct mapping grad = state_map(state, plane_grad, w->of->group, shard->range);
        const struct plan_run *run = w->matrix.run;
        const uint8_t *b = (uint8_t *)buffer.at + (run->moment_at[0] - shard->moment_at[0]);
        const uint8_t *run_grad = (uint8_t *)grad.at +
                                  dtype_bytes(state->plan->grad_dtype, run->moment - shard->moment);

        for (uint64_t n; first < end; first += n) {
                uint64_t at = w->matrix.moment - run->moment + first;
                uint32_t chunk;

                n = matrix_in_chunk(&w->matrix, first, end - first < PIECE ? end - first : PIECE,
                                    &chunk);
                read_piece(w, b, run_grad, at, n, undo_reached(state, chunk, w->of->version),
                           ortho_values(&w->ortho) + first);
        }
        state_unmap(&grad);
        state_unmap(&buffer);
}

static void write_part(const struct work *w, uint64_t first, uint64_t end)
{
        const struct directions *d = w->of;
        uint64_t at = w->matrix.moment - d->replica->state->plan->shards[d->group].moment;

        memcpy(d->values + at + first, ortho_values(&w->ortho) + first,
               (end - first) * sizeof(*d->values));
}

/* The first stage reads, the last one writes. */
static uint32_t stages(const struct work *w)
{
        return ortho_stages(&w->ortho) + 2;
}

static uint32_t stage_parts(const struct work *w, uint32_t stage)
{
        if (stage > 0 && stage + 1 < stages(w))
                return ortho_parts(&w->ortho, stage - 1);
        return (uint32_t)((matrix_elements(&w->matrix) + PASS - 1) / PASS);
}

static void stage_part(const struct work *w, uint32_t stage, uint32_t part)
{
        uint64_t first = (uint64_t)part * PASS, end = first + PASS;

        end = end < matrix_elements(&w->matrix) ? end : matrix_elements(&w->matrix);
        if (stage == 0)
                read_part(w, first, end);
        else if (stage + 1 == stages(w))
                write_part(w, first, end);
        else
                ortho_part(&w->ortho, stage - 1, part);
}

static void part_run(struct offload_task *task, uint32_t worker)
{
        const struct part_task *t = CONTAINER_OF(task, struct part_task, task);
        const struct work *w = t->work;

        if (!w->small) {
                stage_part(w, w->stage, t->part);
                return;
        }
        for (uint32_t stage = 0; stage < stages(w); stage++)
                for (uint32_t part = 0; part < stage_parts(w, stage); part++)
                        stage_part(w, stage, part);
}

/* ---- matrices, on the loop thread ------------------------------------------------------ */

static bool work_begin(struct directions *d, struct work *w)
{
        const struct state *state = d->replica->state;
        struct matrix_walk walk = d->walk;
        struct muon muon;

        d->begun = !matrix_next(d->replica, d->group, &walk, &w->matrix);
        if (d->begun)
                return false;
        const struct layout_matrix *m = &w->matrix.matrix;
        const struct hyper_set *set = &state->record->sets[state->tensor_set[w->matrix.tensor]];

        muon = muon_of(set);
        w->bytes = ortho_bytes(m->rows, m->cols);
        w->memory = d->taken + w->bytes <= state->plan->matrix_bytes ? pages_new(w->bytes) : NULL;
        if (!w->memory)
                return false;
        d->walk = walk;
        d->taken += w->bytes;
        ortho_begin(&w->ortho, m->rows, m->cols, &muon.ns, w->memory, d->replica->job->x->ops);
        w->scalars = d->scalars[w->matrix.tensor];
        w->scalars.ema_rate = 0;
        w->nesterov = muon.nesterov;
        w->small = matrix_elements(&w->matrix) <= PASS && ortho_load(&w->ortho) < 1;
        w->busy = true;
        w->stage = w->part = 0;
        w->parts = w->small ? 1 : stage_parts(w, 0);
        d->left++;
        return true;
}

static void work_end(struct work *w)
{
        pages_free(STEAL(w->memory), w->bytes);
        w->busy = false;
        w->of->taken -= w->bytes;
        w->of->left--;
}

static void part_done(struct offload_task *task)
{
        struct part_task *t = CONTAINER_OF(task, struct part_task, task);
        struct work *w = t->work;
        struct directions *d = w->of;
        struct replica *h = d->replica;
        struct job *job = h->job;

        free(t);
        if (--w->running == 0 && w->part == w->parts) {
                w->part = 0;
                if (w->small || ++w->stage == stages(w))
                        work_end(w);
                else
                        w->parts = stage_parts(w, w->stage);
        }
        d->done(h);
        job_unref(job);
}

/* One with a part that can begin; NULL: none. */
static struct work *find_work(struct directions *d)
{
        struct work *idle = NULL;

        for (uint32_t i = 0; i < d->n_works; i++) {
                struct work *w = &d->works[i];

                if (w->busy && w->part < w->parts)
                        return w;
                if (!w->busy)
                        idle = w;
        }
        return idle && work_begin(d, idle) ? idle : NULL;
}

bool directions_submit(struct directions *d)
{
        struct part_task *t = malloc(sizeof(*t));
        struct work *w = t ? find_work(d) : NULL;

        if (!w) {
                free(t);
                return false;
        }
        *t = (struct part_task){ .task = { .run = part_run, .done = part_done },
                                 .work = w,
                                 .part = w->part++ };
        w->running++;
        job_ref(d->replica->job);
        job_compute(d->replica->job, OFFLOAD_STEP, &t->task);
        return true;
}

bool directions_starve(const struct directions *d)
{
        uint32_t running = 0;

        for (uint32_t i = 0; i < d->n_works; i++)
                running += d->works[i].running;
        return running == 0 && !directions_values(d);
}

const uint16_t *directions_values(const struct directions *d)
{
        return d->left == 0 && d->begun ? d->values : NULL;
}

int directions_new(struct replica *h, uint32_t group, uint64_t version,
                   const struct update_scalars *scalars, void (*done)(struct replica *h),
                   struct directions **ret)
{
        uint32_t n = offload_workers(h->job->x->offload);
        struct directions *d = calloc(1, sizeof(*d) + n * sizeof(*d->works));

        if (!d)
                return -ENOMEM;
        d->bytes = h->state->plan->shards[group].moment_count * sizeof(*d->values);
        d->values = pages_new(d->bytes);
        if (!d->values) {
                free(d);
                return -ENOMEM;
        }
        d->replica = h;
        d->group = group;
        d->version = version;
        d->scalars = scalars;
        d->done = done;
        d->n_works = n;
        for (uint32_t i = 0; i < n; i++)
                d->works[i].of = d;
        *ret = d;
        return 0;
}

void directions_free(struct directions *d)
{
        if (!d)
                return;
        for (uint32_t i = 0; i < d->n_works; i++)
                pages_free(d->works[i].memory, d->works[i].bytes);
        pages_free(d->values, d->bytes);
        free(d);
}
