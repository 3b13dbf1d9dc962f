/* Which implementation the host offers. */
#include <criterion/criterion.h>

#include "daemon/compute/device/device.h"

Test(device_host, offers_the_scalar_truth_everywhere)
{
        cr_assert_not_null(device_host("scalar"));
        cr_assert_str_eq(device_host("scalar")->name, "scalar");
}

Test(device_host, gives_what_was_asked_for_or_nothing)
{
        static const char *const names[] = { "avx2", "avx512" };

        for (int i = 0; i < 2; i++) {
                const struct device_ops *ops = device_host(names[i]);

                cr_assert(!ops || !strcmp(ops->name, names[i]));
        }
        cr_assert_null(device_host("avx"));
        cr_assert_null(device_host(""));
}

Test(device_host, chooses_the_widest)
{
        const struct device_ops *best = device_host(NULL);
        const struct device_ops *avx2 = device_host("avx2"), *avx512 = device_host("avx512");

        cr_assert_eq(best, avx512 ? avx512 : avx2 ? avx2 : device_host("scalar"));
}
