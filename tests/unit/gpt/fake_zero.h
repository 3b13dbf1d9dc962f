/*
 * libzero's calls of one rank, played by a strict service in this process.
 *
 * Strict: views and gradients are poisoned when they end, and every rule of zero.h that a trainer
 * can break is asserted.  The update is plain gradient descent with the first set's lr.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

struct fake_zero {
        uint32_t hold_groups, push_groups; /* as declared */
        uint32_t most_held, most_open;     /* groups held, gradients asked for and not pushed */
        uint32_t fetches, prefetches, pushes, puts;
        uint32_t pushes_before_fetch; /* the most in a step before a fetch of the same step */
        uint32_t abort_at; /* the call that aborts, of those that are counted; 0: none */
        uint32_t skipped;  /* steps skipped because a gradient was not finite */
        uint32_t calls;    /* of those that are counted: steps, fetches, the stash */
        bool outlives;     /* the job outlives its trainer; the next zero_attach() finds the job */
};
extern struct fake_zero fake_zero;
