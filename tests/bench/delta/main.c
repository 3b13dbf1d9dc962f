/*
 * bench-delta [--elements N] [--block N] [--repeat N] [--json FILE]
 *
 * What differences between two versions of bf16 parameters take, by learning rate: bytes, against
 * the entropy of what changed, and time, against the update that makes them.  One thread, AdamW on
 * weights N(0, 0.02) with gradients N(0, 1); the moments are those of a training that goes on.
 *
 * Entropy is that of the mask of changed values, and of the steps of these in units of the last
 * place, both of order 0; `given` is the same where the exponent of the old value is known.  Beside
 * them: an index of 4 bytes and a value of 2 for each change.
 *
 * Blocks are updated in chunks as the store does it.  Of every other block an update copies what
 * was served, as for readers; the rest tells what an update takes without.  Coding and applying
 * come behind that, as on the threads that no step waits for.  Times are the CPU's.  Median and
 * quartiles over rounds.
 */
#include <errno.h>
#include <getopt.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "daemon/compute/delta/delta.h"
#include "daemon/floor/base/chunk.h"
#include "proto/dtype.h"
#include "tests/support/adamw.h"

enum {
        ROUNDS_MAX = 1000,
        EXPONENTS = 256,
        STEPS = 1 << 17, /* of bf16: from one end of its values to the other, both ways */
        WARM_UP = 30,    /* updates until the moments are about what they stay */
        MAGNITUDE = 7,   /* bits of bf16 below the exponent */
};

static const double rates[] = { 1e-6, 3e-6, 1e-5, 1e-4, 3e-4 };

struct scene {
        size_t n, block, chunk;
        const struct device_ops *ops;
        float *p, *m, *v, *grad, *undo;
        uint16_t *serve, *old; /* of all, and before the update */
        uint16_t *was;         /* of all, as updates copy it */
        uint8_t *bytes;        /* of a block */
        uint64_t step, random;
};

/* What is known of a version, in bytes; changed: elements. */
struct counts {
        size_t changed;
        double entropy, given, coded;
};

/* Of a round; times are ns an element. */
struct round {
        struct counts counts;
        double update, copying, code, apply;
};

static uint32_t (*histogram)[STEPS]; /* [EXPONENTS] */

/* Of the CPU, in seconds: whoever else runs does not count. */
static double now(void)
{
        struct timespec t;

        clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
        return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static int compare(const void *a, const void *b)
{
        double x = *(const double *)a, y = *(const double *)b;

        return (x > y) - (x < y);
}

/* About N(0, 1): the sum of four uniform numbers. */
static float normal(uint64_t *state)
{
        uint64_t x = *state;
        float sum = 0;

        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        *state = x;
        for (int i = 0; i < 4; i++, x >>= 16)
                sum += (float)(x & 0xffff);
        return (sum - 2 * 65535.0f) / 65536.0f * sqrtf(3);
}

/* ---- entropy --------------------------------------------------------------------- */

/* Bits that tell which ones: `of` of n things differ from the others. */
static double information(double of, double n)
{
        return of > 0 ? -of * log2(of / n) : 0;
}

static int32_t place_of(uint16_t bits)
{
        return bits & 0x8000 ? -(bits & 0x7fff) - 1 : bits;
}

static double mask_bits(double changed, double n)
{
        return information(changed, n) + information(n - changed, n);
}

/* All of *counts but what was coded. */
static void count(const uint16_t *was, const uint16_t *is, size_t n, struct counts *counts)
{
        static uint32_t all[STEPS];
        size_t of[EXPONENTS] = { 0 }, changed[EXPONENTS] = { 0 };
        struct counts c = { .coded = counts->coded };

        memset(all, 0, sizeof all);
        for (size_t i = 0; i < n; i++) {
                unsigned exponent = was[i] >> MAGNITUDE & (EXPONENTS - 1);
                uint32_t step = (uint32_t)(place_of(is[i]) - place_of(was[i])) % STEPS;

                of[exponent]++;
                if (!step)
                        continue;
                c.changed++;
                changed[exponent]++;
                all[step]++;
                histogram[exponent][step]++;
        }
        c.entropy = mask_bits((double)c.changed, (double)n);
        for (size_t s = 0; s < STEPS; s++)
                c.entropy += information(all[s], (double)c.changed);
        for (size_t e = 0; e < EXPONENTS; e++) {
                c.given += mask_bits((double)changed[e], (double)of[e]);
                for (size_t s = 0; changed[e] && s < STEPS; s++)
                        c.given += information(histogram[e][s], (double)changed[e]);
                if (changed[e])
                        memset(histogram[e], 0, sizeof histogram[e]);
        }
        c.entropy /= 8;
        c.given /= 8;
        *counts = c;
}

/* ---- an update --------------------------------------------------------------------- */

static void gradients(struct scene *s)
{
        for (size_t i = 0; i < s->n; i++)
                s->grad[i] = normal(&s->random);
        s->step++;
}

/* copy: what was served, for readers. */
static void update(struct scene *s, const struct update_scalars *scalars, size_t first, size_t end,
                   bool copy)
{
        uint64_t kept;
        struct update_undo undo = { { s->undo, s->undo + s->chunk, s->undo + 2 * s->chunk },
                                    &kept,
                                    0 };

        for (size_t i = first; i < end; i += s->chunk) {
                size_t n = end - i < s->chunk ? end - i : s->chunk;

                kept = undo_mark(0);
                run_adamw(s->ops, scalars, n, s->p + i, s->m + i, s->v + i, s->grad + i, &undo);
                if (copy)
                        s->ops->serve(ZERO_BF16, s->was + i, s->undo, n);
                s->ops->serve(ZERO_BF16, s->serve + i, s->p + i, n);
        }
}

/* An update of a block, coded and applied.  0, or -EBADMSG where other values came out. */
static int coded_block(struct scene *s, const struct update_scalars *scalars, size_t first,
                       size_t n, struct round *r)
{
        double begin = now(), updated, coded;
        uint16_t *was = s->was + first;
        size_t bytes;

        update(s, scalars, first, first + n, true);
        updated = now();
        bytes = delta_code(ZERO_BF16, was, s->serve + first, n, s->bytes);
        coded = now();
        if (delta_apply(ZERO_BF16, was, n, s->bytes, bytes))
                return -EBADMSG;
        r->apply += now() - coded;
        r->code += coded - updated;
        r->copying += updated - begin;
        r->counts.coded += (double)bytes;
        return memcmp(was, s->serve + first, n * sizeof *was) ? -EBADMSG : 0;
}

/* One version: 0 or -errno. */
static int version(struct scene *s, double rate, unsigned turn, struct round *ret_round)
{
        size_t blocks = s->n / s->block;
        struct update_scalars scalars;
        struct round r = { 0 };
        double ns = 2e9 / (double)s->n;
        int error;

        gradients(s);
        scalars = adamw_scalars(rate, 0.9, 0.999, 1e-8, 0.01, s->step, 1.0);
        memcpy(s->old, s->serve, s->n * sizeof *s->old);
        for (size_t i = 0; i < blocks; i++) {
                double begin = now();

                if ((i + turn) % 2) {
                        error = coded_block(s, &scalars, i * s->block, s->block, &r);
                        if (error)
                                return error;
                } else {
                        update(s, &scalars, i * s->block, (i + 1) * s->block, false);
                        r.update += now() - begin;
                }
        }
        r.counts.coded *= 2; /* of half of the values */
        count(s->old, s->serve, s->n, &r.counts);
        r.update *= ns;
        r.copying *= ns;
        r.code *= ns;
        r.apply *= ns;
        *ret_round = r;
        return 0;
}

/* ---- figures ----------------------------------------------------------------------- */

static void sorted(const struct round *rounds, unsigned n, double (*ratio)(const struct round *),
                   double *values)
{
        for (unsigned i = 0; i < n; i++)
                values[i] = ratio(&rounds[i]);
        qsort(values, n, sizeof *values, compare);
}

static double by_entropy(const struct round *r)
{
        return r->counts.coded / r->counts.entropy;
}

static double by_given(const struct round *r)
{
        return r->counts.coded / r->counts.given;
}

static double by_naive(const struct round *r)
{
        return r->counts.coded / (6 * (double)r->counts.changed);
}

static double code_by_update(const struct round *r)
{
        return r->code / r->update;
}

static double copying_by_update(const struct round *r)
{
        return r->copying / r->update;
}

static double apply_by_update(const struct round *r)
{
        return r->apply / r->update;
}

static const struct ratio {
        const char *name, *aim;
        double (*of)(const struct round *);
} ratios[] = {
        { "coded / entropy", "1.25", by_entropy },
        { "coded / entropy given the exponent", NULL, by_given },
        { "coded / index and value", NULL, by_naive },
        { "update that copies / update", "1.10", copying_by_update },
        { "coding / update", NULL, code_by_update },
        { "applying / update", NULL, apply_by_update },
};

static void report(const struct scene *s, double rate, const struct round *rounds, unsigned n,
                   FILE *json)
{
        const struct round *r = &rounds[n / 2];
        double raw = (double)s->n * sizeof *s->serve * 0.01;
        double values[ROUNDS_MAX];

        printf("lr %g: %.2f %% changed; of the bytes: entropy %.3f %%, given the exponent %.3f %%, "
               "coded %.3f %%, index and value %.2f %%\n"
               "  ns an element: update %.2f, coding %.2f, applying %.2f\n",
               rate, 100.0 * (double)r->counts.changed / (double)s->n, r->counts.entropy / raw,
               r->counts.given / raw, r->counts.coded / raw, 6 * (double)r->counts.changed / raw,
               r->update, r->code, r->apply);
        for (size_t i = 0; i < sizeof ratios / sizeof ratios[0]; i++) {
                const struct ratio *x = &ratios[i];

                sorted(rounds, n, x->of, values);
                printf("  %s: %.3f, %.3f .. %.3f\n", x->name, values[n / 2], values[n / 4],
                       values[n - 1 - n / 4]);
                if (json)
                        fprintf(json,
                                "{\"name\": \"lr %g, %s\", \"repeat\": %u, \"median_ratio\": %.4f, "
                                "\"spread\": [%.4f, %.4f]%s%s}\n",
                                rate, x->name, n, values[n / 2], values[n / 4],
                                values[n - 1 - n / 4], x->aim ? ", \"aim\": " : "",
                                x->aim ? x->aim : "");
        }
}

/* ---- the program ------------------------------------------------------------------- */

/* Zeros, from a cache line on. */
static void *plane(size_t bytes)
{
        size_t whole = (bytes + 63) / 64 * 64;
        void *p = aligned_alloc(64, whole);

        return p ? memset(p, 0, whole) : NULL;
}

static int scene_init(struct scene *s)
{
        struct update_scalars scalars;

        s->ops = device_host(NULL);
        s->random = 88172645463325252;
        histogram = calloc(EXPONENTS, sizeof *histogram);
        s->p = plane(s->n * sizeof *s->p);
        s->m = plane(s->n * sizeof *s->m);
        s->v = plane(s->n * sizeof *s->v);
        s->grad = plane(s->n * sizeof *s->grad);
        s->undo = plane(3 * s->chunk * sizeof *s->undo);
        s->serve = plane(s->n * sizeof *s->serve);
        s->old = plane(s->n * sizeof *s->old);
        s->was = plane(s->n * sizeof *s->was);
        s->bytes = plane(delta_bound(ZERO_BF16, s->block));
        if (!histogram || !s->p || !s->m || !s->v || !s->grad || !s->undo || !s->serve || !s->old ||
            !s->was || !s->bytes)
                return -ENOMEM;
        for (size_t i = 0; i < s->n; i++)
                s->p[i] = 0.02f * normal(&s->random);
        for (int i = 0; i < WARM_UP; i++) {
                gradients(s);
                scalars = adamw_scalars(0, 0.9, 0.999, 1e-8, 0, s->step, 1.0);
                update(s, &scalars, 0, s->n, false);
        }
        return 0;
}

static void scene_deinit(struct scene *s)
{
        void *const all[] = { histogram, s->p,     s->m,   s->v,   s->grad,
                              s->undo,   s->serve, s->old, s->was, s->bytes };

        for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
                free(all[i]);
}

static bool number(const char *text, unsigned long max, unsigned long *ret_value)
{
        char *end;

        errno = 0;
        *ret_value = strtoul(text, &end, 10);
        return !errno && end != text && !*end && *ret_value >= 1 && *ret_value <= max;
}

static int measure(struct scene *s, unsigned n, FILE *json)
{
        static struct round rounds[ROUNDS_MAX], warm_up;
        int r = scene_init(s);

        for (size_t i = 0; !r && i < sizeof rates / sizeof rates[0]; i++) {
                r = version(s, rates[i], 0, &warm_up);
                for (unsigned j = 0; !r && j < n; j++)
                        r = version(s, rates[i], j, &rounds[j]);
                if (!r)
                        report(s, rates[i], rounds, n, json);
        }
        scene_deinit(s);
        return r;
}

int main(int argc, char *argv[])
{
        static const struct option known[] = { { "elements", required_argument, NULL, 'e' },
                                               { "block", required_argument, NULL, 'b' },
                                               { "repeat", required_argument, NULL, 'r' },
                                               { "json", required_argument, NULL, 'j' },
                                               { NULL, 0, NULL, 0 } };
        unsigned long elements = 8UL << 20, rounds = 9, block = 32768;
        const char *path = NULL;
        bool bad = false;
        int option, r;

        while ((option = getopt_long(argc, argv, "", known, NULL)) != -1)
                bad = bad || (option == 'e'   ? !number(optarg, 1UL << 32, &elements)
                              : option == 'b' ? !number(optarg, DELTA_MOST, &block)
                              : option == 'r' ? !number(optarg, ROUNDS_MAX, &rounds)
                              : option == 'j' ? !(path = optarg)
                                              : true);
        if (bad || optind != argc || elements < 2 * block) {
                fprintf(stderr, "usage: bench-delta [--elements N] [--block N] [--repeat N] "
                                "[--json FILE]\n");
                return EXIT_FAILURE;
        }
        FILE *json = path ? fopen(path, "w") : NULL;
        if (path && !json) {
                fprintf(stderr, "bench-delta: %s: %s\n", path, strerror(errno));
                return EXIT_FAILURE;
        }
        elements -= elements % (2 * block);
        struct scene s = { .n = elements, .block = block, .chunk = chunk_default() };
        r = measure(&s, (unsigned)rounds, json);
        if (r)
                fprintf(stderr, "bench-delta: %s\n", strerror(-r));
        if (json)
                fclose(json);
        return r ? EXIT_FAILURE : EXIT_SUCCESS;
}
