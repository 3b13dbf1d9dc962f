/*
 * A pool under load, as the tests of both kinds drive it: chains of tasks that submit their
 * successor when they are done, closed while work is pending.
 */
#pragma once

#include <stdint.h>

/*
 * Runs `chains` chains of `length` tasks each over `workers`, closes at once, and checks with
 * assert() what offload.h says.
 */
void tasks_run(uint32_t workers, uint32_t chains, uint32_t length);
