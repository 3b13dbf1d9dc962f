/*
 * bench-kernels [--elements N] [--threads N] [--repeat N] [--chunk N] [--isa NAME]
 *               [--json FILE]
 *
 * Prints a table and, to FILE, one line of JSON a figure.  Every figure is a
 * ratio of two bandwidths measured in the same round; median and quartiles over rounds.
 */
#include <errno.h>
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "daemon/floor/base/chunk.h"
#include "daemon/store/file.h"
#include "proto/cleanup.h"
#include "tests/bench/kernels/bench.h"

enum { ROUNDS_MAX = 1000 };

struct options {
        size_t elements, chunk;
        unsigned threads, repeat;
        const char *isa, *json;
};

struct figure {
        double median, low, high;
};

static void cleanup_file(FILE **file)
{
        if (*file)
                fclose(*file);
}

static int compare(const void *a, const void *b)
{
        double x = *(const double *)a, y = *(const double *)b;

        return (x > y) - (x < y);
}

static struct figure figure_of(double *values, unsigned n)
{
        qsort(values, n, sizeof(*values), compare);
        return (struct figure){ values[n / 2], values[n / 4], values[n - 1 - n / 4] };
}

/* Bytes per second of `of` through those of `against`, by wall or by CPU time. */
static struct figure ratio(const struct sample *samples, unsigned rounds,
                           const struct bench_row *row, bool cpu)
{
        double values[ROUNDS_MAX];

        for (unsigned r = 0; r < rounds; r++) {
                const struct sample *round = samples + r * n_bench_cases;
                const struct sample *a = &round[row->of], *b = &round[row->against];
                double bytes = row->elements ? 1
                                             : bench_cases[row->of].bytes /
                                                       bench_cases[row->against].bytes;

                values[r] = bytes * (cpu ? b->cpu / a->cpu : b->wall / a->wall);
        }
        return figure_of(values, rounds);
}

static struct figure bandwidth(const struct sample *samples, unsigned rounds, unsigned which,
                               size_t elements)
{
        double values[ROUNDS_MAX];

        for (unsigned r = 0; r < rounds; r++)
                values[r] = (double)elements * bench_cases[which].bytes /
                            samples[r * n_bench_cases + which].wall * 1e-9;
        return figure_of(values, rounds);
}

static void print_table(const struct sample *samples, const struct options *o)
{
        printf("%-34s %8s   %s\n", "case", "GB/s", "quartiles");
        for (unsigned c = 0; c < n_bench_cases; c++) {
                struct figure f = bandwidth(samples, o->repeat, c, o->elements);

                printf("%-34s %8.1f   %.1f .. %.1f\n", bench_cases[c].name, f.median, f.low,
                       f.high);
        }
        printf("\n%-34s %8s   %-14s %s\n", "bandwidth ratio", "median", "quartiles", "by CPU time");
        for (unsigned i = 0; i < n_bench_rows; i++) {
                struct figure wall = ratio(samples, o->repeat, &bench_rows[i], false);
                struct figure cpu = ratio(samples, o->repeat, &bench_rows[i], true);

                printf("%-34s %8.3f   %.3f .. %.3f  %.3f\n", bench_rows[i].name, wall.median,
                       wall.low, wall.high, cpu.median);
        }
}

static void print_json(FILE *out, const struct sample *samples, const struct options *o,
                       const char *isa)
{
        for (unsigned i = 0; i < n_bench_rows; i++) {
                const struct bench_row *row = &bench_rows[i];
                struct figure wall = ratio(samples, o->repeat, row, false);
                struct figure cpu = ratio(samples, o->repeat, row, true);
                struct figure rate = bandwidth(samples, o->repeat, row->of, o->elements);

                fprintf(out,
                        "{\"name\": \"%s\", \"isa\": \"%s\", \"threads\": %u, \"elements\": %zu, "
                        "\"chunk\": %zu, \"repeat\": %u, \"median_ratio\": %.4f, \"spread\": "
                        "[%.4f, %.4f], "
                        "\"median_ratio_cpu_time\": %.4f, \"gb_per_s\": %.2f",
                        row->name, isa, o->threads, o->elements, o->chunk, o->repeat, wall.median,
                        wall.low, wall.high, cpu.median, rate.median);
                if (row->aim > 0)
                        fprintf(out, ", \"aim\": %.2f", row->aim);
                fprintf(out, "}\n");
        }
}

static bool number(const char *text, unsigned long max, unsigned long *ret_value)
{
        char *end;
        unsigned long value;

        errno = 0;
        value = strtoul(text, &end, 10);
        if (errno || end == text || *end || value < 1 || value > max)
                return false;
        *ret_value = value;
        return true;
}

static bool parse(int argc, char *argv[], struct options *ret_options)
{
        static const struct option known[] = {
                { "elements", required_argument, NULL, 'e' },
                { "threads", required_argument, NULL, 't' },
                { "repeat", required_argument, NULL, 'r' },
                { "chunk", required_argument, NULL, 'c' },
                { "isa", required_argument, NULL, 'i' },
                { "json", required_argument, NULL, 'j' },
                { NULL, 0, NULL, 0 },
        };
        struct options o = {
                .elements = 64UL << 20, .chunk = chunk_default(), .threads = 1, .repeat = 15
        };
        unsigned long value = 0;
        int option;

        while ((option = getopt_long(argc, argv, "", known, NULL)) != -1) {
                if (option == 'i')
                        o.isa = optarg;
                else if (option == 'j')
                        o.json = optarg;
                else if (option == 'e' && number(optarg, 1UL << 34, &value))
                        o.elements = value;
                else if (option == 'c' && number(optarg, BENCH_CHUNK_MAX, &value) &&
                         value % FORMAT_STEP == 0)
                        o.chunk = value;
                else if (option == 't' && number(optarg, BENCH_THREADS_MAX, &value))
                        o.threads = (unsigned)value;
                else if (option == 'r' && number(optarg, ROUNDS_MAX, &value))
                        o.repeat = (unsigned)value;
                else
                        return false;
        }
        /* whole chunks, at least one a thread */
        o.elements -= o.elements % o.chunk;
        if (optind != argc || o.elements / o.chunk < o.threads)
                return false;
        *ret_options = o;
        return true;
}

/* Planes begin at different places in their pages, as those of a state do. */
static void *plane(size_t bytes)
{
        static size_t n;
        size_t at = n++ % (FILE_ALIGN / FILE_STAGGER) * FILE_STAGGER;
        void *memory = mmap(NULL, bytes + FILE_ALIGN, PROT_READ | PROT_WRITE,
                            MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);

        return memory == MAP_FAILED ? NULL : (char *)memory + at;
}

static int planes_new(size_t n, struct planes *ret_planes)
{
        struct planes x = { .elements = n };
        uint32_t bits = 1;
        float **const floats[] = { &x.p, &x.m, &x.v, &x.grad, &x.scratch };

        for (size_t i = 0; i < sizeof(floats) / sizeof(floats[0]); i++)
                if (!(*floats[i] = plane(n * sizeof(float))))
                        return -ENOMEM;
        for (int i = 0; i < PACKED_SETS; i++) {
                for (int k = 0; k < PACKED; k++)
                        if (!(x.packed[i].plane[k] = plane(n * sizeof(float))))
                                return -ENOMEM;
                if (!(x.packed[i].serve = plane(n * sizeof(uint16_t))))
                        return -ENOMEM;
        }
        x.serve = plane(n * sizeof(uint16_t));
        if (!x.serve)
                return -ENOMEM;
        for (size_t i = 0; i < n; i++) {
                bits = bits * 1664525 + 1013904223;
                x.p[i] = (float)bits * 0x1p-31f - 1.0f;
                x.grad[i] = x.p[i] * 0.1f + 1e-6f;
        }
        *ret_planes = x;
        return 0;
}

static const struct limit_ops *limit_for(const struct device_ops *ops)
{
        const struct limit_ops *all[] = { &limit_avx512_ops, &limit_avx2_ops };

        for (size_t i = 0; ops && i < sizeof(all) / sizeof(all[0]); i++)
                if (!strcmp(all[i]->isa, ops->name))
                        return all[i];
        return NULL;
}

int main(int argc, char *argv[])
{
        CLEANUP(cleanup_free) struct sample *samples = NULL;
        CLEANUP(cleanup_file) FILE *json = NULL;
        struct options o;
        struct planes planes;
        struct work w = { .planes = &planes };

        if (!parse(argc, argv, &o)) {
                fprintf(stderr, "usage: bench-kernels [--elements N] [--threads N] [--repeat N] "
                                "[--chunk N] [--isa avx2|avx512] [--json FILE]\n");
                return EXIT_FAILURE;
        }
        w.chunk = o.chunk;
        w.ops = device_host(o.isa);
        w.limit = limit_for(w.ops);
        if (!w.limit) {
                fprintf(stderr, "bench-kernels: this CPU has no such vector kernels\n");
                return EXIT_FAILURE;
        }
        if (o.json && !(json = fopen(o.json, "w"))) {
                fprintf(stderr, "bench-kernels: %s: %s\n", o.json, strerror(errno));
                return EXIT_FAILURE;
        }
        samples = calloc((size_t)o.repeat * n_bench_cases, sizeof(*samples));
        if (!samples || planes_new(o.elements, &planes) ||
            measure(&w, o.threads, o.repeat, samples)) {
                fprintf(stderr, "bench-kernels: out of memory\n");
                return EXIT_FAILURE;
        }
        printf("%s, %u thread%s, %zu elements, chunks of %zu, %u rounds\n\n", w.ops->name,
               o.threads, o.threads > 1 ? "s" : "", o.elements, o.chunk, o.repeat);
        print_table(samples, &o);
        if (json)
                print_json(json, samples, &o, w.ops->name);
        return EXIT_SUCCESS;
}
