/* Groups as runs of equal pieces: what is a piece, and how many runs there are. */
#include <criterion/criterion.h>

#include "layouts.h"
#include "proto/runs.h"

enum { RUNS = 8 };

struct walked {
        uint32_t n;
        struct run runs[RUNS];
        uint64_t elements, work;
};

static struct walked walk(const layout *l, uint32_t group)
{
        struct run_walk w = { .l = l, .g = &l->groups[group] };
        struct walked all = { 0 };

        for (struct run r; run_next(&w, &r); all.n++) {
                if (all.n < RUNS)
                        all.runs[all.n] = r;
                all.elements += r.pieces * r.size;
                all.work += r.pieces * r.work;
        }
        cr_assert_eq(all.elements, l->groups[group].elements);
        return all;
}

static layout *one_tensor(struct layout_tensor t)
{
        uint32_t index;
        layout *l;

        cr_assert_eq(layout_new(&l), 0);
        cr_assert_eq(layout_add_group(l, "group", ZERO_BF16, NULL, 0, 0, &t.group, NULL), 0);
        t.name = (char *)"tensor";
        cr_assert_eq(layout_add_tensor(l, &t, &index, NULL), 0);
        return l;
}

static struct walked runs_of(struct layout_tensor t)
{
        layout *l = one_tensor(t);
        struct walked all = walk(l, 0);

        layout_free(l);
        return all;
}

static void is_run(const struct run *r, uint64_t pieces, uint64_t size, uint64_t words,
                   uint64_t work)
{
        cr_assert_eq(r->pieces, pieces, "%lu pieces", (unsigned long)r->pieces);
        cr_assert_eq(r->size, size, "of %lu elements", (unsigned long)r->size);
        cr_assert_eq(r->words, words * size);
        cr_assert_eq(r->work, work);
}

Test(runs, elements_of_a_tensor_are_cut_anywhere)
{
        struct walked all = runs_of((struct layout_tensor){ .ndim = 1, .shape = { 1000 } });

        cr_assert_eq(all.n, 1);
        is_run(&all.runs[0], 8, LAYOUT_ALIGN, 4, 0);
}

Test(runs, a_whole_tensor_is_a_piece)
{
        struct walked all = runs_of((struct layout_tensor){
                .ndim = 1, .shape = { 1000 }, .whole = true, .frozen = true });

        cr_assert_eq(all.n, 1);
        is_run(&all.runs[0], 1, 1024, 1, 0);
}

Test(runs, work_is_that_of_the_shorter_side)
{
        cr_assert_eq(run_work(3, 5), 4 * 9 * 5 + 2 * 27);
        cr_assert_eq(run_work(5, 3), run_work(3, 5));
        cr_assert_eq(run_work(1 << 20, 1 << 20), UINT64_C(6) << 60);
}

Test(runs, a_stack_of_equal_matrices_is_one_run)
{
        uint64_t rows[] = { 64, 64 };
        struct layout_tensor t = { .ndim = 3, .shape = { 5, 128, 256 }, .rows = rows, .n_rows = 2 };
        struct walked all = runs_of(t);

        cr_assert_eq(all.n, 1);
        is_run(&all.runs[0], 10, 64 * 256, 3, run_work(64, 256));
}

Test(runs, entries_of_unequal_matrices_stay_together)
{
        uint64_t rows[] = { 96, 32 };
        struct layout_tensor t = { .ndim = 3, .shape = { 5, 128, 256 }, .rows = rows, .n_rows = 2 };
        struct walked all = runs_of(t);

        cr_assert_eq(all.n, 1);
        is_run(&all.runs[0], 5, 128 * 256, 3, run_work(96, 256) + run_work(32, 256));
}

Test(runs, matrices_below_one_another_are_pieces)
{
        uint64_t rows[] = { 96, 32, 32 };
        struct layout_tensor t = { .ndim = 2, .shape = { 160, 256 }, .rows = rows, .n_rows = 3 };
        struct walked all = runs_of(t);

        cr_assert_eq(all.n, 3);
        is_run(&all.runs[0], 1, 96 * 256, 3, run_work(96, 256));
        is_run(&all.runs[1], 1, 32 * 256, 3, run_work(32, 256));
        is_run(&all.runs[2], 1, 32 * 256, 3, run_work(32, 256));
}

/* 3 rows of 32: the second edge is the first at a multiple of 128 elements. */
Test(runs, matrices_between_edges_that_are_no_cuts_are_one_piece)
{
        uint64_t rows[] = { 3, 1, 2 };
        struct layout_tensor t = { .ndim = 2, .shape = { 6, 32 }, .rows = rows, .n_rows = 3 };
        struct walked all = runs_of(t);

        cr_assert_eq(all.n, 2);
        is_run(&all.runs[0], 1, 128, 3, run_work(3, 32) + run_work(1, 32));
        is_run(&all.runs[1], 1, 128, 3, run_work(2, 32)); /* with the gap behind it */
}

/* Of 11 matrices of 96 elements, four end at a multiple of 128. */
Test(runs, a_stack_ends_with_the_matrices_behind_its_last_edge)
{
        uint64_t rows[] = { 3 };
        struct layout_tensor t = { .ndim = 3, .shape = { 11, 3, 32 }, .rows = rows, .n_rows = 1 };
        struct walked all = runs_of(t);

        cr_assert_eq(all.n, 2);
        is_run(&all.runs[0], 2, 4 * 96, 3, 4 * run_work(3, 32));
        is_run(&all.runs[1], 1, 384, 3, 3 * run_work(3, 32)); /* 288 and the gap */
}

Test(runs, a_whole_stack_is_a_piece)
{
        uint64_t rows[] = { 3 };
        struct layout_tensor t = {
                .ndim = 3, .shape = { 11, 3, 32 }, .rows = rows, .n_rows = 1, .whole = true
        };
        struct walked all = runs_of(t);

        cr_assert_eq(all.n, 1);
        is_run(&all.runs[0], 1, 1152, 3, 11 * run_work(3, 32));
}

/* The work of a walk is its runs: two of a stack at most, or one for each of a tensor's rows. */
Test(runs, a_stack_of_2_to_the_36_matrices_is_walked_in_two)
{
        uint64_t rows[] = { 2, 2 }, unequal[] = { 3, 1 }, odd[] = { 1 };

        cr_assert_eq(runs_of((struct layout_tensor){ .ndim = 3,
                                                     .shape = { UINT64_C(1) << 36, 4, 4 },
                                                     .rows = rows,
                                                     .n_rows = 2 })
                             .n,
                     1);
        cr_assert_eq(runs_of((struct layout_tensor){ .ndim = 3,
                                                     .shape = { UINT64_C(1) << 36, 4, 4 },
                                                     .rows = unequal,
                                                     .n_rows = 2 })
                             .n,
                     1);
        cr_assert_eq(runs_of((struct layout_tensor){ .ndim = 3,
                                                     .shape = { (UINT64_C(1) << 36) + 1, 1, 3 },
                                                     .rows = odd,
                                                     .n_rows = 1 })
                             .n,
                     2);
}
