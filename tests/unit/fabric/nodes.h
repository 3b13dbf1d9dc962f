/*
 * For the fabric's tests: clusters on loopback, and running a loop until a condition holds.
 *
 * Every test process has a loopback address of its own, so tests never meet.
 */
#pragma once

#include <stdint.h>
#include <uv.h>

#include "daemon/floor/conf/conf.h"

/* n nodes named a, b, c, ..., one key; the test's process ignores SIGPIPE from now on. */
void make_cluster(struct cluster *cluster, uint32_t n, uint32_t self);
/* Another node of the same cluster. */
void make_key(uint8_t key[static CLUSTER_KEY], uint8_t seed);

/* Runs the loop until done(arg), at most for ms; the test fails if done() stays false. */
void run_until(uv_loop_t *loop, bool (*done)(void *arg), void *arg, uint64_t ms);
/* A bool as done(). */
bool is_true(void *arg);
/* A callback that sets the bool that its argument points to. */
void set_true(void *arg);
/* Runs the loop to its end; fails if a handle is still open. */
void end_loop(uv_loop_t *loop);
