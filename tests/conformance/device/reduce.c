/* reduce: sums, their rounding, the accumulator and its norm in one call, to the bit as the scalar
 * truth, which is the same as the operations one after another. */
#include <criterion/criterion.h>
#include <math.h>
#include <string.h>

#include "proto/dtype.h"
#include "tests/conformance/device/material.h"

enum { SOURCES_MAX = 11 }; /* more than one loop adds up */

static const enum zero_dtype dtypes[] = { ZERO_FP32, ZERO_BF16, ZERO_FP16 };

/* An accumulator and its sources; twice the same from the same dice. */
struct arrays {
        struct plate acc, src[SOURCES_MAX];
        const void *places[SOURCES_MAX];
        struct reduce_piece piece;
        struct exact_sum norm;
        bool finite;
};

static struct arrays *arrays_new(enum zero_dtype from, size_t n, size_t k, size_t offset,
                                 bool first, struct dice *d)
{
        struct arrays *a = calloc(1, sizeof *a);

        a->acc = plate_new(ZERO_FP32, n, offset);
        plate_fill(&a->acc, ZERO_FP32, n, d);
        for (size_t j = 0; j < k; j++) {
                a->src[j] = plate_new(from, n, (offset * j) % 16);
                plate_fill(&a->src[j], from, n, d);
                a->places[j] = a->src[j].data;
        }
        a->piece = (struct reduce_piece){ a->acc.data, n, k, a->places, first };
        exact_sum_init(&a->norm);
        a->finite = true;
        return a;
}

static void arrays_free(struct arrays *a)
{
        plate_free(&a->acc);
        for (size_t j = 0; j < a->piece.k; j++)
                plate_free(&a->src[j]);
        free(a);
}

static bool arrays_same(struct arrays *a, struct arrays *b)
{
        exact_sum_normalize(&a->norm);
        exact_sum_normalize(&b->norm);
        return plate_same(&a->acc, &b->acc, ZERO_FP32, a->piece.n) && a->finite == b->finite &&
               !memcmp(a->norm.bin, b->norm.bin, sizeof a->norm.bin);
}

static void run(const struct device_ops *ops, struct arrays *a, enum zero_dtype wire,
                enum zero_dtype from, bool normed)
{
        ops->reduce(&a->piece, 1, wire, from, 0.3, normed ? &a->norm : NULL,
                    normed ? &a->finite : NULL);
}

static void check(enum zero_dtype wire, enum zero_dtype from, size_t n, size_t k, size_t offset,
                  unsigned way, struct dice *d)
{
        struct dice again = *d;
        bool first = k > 0 && way % 2, normed = way / 2 % 2;
        struct arrays *a = arrays_new(from, n, k, offset, first, d);
        struct arrays *b = arrays_new(from, n, k, offset, first, &again);

        run(tested_ops(), a, wire, from, normed);
        run(truth_ops(), b, wire, from, normed);
        cr_assert(arrays_same(a, b), "%s of %zu %s, n %zu, offset %zu, first %d, norm %d",
                  dtype_name(wire), k, dtype_name(from), n, offset, first, normed);
        arrays_free(a);
        arrays_free(b);
}

Test(reduce, equals_the_scalar_truth)
{
        struct dice d = { 1 };

        for (int wire = 0; wire < 3; wire++)
                for (int from = 0; from < 3; from++)
                        for (size_t i = 0; i < n_awkward_sizes; i++)
                                for (size_t k = 0; k <= SOURCES_MAX; k += k < 2 ? 1 : 3)
                                        for (unsigned way = 0; way < 4; way++)
                                                check(dtypes[wire], dtypes[from], awkward_sizes[i],
                                                      k,
                                                      awkward_offsets[(i + k + way) %
                                                                      n_awkward_offsets],
                                                      way, &d);
}

/* Of ordinary numbers there is a norm: the bins are compared, and not only what is left out. */
static void fill_ordinary(struct arrays *a, enum zero_dtype from, struct dice *d)
{
        for (size_t i = 0; i < a->piece.n; i++)
                ((float *)a->acc.data)[i] = (float)(2 * dice_unit(d) - 1);
        for (size_t j = 0; j < a->piece.k; j++)
                for (size_t i = 0; i < a->piece.n; i++) {
                        float x = (float)ldexp(2 * dice_unit(d) - 1, (int)(dice_bits(d) % 8) - 4);

                        truth_ops()->cast(from, (char *)a->src[j].data + dtype_bytes(from, i),
                                          ZERO_FP32, &x, 1);
                }
}

static void by_steps(struct arrays *a, enum zero_dtype wire, enum zero_dtype from)
{
        const struct device_ops *ops = tested_ops();
        struct plate sum = plate_new(wire, a->piece.n, 0);

        ops->sum(wire, sum.data, from, a->places, a->piece.k, a->piece.n);
        ops->accumulate(a->acc.data, wire, sum.data, a->piece.n, a->piece.first);
        ops->norm(a->acc.data, a->piece.n, 0.3, &a->norm, &a->finite);
        plate_free(&sum);
}

Test(reduce, equals_sum_accumulate_and_norm)
{
        enum { N = 5003 };

        for (unsigned i = 0; i < 12; i++) {
                enum zero_dtype wire = dtypes[i % 2], from = dtypes[i / 4];
                struct dice d = { i }, other = { i };
                struct arrays *a = arrays_new(from, N, 3, 0, i / 2 % 2, &d);
                struct arrays *b = arrays_new(from, N, 3, 0, i / 2 % 2, &other);

                fill_ordinary(a, from, &d);
                fill_ordinary(b, from, &other);
                run(tested_ops(), a, wire, from, true);
                by_steps(b, wire, from);
                cr_assert(arrays_same(a, b), "case %u", i);
                cr_assert(a->finite && exact_sum_value(&a->norm) > 0);
                arrays_free(a);
                arrays_free(b);
        }
}

Test(reduce, takes_pieces_of_their_own_sources)
{
        enum { PIECES = 7 };
        struct dice d = { 3 }, again = { 3 };
        struct arrays *a[PIECES], *b[PIECES], all = { .finite = true }, each = { .finite = true };
        struct reduce_piece pieces[PIECES];

        exact_sum_init(&all.norm);
        exact_sum_init(&each.norm);
        for (size_t i = 0; i < PIECES; i++) {
                a[i] = arrays_new(ZERO_BF16, 300 * i, i % 3, i % 4, i % 3 && i % 2, &d);
                b[i] = arrays_new(ZERO_BF16, 300 * i, i % 3, i % 4, i % 3 && i % 2, &again);
                pieces[i] = a[i]->piece;
                truth_ops()->reduce(&b[i]->piece, 1, ZERO_BF16, ZERO_BF16, 2, &each.norm,
                                    &each.finite);
        }
        tested_ops()->reduce(pieces, PIECES, ZERO_BF16, ZERO_BF16, 2, &all.norm, &all.finite);
        exact_sum_normalize(&all.norm);
        exact_sum_normalize(&each.norm);
        cr_assert(!memcmp(all.norm.bin, each.norm.bin, sizeof all.norm.bin));
        cr_assert_eq(all.finite, each.finite);
        for (size_t i = 0; i < PIECES; i++) {
                cr_assert(plate_same(&a[i]->acc, &b[i]->acc, ZERO_FP32, a[i]->piece.n));
                arrays_free(a[i]);
                arrays_free(b[i]);
        }
}

Test(reduce, of_nothing_leaves_the_norm_alone)
{
        struct exact_sum norm;
        bool finite = true;

        exact_sum_init(&norm);
        tested_ops()->reduce(NULL, 0, ZERO_FP32, ZERO_FP32, 1, &norm, &finite);
        cr_assert(finite && exact_sum_value(&norm) == 0);
}
