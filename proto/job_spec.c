/* What a job is; see job_spec.h. */
#include "proto/job_spec.h"

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
        return 0;
}

int job_spec_compare(const struct job_spec *asked, const struct job_spec *job, struct fault *fault)
{
        char text[300];

        if (asked->uid != job->uid)
                return fault_set(fault, ZERO_EPERM, "job '%s' belongs to user %u", job->name,
                                 job->uid);
        if (asked->reduce_dtype != job->reduce_dtype)
                return fault_set(fault, ZERO_ECONFLICT,
                                 "job '%s' has reduce_dtype %s, not %s (zeroctl drop ends it)",
                                 job->name, dtype_name(job->reduce_dtype),
                                 dtype_name(asked->reduce_dtype));
        if (!layout_equal(asked->layout, job->layout, text, sizeof text))
                return fault_set(fault, ZERO_ELAYOUT,
                                 "job '%s' has another layout (zeroctl drop ends it): %s",
                                 job->name, text);
        return 0;
}

uint64_t job_spec_sum_bytes(const struct job_spec *spec, uint64_t elements)
{
        return dtype_bytes(spec->reduce_dtype, elements);
}
