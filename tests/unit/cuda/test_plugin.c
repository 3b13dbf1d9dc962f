/*
 * The CUDA plugin, as far as tests can see it without a GPU: it loads, offers its tables, refuses
 * bad arguments, and returns errors on a machine without a GPU. $CUDA_PLUGIN is its path.
 */
#include <criterion/criterion.h>
#include <dlfcn.h>
#include <errno.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "cuda/zero_cuda.h"
#include "daemon/compute/device/host.h"

_Static_assert((int)ZERO_CUDA_NORM_BLOCK == (int)NORM_BLOCK, "the host adds up the same blocks");

static const struct zero_cuda_plugin *gpu;
static const struct zero_gpu_client *trainer;
static const uint8_t no_handle[ZERO_GPU_HANDLE];
static float word[64];
static const void *const sources[ZERO_CUDA_SUM_MAX + 1] = { word };

/* RTLD_NOW: fails if a single symbol is unresolved. */
static void load(void)
{
        void *library = dlopen(getenv("CUDA_PLUGIN"), RTLD_NOW | RTLD_LOCAL);
        zero_cuda_plugin_fn *get;
        zero_gpu_fn *get_client;

        cr_assert_not_null(library, "%s", dlerror());
        *(void **)&get = dlsym(library, ZERO_CUDA_PLUGIN_SYMBOL);
        cr_assert_not_null(get, "%s", dlerror());
        gpu = get();
        *(void **)&get_client = dlsym(library, ZERO_GPU_SYMBOL);
        cr_assert_not_null(get_client, "%s", dlerror());
        trainer = get_client();
}

/* 0, or the -ENODEV that the plugin must then give everywhere. */
static int have_gpu(void)
{
        int count = -1, r = gpu->device_count(&count);

        cr_assert(r == 0 ? count > 0 : r == -ENODEV && count == -1, "%d, %d GPUs", r, count);
        return r;
}

/* No function from the first one to the end is missing. */
static void whole(const void *table, size_t first, size_t size)
{
        for (size_t at = first; at < size; at += sizeof(uintptr_t)) {
                uintptr_t function;

                memcpy(&function, (const char *)table + at, sizeof(function));
                cr_assert_neq(function, 0, "function %zu", (at - first) / sizeof(function));
        }
}

Test(plugin, has_this_version_and_whole_tables, .init = load)
{
        cr_assert_eq(gpu->abi_version, ZERO_CUDA_ABI_VERSION);
        whole(gpu, offsetof(struct zero_cuda_plugin, device_count), sizeof(*gpu));
        cr_assert_eq(trainer->abi_version, ZERO_GPU_ABI_VERSION);
        whole(trainer, offsetof(struct zero_gpu_client, uuid), sizeof(*trainer));
}

Test(plugin, says_what_gpu_there_is_or_that_there_is_none, .init = load)
{
        struct zero_cuda_info info = { .major = -1 };
        int r = have_gpu();

        cr_assert_eq(gpu->device_info(0, &info), r);
        cr_assert(r == 0 ? info.major > 0 && info.memory_bytes > 0 : info.major == -1);
}

Test(plugin, refuses_everything_where_there_is_no_gpu, .init = load)
{
        struct zero_cuda_norm sum = { .bin = { 0 } };
        struct update_piece update = { .n = 1,
                                       .in = { word, word, word },
                                       .grad = { word },
                                       .k = 1,
                                       .from = ZERO_FP32,
                                       .wire = ZERO_FP32 };
        struct reduce_piece one = { .acc = word, .n = 1 },
                            other = { .acc = word + 1, .n = 1, .k = 1, .src = sources };
        struct zero_cuda_reduce norm = { .pieces = &one,
                                         .n_pieces = 1,
                                         .wire = ZERO_FP32,
                                         .from = ZERO_FP32,
                                         .scale = 1,
                                         .norm = &sum };
        struct zero_cuda_reduce add = {
                .pieces = &other, .n_pieces = 1, .wire = ZERO_FP32, .from = ZERO_BF16
        };

        if (have_gpu() == 0)
                cr_skip_test("there is a GPU");
        cr_assert_eq(gpu->use(0), -ENODEV);
        cr_assert_eq(gpu->stream_wait(NULL), -ENODEV);
        cr_assert_eq(gpu->update(&update, 1, NULL), -ENODEV);
        cr_assert_eq(gpu->cast(ZERO_BF16, word + 1, ZERO_FP32, word, 1, NULL), -ENODEV);
        cr_assert_eq(gpu->reduce(&add, NULL), -ENODEV);
        cr_assert_eq(gpu->sum(ZERO_FP32, word + 1, ZERO_FP16, sources, 1, 1, NULL), -ENODEV);
        cr_assert_eq(gpu->sum(ZERO_FP16, word + 1, ZERO_FP32, sources, 1, 1, NULL), -ENODEV);
        cr_assert_eq(gpu->reduce(&norm, NULL), -ENODEV);
        cr_assert_eq(gpu->zero(word, sizeof(word[0]), NULL), -ENODEV);
        cr_assert_eq(gpu->copy(word + 1, word, sizeof(word[0]), NULL), -ENODEV);
}

Test(plugin, gives_no_memory_or_stream_where_there_is_no_gpu, .init = load)
{
        struct zero_cuda_share share = { .fd = -1 };
        void *memory = word, *stream = word;
        uint64_t free_bytes = 1, total = 2;
        const char *name;
        int value;

        if (have_gpu() == 0)
                cr_skip_test("there is a GPU");
        cr_assert_eq(gpu->alloc(64, &memory), -ENODEV);
        cr_assert_eq(gpu->pinned_new(64, &memory), -ENODEV);
        cr_assert_eq(gpu->share_new(64, &share), -ENODEV);
        cr_assert_eq(gpu->memory(&free_bytes, &total), -ENODEV);
        cr_assert_eq(gpu->stream_new(&stream), -ENODEV);
        cr_assert_eq(gpu->attribute(0, 0, &name, &value), -ENODEV);
        cr_assert_eq(gpu->gpu_of(word), -1, "what no GPU knows is the host's");
        cr_assert(memory == word && stream == word && share.memory == NULL);
        cr_assert(free_bytes == 1 && total == 2);
        gpu->free(NULL);
        gpu->pinned_free(NULL);
        gpu->share_free(&share);
        gpu->stream_free(NULL);
}

Test(plugin, tells_a_trainer_that_there_is_no_gpu, .init = load)
{
        uint8_t uuid[ZERO_GPU_UUID] = { 7 }, handle[ZERO_GPU_HANDLE] = { 7 };
        void *memory = word, *event = word;

        if (have_gpu() == 0)
                cr_skip_test("there is a GPU");
        cr_assert_eq(trainer->uuid(0, uuid), -ENODEV);
        cr_assert_eq(trainer->map(0, -1, no_handle, 64, true, &memory), -ENODEV);
        cr_assert_eq(trainer->map(0, 0, no_handle, 64, true, &memory), -ENODEV);
        cr_assert_eq(trainer->event_new(0, handle, &event), -ENODEV);
        cr_assert_eq(gpu->event_open(no_handle, &event), -ENODEV);
        cr_assert(uuid[0] == 7 && handle[0] == 7 && memory == word && event == word);
        trainer->unmap(NULL);
        trainer->event_free(NULL);
        gpu->event_free(NULL);
}

Test(plugin, checks_dtypes_and_counts_before_it_needs_a_gpu, .init = load)
{
        enum zero_dtype unknown = (enum zero_dtype)9;
        struct zero_cuda_share share;
        const struct update_piece good = { .k = 1, .from = ZERO_BF16, .wire = ZERO_BF16 };
        struct update_piece updates[] = { good, good, good, good, good };
        struct reduce_piece one = { .n = 1, .k = 1, .src = sources };
        struct reduce_piece with_many[] = {
                one, { .n = 1, .k = ZERO_CUDA_SUM_MAX + 1, .src = sources }
        };
        struct reduce_piece with_large[] = { one, { .n = ZERO_CUDA_NORM_MAX + 1 } };
        struct zero_cuda_norm sum;
        struct zero_cuda_reduce to_unknown = {
                .pieces = &one, .n_pieces = 1, .wire = unknown, .from = ZERO_FP32
        };
        struct zero_cuda_reduce of_unknown = {
                .pieces = &one, .n_pieces = 1, .wire = ZERO_FP32, .from = unknown
        };
        struct zero_cuda_reduce of_many = {
                .pieces = with_many, .n_pieces = 2, .wire = ZERO_FP32, .from = ZERO_FP32
        };
        struct zero_cuda_reduce large = { .pieces = with_large,
                                          .n_pieces = 2,
                                          .wire = ZERO_FP32,
                                          .from = ZERO_FP32,
                                          .norm = &sum };
        void *memory = NULL;

        cr_assert_eq(gpu->alloc(0, &memory), -EINVAL);
        cr_assert_eq(gpu->pinned_new(0, &memory), -EINVAL);
        cr_assert_eq(gpu->share_new(0, &share), -EINVAL);
        cr_assert_eq(trainer->map(0, -1, no_handle, 0, true, &memory), -EINVAL);
        cr_assert_null(memory);
        updates[0].serve = word;
        updates[0].serve_dtype = unknown;
        updates[1].from = unknown;
        updates[2].wire = unknown;
        updates[3].k = 0;
        updates[4].k = UPDATE_SOURCES + 1;
        for (int i = 0; i < 5; i++)
                cr_assert_eq(gpu->update(&updates[i], 1, NULL), -EINVAL, "update %d", i);
        cr_assert_eq(gpu->update((struct update_piece[]){ good, updates[1] }, 2, NULL), -EINVAL);
        cr_assert_eq(gpu->cast(ZERO_BF16, word, ZERO_FP16, word, 1, NULL), -EINVAL);
        cr_assert_eq(gpu->cast(unknown, word, ZERO_FP32, word, 1, NULL), -EINVAL);
        cr_assert_eq(gpu->cast(ZERO_FP32, word, unknown, word, 1, NULL), -EINVAL);
        cr_assert_eq(gpu->sum(unknown, word, ZERO_FP32, sources, 1, 1, NULL), -EINVAL);
        cr_assert_eq(gpu->sum(ZERO_FP32, word, unknown, sources, 1, 1, NULL), -EINVAL);
        cr_assert_eq(gpu->sum(ZERO_FP32, word, ZERO_FP32, sources, 0, 1, NULL), -EINVAL);
        cr_assert_eq(gpu->sum(ZERO_FP32, word, ZERO_FP32, sources, ZERO_CUDA_SUM_MAX + 1, 1, NULL),
                     -EINVAL);
        cr_assert_eq(gpu->reduce(&to_unknown, NULL), -EINVAL);
        cr_assert_eq(gpu->reduce(&of_unknown, NULL), -EINVAL);
        cr_assert_eq(gpu->reduce(&of_many, NULL), -EINVAL);
        cr_assert_eq(gpu->reduce(&large, NULL), -EINVAL);
}

Test(plugin, does_nothing_for_an_empty_range, .init = load)
{
        struct update_piece update = { .n = 0, .k = 1, .from = ZERO_FP32, .wire = ZERO_FP32 };
        struct reduce_piece none = { .n = 0, .k = 1, .src = sources },
                            alone = { .acc = word, .n = 1 };
        struct zero_cuda_reduce add = {
                .pieces = &none, .n_pieces = 1, .wire = ZERO_FP32, .from = ZERO_BF16
        };
        struct zero_cuda_reduce nothing = {
                .pieces = &alone, .n_pieces = 1, .wire = ZERO_FP32, .from = ZERO_FP32
        };

        cr_assert_eq(gpu->update(&update, 1, NULL), 0);
        cr_assert_eq(gpu->cast(ZERO_BF16, NULL, ZERO_FP32, NULL, 0, NULL), 0);
        cr_assert_eq(gpu->cast(ZERO_BF16, NULL, ZERO_BF16, NULL, 0, NULL), 0);
        cr_assert_eq(gpu->reduce(&add, NULL), 0);
        cr_assert_eq(gpu->reduce(&nothing, NULL), 0);
        cr_assert_eq(gpu->sum(ZERO_BF16, NULL, ZERO_FP32, sources, 1, 0, NULL), 0);
        cr_assert_eq(gpu->zero(NULL, 0, NULL), 0);
        cr_assert_eq(gpu->copy(NULL, NULL, 0, NULL), 0);
}

/* Uses the real library where there is one; without a GPU it must fail with an error. */
Test(plugin, nccl_has_one_member_or_says_why_not, .init = load)
{
        int version = 0, r = gpu->nccl_open(&version);
        void *comm = NULL;

        if (r == -ENOENT) {
                cr_assert(strstr(gpu->nccl_error(), "libnccl.so.2"), "%s", gpu->nccl_error());
                cr_skip("there is no NCCL");
        }
        cr_assert_eq(r, 0, "%s", gpu->nccl_error());
        cr_assert_geq(version, 20000);
        r = gpu->comm_new((int[]){ 0 }, 1, &comm);
        if (r == 0) {
                gpu->comm_free(comm);
                return;
        }
        cr_assert(r < 0 && !comm && gpu->nccl_error()[0]);
        cr_assert_neq(have_gpu(), 0, "%s", gpu->nccl_error());
}
