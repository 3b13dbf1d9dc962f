/*
 * bench-matrix [--shape ROWSxCOLS] [--threads N] [--repeat N] [--isa NAME] [--json FILE]
 *
 * Newton-Schulz beside OpenBLAS: GFLOP/s and ratios, of the same shapes with the same threads.
 *
 *   step      a step of Newton-Schulz with norm and division, beside three calls of sgemm
 *   product   its last product, X = a X + U X, beside the one call of sgemm
 *
 * Both sides count by the formula for whole products, though the step here computes halves of
 * symmetric ones.  OpenBLAS gets fp32 and rounds nothing.  OpenBLAS uses its kernels for SkylakeX
 * beside "avx512", else those for Haswell; $OPENBLAS_CORETYPE overrides this.  Median and quartiles
 * over rounds; with one thread also by the CPU's time, where others use the machine.
 */
#include <cblas.h>
#include <errno.h>
#include <getopt.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "daemon/compute/matrix/matrix.h"
#include "proto/dtype.h"

enum { ROUNDS_MAX = 100, THREADS_MAX = 64 };

#define CHOSEN "BENCH_MATRIX_CHOSEN" /* in the environment: OpenBLAS's kernels are */

enum { STEP, PRODUCT, KINDS };

static const char *const kinds[KINDS] = { "step", "product" };

static const struct ortho_params params = { 3.4445f, -4.7750f, 2.0315f, 1e-7f, 1 };

struct options {
        uint64_t rows, cols; /* 0: the table's */
        unsigned threads, repeat;
        const char *isa, *json;
};

struct scene {
        uint64_t rows, cols, n, m;
        unsigned threads;
        struct ortho o;
        void *memory;
        float *x, *gram, *update, *next; /* OpenBLAS's: [n][m], [n][n] twice, [n][m] */
};

struct seconds {
        double wall, cpu;
};

struct round {
        struct seconds ours[KINDS], theirs[KINDS];
};

static double now(clockid_t clock)
{
        struct timespec t;

        clock_gettime(clock, &t);
        return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static struct seconds start(void)
{
        return (struct seconds){ now(CLOCK_MONOTONIC), now(CLOCK_PROCESS_CPUTIME_ID) };
}

static struct seconds since(struct seconds begin)
{
        struct seconds end = start();

        return (struct seconds){ end.wall - begin.wall, end.cpu - begin.cpu };
}

/* ---- ours -------------------------------------------------------------------------- */

struct stage {
        const struct ortho *o;
        uint32_t number, parts, next;
};

static void *stage_main(void *arg)
{
        struct stage *s = arg;
        uint32_t part;

        while ((part = __atomic_fetch_add(&s->next, 1, __ATOMIC_RELAXED)) < s->parts)
                ortho_part(s->o, s->number, part);
        return NULL;
}

/* Starting threads counts: about 30 us a stage. */
static void stage_run(const struct scene *x, uint32_t number)
{
        struct stage s = { &x->o, number, ortho_parts(&x->o, number), 0 };
        pthread_t threads[THREADS_MAX];
        unsigned n = 0;

        while (n + 1 < x->threads && pthread_create(&threads[n], NULL, stage_main, &s) == 0)
                n++;
        stage_main(&s);
        while (n > 0)
                pthread_join(threads[--n], NULL);
}

static void measure_ours(struct scene *x, struct seconds *ret_seconds)
{
        uint32_t last = ortho_stages(&x->o) - 1;
        struct seconds begin = start();

        for (uint32_t stage = 0; stage <= last; stage++)
                stage_run(x, stage);
        ret_seconds[STEP] = since(begin);
        begin = start();
        stage_run(x, last);
        ret_seconds[PRODUCT] = since(begin);
}

/* ---- OpenBLAS's ---------------------------------------------------------------------- */

static void last_product(struct scene *x)
{
        int n = (int)x->n, m = (int)x->m;

        cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, n, m, n, 1, x->update, n, x->x, m,
                    params.a, x->next, m);
}

static void measure_theirs(struct scene *x, struct seconds *ret_seconds)
{
        int n = (int)x->n, m = (int)x->m;
        struct seconds begin = start();

        cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, n, n, m, 1, x->x, m, x->x, m, 0,
                    x->gram, n);
        cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, n, n, n, params.c, x->gram, n,
                    x->gram, n, params.b, x->update, n);
        last_product(x);
        ret_seconds[STEP] = since(begin);
        begin = start();
        last_product(x);
        ret_seconds[PRODUCT] = since(begin);
}

/* ---- figures ------------------------------------------------------------------------- */

struct figure {
        double low, median, high;
};

static int compare(const void *a, const void *b)
{
        double x = *(const double *)a, y = *(const double *)b;

        return (x > y) - (x < y);
}

static struct figure figure_of(double *values, unsigned n)
{
        qsort(values, n, sizeof *values, compare);
        return (struct figure){ values[n / 4], values[n / 2], values[n - 1 - n / 4] };
}

static double flops(const struct scene *x, unsigned kind)
{
        return kind == STEP ? ortho_flops(x->rows, x->cols, 1)
                            : 2.0 * (double)x->n * (double)x->n * (double)x->m;
}

static void report(const struct scene *x, const struct round *rounds, unsigned n, FILE *json)
{
        for (unsigned kind = 0; kind < KINDS; kind++) {
                double ours[ROUNDS_MAX], theirs[ROUNDS_MAX], ratio[ROUNDS_MAX], cpu[ROUNDS_MAX];
                double work = flops(x, kind) * 1e-9;

                for (unsigned i = 0; i < n; i++) {
                        struct seconds a = rounds[i].ours[kind], b = rounds[i].theirs[kind];

                        ours[i] = work / a.wall;
                        theirs[i] = work / b.wall;
                        ratio[i] = b.wall / a.wall;
                        cpu[i] = b.cpu / a.cpu;
                }
                struct figure f = figure_of(ratio, n);
                double gflops = figure_of(ours, n).median;

                printf("%4u x %-5u %u %-8s %8.1f %9.1f %8.3f   %.3f .. %.3f", (unsigned)x->rows,
                       (unsigned)x->cols, x->threads, kinds[kind], gflops,
                       figure_of(theirs, n).median, f.median, f.low, f.high);
                if (x->threads == 1)
                        printf("  %.3f", figure_of(cpu, n).median);
                printf("\n");
                fflush(stdout);
                if (json)
                        fprintf(json,
                                "{\"name\": \"%ux%u, %s/sgemm\", \"isa\": \"%s\", \"threads\": %u, "
                                "\"repeat\": %u, \"median_ratio\": %.4f, \"spread\": [%.4f, %.4f], "
                                "\"gflop_per_s\": %.1f, \"aim\": 0.6}\n",
                                (unsigned)x->rows, (unsigned)x->cols, kinds[kind], x->o.ops->name,
                                x->threads, n, f.median, f.low, f.high, gflops);
        }
}

/* ---- the program ------------------------------------------------------------------- */

static int scene_init(struct scene *x, const char *isa)
{
        size_t elements = x->rows * x->cols;

        x->n = x->rows < x->cols ? x->rows : x->cols;
        x->m = elements / x->n;
        x->memory = aligned_alloc(64, ortho_bytes(x->rows, x->cols));
        x->x = malloc(elements * sizeof *x->x);
        x->next = calloc(elements, sizeof *x->next);
        x->gram = calloc(x->n * x->n, sizeof *x->gram);
        x->update = calloc(x->n * x->n, sizeof *x->update);
        if (!x->memory || !x->x || !x->next || !x->gram || !x->update)
                return -ENOMEM;
        ortho_begin(&x->o, x->rows, x->cols, &params, x->memory, device_host(isa));
        for (size_t i = 0; i < elements; i++) {
                float value = (float)(rand() % 2001 - 1000) * 1e-3f;

                ortho_values(&x->o)[i] = dtype_bf16_from_fp32(value);
                x->x[i] = value * 1e-3f;
        }
        return 0;
}

static void scene_deinit(struct scene *x)
{
        void *const all[] = { x->memory, x->x, x->next, x->gram, x->update };

        for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
                free(all[i]);
}

static int measure(uint64_t rows, uint64_t cols, const struct options *o, FILE *json)
{
        static struct round rounds[ROUNDS_MAX], warm_up;
        struct scene x = { .rows = rows, .cols = cols, .threads = o->threads };
        int r = scene_init(&x, o->isa);

        openblas_set_num_threads((int)o->threads);
        for (unsigned i = 0; !r && i < o->repeat + 1; i++) {
                struct round *round = i ? &rounds[i - 1] : &warm_up;

                measure_theirs(&x, round->theirs);
                usleep(200000); /* OpenBLAS's threads look for work for a while */
                measure_ours(&x, round->ours);
        }
        if (!r)
                report(&x, rounds, o->repeat, json);
        scene_deinit(&x);
        return r;
}

static int measure_all(const struct options *o, FILE *json)
{
        static const uint64_t shapes[][2] = {
                { 768, 768 }, { 768, 3072 }, { 3072, 768 }, { 2048, 7168 }, { 4096, 4096 }
        };
        unsigned n = o->rows ? 1 : sizeof shapes / sizeof shapes[0];
        int r = 0;

        printf("%s, OpenBLAS: %s\n%-12s %s %-8s %8s %9s %8s   %-14s  %s\n",
               device_host(o->isa)->name, openblas_get_corename(), "shape", "t", "", "GFLOP/s",
               "OpenBLAS", "ratio", "quartiles", "CPU time");
        for (unsigned i = 0; !r && i < n; i++)
                r = measure(o->rows ? o->rows : shapes[i][0], o->rows ? o->cols : shapes[i][1], o,
                            json);
        return r;
}

/* OpenBLAS chooses its kernels when it is loaded, and takes those of 2004 for a CPU that it does
 * not know. */
static void choose_kernels(const char *isa, char *argv[])
{
        setenv("OPENBLAS_CORETYPE", strcmp(isa, "avx512") == 0 ? "SkylakeX" : "Haswell", 0);
        if (getenv(CHOSEN))
                return;
        setenv(CHOSEN, "", 1);
        execv("/proc/self/exe", argv);
}

static bool number(const char *text, unsigned max, unsigned *ret_value)
{
        char end;

        return sscanf(text, "%u%c", ret_value, &end) == 1 && *ret_value >= 1 && *ret_value <= max;
}

static bool shape(const char *text, struct options *o)
{
        unsigned rows, cols;
        char end;

        if (sscanf(text, "%ux%u%c", &rows, &cols, &end) != 2 || rows < 1 || cols < 1 ||
            rows > 1 << 16 || cols > 1 << 16)
                return false;
        o->rows = rows;
        o->cols = cols;
        return true;
}

int main(int argc, char *argv[])
{
        static const struct option known[] = { { "shape", required_argument, NULL, 's' },
                                               { "threads", required_argument, NULL, 't' },
                                               { "repeat", required_argument, NULL, 'r' },
                                               { "isa", required_argument, NULL, 'i' },
                                               { "json", required_argument, NULL, 'j' },
                                               { NULL, 0, NULL, 0 } };
        struct options o = { .threads = 1, .repeat = 5 };
        bool bad = false;
        int option, r;

        while ((option = getopt_long(argc, argv, "", known, NULL)) != -1)
                bad = bad || (option == 's'   ? !shape(optarg, &o)
                              : option == 't' ? !number(optarg, THREADS_MAX, &o.threads)
                              : option == 'r' ? !number(optarg, ROUNDS_MAX, &o.repeat)
                              : option == 'i' ? !device_host(o.isa = optarg)
                              : option == 'j' ? !(o.json = optarg)
                                              : true);
        if (bad || optind != argc) {
                fprintf(stderr, "usage: bench-matrix [--shape ROWSxCOLS] [--threads N] "
                                "[--repeat N] [--isa NAME] [--json FILE]\n");
                return EXIT_FAILURE;
        }
        choose_kernels(device_host(o.isa)->name, argv);
        FILE *json = o.json ? fopen(o.json, "w") : NULL;
        if (o.json && !json) {
                fprintf(stderr, "bench-matrix: %s: %s\n", o.json, strerror(errno));
                return EXIT_FAILURE;
        }
        r = measure_all(&o, json);
        if (r)
                fprintf(stderr, "bench-matrix: %s\n", strerror(-r));
        if (json)
                fclose(json);
        return r ? EXIT_FAILURE : EXIT_SUCCESS;
}
