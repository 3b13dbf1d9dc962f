/* Blocks of differences: the new bits come back whatever they are, and no bytes lead astray. */
#include <criterion/criterion.h>
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/compute/delta/delta.h"
#include "proto/dtype.h"

/* How new values come from old ones. */
enum change { ANY_BITS, FEW_STEPS, SPECIAL, CHANGES };

/* Old and new values of a block, its bytes in memory of exactly their size, and room to apply it.
 */
struct block {
        enum zero_dtype dtype;
        size_t n, bytes;
        void *was, *is, *got;
        uint8_t *p;
};

static const enum zero_dtype dtypes[] = { ZERO_BF16, ZERO_FP16, ZERO_FP32 };
static const size_t sizes[] = { 0, 1, 2, 63, 127, 128, 129, 255, 256, 1000, 65535, DELTA_MOST };
static const double densities[] = { 0, 0.001, 0.02, 0.2, 0.6, 1 };

#define FOR_EACH(i, array) for (size_t i = 0; i < sizeof(array) / sizeof(array)[0]; i++)

static uint64_t state = 88172645463325252;

static uint64_t random_bits(void)
{
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        return state;
}

/* Zeros, the least and the greatest subnormals and numbers, infinities and NaNs, of both signs. */
static uint32_t special(enum zero_dtype dtype)
{
        unsigned mantissa = dtype == ZERO_BF16 ? 7 : dtype == ZERO_FP16 ? 10 : 23;
        uint32_t top = dtype == ZERO_FP32 ? 1u << 31 : 1u << 15, infinity = top - (1u << mantissa);
        const uint32_t all[] = { 0,
                                 1,
                                 2,
                                 (1u << mantissa) - 1,
                                 1u << mantissa,
                                 infinity - 1,
                                 infinity,
                                 infinity + 1,
                                 infinity + (1u << (mantissa - 1)),
                                 top - 1 };
        uint64_t x = random_bits();

        return all[x % 10] | (x >> 32 & 1 ? top : 0);
}

static uint32_t new_bits(enum zero_dtype dtype, enum change change, uint32_t old)
{
        switch (change) {
        case FEW_STEPS: /* one, most often */
                return old + (uint32_t)(1u << random_bits() % 3) * (random_bits() % 2 ? 1 : -1u);
        case SPECIAL:
                return special(dtype);
        default:
                return (uint32_t)random_bits();
        }
}

static void set(void *values, size_t i, size_t size, uint32_t bits)
{
        uint16_t half = (uint16_t)bits;

        memcpy((uint8_t *)values + i * size, size == 2 ? (const void *)&half : &bits, size);
}

static void code(struct block *b)
{
        size_t bound = delta_bound(b->dtype, b->n);
        uint8_t *out = malloc(bound);

        b->bytes = delta_code(b->dtype, b->was, b->is, b->n, out);
        cr_assert_leq(b->bytes, bound);
        b->p = malloc(b->bytes);
        memcpy(b->p, out, b->bytes);
        free(out);
}

static struct block block_new(enum zero_dtype dtype, enum change change, size_t n, double density)
{
        size_t size = dtype_bytes(dtype, 1);
        struct block b = {
                dtype, n, 0, malloc(n * size), malloc(n * size), malloc(n * size), NULL
        };

        for (size_t i = 0; i < n; i++) {
                uint32_t old = change == SPECIAL ? special(dtype) : (uint32_t)random_bits();
                bool differs = (double)(random_bits() >> 11) * 0x1p-53 < density;

                set(b.was, i, size, old);
                set(b.is, i, size, differs ? new_bits(dtype, change, old) : old);
        }
        code(&b);
        return b;
}

static void block_free(struct block *b)
{
        free(b->was);
        free(b->is);
        free(b->got);
        free(b->p);
}

/* What it makes of the first `bytes` bytes of p, which lie in memory of that size. */
static int apply(struct block *b, const uint8_t *p, size_t bytes)
{
        uint8_t *exact = malloc(bytes);
        int r;

        memcpy(exact, p, bytes);
        memcpy(b->got, b->was, dtype_bytes(b->dtype, b->n));
        r = delta_apply(b->dtype, b->got, b->n, exact, bytes);
        free(exact);
        return r;
}

static void check_round_trip(struct block *b)
{
        size_t raw = dtype_bytes(b->dtype, b->n);

        cr_assert_eq(apply(b, b->p, b->bytes), 0);
        cr_assert(!memcmp(b->got, b->is, raw), "dtype %d, n %zu", b->dtype, b->n);
        cr_assert_leq(b->bytes, raw + 1, "a block takes at most a byte more than the values");
        cr_assert_eq(b->bytes == 1, !memcmp(b->was, b->is, raw));
}

Test(delta, new_bits_come_back)
{
        FOR_EACH (d, dtypes)
                for (enum change change = 0; change < CHANGES; change++)
                        FOR_EACH (s, sizes)
                                FOR_EACH (x, densities) {
                                        struct block b = block_new(dtypes[d], change, sizes[s],
                                                                   densities[x]);

                                        check_round_trip(&b);
                                        block_free(&b);
                                }
}

/* All pairs of a few values: each step from each exponent, at any place of a block. */
Test(delta, any_value_may_follow_any_other)
{
        FOR_EACH (d, dtypes)
                for (int round = 0; round < 2000; round++) {
                        size_t n = 1 + random_bits() % 300;
                        struct block b = block_new(dtypes[d], SPECIAL, n, 0.1);

                        check_round_trip(&b);
                        block_free(&b);
                }
}

Test(delta, one_change_alone_is_found_wherever_it_is)
{
        FOR_EACH (d, dtypes)
                for (size_t n = 1; n < 400; n += 57)
                        for (size_t i = 0; i < n; i++) {
                                struct block b = block_new(dtypes[d], ANY_BITS, n, 0);

                                free(b.p);
                                ((uint8_t *)b.is)[i * dtype_bytes(b.dtype, 1)] ^= 1;
                                code(&b);
                                check_round_trip(&b);
                                cr_assert_leq(b.bytes, 5);
                                block_free(&b);
                        }
}

Test(delta, small_steps_take_few_bytes)
{
        struct block few = block_new(ZERO_BF16, FEW_STEPS, 4096, 0.02);
        struct block half = block_new(ZERO_BF16, FEW_STEPS, 4096, 0.5);
        struct block all = block_new(ZERO_FP32, FEW_STEPS, 4096, 1);

        cr_assert_lt(few.bytes, 4096 * 0.02 * 1.6, "%zu", few.bytes);
        cr_assert_lt(half.bytes, 4096 * 0.4, "%zu", half.bytes);
        cr_assert_lt(all.bytes, 4096 * 0.8, "%zu", all.bytes);
        block_free(&few);
        block_free(&half);
        block_free(&all);
}

Test(delta, bytes_cut_short_or_too_many_are_refused)
{
        static const double some[] = { 0, 0.02, 0.2, 0.6, 1 };

        FOR_EACH (d, dtypes)
                FOR_EACH (x, some) {
                        struct block b = block_new(dtypes[d], FEW_STEPS, 300, some[x]);
                        uint8_t *longer = malloc(b.bytes + 9);

                        for (size_t bytes = 0; bytes < b.bytes; bytes++)
                                cr_assert_eq(apply(&b, b.p, bytes), -EBADMSG, "%zu", bytes);
                        memcpy(longer, b.p, b.bytes);
                        for (size_t more = 1; more <= 9; more++) {
                                longer[b.bytes + more - 1] = more % 2 ? 0xff : 0;
                                cr_assert_eq(apply(&b, longer, b.bytes + more), -EBADMSG);
                        }
                        free(longer);
                        block_free(&b);
                }
}

static void check_flips(struct block *b)
{
        for (size_t bit = 0; bit < 8 * b->bytes; bit++) {
                int r;

                b->p[bit / 8] ^= (uint8_t)(1 << bit % 8);
                r = apply(b, b->p, b->bytes);
                cr_assert(r == 0 || r == -EBADMSG);
                b->p[bit / 8] ^= (uint8_t)(1 << bit % 8);
        }
}

/* Under sanitizers a read or write out of bounds, or a shift too far, ends the test. */
Test(delta, flipped_bits_are_refused_or_give_some_values)
{
        static const double some[] = { 0.02, 0.2, 0.6 };

        FOR_EACH (d, dtypes)
                FOR_EACH (x, some)
                        for (enum change change = 0; change < CHANGES; change++) {
                                struct block b = block_new(dtypes[d], change, 300, some[x]);

                                check_flips(&b);
                                block_free(&b);
                        }
}

/* Another length than that of the block that was coded. */
Test(delta, a_block_of_another_length_stays_within_it)
{
        struct block b = block_new(ZERO_BF16, FEW_STEPS, 1000, 0.1);

        for (b.n = 0; b.n < 1000; b.n++) {
                int r = apply(&b, b.p, b.bytes);

                cr_assert(r == 0 || r == -EBADMSG);
        }
        block_free(&b);
}

/* The bytes are a format: a change of the coder that changes them shows here. */
Test(delta, bytes_do_not_change)
{
        enum { N = 512 };
        static uint16_t was[N], is[N];
        uint8_t out[2 * N + 64];
        uint64_t sum = 0;
        size_t bytes;

        for (size_t i = 0; i < N; i++) {
                was[i] = (uint16_t)(0x3c00 + i * 37 % 400 + (i % 3 ? 0 : 0x8000));
                is[i] = (uint16_t)(was[i] + (i % 11 ? 0 : i % 7 + 1));
        }
        bytes = delta_code(ZERO_BF16, was, is, N, out);
        for (size_t i = 0; i < bytes; i++)
                sum = sum * 31 + out[i];
        cr_assert_eq(bytes, 59, "%zu", bytes);
        cr_assert_eq(sum, 0x4bfce5a0d798ae6a, "%#" PRIx64, sum);
}

enum { LONG = 200000 };

/* Blocks of 1,000 values of an array, each third one left out. */
static size_t string_code(const uint16_t *was, const uint16_t *is, uint8_t *p)
{
        size_t bytes = 0;

        for (size_t at = 0; at < LONG; at += 1000)
                if (at / 1000 % 3)
                        bytes += delta_append(ZERO_BF16, at, was + at, is + at, 1000, p + bytes);
        return bytes;
}

Test(delta, a_string_of_blocks_is_applied_in_one_go_or_bit_by_bit)
{
        uint16_t *was = malloc(2 * LONG), *is = malloc(2 * LONG), *got = malloc(2 * LONG);
        uint8_t *p = malloc(LONG * 3);
        size_t bytes;

        for (size_t i = 0; i < LONG; i++) {
                was[i] = (uint16_t)random_bits();
                is[i] = i / 1000 % 3 && random_bits() % 8 == 0 ? (uint16_t)(was[i] + 1) : was[i];
        }
        bytes = string_code(was, is, p);
        for (uint64_t most = 1; most <= 1000000; most *= 1000) {
                struct delta_place at = { 0 };
                int r;

                memcpy(got, was, 2 * LONG);
                while ((r = delta_apply_string(ZERO_BF16, got, LONG, p, bytes, &at, most)) == 1)
                        ;
                cr_assert_eq(r, 0);
                cr_assert_arr_eq(got, is, 2 * LONG);
        }
        free(was);
        free(is);
        free(got);
        free(p);
}

Test(delta, a_string_is_refused_where_one_old_value_differs)
{
        uint16_t *was = malloc(2 * LONG), *got = malloc(2 * LONG);
        uint8_t *p = malloc(LONG * 3);
        size_t bytes;

        for (size_t i = 0; i < LONG; i++)
                was[i] = (uint16_t)(random_bits() % 0x7f00);
        bytes = string_code(was, was, p);
        for (int i = 0; i < 16; i++) {
                struct delta_place at = { 0 };

                memcpy(got, was, 2 * LONG);
                got[1000 + random_bits() % 2000] ^= (uint16_t)(1u << i);
                cr_assert_eq(delta_apply_string(ZERO_BF16, got, LONG, p, bytes, &at, UINT64_MAX),
                             -EBADMSG);
        }
        free(was);
        free(got);
        free(p);
}
