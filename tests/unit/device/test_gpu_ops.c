/* Operations on GPU memory through the fake plugin are done when they return, or when they were
 * waited for. */
#include <criterion/criterion.h>
#include <stdlib.h>

#include "gpu_fixture.h"
#include "tests/support/adamw.h"

static struct fault fault;

TestSuite(gpu_memory, .init = gpu_fixture_open, .fini = gpus_close);

/* A window as daemon and trainer see it; N more than what is staged at once. */
enum { N = 300001 };

struct window {
        struct zero_cuda_share share;
        float *view;
};

static struct window window_new(void)
{
        const struct zero_gpu_client *trainer = gpu_fixture_trainer();
        struct window w;
        void *view;

        cr_assert_eq(gpu_share(0, N * sizeof(float), "a window", &w.share, &fault), 0);
        cr_assert_eq(trainer->map(0, w.share.fd, w.share.handle, w.share.bytes, true, &view), 0);
        w.view = view;
        return w;
}

static void window_free(struct window *w)
{
        gpu_fixture_trainer()->unmap(w->view);
        gpu_unshare(&w->share);
}

static void holds(const struct window *w, float expected, const char *operation)
{
        for (size_t i = 0; i < N; i++)
                cr_assert_eq(w->view[i], expected, "%s: element %zu", operation, i);
}

/* A trainer reads its window as soon as the daemon answers. */
Test(gpu_memory, an_operation_is_done_when_it_returns)
{
        const struct device_ops *ops = gpu_ops();
        struct window a = window_new(), b = window_new();
        float *x = a.share.memory, *y = b.share.memory, *host = malloc(N * sizeof *host);
        const void *sources[] = { x, host };

        for (size_t i = 0; i < N; i++)
                host[i] = 2;
        ops->copy(x, host, N * sizeof *x);
        holds(&a, 2, "copy from the host");
        ops->copy(y, x, N * sizeof *x);
        holds(&b, 2, "copy");
        ops->zero(x, N * sizeof *x);
        holds(&a, 0, "zero");
        ops->accumulate(x, ZERO_FP32, y, N, false);
        holds(&a, 2, "accumulate");
        ops->accumulate(x, ZERO_FP32, host, N, false);
        holds(&a, 4, "accumulate from the host");
        ops->sum(ZERO_FP32, y, ZERO_FP32, sources, 2, N);
        holds(&b, 6, "sum");
        ops->reduce(&(struct reduce_piece){ x, N, 1, (const void *[]){ y }, false }, 1, ZERO_FP32,
                    ZERO_FP32, 0, NULL, NULL);
        holds(&a, 10, "reduce");
        ops->copy(x, y, N * sizeof *x);
        ops->cast(ZERO_BF16, x, ZERO_FP32, y, N);
        ops->cast(ZERO_FP32, y, ZERO_BF16, x, N);
        holds(&b, 6, "cast");
        ops->cast(ZERO_BF16, x, ZERO_FP32, host, N);
        ops->cast(ZERO_FP32, y, ZERO_BF16, x, N);
        holds(&b, 2, "cast from the host");
        ops->serve(ZERO_FP32, x, host, N);
        holds(&a, 2, "serve from the host");
        free(host);
        window_free(&a);
        window_free(&b);
}

Test(gpu_memory, an_update_of_host_memory_keeps_old_values_where_there_is_a_gpu)
{
        struct update_scalars s = { .adam = { .decay = 0.5f, .sqrt_bias2 = 1, .eps = 1 } };
        float p[33], m[33] = { 0 }, v[33] = { 0 }, g[33] = { 0 }, old[3][33];
        uint64_t kept = undo_mark(0);

        for (int i = 0; i < 33; i++)
                p[i] = 4;
        run_adamw(gpu_ops(), &s, 33, p, m, v, g,
                  &(struct update_undo){ { old[0], old[1], old[2] }, &kept, 7 });
        cr_assert_eq(undo_kept(kept), 40);
        for (int i = 0; i < 33; i++)
                cr_assert(p[i] == 2 && old[0][i] == 4 && old[1][i] == 0 && old[2][i] == 0);
}

Test(gpu_memory, an_update_is_done_when_it_returns)
{
        const struct device_ops *ops = gpu_ops();
        struct update_scalars s = { .adam = { .decay = 0.5f, .sqrt_bias2 = 1, .eps = 1 } };
        struct window p = window_new(), g = window_new();
        float *host = malloc(N * sizeof *host), *moments = malloc(2 * N * sizeof *host);
        float *x = p.share.memory;

        for (size_t i = 0; i < N; i++)
                host[i] = 4;
        for (size_t i = 0; i < 2 * N; i++)
                moments[i] = 0;
        ops->copy(x, host, N * sizeof *x);
        run_adamw(ops, &s, N, x, g.share.memory, g.share.memory, g.share.memory, NULL);
        holds(&p, 2, "adamw");
        run_adamw(ops, &s, N, x, moments, moments + N, host, NULL);
        holds(&p, 1, "adamw with moments of the host");
        free(host);
        free(moments);
        window_free(&p);
        window_free(&g);
}

Test(gpu_memory, enqueued_updates_are_done_when_they_were_waited_for)
{
        struct window p = window_new(), g = window_new(), served = window_new();
        float *x = p.share.memory, *zeroes = g.share.memory;
        struct update_piece half = {
                .scalars = { .adam = { .decay = 0.5f, .sqrt_bias2 = 1, .eps = 1 } },
                .n = N,
                .in = { x, zeroes, zeroes },
                .grad = { zeroes },
                .k = 1,
                .from = ZERO_FP32,
                .wire = ZERO_FP32,
                .out = { x, zeroes, zeroes },
                .serve = served.share.memory,
                .serve_dtype = ZERO_FP32
        };
        float *host = malloc(N * sizeof *host);

        for (size_t i = 0; i < N; i++)
                host[i] = 4;
        gpu_ops()->copy(x, host, N * sizeof *x);
        gpu_update(&half, 1);
        gpu_update(&half, 1);
        gpu_updated(0);
        holds(&p, 1, "two updates");
        holds(&served, 1, "what is served");
        free(host);
        window_free(&p);
        window_free(&g);
        window_free(&served);
}

/* The whole norm is waited for, even if one of its parts has to wait in between. */
Test(gpu_memory, a_norm_of_pieces_in_all_places_is_whole_when_it_returns)
{
        struct window w = window_new(), v = window_new();
        float *host = malloc(N * sizeof *host), *other = malloc(N * sizeof *other);
        const void *sources[] = { host };
        const struct reduce_piece pieces[] = {
                { .acc = w.share.memory, .n = N, .k = 1, .src = sources, .first = true },
                { .acc = v.share.memory, .n = N },
                { .acc = other, .n = N, .k = 1, .src = (const void *[]){ v.share.memory } },
        };
        struct exact_sum norm;
        bool finite = true;

        for (size_t i = 0; i < N; i++)
                host[i] = other[i] = 2;
        gpu_ops()->copy(v.share.memory, host, N * sizeof *host);
        exact_sum_init(&norm);
        gpu_ops()->reduce(pieces, 3, ZERO_FP32, ZERO_FP32, 1, &norm, &finite);
        cr_assert_eq(exact_sum_value(&norm), (4.0 + 4 + 16) * N);
        cr_assert(finite);
        free(host);
        free(other);
        window_free(&w);
        window_free(&v);
}
