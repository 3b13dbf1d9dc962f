/* The cases of engine-inproc. */
#pragma once

struct test_case {
        const char *name;
        void (*run)(void);
};

/* A case without a name ends each list. */
extern const struct test_case bitwise_cases[], plane_cases[], lost_cases[], trouble_cases[],
        fill_cases[], mirror_cases[], checkpoint_cases[], restore_cases[], gpu_cases[],
        gpus_cases[], part_cases[], checksum_cases[], memory_cases[];
