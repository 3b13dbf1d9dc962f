/*
 * What a job is: the same on all its nodes, for all its ranks, and in its files.
 *
 * Join, Open and Fill (zero.proto) and the headers of files keep it in fields of the same names,
 * and JOB_SPEC_COPY() reads and writes all of them.  Name and layout have places of their own
 * there.
 */
#pragma once

#include "proto/layout.h"

#define JOB_SPEC_FIELDS                                                         \
        char name[ZERO_NAME_MAX + 1];                                           \
        uint32_t uid, world_size;     /* world_size: of the last start */       \
        enum zero_dtype reduce_dtype; /* of sums of gradients, between nodes */ \
        layout *layout;               /* NULL: it is elsewhere */

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

/* All but name and layout. */
#define JOB_SPEC_COPY(to, from)                                          \
        ((to)->uid = (from)->uid, (to)->world_size = (from)->world_size, \
         (to)->reduce_dtype = (from)->reduce_dtype)

/* A spec with nothing but a name, which is cut at ZERO_NAME_MAX. */
struct job_spec job_spec_named(const char *name);
/* Whether a job may have that world size and dtype: ZERO_ERANK or ZERO_EINVAL. */
int job_spec_check(const struct job_spec *spec, struct fault *fault);
/* Whether both mean one job, of any world size: ZERO_EPERM, ZERO_ECONFLICT or ZERO_ELAYOUT. */
int job_spec_compare(const struct job_spec *asked, const struct job_spec *job, struct fault *fault);
/* Bytes that so many elements of a node's sum of gradients take, in memory and between nodes. */
uint64_t job_spec_sum_bytes(const struct job_spec *spec, uint64_t elements);
