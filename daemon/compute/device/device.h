/*
 * device.h - one device that holds shards and computes on them: the host, or a GPU.
 *
 * Every operation is synchronous and runs on an offload thread, never on the loop.
 * Memory is chosen by the caller; ranges of different arguments do not overlap unless
 * stated.  All implementations agree to the bit (daemon/compute/README.md, Arithmetic): fp32 in a
 * fixed order, no contraction, correctly rounded division and square root.
 * tests/conformance/device holds each of them against the scalar truth.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "daemon/compute/device/exact_sum.h"
#include "daemon/compute/device/rules.h"
#include "proto/zero_types.h"

/*
 * Where update() saves the old values of what it changes, for a process that may be killed at any
 * instruction.  Before an element changes, its old values are in old[], and *kept covers it.
 */
struct update_undo {
        float *old[UPDATE_PLANES]; /* [plane of the rule]: elements of one call */
        uint64_t *kept;            /* undo_mark() */
        uint32_t before;           /* elements that earlier calls have saved */
};

/* The mark that n elements are saved; it reveals a flipped bit. */
static inline uint64_t undo_mark(uint32_t n)
{
        return (uint64_t)~n << 32 | n;
}

/* The number in a mark; UINT32_MAX: not a mark. */
static inline uint32_t undo_kept(uint64_t mark)
{
        return undo_mark((uint32_t)mark) == mark ? (uint32_t)mark : UINT32_MAX;
}

/* For a call that continues after the first n elements. */
static inline struct update_undo undo_behind(struct update_undo u, uint32_t n)
{
        for (int k = 0; k < UPDATE_PLANES; k++)
                u.old[k] += u.old[k] ? n : 0;
        u.before += n;
        return u;
}

/* A piece of an fp32 accumulator and what is added to it. */
struct reduce_piece {
        /* NULL: the sum is only measured, and all sources lie on one GPU, at most as many as its
         * update adds up (`first`) */
        float *acc;
        size_t n;               /* elements, of acc and of each source */
        size_t k;               /* sources; 0: acc stays as it is */
        const void *const *src; /* [k] */
        bool first;             /* the sum replaces the values of acc; k > 0 */
};

enum { UPDATE_SOURCES = 3 }; /* most contributions that an update of a piece adds up */

/*
 * A piece of an update, of n elements; see rules.h.
 *
 * The votes of all owners decide whether a step is carried out and how its gradients are scaled.
 * That is recorded on the host before any update is launched, and a skipped step has no launch.  So
 * the device reads neither.
 *
 * The gradient is an accumulator (one source, from and wire fp32), or the contributions themselves,
 * which are added up as by reduce().  Then their sum has been measured, and need not be kept.
 */
struct update_piece {
        enum update_rule rule;
        struct update_scalars scalars;
        size_t n;
        const float *in[UPDATE_PLANES];   /* [plane of the rule]; the rest is ignored */
        const void *grad[UPDATE_SOURCES]; /* [k] */
        uint32_t k;                       /* at least 1 */
        enum zero_dtype from, wire;       /* of reduce() */
        /* Each has its input's address (in place), or overlaps no input. */
        float *out[UPDATE_PLANES];
        /* NULL, or out[0] rounded to serve_dtype, written in the same pass. */
        void *serve;
        enum zero_dtype serve_dtype;
};

struct device_ops {
        const char *name;

        /*
         * Changes n elements of the planes of a rule, master first, by their gradient (rules.h).
         * undo: only for host memory; NULL: nothing is saved.
         */
        void (*update)(enum update_rule rule, const struct update_scalars *s, size_t n,
                       float *const *planes, const float *grad, const struct update_undo *undo);
        /*
         * dst = src in another dtype, rounded to nearest even.  Any pair with fp32 on one
         * side, or the same dtype twice (a copy).  Large copies bypass the cache.
         */
        void (*cast)(enum zero_dtype to, void *dst, enum zero_dtype from, const void *src,
                     size_t n);
        /* As cast from fp32, by stores that bypass the cache: for the serve plane, which
         * this core will not read again soon.  Other threads see them in order after a
         * mutex or a system call of this thread, not after a mere release store. */
        void (*serve)(enum zero_dtype to, void *dst, const float *src, size_t n);
        /* acc = src (if first), otherwise acc + src; src widened to fp32. */
        void (*accumulate)(float *acc, enum zero_dtype from, const void *src, size_t n, bool first);
        /*
         * dst = the sum of k sources of one dtype, taken in order in fp32, rounded once to
         * dtype `to`.  k >= 1.
         */
        void (*sum)(enum zero_dtype to, void *dst, enum zero_dtype from, const void *const *src,
                    size_t k, size_t n);
        /*
         * Adds scale * (sum of x squared) of each block of 128 elements (the last may
         * be shorter) to *acc.  A block with a NaN or an infinity, or whose scaled sum is
         * beyond a double, is left out and clears *finite (never set here).  A block's sum is taken
         * in double in a fixed order.  So neither cuts at block boundaries nor the order of calls
         * change the result.
         */
        void (*norm)(const float *x, size_t n, double scale, struct exact_sum *acc, bool *finite);
        /*
         * A gradient's reduction, in one pass over memory: acc of each piece = the sum of its
         * sources (first) or acc + that (else).  Sources of dtype `from` are added in order in
         * fp32, and their sum is rounded once to dtype `wire`.  A sum beyond that dtype's range
         * becomes an infinity, which the norm reports.  Then, unless norm is NULL, as norm() of
         * every piece's acc.
         */
        void (*reduce)(const struct reduce_piece *pieces, size_t n_pieces, enum zero_dtype wire,
                       enum zero_dtype from, double scale, struct exact_sum *norm, bool *finite);
        /* Zeroes / copies n bytes; a large n bypasses the cache. */
        void (*zero)(void *dst, size_t n);
        void (*copy)(void *dst, const void *src, size_t n);
};

/* The host: "scalar", "avx2", "avx512", or NULL for the best that this CPU has.  Returns NULL if
 * this CPU cannot run it, or it is unknown. */
const struct device_ops *device_host(const char *isa);
