/* The partition of layouts with matrices: properties over random ones, and how even it is over the
 * shapes of known models. */
#include <criterion/criterion.h>

#include "layouts.h"
#include "proto/dtype.h"
#include "proto/partition.h"
#include "proto/runs.h"

enum { OWNERS = ZERO_NODE_MAX, LAYOUTS = 60 };

static const struct layout_tensor *tensor_of(const layout *l, uint32_t group, uint32_t i)
{
        return &l->tensors[l->groups[group].first_tensor + i];
}

/* ---- properties ---- */

/* Rows that add up to `all`, of n matrices at most. */
static uint32_t random_rows(struct rng *rng, uint64_t all, uint64_t *rows, uint32_t n)
{
        uint32_t k = 0;

        for (; all && k + 1 < n; all -= rows[k++])
                rows[k] = 1 + rng_below(rng, (uint32_t)all);
        if (all)
                rows[k++] = all;
        return k;
}

/* A random layout, most of whose tensors with two dimensions or more have matrices, and some of
 * these are whole. */
static layout *random_layout(uint64_t seed)
{
        struct rng rng = { seed };
        layout *l = layouts_random(seed);

        for (uint32_t i = 0; i < l->n_tensors; i++) {
                const struct layout_tensor *t = &l->tensors[i];
                uint64_t rows[8], all = t->ndim >= 2 ? t->shape[t->ndim - 2] : 0;

                if (rng_below(&rng, 8) == 0)
                        cr_assert_eq(layout_set_whole(l, i, NULL), 0);
                if (t->frozen || all == 0 || rng_below(&rng, 4) == 0)
                        continue;
                uint32_t n = random_rows(&rng, all, rows, 1 + rng_below(&rng, 8));

                cr_assert_eq(layout_set_matrices(l, i, rows, n, NULL), 0);
        }
        return l;
}

/* Every edge between slices is at a multiple of LAYOUT_ALIGN, far enough from the next, and at the
 * first element of a matrix if it falls into a tensor with matrices. */
static void edge_is_allowed(const layout *l, uint32_t group, uint64_t edge)
{
        cr_assert_eq(edge % LAYOUT_ALIGN, 0);
        for (uint32_t i = 0; i < l->groups[group].n_tensors; i++) {
                const struct layout_tensor *t = tensor_of(l, group, i);
                uint64_t n = layout_matrices(t), low = 0;

                if (edge <= t->offset || edge >= t->offset + t->elements)
                        continue;
                cr_assert_not(t->whole);
                for (uint64_t high = n;
                     high - low > 1;) { /* the last that begins before or there */
                        uint64_t middle = low + (high - low) / 2;

                        if (layout_matrix(t, middle).first <= edge - t->offset)
                                low = middle;
                        else
                                high = middle;
                }
                if (n)
                        cr_assert_eq(layout_matrix(t, low).first, edge - t->offset);
        }
}

static void slices_are_sound(const layout *l, const struct partition *p)
{
        for (uint32_t g = 0; g < l->n_groups; g++) {
                uint64_t at = 0;
                uint32_t holders = 0;

                for (uint32_t i = 0; i < p->slices[g]; i++) {
                        struct range r = partition_range(p, g, partition_owner(p, g, i));

                        cr_assert_eq(r.first, at, "group %u slice %u", g, i);
                        edge_is_allowed(l, g, r.first);
                        cr_assert(p->slices[g] == 1 ||
                                  dtype_bytes(l->groups[g].dtype, r.count) >= PARTITION_SLICE_MIN);
                        at += r.count;
                }
                cr_assert_eq(at, l->groups[g].elements, "group %u", g);
                for (uint32_t o = 0; o < p->n_owners; o++)
                        holders += partition_range(p, g, o).count > 0;
                cr_assert_eq(holders, p->slices[g]);
        }
}

Test(partition_matrices, every_element_has_one_owner_and_no_matrix_is_cut)
{
        for (uint64_t seed = 0; seed < LAYOUTS; seed++) {
                layout *l = random_layout(seed);

                for (uint32_t owners = 1; owners <= OWNERS; owners++) {
                        struct partition *p;

                        cr_assert_eq(partition_new(l, owners, &p), 0);
                        slices_are_sound(l, p);
                        partition_free(p);
                }
                layout_free(l);
        }
}

Test(partition_matrices, the_same_layout_has_the_same_partition)
{
        for (uint64_t seed = 0; seed < LAYOUTS; seed++) {
                layout *a = random_layout(seed), *b;
                struct partition *p, *q;

                cr_assert_eq(layout_copy(a, &b), 0);
                cr_assert_eq(partition_new(a, 7, &p), 0);
                cr_assert_eq(partition_new(b, 7, &q), 0);
                for (uint32_t g = 0; g < a->n_groups; g++)
                        for (uint32_t o = 0; o < 7; o++) {
                                struct range x = partition_range(p, g, o);
                                struct range y = partition_range(q, g, o);

                                cr_assert(x.first == y.first && x.count == y.count);
                        }
                partition_free(p);
                partition_free(q);
                layout_free(a);
                layout_free(b);
        }
}

/* ---- how even ---- */

struct share {
        double memory, work; /* of the owner with most, over the mean */
};

static struct share shares(const layout *l, uint32_t n_owners)
{
        uint64_t memory[OWNERS] = { 0 }, words = 0, most_words = 0;
        double work[OWNERS] = { 0 }, all_work = 0, most_work = 0;
        struct partition *p;

        cr_assert_eq(partition_new(l, n_owners, &p), 0);
        slices_are_sound(l, p);
        for (uint32_t g = 0; g < l->n_groups; g++)
                for (uint32_t i = 0; i < l->groups[g].n_tensors; i++) {
                        const struct layout_tensor *t = tensor_of(l, g, i);
                        uint64_t n = layout_matrices(t);

                        for (uint32_t o = 0; o < n_owners; o++) {
                                struct range r = partition_range(p, g, o);

                                memory[o] +=
                                        range_overlap((struct range){ t->offset, t->elements }, r) *
                                        (n ? 3 : 4);
                                for (uint64_t k = 0; k < n; k++) {
                                        struct layout_matrix m = layout_matrix(t, k);
                                        uint64_t at = t->offset + m.first;

                                        if (at >= r.first && at < r.first + r.count)
                                                work[o] += (double)run_work(m.rows, m.cols);
                                }
                        }
                }
        for (uint32_t o = 0; o < n_owners; o++) {
                words += memory[o];
                all_work += work[o];
                most_words = memory[o] > most_words ? memory[o] : most_words;
                most_work = work[o] > most_work ? work[o] : most_work;
        }
        partition_free(p);
        return (struct share){ (double)most_words * n_owners / (double)words,
                               most_work * n_owners / all_work };
}

static void check_shares(const char *name, const layout *l, uint32_t n_owners, double memory,
                         double work)
{
        struct share s = shares(l, n_owners);

        fprintf(stderr, "%s: %.3g elements, %u owners: memory %.4f, work %.4f of the mean\n", name,
                (double)l->elements, n_owners, s.memory, s.work);
        cr_assert_leq(s.memory, memory, "%s, %u owners: memory %.4f", name, n_owners, s.memory);
        cr_assert_leq(s.work, work, "%s, %u owners: work %.4f", name, n_owners, s.work);
}

static void begin_group(layout *l, const char *name, uint32_t number)
{
        char text[32];
        uint32_t g;

        snprintf(text, sizeof text, "%s.%u", name, number);
        cr_assert_eq(layout_add_group(l, text, ZERO_BF16, NULL, 0, 0, &g, NULL), 0);
}

/* A tensor of the last group; an extent of 0: it has no more.  n_rows 0: it has no matrices. */
static void add(layout *l, const uint64_t shape[3], uint64_t *rows, uint32_t n_rows)
{
        char name[32];
        struct layout_tensor t = {
                .name = name, .group = l->n_groups - 1, .rows = rows, .n_rows = n_rows
        };
        uint32_t index;

        snprintf(name, sizeof name, "%u", l->n_tensors);
        for (; t.ndim < 3 && shape[t.ndim]; t.ndim++)
                t.shape[t.ndim] = shape[t.ndim];
        cr_assert_eq(layout_add_tensor(l, &t, &index, NULL), 0);
}

static void add_vector(layout *l, uint64_t n)
{
        add(l, (uint64_t[3]){ n }, NULL, 0);
}

static void add_embedding(layout *l, uint64_t rows, uint64_t cols)
{
        add(l, (uint64_t[3]){ rows, cols }, NULL, 0);
}

static void add_matrix(layout *l, uint64_t rows, uint64_t cols)
{
        add(l, (uint64_t[3]){ rows, cols }, &rows, 1);
}

static void add_stack(layout *l, uint64_t n, uint64_t rows, uint64_t cols)
{
        add(l, (uint64_t[3]){ n, rows, cols }, &rows, 1);
}

static void add_mlp(layout *l, uint64_t hidden, uint64_t inner)
{
        add_matrix(l, inner, hidden);
        add_matrix(l, inner, hidden);
        add_matrix(l, hidden, inner);
}

/* 10^12 parameters: the shapes of Kimi K2. */
static layout *mixture_of_experts(void)
{
        layout *l;

        cr_assert_eq(layout_new(&l), 0);
        for (uint32_t i = 0; i < 61; i++) {
                begin_group(l, "layer", i);
                add_vector(l, 7168);
                add_matrix(l, 1536, 7168);
                add_vector(l, 1536);
                add_matrix(l, 12288, 1536);
                add_matrix(l, 576, 7168);
                add_vector(l, 512);
                add_matrix(l, 16384, 512);
                add_matrix(l, 7168, 8192);
                add_vector(l, 7168);
                add_mlp(l, 7168, i ? 2048 : 18432);
                if (i == 0)
                        continue;
                add_embedding(l, 384, 7168); /* the router */
                add_stack(l, 384, 2048, 7168);
                add_stack(l, 384, 2048, 7168);
                add_stack(l, 384, 7168, 2048);
        }
        begin_group(l, "outside", 0);
        add_embedding(l, 163840, 7168);
        add_vector(l, 7168);
        add_embedding(l, 163840, 7168);
        return l;
}

static layout *dense_7b(void)
{
        layout *l;

        cr_assert_eq(layout_new(&l), 0);
        for (uint32_t i = 0; i < 32; i++) {
                begin_group(l, "layer", i);
                for (uint32_t k = 0; k < 4; k++)
                        add_matrix(l, 4096, 4096);
                add_mlp(l, 4096, 11008);
                add_vector(l, 4096);
                add_vector(l, 4096);
        }
        begin_group(l, "outside", 0);
        add_embedding(l, 32000, 4096);
        add_vector(l, 4096);
        add_embedding(l, 32000, 4096);
        return l;
}

static layout *gpt2(void)
{
        uint64_t qkv[] = { 768, 768, 768 };
        layout *l;

        cr_assert_eq(layout_new(&l), 0);
        begin_group(l, "outside", 0);
        add_embedding(l, 50257, 768);
        add_embedding(l, 1024, 768);
        add_vector(l, 768);
        add_vector(l, 768);
        for (uint32_t i = 0; i < 12; i++) {
                begin_group(l, "h", i);
                add_vector(l, 768);
                add_vector(l, 768);
                add(l, (uint64_t[3]){ 2304, 768 }, qkv, 3);
                add_vector(l, 2304);
                add_matrix(l, 768, 768);
                add_vector(l, 768);
                add_vector(l, 768);
                add_vector(l, 768);
                add_matrix(l, 3072, 768);
                add_vector(l, 3072);
                add_matrix(l, 768, 3072);
                add_vector(l, 768);
        }
        return l;
}

Test(partition_matrices, owners_of_experts_have_less_than_a_percent_more_than_the_mean)
{
        layout *l = mixture_of_experts();

        check_shares("mixture of experts", l, 64, 1.001, 1.005);
        check_shares("mixture of experts", l, 8, 1.001, 1.005);
        check_shares("mixture of experts", l, 3, 1.001, 1.001);
        layout_free(l);
}

/* 224 matrices of two kinds, whose best division over 64 owners has 1.012 of the mean of work. */
Test(partition_matrices, owners_of_a_dense_decoder_share_as_well_as_its_matrices_allow)
{
        layout *l = dense_7b();

        check_shares("dense", l, 64, 1.003, 1.0121);
        check_shares("dense", l, 8, 1.0001, 1.0001);
        check_shares("dense", l, 3, 1.0001, 1.01);
        layout_free(l);
}

/* 72 matrices are too few for 64 owners: the largest alone has 1.6 of the mean of work. */
Test(partition_matrices, owners_of_gpt2_share_its_fused_matrices)
{
        layout *l = gpt2();

        check_shares("gpt2", l, 1, 1, 1);
        check_shares("gpt2", l, 3, 1.0001, 1.0001);
        check_shares("gpt2", l, 5, 1.0001, 1.0001);
        check_shares("gpt2", l, 8, 1.0001, 1.0001);
        check_shares("gpt2", l, 64, 1.1, 1.6001);
        layout_free(l);
}

/* Where all lies in one group, an owner has matrices or the embedding: more than its share of one.
 * It never has twice its share. */
Test(partition_matrices, one_group_of_all_tensors_is_shared_within_a_half)
{
        layout *l;

        cr_assert_eq(layout_new(&l), 0);
        begin_group(l, "all", 0);
        add_embedding(l, 50257, 768);
        for (uint32_t i = 0; i < 12; i++) {
                add_matrix(l, 768, 768);
                add_matrix(l, 768, 768);
                add_matrix(l, 3072, 768);
                add_matrix(l, 768, 3072);
        }
        check_shares("one group", l, 3, 1.5, 1.5);
        layout_free(l);
}

/* Numbers at their bounds: 2^40 elements a group, and the work of matrices of 2^20 rows. */
Test(partition_matrices, the_largest_groups_are_cut_at_matrices)
{
        const uint64_t side = 1 << 20;
        struct partition *p;
        layout *l;

        cr_assert_eq(layout_new(&l), 0);
        for (uint32_t g = 0; g < 512; g++) {
                begin_group(l, "group", g);
                if (g % 3 == 0)
                        add_matrix(l, side, side);
                else if (g % 3 == 1)
                        add_stack(l, side, 1 << 10, 1 << 10);
                else
                        add_stack(l, UINT64_C(1) << 36, 4, 4);
        }
        cr_assert_eq(partition_new(l, OWNERS, &p), 0);
        slices_are_sound(l, p);
        for (uint32_t g = 0; g < 512; g++)
                cr_assert_eq(p->slices[g], g % 3 ? OWNERS : 1, "group %u", g);
        partition_free(p);
        layout_free(l);
}
