/*
 * Who holds the parameters and updates them: zerod, or this process (--local).
 *
 * A backend is a seam for the model plus the end of a step.  Calls return 0 or a zero_status, and
 * put the error sentence into backend->fault.  One thread.
 */
#pragma once

#include "proto/fault.h"
#include "seam.h"
#include "spec.h"

struct backend;

struct backend_ops {
        /* Ends the step as zero_step() does; all groups must have been pushed with last set.
         * ZERO_EABORTED, from the seam's calls too: what was computed is void, and the caller goes
         * on where version() says. */
        int (*step)(struct backend *backend, const struct zero_step_options *step,
                    struct zero_result *ret_result);
        /* Committed steps. */
        uint64_t (*version)(const struct backend *backend);
        /* Decided steps, committed or skipped, as far as this rank knows. */
        uint64_t (*decided)(const struct backend *backend);
        /* The loss scale to go on with after at least one of them. */
        double (*loss_scale)(const struct backend *backend);
        void (*free)(struct backend *backend);
};

struct backend {
        struct seam seam; /* first, so that the seam's calls find their backend */
        const struct backend_ops *ops;
        struct fault fault;
};

/* All in this process: fp32, AdamW on the spot.  spec must outlive the backend. */
int backend_local_new(const struct gpt_spec *spec, uint64_t seed, struct fault *fault,
                      struct backend **ret_backend);

struct backend_zero_options {
        struct zero_options connection;
        enum zero_dtype dtype; /* of parameters and gradients, as in the spec */
        enum zero_on_lost on_lost_rank;
        uint32_t stage;            /* 1 to 3 (ZeRO's) */
        enum zero_accumulate sums; /* of the owners */
        bool accumulate;           /* this process adds up micro-batches, not the owners */
        uint64_t kept; /* seam.keep() is called as often in a step, for as many bytes each */
        uint64_t kept_bytes;
        const char *device; /* "cuda:N": views and gradients lie there; NULL: in host memory */
        bool put;           /* a new job gets its first values from gpt_spec_values() */
        uint64_t seed;
};

/* Connects and attaches; blocks until all ranks have attached. */
int backend_zero_new(const struct gpt_spec *spec, const struct backend_zero_options *options,
                     struct fault *fault, struct backend **ret_backend);

static inline void backend_free(struct backend *backend)
{
        if (backend)
                backend->ops->free(backend);
}
