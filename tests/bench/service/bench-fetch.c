/*
 * How long a fetch takes, from the trainer's side of libzero.
 *
 * One group of each size. A mapped group (one owner, bf16) is fetched and released again and again:
 * nothing moves, so the time should not depend on the size.  A gathered one is at a new version each time
 * (a step with lr 0 commits in between, and its update is waited for before the
 * clock runs).  Beside each stands a copy of the same bytes in the same run.
 *
 * Prints JSON lines: {"name", "bytes", "median_us", "p90_us", "copy_us"}.
 */
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <zero.h>

enum { ROUNDS = 41, STEPS = 9 };

static void die(const char *what, const char *why)
{
        fprintf(stderr, "bench-fetch: %s: %s\n", what, why);
        exit(1);
}

static double now_us(void)
{
        struct timespec t;

        clock_gettime(CLOCK_MONOTONIC, &t);
        return (double)t.tv_sec * 1e6 + (double)t.tv_nsec / 1e3;
}

static int by_value(const void *a, const void *b)
{
        double x = *(const double *)a, y = *(const double *)b;

        return (x > y) - (x < y);
}

static void must(struct zero_client *c, int r, const char *what)
{
        if (r)
                die(what, zero_error(c));
}

static void job_name(char *name, size_t size, uint64_t bytes)
{
        snprintf(name, size, "fetch-%llu", (unsigned long long)bytes);
}

static struct zero_client *attach(const char *socket, uint64_t bytes, struct zero_layout **ret_layout)
{
        char job[64];
        uint64_t n = bytes / 2;
        struct zero_options options = { .socket = socket, .job = job, .rank = 0, .world_size = 1 };
        struct zero_needs needs = { .hold_groups = 1,
                                    .push_groups = 1,
                                    .grad_dtype = ZERO_BF16,
                                    .reduce_dtype = ZERO_FP32 };
        struct zero_tensor tensor = { .name = "w", .ndim = 1, .shape = &n, .init = ZERO_INIT_ZEROS };
        struct zero_client *c;
        uint32_t group, index;

        job_name(job, sizeof job, bytes);
        if (zero_layout_new(ret_layout) ||
            zero_layout_group(*ret_layout, "g", ZERO_BF16, NULL, 0, 0, &group) ||
            zero_layout_tensor(*ret_layout, group, &tensor, &index))
                die("layout", zero_layout_error(*ret_layout));
        if (zero_connect(&options, &c))
                die("connect", zero_error(NULL));
        must(c, zero_attach(c, *ret_layout, &needs), "attach");
        return c;
}

/* A step that changes nothing but the version, and its update over on all owners. */
static void next_version(struct zero_client *c, struct zero_layout *layout)
{
        struct zero_adamw set = { .lr = 0, .beta1 = 0.9, .beta2 = 0.999, .eps = 1e-8 };
        struct zero_step step = { .sets = &set, .n_sets = 1 };
        struct zero_result result;
        uint64_t n = zero_layout_tensor_elements(layout, 0);
        void *grad;
        float value;

        must(c, zero_grad(c, 0, &grad), "grad");
        must(c, zero_push(c, 0, NULL, true, NULL), "push");
        must(c, zero_step(c, &step, &result), "step");
        must(c, zero_get(c, 0, ZERO_PLANE_MASTER, 0, 1, &value), "get");
        must(c, zero_get(c, 0, ZERO_PLANE_MASTER, n - 1, 1, &value), "get");
}

static double copy_us(uint64_t bytes)
{
        double times[ROUNDS];
        char *a = malloc(bytes), *b = malloc(bytes);

        if (!a || !b)
                die("copy", "out of memory");
        memset(a, 1, bytes);
        memset(b, 2, bytes);
        for (int i = 0; i < ROUNDS; i++) {
                double t = now_us();

                memcpy(b, a, bytes);
                times[i] = now_us() - t;
        }
        free(a);
        free(b);
        qsort(times, ROUNDS, sizeof *times, by_value);
        return times[ROUNDS / 2];
}

static void report(const char *name, uint64_t bytes, double *times, int n)
{
        qsort(times, (size_t)n, sizeof *times, by_value);
        printf("{\"name\": \"%s\", \"bytes\": %llu, \"median_us\": %.2f, \"p90_us\": %.2f, "
               "\"copy_us\": %.2f}\n",
               name, (unsigned long long)bytes, times[n / 2], times[n * 9 / 10], copy_us(bytes));
        fflush(stdout);
}

/* Its state goes before the next, larger one is made. */
static void drop(const char *socket, uint64_t bytes)
{
        struct zero_options options = { .socket = socket, .rank = ZERO_OBSERVER };
        struct zero_client *c;
        char job[64], *json;

        if (zero_connect(&options, &c))
                die("connect", zero_error(NULL));
        job_name(job, sizeof job, bytes);
        must(c, zero_query(c, "drop", job, &json), "drop");
        free(json);
        zero_close(c);
}

static void measure(const char *socket, const char *name, uint64_t bytes, bool gathered)
{
        int rounds = gathered ? STEPS : ROUNDS;
        struct zero_layout *layout;
        struct zero_client *c = attach(socket, bytes, &layout);
        double times[ROUNDS];
        const void *view;

        for (int i = -1; i < rounds; i++) { /* the first is for warming up */
                double t;

                if (gathered)
                        next_version(c, layout);
                t = now_us();
                must(c, zero_fetch(c, 0, NULL, &view), "fetch");
                if (i >= 0)
                        times[i] = now_us() - t;
                must(c, zero_release(c, 0, NULL), "release");
        }
        report(name, bytes, times, rounds);
        zero_close(c);
        zero_layout_free(layout);
        drop(socket, bytes);
}

int main(int argc, char **argv)
{
        static const struct option options[] = { { "socket", required_argument, NULL, 's' },
                                                 { "name", required_argument, NULL, 'n' },
                                                 { "gathered", no_argument, NULL, 'g' },
                                                 { "max", required_argument, NULL, 'm' },
                                                 { 0 } };
        const char *socket = NULL, *name = "fetch";
        uint64_t max = 256 << 20;
        bool gathered = false;
        int o;

        while ((o = getopt_long(argc, argv, "", options, NULL)) != -1) {
                if (o == 's')
                        socket = optarg;
                else if (o == 'n')
                        name = optarg;
                else if (o == 'g')
                        gathered = true;
                else if (o == 'm')
                        max = strtoull(optarg, NULL, 10);
                else
                        return 2;
        }
        for (uint64_t bytes = 4096; bytes <= max; bytes *= 16)
                measure(socket, name, bytes, gathered);
        return 0;
}
