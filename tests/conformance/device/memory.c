/* copy and zero: exactly the bytes asked for, from and to any address, small and large. */
#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

#include "tests/conformance/device/material.h"

static const size_t sizes[] = { 0,    1,    63,     64,      65,      255,     256,    257,
                                4095, 4097, 100003, 1048575, 1048576, 1048577, 2000003 };
static const size_t offsets[] = { 0, 1, 8, 33, 63 };

enum {
        N_SIZES = sizeof(sizes) / sizeof(sizes[0]),
        N_OFFSETS = sizeof(offsets) / sizeof(offsets[0]),
        MARGIN = 64,
        LARGEST = 2000003 + 63 + 2 * MARGIN,
};

static uint8_t *noise(uint64_t seed)
{
        struct dice d = { seed };
        uint8_t *bytes = malloc(LARGEST);

        for (size_t i = 0; i < LARGEST; i++)
                bytes[i] = (uint8_t)dice_bits(&d);
        return bytes;
}

Test(memory, copy_writes_its_range_and_nothing_else)
{
        uint8_t *src = noise(1), *dst = noise(2), *expected = malloc(LARGEST);

        for (size_t i = 0; i < N_SIZES; i++)
                for (size_t j = 0; j < N_OFFSETS; j++) {
                        size_t to = MARGIN + offsets[j];
                        size_t from = offsets[(i + 2 * j) % N_OFFSETS];

                        memcpy(expected, dst, LARGEST);
                        memcpy(expected + to, src + from, sizes[i]);
                        tested_ops()->copy(dst + to, src + from, sizes[i]);
                        cr_assert(!memcmp(dst, expected, LARGEST), "n %zu, to %zu, from %zu",
                                  sizes[i], to, from);
                        memset(dst + to, 0x5a, sizes[i]);
                }
        free(src);
        free(dst);
        free(expected);
}

Test(memory, zero_clears_its_range_and_nothing_else)
{
        uint8_t *dst = noise(3), *pristine = noise(3), *expected = malloc(LARGEST);

        for (size_t i = 0; i < N_SIZES; i++)
                for (size_t j = 0; j < N_OFFSETS; j++) {
                        size_t to = MARGIN + offsets[j];

                        memcpy(dst, pristine, LARGEST);
                        memcpy(expected, pristine, LARGEST);
                        memset(expected + to, 0, sizes[i]);
                        tested_ops()->zero(dst + to, sizes[i]);
                        cr_assert(!memcmp(dst, expected, LARGEST), "n %zu, to %zu", sizes[i], to);
                }
        free(dst);
        free(pristine);
        free(expected);
}
