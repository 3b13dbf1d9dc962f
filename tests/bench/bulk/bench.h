/*
 * bench.h - one transfer of `count` payloads of `size` bytes from one process to another, by
 * the way named; each gives bytes a second, or 0 if it cannot be done here.
 */
#pragma once

#include <stddef.h>

#include "tests/conformance/bulk/bulk_path.h"

struct load {
        size_t size, count;
};

/* By one of our paths. */
double run_ours(const struct bulk_path_ops *path, const struct load *load);
/* Blocking reads and writes on a TCP connection over loopback. */
double run_raw_tcp(const struct load *load);
/* ucx_perftest ucp_am_bw over the transports named. */
double run_perftest(const char *tls, const struct load *load);
/* One process alone: what libsodium takes for as many bytes on one side, as bulk/tcp.c calls it. */
double run_sodium(bool encrypted, const struct load *load);
