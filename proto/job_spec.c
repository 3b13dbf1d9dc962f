/* What a job is; see job_spec.h. */
#include "proto/job_spec.h"

#include <string.h>

#include "proto/dtype.h"

struct job_spec job_spec_named(const char *name)
{
        struct job_spec spec = { .layout = NULL };

        snprintf(spec.name, sizeof spec.name, "%s", name);
        return spec;
}

int job_spec_check(const struct job_spec *spec, struct fault *fault)
{
        if (spec->world_size < 1 || spec->world_size > ZERO_RANK_MAX)
                return fault_set(fault, ZERO_ERANK, "world size %u is not in 1..%d",
                                 spec->world_size, ZERO_RANK_MAX);
        if (!dtype_valid(spec->reduce_dtype))
                return fault_set(fault, ZERO_EINVAL, "reduce_dtype is " ZERO_DTYPES);
        if (spec->accumulate != ZERO_ACCUMULATE_FP32 && spec->accumulate != ZERO_ACCUMULATE_WIRE)
                return fault_set(fault, ZERO_EINVAL, "accumulate is " ZERO_ACCUMULATES);
        return 0;
}

bool job_spec_differs(const struct job_spec *a, const struct job_spec *b, char ret_a[static 32],
                      char ret_b[static 32])
{
        const struct job_spec *both[2] = { a, b };
        char *texts[2] = { ret_a, ret_b };
        bool dtype = a->reduce_dtype != b->reduce_dtype;

        for (int i = 0; i < 2; i++)
                snprintf(texts[i], 32, "%s %s", dtype ? "reduce_dtype" : "accumulate",
                         dtype ? dtype_name(both[i]->reduce_dtype)
                         : both[i]->accumulate == ZERO_ACCUMULATE_WIRE ? "wire"
                                                                       : "fp32");
        return dtype || a->accumulate != b->accumulate;
}

int job_spec_compare(const struct job_spec *asked, const struct job_spec *job, struct fault *fault)
{
        char text[300], has[32], wants[32];

        if (asked->uid != job->uid)
                return fault_set(fault, ZERO_EPERM, "job '%s' belongs to user %u", job->name,
                                 job->uid);
        if (job_spec_differs(job, asked, has, wants))
                return fault_set(fault, ZERO_ECONFLICT,
                                 "job '%s' has %s, not %s (zeroctl drop ends it%s)", job->name, has,
                                 strchr(wants, ' ') + 1,
                                 asked->reduce_dtype == job->reduce_dtype
                                         ? "; a checkpoint restores into either"
                                         : "");
        if (!layout_equal(asked->layout, job->layout, text, sizeof text))
                return fault_set(fault, ZERO_ELAYOUT,
                                 "job '%s' has another layout (zeroctl drop ends it): %s",
                                 job->name, text);
        return 0;
}

enum zero_dtype job_spec_sum_dtype(const struct job_spec *spec)
{
        return spec->accumulate == ZERO_ACCUMULATE_WIRE ? spec->reduce_dtype : ZERO_FP32;
}

uint64_t job_spec_sum_bytes(const struct job_spec *spec, uint64_t elements)
{
        return dtype_bytes(spec->reduce_dtype, elements);
}
