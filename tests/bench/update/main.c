/*
 * bench-update [--elements N] [--chunk N] [--repeat N] [--wire] [--json FILE]
 *
 * What crash consistency costs an update: one thread, AdamW on all chunks of a state, with what
 * the store does so that a process killed at any instruction loses nothing (record, undo slots,
 * chunk versions), against the same kernel without any of it, on parts of the same state in turn.
 * With --wire the state has its gradient in bf16, and the kernel without has it in fp32.
 *
 * And what a checkpoint costs it of which nothing had been copied when it began: how much longer
 * it takes to save all old values on its way, against one copy of as many bytes past the cache from
 * and to memory that is in place; and against a copy of the planes as they lie.
 *
 * And how many parameters a second an update of other formats and of Muon brings forward, in times
 * of AdamW's with fp32, and how near a copy of as many bytes comes to it.  Muon's directions, which
 * bench-matrix measures, are there.
 *
 * The figures are ratios of times of the update alone; of a training step it is a part.  The mode
 * without consistency exists here only.  Median and quartiles over rounds.
 */
#include <errno.h>
#include <getopt.h>
#include <sodium.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "daemon/floor/base/chunk.h"
#include "daemon/store/snapshot/snapshot.h"
#include "daemon/store/file.h"
#include "proto/cleanup.h"
#include "proto/dtype.h"
#include "tests/support/adamw.h"

enum { ROUNDS_MAX = 1000, PARTS = 64 };

DEFINE_CLEANUP(layout *, layout_free)
DEFINE_CLEANUP(struct partition *, partition_free)

/* How a state is kept. */
struct way {
        const char *name, *optimizer, *state, *master;
        const char *aim; /* of parameters a second, in times of fp32's */
};

static const struct way fp32 = { "AdamW, fp32", "adamw", NULL, NULL, NULL };
static const struct way others[] = {
        { "AdamW, bf16 and fp32", "adamw", "bf16", NULL, "1.5" },
        { "AdamW, 8bit and fp32", "adamw", "8bit", NULL, "1.5" },
        { "AdamW, fp32 and bf16+16", "adamw", NULL, "bf16+16", NULL },
        { "AdamW, bf16 and bf16+16", "adamw", "bf16", "bf16+16", "1.5" },
        { "AdamW, 8bit and bf16+16", "adamw", "8bit", "bf16+16", "1.5" },
        { "AdamW, 8bit and bf16+8", "adamw", "8bit", "bf16+8", "1.5" },
        { "Muon, fp32", "muon", NULL, NULL, NULL },
        { "Muon, 8bit and bf16+8", "muon", "8bit", "bf16+8", NULL }
};
enum { COLUMNS = 1024 };

struct scene {
        char directory[64];
        struct store *store;
        layout *layout;
        struct state *state;
        const struct device_ops *ops;
        struct update_scalars scalars;
        struct snapshot_map map;
        uint8_t *saved, *other; /* map.bytes each */
        float *grad;            /* the gradient in fp32: of the state, unless that has it in bf16 */
        uint16_t *directions;   /* of matrices; NULL: there are none */
};

/* What is measured, and in how many rounds. */
struct times {
        double in_place[ROUNDS_MAX], half[ROUNDS_MAX]; /* of an update, half of it each */
        double consistent[ROUNDS_MAX], saving[ROUNDS_MAX];
        double copy[ROUNDS_MAX], planes[ROUNDS_MAX];
        double other[ROUNDS_MAX]; /* an update in another way; `consistent` is beside it */
        unsigned n;
};

static double now(void)
{
        struct timespec t;

        clock_gettime(CLOCK_MONOTONIC, &t);
        return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static int compare(const void *a, const void *b)
{
        double x = *(const double *)a, y = *(const double *)b;

        return (x > y) - (x < y);
}

static double median(double *times, uint32_t n)
{
        qsort(times, n, sizeof *times, compare);
        return times[n / 2];
}

static void *serve_of(const struct scene *s, const struct plan_chunk *c)
{
        const struct plan_shard *shard = &s->state->plan->shards[c->group];

        return s->state->in->serve + shard->serve + (c->in_group - shard->range.first) * 2;
}

/* ---- the ways ---------------------------------------------------------------- */

static void update_in_place(struct scene *s, uint32_t first, uint32_t end)
{
        const struct state *x = s->state;

        for (uint32_t i = first; i < end; i++) {
                const struct plan_chunk c = plan_chunk(x->plan, i);
                float *p = x->in->master + c.master, *m = (float *)x->in->moments[0] + c.moment;
                float *v = (float *)x->in->moments[1] + c.moment, *g = s->grad + c.moment;

                run_adamw(s->ops, &s->scalars, c.n, p, m, v, g, NULL);
                s->ops->serve(ZERO_BF16, serve_of(s, &c), p, c.n);
        }
}

static void begin_attempt(struct state *x)
{
        struct state_record record = *x->record;

        memset(x->present, 1, x->n_tensors);
        record.n_sets = 1;
        record.finite = 1;
        state_prepare(x, &record);
        record.commit = 1;
        state_decide(x, &record, 0);
}

static void update_consistent(struct scene *s, uint32_t first, uint32_t end, bool save)
{
        struct state *x = s->state;
        const struct unit_update update = { .version = x->record->version + 1,
                                            .present = x->present,
                                            .scalars = &s->scalars,
                                            .layout = s->layout,
                                            .directions = s->directions };

        for (uint32_t i = first; i < end; i++) {
                struct undo_values old = undo_update(x, 0, i, &update, s->ops);

                if (save)
                        snapshot_save_chunk(&s->map, x->plan, s->ops, i, old, 0, s->saved);
                state_serve_unit(x, s->layout, i, s->ops);
        }
}

static double update(struct scene *s, bool save)
{
        double begin = now();

        begin_attempt(s->state);
        update_consistent(s, 0, s->state->plan->n_chunks, save);
        state_finish(s->state);
        return now() - begin;
}

/*
 * One update, every other part of it in place.  Half an update's time each way, as the median part
 * has it: what else the machine does stops some parts, and meets both ways alike.  The attempt's
 * own times belong to the half of it that is consistent, by half.
 */
static void update_by_turns(struct scene *s, bool first_in_place, double *ret_in_place,
                            double *ret_consistent)
{
        uint32_t n = s->state->plan->n_chunks, parts[2] = { 0 };
        double took[2][PARTS], own, begin = now();

        begin_attempt(s->state);
        own = now() - begin;
        for (uint32_t part = 0; part < PARTS; part++) {
                uint32_t first = (uint32_t)((uint64_t)n * part / PARTS);
                uint32_t end = (uint32_t)((uint64_t)n * (part + 1) / PARTS);
                bool consistent = part % 2 == first_in_place;

                begin = now();
                if (consistent)
                        update_consistent(s, first, end, false);
                else
                        update_in_place(s, first, end);
                took[consistent][parts[consistent]++] = now() - begin;
                for (uint32_t i = first; !consistent && i < end; i++)
                        undo_done(s->state, i, s->state->record->version + 1);
        }
        begin = now();
        state_finish(s->state);
        own += now() - begin;
        *ret_in_place = PARTS / 2 * median(took[0], parts[0]);
        *ret_consistent = PARTS / 2 * median(took[1], parts[1]) + own / 2;
}

static double copy_memory(struct scene *s)
{
        double begin = now();

        s->ops->copy(s->other, s->saved, s->map.bytes);
        return now() - begin;
}

static double copy_planes(struct scene *s)
{
        double begin = now();

        snapshot_copy(&s->map, s->state, s->ops, 0, s->other, s->map.bytes);
        return now() - begin;
}

/* ---- one state ------------------------------------------------------------------- */

static int scene_layout(uint64_t elements, const struct way *way, layout **ret, struct fault *fault)
{
        CLEANUP(cleanup_layout_free) layout *l = NULL;
        char name[] = "t";
        struct layout_tensor t = { .name = name,
                                   .ndim = 2,
                                   .shape = { elements / COLUMNS, COLUMNS } };
        uint32_t index;
        int r = layout_new(&l);

        if (!r)
                r = layout_add_group(l, "g", ZERO_BF16, NULL, 0, 0, &index, fault);
        if (!r)
                r = layout_set_optimizer(l, index, way->optimizer, fault);
        if (!r)
                r = layout_set_state(l, index, way->state, way->master, fault);
        if (!r)
                r = layout_add_tensor(l, &t, &index, fault);
        if (!r && strcmp(way->optimizer, "muon") == 0)
                r = layout_set_matrices(l, index, &t.shape[0], 1, fault);
        if (!r)
                *ret = STEAL(l);
        return r;
}

static int scene_state(struct scene *s, uint32_t chunk, bool wire, struct fault *fault)
{
        struct state_identity id = { .job = { .name = "bench",
                                              .world_size = 1,
                                              .reduce_dtype = ZERO_BF16,
                                              .accumulate = wire ? ZERO_ACCUMULATE_WIRE
                                                                 : ZERO_ACCUMULATE_FP32 },
                                     .n_owners = 1 };
        CLEANUP(cleanup_partition_free) struct partition *partition = NULL;
        struct plan *plan = NULL;
        int r = partition_new(s->layout, 1, &partition);

        if (!r)
                r = plan_new(s->layout, partition, 0, chunk, &plan);
        if (r)
                return r;
        plan->grad_dtype = job_spec_sum_dtype(&id.job);
        plan->staggered = true;
        return state_create(s->store, &id, s->layout, plan, 1, &s->state, fault);
}

static void scene_fill(struct scene *s)
{
        struct state *x = s->state;
        uint32_t bits = 1;

        for (uint64_t i = 0; i < x->plan->moment_elements; i++) {
                bits = bits * 1664525 + 1013904223;
                s->grad[i] = (float)bits * 0x1p-34f - 0.125f;
        }
        s->ops->cast(x->plan->grad_dtype, x->in->grad, ZERO_FP32, s->grad,
                     s->grad == x->in->grad ? 0 : x->plan->moment_elements);
        if (s->directions)
                s->ops->cast(ZERO_BF16, s->directions, ZERO_FP32, s->grad,
                             x->plan->moment_elements);
}

/* In place, and of pages as large as the system gives. */
static uint8_t *memory(size_t bytes)
{
        void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

        if (p == MAP_FAILED)
                return NULL;
        (void)madvise(p, bytes, MADV_HUGEPAGE);
        return memset(p, 1, bytes);
}

static struct update_scalars way_scalars(const struct way *way)
{
        static const struct hyper_set adamw = { .value = { 1e-4, 0.9, 0.999, 1e-8, 0.01 } };

        if (strcmp(way->optimizer, "adamw") != 0)
                return optimizer_muon.scalars((const double[]){ 1e-4, 0.95, 0.1, 1, 1 }, 10, 1.0);
        return hyper_scalars(&adamw, false, way->state, 10, 1.0);
}

static int scene_init(struct scene *s, const struct way *way, uint64_t elements, uint32_t chunk,
                      bool wire, struct fault *fault)
{
        int r;

        *s = (struct scene){ .directory = "/dev/shm/zerod-bench-XXXXXX",
                             .ops = device_host(NULL),
                             .scalars = way_scalars(way) };
        if (!mkdtemp(s->directory))
                return fault_set(fault, ZERO_EIO, "%s: %s", s->directory, strerror(errno));
        r = store_open(s->directory, 0, &s->store, fault);
        if (!r)
                r = scene_layout(elements, way, &s->layout, fault);
        if (!r)
                r = scene_state(s, chunk, wire, fault);
        if (!r)
                s->grad = wire ? (void *)memory(s->state->plan->moment_elements * sizeof *s->grad)
                               : s->state->in->grad;
        if (!r && s->state->plan->shards[0].matrices)
                s->directions = (void *)memory(elements * sizeof *s->directions);
        if (!r && (!s->grad || (s->state->plan->shards[0].matrices && !s->directions)))
                r = fault_set(fault, ZERO_ENOMEM, "out of memory");
        if (!r)
                scene_fill(s);
        if (!r && (snapshot_map_new(s->state->plan, &s->map) ||
                   !(s->saved = memory(s->map.bytes)) || !(s->other = memory(s->map.bytes))))
                r = fault_set(fault, ZERO_ENOMEM, "out of memory");
        return r;
}

static void memory_free(void *p, size_t bytes)
{
        if (p)
                munmap(p, bytes);
}

static int scene_deinit(struct scene *s)
{
        char lock[96];

        if (s->state && s->grad != s->state->in->grad)
                memory_free(s->grad, s->state->plan->moment_elements * sizeof *s->grad);
        if (s->directions)
                memory_free(s->directions, s->layout->elements * sizeof *s->directions);
        memory_free(s->saved, s->map.bytes);
        memory_free(s->other, s->map.bytes);
        snapshot_map_deinit(&s->map);
        state_drop(s->state);
        layout_free(s->layout);
        if (s->store)
                store_close(s->store);
        snprintf(lock, sizeof lock, "%s/.lock", s->directory);
        unlink(lock);
        return rmdir(s->directory);
}

/* ---- figures ----------------------------------------------------------------------- */

/* What the one takes beyond the other, or NULL, in times of a third. */
static void report(const char *name, const struct times *t, const double *of, const double *beyond,
                   const double *to, const char *aim, FILE *json)
{
        double ratio[ROUNDS_MAX];
        unsigned n = t->n;

        for (unsigned i = 0; i < n; i++)
                ratio[i] = (of[i] - (beyond ? beyond[i] : 0)) / to[i];
        qsort(ratio, n, sizeof *ratio, compare);
        printf("%s: %.3f, %.3f .. %.3f\n", name, ratio[n / 2], ratio[n / 4], ratio[n - 1 - n / 4]);
        if (json)
                fprintf(json,
                        "{\"name\": \"%s\", \"repeat\": %u, \"median_ratio\": %.4f, "
                        "\"spread\": [%.4f, %.4f]%s%s}\n",
                        name, n, ratio[n / 2], ratio[n / 4], ratio[n - 1 - n / 4],
                        aim ? ", \"aim\": " : "", aim ? aim : "");
}

static void report_all(struct times *t, uint64_t elements, FILE *json)
{
        report("update, crash-consistent / without", t, t->half, NULL, t->in_place, "1.02", json);
        report("update that saves all for a checkpoint, more / one copy", t, t->saving,
               t->consistent, t->copy, "1", json);
        report("update that saves all for a checkpoint, more / copy of the planes", t, t->saving,
               t->consistent, t->planes, NULL, json);
        qsort(t->consistent, t->n, sizeof *t->consistent, compare);
        qsort(t->copy, t->n, sizeof *t->copy, compare);
        printf("the update %.1f GB/s, the copy %.1f GB/s\n",
               (double)elements * 30 / t->consistent[t->n / 2] * 1e-9,
               (double)elements * 24 / t->copy[t->n / 2] * 1e-9);
}

static void measure(struct scene *s, struct times *t)
{
        update(s, true);
        copy_planes(s);
        for (unsigned i = 0; i < t->n; i++) {
                update_by_turns(s, i % 2, &t->in_place[i], &t->half[i]);
                t->consistent[i] = update(s, false);
                t->copy[i] = copy_memory(s);
                t->saving[i] = update(s, true);
                t->planes[i] = copy_planes(s);
        }
}

/* Bytes that an update reads and writes, by two: a copy of so many bytes moves as much. */
static uint64_t bytes_of(const struct scene *s)
{
        const struct plan *p = s->state->plan;

        return plan_state_bytes(p) + (p->keeps_served ? p->serve_bytes : 0) +
               (dtype_bytes(p->grad_dtype, p->moment_elements) +
                (s->directions ? 2 : 0) * p->moment_elements + plan_served_apart(p)) /
                       2;
}

/* An update in another way and one of fp32 in turn. */
static int compare_way(struct scene *base, const struct way *way, uint64_t elements, uint32_t chunk,
                       bool wire, struct times *t, FILE *json, struct fault *fault)
{
        struct scene s;
        char name[96];
        int r = scene_init(&s, way, elements, chunk, wire, fault);

        for (unsigned i = 0; !r && i <= t->n; i++) { /* the first one warms up */
                double whole = (double)bytes_of(&s) / (double)s.map.bytes;
                unsigned at = i ? i - 1 : 0;

                t->consistent[at] = update(base, false);
                t->other[at] = update(&s, false);
                t->copy[at] = copy_memory(&s) * whole;
        }
        if (!r) {
                snprintf(name, sizeof name, "update, %s: parameters a second / fp32's", way->name);
                report(name, t, t->consistent, NULL, t->other, way->aim, json);
                snprintf(name, sizeof name, "update, %s: copy of as many bytes / it", way->name);
                report(name, t, t->copy, NULL, t->other, NULL, json);
        }
        if (scene_deinit(&s) && !r)
                r = -errno;
        return r;
}

static bool number(const char *text, unsigned long max, unsigned long *ret_value)
{
        char *end;

        errno = 0;
        *ret_value = strtoul(text, &end, 10);
        return !errno && end != text && !*end && *ret_value >= 1 && *ret_value <= max;
}

int main(int argc, char *argv[])
{
        static const struct option known[] = { { "elements", required_argument, NULL, 'e' },
                                               { "repeat", required_argument, NULL, 'r' },
                                               { "chunk", required_argument, NULL, 'c' },
                                               { "wire", no_argument, NULL, 'w' },
                                               { "json", required_argument, NULL, 'j' },
                                               { NULL, 0, NULL, 0 } };
        unsigned long elements = 32UL << 20, rounds = 15, chunk = chunk_default();
        static struct times times;
        struct fault fault = { 0 };
        const char *path = NULL;
        struct scene scene;
        bool bad = sodium_init() < 0, wire = false;
        int option;

        while ((option = getopt_long(argc, argv, "", known, NULL)) != -1)
                bad = bad ||
                      (option == 'e'   ? !number(optarg, 1UL << 34, &elements) || elements < COLUMNS
                       : option == 'r' ? !number(optarg, ROUNDS_MAX, &rounds)
                       : option == 'c' ? !number(optarg, 65536, &chunk)
                       : option == 'w' ? !(wire = true)
                       : option == 'j' ? !(path = optarg)
                                       : true);
        if (bad || optind != argc) {
                fprintf(stderr, "usage: bench-update [--elements N] [--chunk N] [--repeat N] "
                                "[--wire] [--json FILE]\n");
                return EXIT_FAILURE;
        }
        FILE *json = path ? fopen(path, "w") : NULL;
        elements -= elements % COLUMNS;
        int r = scene_init(&scene, &fp32, elements, (uint32_t)chunk, wire, &fault);
        if (r || (path && !json)) {
                fprintf(stderr, "bench-update: %s\n",
                        r > 0 ? fault.text : strerror(r ? -r : errno));
        } else {
                times.n = (unsigned)rounds;
                measure(&scene, &times);
                report_all(&times, elements, json);
                for (size_t i = 0; !r && i < sizeof others / sizeof others[0]; i++)
                        r = compare_way(&scene, &others[i], elements, (uint32_t)chunk, wire, &times,
                                        json, &fault);
                if (r)
                        fprintf(stderr, "bench-update: %s\n", r > 0 ? fault.text : strerror(-r));
        }
        if (json)
                fclose(json);
        return scene_deinit(&scene) || r || (path && !json) ? EXIT_FAILURE : EXIT_SUCCESS;
}
