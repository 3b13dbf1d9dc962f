/* Sizes, values and guarded memory for the conformance tests of a device. */
#include "tests/conformance/device/material.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "proto/dtype.h"
#include "tests/conformance/device/placed.h"

enum { MARGIN = 128, CANARY = 0xa5 };

const size_t awkward_sizes[] = { 0,   1,   2,   15,  16,   17,   31,   32,    33,
                                 127, 128, 129, 255, 1279, 1280, 1281, 100003 };
const size_t n_awkward_sizes = sizeof(awkward_sizes) / sizeof(awkward_sizes[0]);

const size_t awkward_offsets[] = { 0, 1, 5, 16, 31 };
const size_t n_awkward_offsets = sizeof(awkward_offsets) / sizeof(awkward_offsets[0]);

bool gpus_tested(void)
{
        const char *isa = getenv("ZEROD_TEST_ISA");

        return isa && !strcmp(isa, "gpu");
}

const struct device_ops *tested_ops(void)
{
        return gpus_tested() ? placed_ops() : device_host(getenv("ZEROD_TEST_ISA"));
}

const struct device_ops *truth_ops(void)
{
        return device_host("scalar");
}

/* splitmix64 */
uint64_t dice_bits(struct dice *d)
{
        uint64_t z = d->state += UINT64_C(0x9e3779b97f4a7c15);

        z = (z ^ z >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
        z = (z ^ z >> 27) * UINT64_C(0x94d049bb133111eb);
        return z ^ z >> 31;
}

double dice_unit(struct dice *d)
{
        return (double)(dice_bits(d) >> 11) * 0x1p-53;
}

struct plate plate_new(enum zero_dtype dtype, size_t n, size_t offset)
{
        size_t lead = MARGIN + dtype_bytes(dtype, offset);
        size_t bytes = lead + dtype_bytes(dtype, n) + MARGIN;
        struct plate p = { .bytes = (bytes + 63) / 64 * 64 };

        p.memory = aligned_alloc(64, p.bytes);
        assert(p.memory);
        memset(p.memory, CANARY, p.bytes);
        p.data = p.memory + lead;
        return p;
}

void plate_free(struct plate *p)
{
        free(p->memory);
}

static uint32_t awkward_fp32(struct dice *d)
{
        static const uint32_t special[] = {
                0x00000000, 0x80000000, 0x7f800000, 0xff800000, 0x7fc00000, 0xffc12345,
                0x7f800001, 0x7fbfffff, 0x00000001, 0x80000001, 0x007fffff, 0x00800000,
                0x7f7fffff, 0xff7fffff, 0x3f808000, 0x3f818000, 0x3f807fff, 0x3f808001,
                0x33000000, 0x33000001, 0x32ffffff, 0x33800000, 0x387fc000, 0x387fe000,
                0x387fffff, 0x38800000, 0x477fe000, 0x477fefff, 0x477ff000, 0x7f7f8000,
        };
        uint64_t bits = dice_bits(d);

        if (bits % 8 == 0)
                return special[(bits >> 8) % (sizeof(special) / sizeof(special[0]))];
        if (bits % 8 < 4)
                return (uint32_t)(bits >> 32);
        /* exponents near 1, and near the subnormals of fp16 */
        return (uint32_t)((bits >> 32 & 0x807fffff) | (100 + (bits >> 8) % 45) << 23);
}

void plate_fill(struct plate *p, enum zero_dtype dtype, size_t n, struct dice *d)
{
        for (size_t i = 0; i < n; i++) {
                uint32_t bits = awkward_fp32(d);

                if (dtype == ZERO_FP32)
                        memcpy((float *)p->data + i, &bits, sizeof(bits));
                else
                        ((uint16_t *)p->data)[i] = (uint16_t)(bits >> 16);
        }
}

static bool elements_same(const struct plate *a, const struct plate *b, enum zero_dtype dtype,
                          size_t n)
{
        for (size_t i = 0; i < n; i++) {
                float x = dtype_load(dtype, a->data, i), y = dtype_load(dtype, b->data, i);

                if (memcmp(&x, &y, sizeof(x)) != 0 && !(x != x && y != y))
                        return false;
        }
        return true;
}

static bool margins_same(const struct plate *a, const struct plate *b, size_t data_bytes)
{
        size_t lead = (size_t)((uint8_t *)a->data - a->memory);

        return a->bytes == b->bytes && memcmp(a->memory, b->memory, lead) == 0 &&
               memcmp(a->memory + lead + data_bytes, b->memory + lead + data_bytes,
                      a->bytes - lead - data_bytes) == 0;
}

bool plate_same(const struct plate *a, const struct plate *b, enum zero_dtype dtype, size_t n)
{
        return margins_same(a, b, dtype_bytes(dtype, n)) && elements_same(a, b, dtype, n);
}

bool plate_identical(const struct plate *a, const struct plate *b)
{
        return a->bytes == b->bytes && memcmp(a->memory, b->memory, a->bytes) == 0;
}
