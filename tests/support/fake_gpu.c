/*
 * A GPU for tests, zerod-fake-gpu.so: both tables of the plugin over host memory, with the scalar
 * host kernels.
 *
 *   fake_memory.c  "GPU memory": a daemon that touches it by the CPU dies of SIGSEGV
 *   fake_stream.c  work is done when somebody waits for it and not before, so that a missing wait
 * shows fake_client.c  what trainers map, and their events fake_collective.c  NCCL fake_loop.c    a
 * daemon that may wait for a GPU on its loop thread dies
 *
 * The environment:
 *   FAKE_GPUS=N         how many there are (1); 0: as on a machine without a driver
 *   FAKE_GPU_BYTES=N    memory of each (1 GiB)
 *   FAKE_GPU_HANDLES=1  memory is exported by handle, not by descriptor
 *   FAKE_GPU_ALONE=1    it is not exported at all
 *   FAKE_GPU_DELAY_MS=N an event is done only that long after this process has recorded it
 *   FAKE_GPU_NO_EVENTS=1  the daemon cannot open an event of a trainer's
 *   FAKE_GPU_EVENTS_ALONE=1  the driver passes no event of a trainer's to another process
 *   FAKE_GPU_FAULT=N    the N-th wait for a stream says that the GPU has failed, and so does
 *                             everything from there on
 *   FAKE_GPU_USE=N      using a GPU fails with errno N
 *   FAKE_GPU_NCCL_NONE=1     there is no NCCL
 *   FAKE_GPU_NCCL_REFUSED=1  there is, but no communicator can be made
 *   FAKE_GPU_NCCL_FAILS=N    the N-th of its calls that move bytes, and each after it, is refused
 *   FAKE_GPU_NCCL_BREAKS=N   ... fails after it has written something else
 *   FAKE_GPU_NCCL_HANGS=N    ... is never done
 *   FAKE_GPU_COPIES_ON_LOOP=1  copies may come from the loop thread, as they do where something
 *                             stands in for UCX
 *   FAKE_GPU_GATE=FILE  while the file exists, an allocation of memory for export waits;
 *                             FILE.reached is made then
 *   FAKE_GPU_LOOK_GATE=FILE   the same for a look at how much memory is free
 *   FAKE_GPU_EVENT_GATE=FILE  ... for an event of a trainer's that is opened
 *   FAKE_GPU_UNMAP_GATE=FILE  ... for a trainer that unmaps memory
 *   FAKE_GPU_REDUCES=FILE  a byte is appended for each launch of a reduction
 *   FAKE_GPU_WRITABLE=1  a trainer maps all memory writable, as with some drivers
 *   FAKE_GPU_ABI=N, FAKE_GPU_CLIENT_ABI=N  versions that the tables tell
 *   FAKE_GPU_MAJOR=N    compute capability N.0 (9)
 */
#include "tests/support/fake_gpu.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

uint64_t fake_setting(const char *name, uint64_t otherwise)
{
        const char *value = getenv(name);

        for (char **v = environ; *v; v++) /* ZEROD_ is for options of the daemon alone */
                if (!strncmp(*v, "ZEROD_FAKE_", strlen("ZEROD_FAKE_")))
                        fake_die("%s: write %s", *v, *v + strlen("ZEROD_"));
        return value && *value ? strtoull(value, NULL, 0) : otherwise;
}

uint32_t fake_gpus(void)
{
        uint64_t n = fake_setting("FAKE_GPUS", 1);

        return n < FAKE_GPUS_MAX ? (uint32_t)n : FAKE_GPUS_MAX;
}

_Noreturn void fake_die(const char *format, ...)
{
        va_list args;

        va_start(args, format);
        fputs("zerod-fake-gpu: ", stderr);
        vfprintf(stderr, format, args);
        fputc('\n', stderr);
        va_end(args);
        abort();
}

void fake_uuid(uint32_t gpu, uint8_t ret_uuid[ZERO_GPU_UUID])
{
        memcpy(ret_uuid, "zerod fake GPU \0", ZERO_GPU_UUID);
        ret_uuid[ZERO_GPU_UUID - 1] = (uint8_t)gpu;
}

static int fake_device_count(int *ret_count)
{
        if (fake_gpus() == 0)
                return -ENODEV;
        *ret_count = (int)fake_gpus();
        return 0;
}

static int fake_device_info(int device, struct zero_cuda_info *ret_info)
{
        struct zero_cuda_info info = { .major = (int)fake_setting("FAKE_GPU_MAJOR", 9),
                                       .multiprocessors = 1,
                                       .driver = 12040,
                                       .runtime = 12040 };
        int r = fake_gpus() == 0 ? -ENODEV : device < 0 || device >= (int)fake_gpus() ? -EINVAL : 0;

        if (r < 0)
                return r;
        info.memory_bytes = fake_total();
        snprintf(info.name, sizeof info.name, "fake GPU %d", device);
        fake_uuid((uint32_t)device, info.uuid);
        *ret_info = info;
        return 0;
}

static int fake_use(int device)
{
        if (fake_gpus() == 0)
                return -ENODEV;
        if (device < 0 || device >= (int)fake_gpus())
                return -EINVAL;
        fake_gpu_in_use = device;
        return fake_state() < 0 ? fake_state() : -(int)fake_setting("FAKE_GPU_USE", 0);
}

static int fake_attribute(int device, uint32_t i, const char **ret_name, int *ret_value)
{
        if (i > 0)
                return -ENOENT;
        *ret_name = "compute_mode";
        *ret_value = 0;
        return 0;
}

__attribute__((visibility("default"))) zero_cuda_plugin_fn zero_cuda_plugin;

const struct zero_cuda_plugin *zero_cuda_plugin(void)
{
        static struct zero_cuda_plugin table = {
                .device_count = fake_device_count,
                .device_info = fake_device_info,
                .use = fake_use,
                .alloc = fake_alloc,
                .free = fake_free,
                .memory = fake_memory,
                .share_new = fake_share_new,
                .share_free = fake_share_free,
                .pinned_new = fake_pinned_new,
                .pinned_free = fake_pinned_free,
                .gpu_of = fake_gpu_of,
                .event_open = fake_event_open,
                .event_done = fake_event_done,
                .event_free = fake_event_free,
                .stream_new = fake_stream_new,
                .stream_wait = fake_stream_wait,
                .stream_free = fake_stream_free,
                .update = fake_update,
                .cast = fake_cast,
                .sum = fake_sum,
                .reduce = fake_reduce,
                .product = fake_product,
                .divide = fake_divide,
                .pack = fake_pack,
                .unpack = fake_unpack,
                .zero = fake_zero,
                .copy = fake_copy,
                .copy_peer = fake_copy_peer,
                .nccl_open = fake_nccl_open,
                .nccl_error = fake_nccl_error,
                .comm_new = fake_comm_new,
                .comm_free = fake_comm_free,
                .comm_abort = fake_comm_abort,
                .broadcast = fake_broadcast,
                .exchange = fake_exchange,
                .comm_done = fake_comm_done,
                .attribute = fake_attribute,
        };

        table.abi_version = (uint32_t)fake_setting("FAKE_GPU_ABI", ZERO_CUDA_ABI_VERSION);
        return &table;
}
