/*
 * What a job is: the same on all its nodes, for all its ranks, and in its files.
 *
 * Join, Open and Fill (zero.proto) and the headers of files keep it in fields of the same names,
 * which JOB_SPEC_WRITE() fills and JOB_SPEC_READ() takes.  Name and layout have places of their own
 * there.  `accumulate` is a part of reduce_dtype there: the release before, which would add up in
 * fp32, refuses such a dtype.
 */
#pragma once

#include "proto/layout.h"

#define JOB_SPEC_FIELDS                                                            \
        char name[ZERO_NAME_MAX + 1];                                              \
        uint32_t uid, world_size;        /* world_size: of the last start */       \
        enum zero_dtype reduce_dtype;    /* of sums of gradients, between nodes */ \
        enum zero_accumulate accumulate; /* of an owner's sum */                   \
        layout *layout;                  /* NULL: it is elsewhere */

struct job_spec {
        JOB_SPEC_FIELDS
};

/* In a job's record: the fields by their names, and all of them as `spec`. */
#define JOB_SPEC                        \
        union {                         \
                struct job_spec spec;   \
                struct {                \
                        JOB_SPEC_FIELDS \
                };                      \
        }

enum { JOB_SPEC_WIRE = 16 }; /* added to reduce_dtype: the sum has that dtype, too */

/* All but name and layout, to and from a message or header. */
#define JOB_SPEC_WRITE(to, spec)                                         \
        ((to)->uid = (spec)->uid, (to)->world_size = (spec)->world_size, \
         (to)->reduce_dtype = (spec)->reduce_dtype + JOB_SPEC_WIRE * (uint32_t)(spec)->accumulate)
#define JOB_SPEC_READ(spec, from)                                                        \
        ((spec)->uid = (from)->uid, (spec)->world_size = (from)->world_size,             \
         (spec)->reduce_dtype = (enum zero_dtype)((from)->reduce_dtype % JOB_SPEC_WIRE), \
         (spec)->accumulate = (enum zero_accumulate)((from)->reduce_dtype / JOB_SPEC_WIRE))

/* A spec with nothing but a name, which is cut at ZERO_NAME_MAX. */
struct job_spec job_spec_named(const char *name);
/* Whether a job may have that world size and those dtypes: ZERO_ERANK or ZERO_EINVAL. */
int job_spec_check(const struct job_spec *spec, struct fault *fault);
/* Whether both mean one job, of any world size: ZERO_EPERM, ZERO_ECONFLICT or ZERO_ELAYOUT. */
int job_spec_compare(const struct job_spec *asked, const struct job_spec *job, struct fault *fault);
/* How the two add up gradients, as text, if they differ in that; false: they do not. */
bool job_spec_differs(const struct job_spec *a, const struct job_spec *b, char ret_a[static 32],
                      char ret_b[static 32]);
/* The dtype of an owner's sum of gradients. */
enum zero_dtype job_spec_sum_dtype(const struct job_spec *spec);
/* Bytes that so many elements of a node's sum of gradients take, in memory and between nodes. */
uint64_t job_spec_sum_bytes(const struct job_spec *spec, uint64_t elements);
