/*
 * bench-bulk [--repeat N] [--megabytes N] [--json FILE]
 *
 * Payloads of 4 KiB to 64 MiB between two processes by our paths, each against its peers measured
 * in the same round: UCX against ucx_perftest over the same transports, TCP against raw reads and
 * writes, and payloads that libsodium protects against plain ones and one pass of libsodium.
 * Prints a table and, to FILE, one line of JSON a figure.  Ratios are of one round; medians and
 * quartiles over rounds.
 */
#include <errno.h>
#include <getopt.h>
#include <math.h>
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

enum way { UCX, PERFTEST, RAW, PLAIN, AUTHENTICATED, ENCRYPTED, TAGS, CIPHER, WAYS, NONE = WAYS };

/* One way against another, or against the time of two together. */
static const struct row {
        const char *name, *peer;
        enum way ours, theirs, more;
        double aim; /* 0: none */
} rows[] = {
        { "ucx", "ucx_perftest", UCX, PERFTEST, NONE, 0.8 },
        { "tcp", "raw tcp", AUTHENTICATED, RAW, NONE, 0.8 },
        { "tcp plain", "raw tcp", PLAIN, RAW, NONE, 0.8 },
        { "tcp encrypted", "raw tcp", ENCRYPTED, RAW, NONE, 0.8 },
        { "tcp / plain", "tcp plain", AUTHENTICATED, PLAIN, NONE, 0 },
        { "tcp / limit", "plain and tags", AUTHENTICATED, PLAIN, TAGS, 0.9 },
        { "tcp encrypted / limit", "plain and encryption", ENCRYPTED, PLAIN, CIPHER, 0.9 },
};

/* Bytes a second of each way, of one size, by round. */
typedef double rounds[ROUNDS_MAX][WAYS + 1];

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

/* Sorts the values. */
static double quantile(double *values, unsigned n, double q)
{
        qsort(values, n, sizeof *values, compare);
        return values[(unsigned)(q * (n - 1) + 0.5)];
}

static double run(enum way way, const struct load *load)
{
        switch (way) {
        case UCX:
                return run_ours(&bulk_path_ucx, load);
        case PERFTEST:
                return run_perftest(TLS, load);
        case RAW:
                return run_raw_tcp(load);
        case PLAIN:
                return run_ours(&bulk_path_tcp_plain, load);
        case AUTHENTICATED:
                return run_ours(&bulk_path_tcp, load);
        case ENCRYPTED:
                return run_ours(&bulk_path_tcp_encrypted, load);
        case TAGS:
                return run_sodium(false, load);
        case CIPHER:
                return run_sodium(true, load);
        default:
                return INFINITY;
        }
}

static void measure(size_t size, const struct options *o, rounds ret)
{
        size_t count = (o->megabytes << 20) / size;
        const struct load load = { size, count > COUNT_MAX   ? COUNT_MAX
                                         : count < COUNT_MIN ? COUNT_MIN
                                                             : count };

        for (unsigned i = 0; i < o->repeat; i++)
                for (enum way way = 0; way <= NONE; way++)
                        ret[i][way] = run(way, &load);
}

/* False: something could not run. */
static bool report(const struct row *row, size_t size, const struct options *o, rounds rates,
                   FILE *json)
{
        double ours[ROUNDS_MAX], theirs[ROUNDS_MAX], ratio[ROUNDS_MAX], median, low, high;
        unsigned n = o->repeat;

        for (unsigned i = 0; i < n; i++) {
                ours[i] = rates[i][row->ours];
                theirs[i] = 1 / (1 / rates[i][row->theirs] + 1 / rates[i][row->more]);
                ratio[i] = ours[i] / theirs[i];
                if (ours[i] <= 0 || theirs[i] <= 0) {
                        fprintf(stderr, "bench-bulk: %s, %zu bytes: %s could not run%s\n",
                                row->name, size, ours[i] <= 0 ? "it" : row->peer,
                                row->theirs == PERFTEST ? " (package ucx-utils)" : "");
                        return false;
                }
        }
        median = quantile(ratio, n, 0.5);
        low = quantile(ratio, n, 0.25);
        high = quantile(ratio, n, 0.75);
        printf("%-21s %10zu %8.2f %8.2f  %-27s %5.2f  [%.2f, %.2f]\n", row->name, size,
               quantile(ours, n, 0.5) / 1e9, quantile(theirs, n, 0.5) / 1e9, row->peer, median, low,
               high);
        fflush(stdout);
        if (!json)
                return true;
        fprintf(json,
                "{\"name\": \"bulk %s\", \"bytes\": %zu, \"repeat\": %u, \"median_ratio\": %.4f, "
                "\"spread\": [%.4f, %.4f], \"bytes_per_second\": %.4g, \"peer\": \"%s\", "
                "\"peer_bytes_per_second\": %.4g",
                row->name, size, n, median, low, high, quantile(ours, n, 0.5), row->peer,
                quantile(theirs, n, 0.5));
        if (row->aim > 0)
                fprintf(json, ", \"aim\": %.1f", row->aim);
        fprintf(json, "}\n");
        fflush(json);
        return true;
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
        static rounds rates;
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
        printf("%-21s %10s %8s %8s  %-27s %5s  %s\n", "path", "bytes", "GB/s", "GB/s",
               "of its peer", "ratio", "[quartiles]");
        for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
                measure(sizes[i], &o, rates);
                for (size_t k = 0; k < sizeof rows / sizeof *rows; k++)
                        failed = !report(&rows[k], sizes[i], &o, rates, json) || failed;
        }
        return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
