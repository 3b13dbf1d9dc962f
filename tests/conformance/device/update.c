/* gpu_update(): the states and what is served in one launch, to the bit as the scalar truth does
 * them one after the other.  Where there are no GPUs under test there is nothing to show. */
#include <criterion/criterion.h>
#include <string.h>

#include "daemon/compute/device/gpu/gpu.h"
#include "proto/dtype.h"
#include "tests/conformance/device/material.h"
#include "tests/support/adamw.h"

enum { P, M, V, GRAD, SERVE, ARRAYS };

static struct fault fault;

/* On the GPU, margins and all; the place of its first element. */
static void *upload(const struct plate *p, void **ret_memory)
{
        cr_assert_eq(gpu_alloc(0, p->bytes, "a test's plane", ret_memory, &fault), 0);
        gpu_ops()->copy(*ret_memory, p->memory, p->bytes);
        return (uint8_t *)*ret_memory + ((uint8_t *)p->data - p->memory);
}

static void check(enum zero_dtype serve, bool served, size_t n, size_t offset, struct dice *d)
{
        struct update_piece update = { .rule = UPDATE_ADAMW, .n = n, .serve_dtype = serve };
        struct plate truth[ARRAYS];
        void *memory[ARRAYS], *at[ARRAYS];

        update.scalars = adamw_scalars(1e-3, 0.9, 0.999, 1e-8, 0.01, n + 1, 0.37);
        for (int i = 0; i < ARRAYS; i++) {
                enum zero_dtype dtype = i == SERVE ? serve : ZERO_FP32;

                truth[i] = plate_new(dtype, n, i == SERVE ? offset / 2 : offset);
                plate_fill(&truth[i], dtype, n, d);
                at[i] = upload(&truth[i], &memory[i]);
        }
        for (int k = P; k <= V; k++)
                update.in[k] = update.out[k] = at[k];
        update.grad[0] = at[GRAD];
        update.k = 1;
        update.from = update.wire = ZERO_FP32;
        update.serve = served ? at[SERVE] : NULL;
        gpu_update(&update, 1);
        run_adamw(truth_ops(), &update.scalars, n, truth[P].data, truth[M].data, truth[V].data,
                  truth[GRAD].data, NULL);
        if (served)
                truth_ops()->serve(serve, truth[SERVE].data, truth[P].data, n);
        gpu_updated(0);
        for (int i = 0; i < ARRAYS; i++) {
                struct plate came = plate_new(i == SERVE ? serve : ZERO_FP32, n,
                                              i == SERVE ? offset / 2 : offset);

                gpu_ops()->copy(came.memory, memory[i], came.bytes);
                cr_assert(plate_same(&came, &truth[i], i == SERVE ? serve : ZERO_FP32, n),
                          "array %d, n %zu, offset %zu", i, n, offset);
                plate_free(&came);
                plate_free(&truth[i]);
                gpu_free(memory[i]);
        }
}

Test(update, equals_the_scalar_truth)
{
        static const enum zero_dtype dtypes[] = { ZERO_BF16, ZERO_FP16, ZERO_FP32 };
        struct dice d = { 1 };

        if (!gpus_tested())
                return;
        cr_assert_not_null(tested_ops()); /* opens the plugin */
        for (size_t i = 0; i < n_awkward_sizes; i++)
                for (size_t j = 0; j < n_awkward_offsets; j++)
                        check(dtypes[(i + j) % 3], (i + j) % 4 != 3, awkward_sizes[i],
                              awkward_offsets[j], &d);
}
