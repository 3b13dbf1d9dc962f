/*
 * A pool under load, for tests with and without Criterion: chains of tasks that submit their
 * successors when they are done.  The pool is closed while work is pending.
 */
#pragma once

#include <stdint.h>

/*
 * Runs `chains` chains of `length` tasks each over `workers`, closes at once, and checks the rules
 * of offload.h with assert().
 */
void tasks_run(uint32_t workers, uint32_t chains, uint32_t length);
