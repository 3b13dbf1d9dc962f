/* What a job is: whether two specs are one job, and which are possible. */
#include <criterion/criterion.h>
#include <string.h>

#include "layouts.h"
#include "proto/dtype.h"
#include "proto/job_spec.h"
#include "proto/zero.pb-c.h"

static const uint64_t sizes[] = { 128, 1000 };

static struct job_spec spec_of(uint64_t elements)
{
        struct job_spec spec = job_spec_named("j");

        spec.uid = 7;
        spec.world_size = 2;
        spec.reduce_dtype = ZERO_BF16;
        spec.layout = layouts_sized(&elements, 1, ZERO_FP32);
        return spec;
}

Test(job_spec, messages_have_it_whole)
{
        struct job_spec spec = spec_of(sizes[0]), read = job_spec_named(spec.name);
        Zero__Join join = ZERO__JOIN__INIT;
        struct fault fault;

        for (int a = ZERO_ACCUMULATE_FP32; a <= ZERO_ACCUMULATE_WIRE; a++) {
                spec.accumulate = (enum zero_accumulate)a;
                JOB_SPEC_WRITE(&join, &spec);
                JOB_SPEC_READ(&read, &join);
                read.layout = spec.layout;
                cr_assert_eq(job_spec_compare(&read, &spec, &fault), 0);
                cr_assert_eq(read.world_size, spec.world_size);
                cr_assert_eq(dtype_valid((enum zero_dtype)join.reduce_dtype),
                             a == ZERO_ACCUMULATE_FP32,
                             "the release before refuses what it would add up in fp32");
        }
        layout_free(spec.layout);
}

Test(job_spec, differences_are_named)
{
        struct job_spec spec = spec_of(sizes[0]), other = spec;
        struct fault fault;

        other.world_size = 3; /* may change between two starts */
        cr_assert_eq(job_spec_compare(&other, &spec, &fault), 0);
        other.layout = layouts_sized(&sizes[1], 1, ZERO_FP32);
        cr_assert_eq(job_spec_compare(&other, &spec, &fault), ZERO_ELAYOUT);
        cr_assert(strstr(fault.text, "1000"), "%s", fault.text);
        other.reduce_dtype = ZERO_FP32;
        cr_assert_eq(job_spec_compare(&other, &spec, &fault), ZERO_ECONFLICT);
        cr_assert(strstr(fault.text, "reduce_dtype bf16, not fp32"), "%s", fault.text);
        other.reduce_dtype = ZERO_BF16;
        other.accumulate = ZERO_ACCUMULATE_WIRE;
        cr_assert_eq(job_spec_compare(&other, &spec, &fault), ZERO_ECONFLICT);
        cr_assert(strstr(fault.text, "accumulate fp32, not wire"), "%s", fault.text);
        cr_assert(strstr(fault.text, "a checkpoint restores into either"), "%s", fault.text);
        other.uid = 8;
        cr_assert_eq(job_spec_compare(&other, &spec, &fault), ZERO_EPERM);
        cr_assert(strstr(fault.text, "user 7"), "%s", fault.text);
        layout_free(other.layout);
        layout_free(spec.layout);
}

Test(job_spec, impossible_ones_are_refused)
{
        struct job_spec spec = { .world_size = ZERO_RANK_MAX, .reduce_dtype = ZERO_FP16 };
        struct fault fault;

        cr_assert_eq(job_spec_check(&spec, &fault), 0);
        spec.world_size++;
        cr_assert_eq(job_spec_check(&spec, &fault), ZERO_ERANK);
        spec.world_size = 0;
        cr_assert_eq(job_spec_check(&spec, &fault), ZERO_ERANK);
        spec.world_size = 1;
        spec.reduce_dtype = ZERO_INT8;
        cr_assert_eq(job_spec_check(&spec, &fault), ZERO_EINVAL);
        spec.reduce_dtype = ZERO_FP16;
        spec.accumulate = (enum zero_accumulate)2;
        cr_assert_eq(job_spec_check(&spec, &fault), ZERO_EINVAL);
}

Test(job_spec, sums_have_the_size_of_their_type)
{
        struct job_spec spec = { .reduce_dtype = ZERO_BF16 };

        cr_assert_eq(job_spec_sum_bytes(&spec, 640), 1280);
        cr_assert_eq(job_spec_sum_dtype(&spec), ZERO_FP32);
        spec.accumulate = ZERO_ACCUMULATE_WIRE;
        cr_assert_eq(job_spec_sum_dtype(&spec), ZERO_BF16);
        spec.reduce_dtype = ZERO_FP32;
        cr_assert_eq(job_spec_sum_bytes(&spec, 640), 2560);
}
