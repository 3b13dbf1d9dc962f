/*
 * bench-bulk [--repeat N] [--megabytes N] [--json FILE]
 *
 * Payloads of 4 KiB to 64 MiB between two processes by our paths, each against its peer
 * measured in the same round: UCX against ucx_perftest over the same transports, TCP against
 * raw reads and writes.  Prints a table and, to FILE, one line of JSON a figure.  Ratios are of
 * one round; medians and quartiles over rounds.
 */
#include <errno.h>
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "proto/cleanup.h"
#include "tests/bench/bulk/bench.h"

enum { ROUNDS_MAX = 99, COUNT_MAX = 20000, COUNT_MIN = 8 };
static const char TLS[] = "posix,self";
static const size_t sizes[] = {
        4 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20, 4 << 20, 64 << 20
};

struct options {
        unsigned repeat;
        size_t megabytes;
        const char *json;
};

/* A path of ours, and what it is measured against: ucx_perftest, or raw TCP. */
static const struct compared {
        const char *name;
        const struct bulk_path_ops *path;
        bool ucx;
} all_compared[] = {
        { "ucx", &bulk_path_ucx, true },
        { "tcp", &bulk_path_tcp, false },
        { "tcp plain", &bulk_path_tcp_plain, false },
        { "tcp encrypted", &bulk_path_tcp_encrypted, false },
};

/* One size by one path, round by round. */
struct series {
        const struct compared *compared;
        size_t size;
        double ours[ROUNDS_MAX], theirs[ROUNDS_MAX], ratio[ROUNDS_MAX];
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

/* Sorted copies are not needed: the series is read only here. */
static double quantile(double *values, unsigned n, double q)
{
        qsort(values, n, sizeof *values, compare);
        return values[(unsigned)(q * (n - 1) + 0.5)];
}

static bool measure(struct series *series, const struct options *o)
{
        size_t count = (o->megabytes << 20) / series->size;
        const struct load load = { series->size, count > COUNT_MAX   ? COUNT_MAX
                                                 : count < COUNT_MIN ? COUNT_MIN
                                                                     : count };

        for (unsigned i = 0; i < o->repeat; i++) {
                series->ours[i] = run_ours(series->compared->path, &load);
                series->theirs[i] =
                        series->compared->ucx ? run_perftest(TLS, &load) : run_raw_tcp(&load);
                if (series->ours[i] <= 0 || series->theirs[i] <= 0)
                        return false;
                series->ratio[i] = series->ours[i] / series->theirs[i];
        }
        return true;
}

static void print(struct series *s, const struct options *o, FILE *json)
{
        const char *path = s->compared->name, *peer = s->compared->ucx ? "ucx_perftest" : "raw tcp";
        double median = quantile(s->ratio, o->repeat, 0.5);
        double low = quantile(s->ratio, o->repeat, 0.25),
               high = quantile(s->ratio, o->repeat, 0.75);
        double ours = quantile(s->ours, o->repeat, 0.5),
               theirs = quantile(s->theirs, o->repeat, 0.5);

        printf("%-13s %9zu %8.2f %8.2f  %-13s %5.2f  [%.2f, %.2f]\n", path, s->size, ours / 1e9,
               theirs / 1e9, peer, median, low, high);
        fflush(stdout);
        if (json)
                fprintf(json,
                        "{\"name\": \"bulk %s\", \"bytes\": %zu, \"repeat\": %u, \"median_ratio\": "
                        "%.4f, \"spread\": [%.4f, %.4f], \"bytes_per_second\": %.4g, \"peer\": "
                        "\"%s\", \"peer_bytes_per_second\": %.4g, \"aim\": 0.8}\n",
                        path, s->size, o->repeat, median, low, high, ours, peer, theirs);
}

static bool parse_number(const char *text, unsigned long most, unsigned long *ret)
{
        char *rest;

        errno = 0;
        *ret = strtoul(text, &rest, 10);
        return !errno && !*rest && *ret >= 1 && *ret <= most;
}

static bool parse(int argc, char **argv, struct options *ret)
{
        static const struct option known[] = { { "repeat", required_argument, NULL, 'r' },
                                               { "megabytes", required_argument, NULL, 'm' },
                                               { "json", required_argument, NULL, 'j' },
                                               { 0 } };
        unsigned long value;
        int option;

        while ((option = getopt_long(argc, argv, "", known, NULL)) != -1) {
                if (option == 'j')
                        ret->json = optarg;
                else if (option == 'r' && parse_number(optarg, ROUNDS_MAX, &value))
                        ret->repeat = (unsigned)value;
                else if (option == 'm' && parse_number(optarg, 1 << 20, &value))
                        ret->megabytes = value;
                else
                        return false;
        }
        return optind == argc;
}

int main(int argc, char **argv)
{
        struct options o = { .repeat = 7, .megabytes = 256 };
        CLEANUP(cleanup_file) FILE *json = NULL;
        bool failed = false;

        if (!parse(argc, argv, &o)) {
                fprintf(stderr, "usage: bench-bulk [--repeat N] [--megabytes N] [--json FILE]\n");
                return EXIT_FAILURE;
        }
        if (o.json && !(json = fopen(o.json, "w"))) {
                fprintf(stderr, "bench-bulk: %s: %s\n", o.json, strerror(errno));
                return EXIT_FAILURE;
        }
        setenv("UCX_TLS", TLS, 1);
        printf("path              bytes  GB/s     GB/s of its peer       ratio  [quartiles], aim "
               "0.8\n");
        for (size_t k = 0; k < sizeof all_compared / sizeof *all_compared; k++) {
                const struct compared *compared = &all_compared[k];
                for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
                        struct series s = { .compared = compared, .size = sizes[i] };
                        if (measure(&s, &o)) {
                                print(&s, &o, json);
                                continue;
                        }
                        fprintf(stderr, "bench-bulk: %s, %zu bytes: %s could not run\n",
                                compared->name, s.size,
                                compared->ucx ? "UCX or ucx_perftest (package ucx-utils)" : "TCP");
                        failed = true;
                }
        }
        return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
