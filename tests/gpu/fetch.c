/*
 * gpu-fetch PLUGIN SOCKET JOB DEVICE|- HOW MIB...
 *
 * How long a fetch takes: one rank, a group of each size.  In turn with each fetch of a new version
 * it times what a fetch cannot be faster than: for a mapped group a round trip over a unix socket,
 * for a gathered one also a copy within the GPU.  DEVICE as in struct zero_needs; "-": host memory,
 * and copies there.  HOW: "mapped", which is what has one owner, on this node, or how it is
 * gathered.
 *
 * A line of JSON a figure.  The ratio is the limit's time over the fetch's: 1 is as fast as can be.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include <zero.h>

#include "tests/gpu/gpu.h"

enum { FIRST_SIZE = 6, ROUNDS = 21, FEW_ROUNDS = 5 };

#define MIB ((size_t)1 << 20)

struct session {
        struct gpu gpu;
        bool on_gpu;
        int echo; /* a process at the other end sends every byte back */
        struct zero_client *client;
        struct zero_layout *layout;
        char *from, *to;
};

static double now_us(void)
{
        struct timespec t;

        clock_gettime(CLOCK_MONOTONIC, &t);
        return (double)t.tv_sec * 1e6 + (double)t.tv_nsec * 1e-3;
}

/* Before the GPU is touched. */
static int start_echo(void)
{
        int ends[2];
        pid_t child;
        char c;

        if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) < 0 || (child = fork()) < 0)
                die("no process to talk to");
        if (child == 0) {
                close(ends[0]);
                while (read(ends[1], &c, 1) == 1 && write(ends[1], &c, 1) == 1)
                        ;
                _exit(0);
        }
        close(ends[1]);
        return ends[0];
}

static void ok(const struct session *s, int status, const char *what)
{
        if (status)
                die("%s: %s: %s", what, zero_status_name(status), zero_error(s->client));
}

static void attach(struct session *s, const char *socket, const char *job, const char *device,
                   char *sizes[], int n)
{
        struct zero_options options = { .socket = socket, .job = job, .world_size = 1 };
        struct zero_needs needs = { .grad_dtype = ZERO_BF16,
                                    .reduce_dtype = ZERO_BF16,
                                    .device = device };
        int r = zero_connect(&options, &s->client);

        if (r)
                die("connect: %s: %s", zero_status_name(r), zero_error(NULL));
        ok(s, zero_layout_new(&s->layout), "layout");
        for (int i = 0; i < n; i++) {
                uint64_t elements = strtoull(sizes[i], NULL, 10) * MIB / sizeof(uint16_t);
                struct zero_tensor t = { .name = sizes[i], .ndim = 1, .shape = &elements };
                uint32_t group, tensor;

                ok(s, zero_layout_group(s->layout, sizes[i], ZERO_BF16, NULL, 0, 0, &group),
                   "group");
                ok(s, zero_layout_tensor(s->layout, group, &t, &tensor), "tensor");
        }
        ok(s, zero_attach(s->client, s->layout, &needs), "attach");
}

/* A step that changes nothing but the version. */
static void new_version(struct session *s, int groups)
{
        struct zero_set adamw = { .adamw = { .beta1 = 0.9, .beta2 = 0.999, .eps = 1e-8 } };
        struct zero_step_options step = { .sets = &adamw, .n_sets = 1 };
        struct zero_result result;
        uint8_t none = 0;

        for (int g = 0; g < groups; g++)
                ok(s, zero_push(s->client, (uint32_t)g, &none, true, NULL), "push");
        ok(s, zero_step(s->client, &step, &result), "step");
}

static double fetch_us(struct session *s, uint32_t group)
{
        const void *view;
        double start = now_us(), end;

        ok(s, zero_fetch(s->client, group, &view), "fetch");
        end = now_us();
        ok(s, zero_release(s->client, group, NULL), "release");
        return end - start;
}

static double round_trip_us(const struct session *s)
{
        double start = now_us();
        char c = 0;

        if (write(s->echo, &c, 1) != 1 || read(s->echo, &c, 1) != 1)
                die("nobody answers");
        return now_us() - start;
}

static double copy_us(const struct session *s, size_t bytes)
{
        double start = now_us();

        if (s->on_gpu)
                gpu_move(&s->gpu, s->to, s->from, bytes);
        else
                memcpy(s->to, s->from, bytes);
        return now_us() - start;
}

static int compare(const void *a, const void *b)
{
        double x = *(const double *)a, y = *(const double *)b;

        return (x > y) - (x < y);
}

static void measure(struct session *s, int groups, uint32_t group, const char *how,
                    const char *size)
{
        double fetch[ROUNDS], ratio[ROUNDS];
        size_t bytes = strtoull(size, NULL, 10) * MIB;
        bool mapped = strcmp(how, "mapped") == 0;
        int n = bytes > 256 * MIB ? FEW_ROUNDS : ROUNDS;

        for (int i = 0; i < n; i++) {
                double limit;

                new_version(s, groups);
                fetch[i] = fetch_us(s, group);
                limit = round_trip_us(s) + (mapped ? 0 : copy_us(s, bytes));
                ratio[i] = limit / fetch[i];
        }
        qsort(ratio, (size_t)n, sizeof *ratio, compare);
        qsort(fetch, (size_t)n, sizeof *fetch, compare);
        printf("{\"name\": \"%s fetch of %s MiB\", \"repeat\": %d, \"median_ratio\": %.4f, "
               "\"spread\": [%.4f, %.4f], \"fetch_us\": %.1f, \"limit\": \"%s\"}\n",
               how, size, n, ratio[n / 2], ratio[n / 4], ratio[n - 1 - n / 4], fetch[n / 2],
               mapped ? "round trip" : "round trip and copy");
        fflush(stdout);
}

int main(int argc, char *argv[])
{
        struct session s = { .echo = -1 };
        int groups = argc - FIRST_SIZE;
        size_t most = 0;

        if (groups < 1)
                die("usage: gpu-fetch PLUGIN SOCKET JOB DEVICE|- HOW MIB...");
        for (int i = FIRST_SIZE; i < argc; i++)
                most = strtoull(argv[i], NULL, 10) * MIB > most ? strtoull(argv[i], NULL, 10) * MIB
                                                                : most;
        s.on_gpu = strcmp(argv[4], "-") != 0;
        s.echo = start_echo();
        if (s.on_gpu) {
                gpu_load(2, argv, &s.gpu);
                gpu_start(&s.gpu);
        }
        s.from = s.on_gpu ? gpu_new(&s.gpu, most) : calloc(1, most);
        s.to = s.on_gpu ? gpu_new(&s.gpu, most) : calloc(1, most);
        attach(&s, argv[2], argv[3], s.on_gpu ? argv[4] : NULL, argv + FIRST_SIZE, groups);
        for (int g = 0; g < groups; g++)
                measure(&s, groups, (uint32_t)g, argv[5], argv[FIRST_SIZE + g]);
        zero_close(s.client);
        zero_layout_free(s.layout);
        return 0;
}
