/* Runs the suite for the instruction set that $ZEROD_TEST_ISA names, or "gpu"; exits 77 (skipped)
 * if this machine lacks it. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include "daemon/compute/device/gpu/gpu.h"
#include "tests/conformance/device/material.h"

enum { EXIT_SKIPPED = 77 };

/* In a process of its own: tests are forked, and CUDA does not outlive that. */
static bool can_run(void)
{
        pid_t child = fork();
        int status = 1;

        if (child == 0)
                _exit(!tested_ops());
        return waitpid(child, &status, 0) == child && status == 0;
}

__attribute__((visibility("default"))) int main(int argc, char *argv[])
{
        const char *isa = getenv("ZEROD_TEST_ISA");
        struct criterion_test_set *tests;
        int result = 0;

        if (!can_run()) {
                fprintf(stderr, "skipped: this machine lacks %s\n", isa);
                return EXIT_SKIPPED;
        }
        tests = criterion_initialize();
        if (criterion_handle_args(argc, argv, true))
                result = !criterion_run_all_tests(tests);
        criterion_finalize(tests);
        return result;
}

Test(device, is_the_one_asked_for)
{
        const char *isa = getenv("ZEROD_TEST_ISA");

        cr_assert(!isa || !strcmp(tested_ops()->name, isa));
}

/* Whoever has a state calls the operations of its node, wherever the state lies. */
Test(device, has_all_operations)
{
        static const size_t first = offsetof(struct device_ops, update);
        const struct device_ops *tested = tested_ops(), *ops = gpus_tested() ? gpu_ops() : tested;
        void (*operations[(sizeof(struct device_ops) - offsetof(struct device_ops, update)) /
                          sizeof(void (*)(void))])(void);

        memcpy(operations, (const char *)ops + first, sizeof operations);
        for (size_t i = 0; i < sizeof operations / sizeof *operations; i++)
                cr_assert(operations[i], "operation %zu is missing", i);
}
