/* Runs the suite for the instruction set that $ZEROD_TEST_ISA names; exits 77 (skipped) if
 * this CPU lacks it. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>

#include "tests/conformance/device/material.h"

enum { EXIT_SKIPPED = 77 };

__attribute__((visibility("default"))) int main(int argc, char *argv[])
{
        const char *isa = getenv("ZEROD_TEST_ISA");
        struct criterion_test_set *tests;
        int result = 0;

        if (!tested_ops()) {
                fprintf(stderr, "skipped: this CPU lacks %s\n", isa);
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
