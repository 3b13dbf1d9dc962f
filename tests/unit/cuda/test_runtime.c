/*
 * The plugin's C files on the strict stand-in for CUDA (fake_runtime.h): exported memory that a
 * trainer maps and the daemon frees, and events.  A call that fails at any point leaves nothing
 * behind and does not change the thread's GPU.
 */
#include <criterion/criterion.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

#include "cuda/plugin.h"
#include "tests/unit/cuda/fake_runtime.h"

zero_cuda_plugin_fn zero_cuda_plugin;

enum { BYTES = 3 * FAKE_UNIT - 5, ROUNDED = 3 * FAKE_UNIT, GPU = 1 };

static int descriptors(void)
{
        DIR *directory = opendir("/proc/self/fd");
        int n = 0;

        while (readdir(directory))
                n++;
        closedir(directory);
        return n;
}

static struct zero_cuda_share share_new(void)
{
        struct zero_cuda_share share;

        cr_assert_eq(cuda_use(GPU), 0);
        cr_assert_eq(cuda_share_new(BYTES, &share), 0);
        return share;
}

/*
 * Lets the calls fail one after the other, until the failing number is never reached; each time
 * nothing may be left.  No failure may go unnoticed, unless there is another way.
 */
static void at_every_call(int fail_with, bool other_way, int (*function)(void))
{
        int before = descriptors(), current = fake_current(), r = -1;

        for (int i = 1; r || fake.failed; i++) {
                fake.failed = false;
                fake.calls = 0;
                fake.fail_at = i;
                fake.fail_with = fail_with;
                r = function();
                cr_assert_eq(fake_current(), current, "call %d", i);
                cr_assert_eq(descriptors(), before, "call %d: a descriptor is left", i);
                cr_assert(r < 0 || !fake.failed || other_way, "call %d failed in silence", i);
        }
}

/* ---- streams ------------------------------------------------------------------ */

Test(runtime, a_wait_asks_before_it_blocks)
{
        const struct zero_cuda_plugin *plugin = zero_cuda_plugin();
        void *stream;

        cr_assert_eq(plugin->use(GPU), 0);
        cr_assert_eq(plugin->stream_new(&stream), 0);
        fake.calls = 0;
        cr_assert_eq(plugin->stream_wait(stream), 0);
        cr_assert_eq(fake.calls, 1, "what is done is not waited for");
        fake_enqueue(GPU);
        cr_assert_eq(plugin->stream_wait(stream), 0);
        cr_assert(!fake_is_enqueued(GPU));
        fake_enqueue(GPU);
        fake.sticky = cudaErrorLaunchFailure;
        cr_assert_eq(plugin->stream_wait(stream), -EIO);
        cr_assert_eq(plugin->stream_wait(stream), -EIO);
        fake.sticky = 0;
        plugin->stream_free(stream);
        fake_must_be_empty();
}

/* ---- memory that is exported -------------------------------------------------- */

Test(runtime, exports_whole_units_that_are_zeroed_and_waited_for)
{
        struct zero_cuda_share share = share_new();
        static const uint8_t zeroes[ROUNDED];

        cr_assert_eq(share.bytes, ROUNDED);
        cr_assert_eq(memcmp(share.memory, zeroes, ROUNDED), 0);
        cr_assert_not(fake_is_enqueued(GPU), "a trainer may see it before it is zeroed");
        cr_assert_eq(cuda_gpu_of((char *)share.memory + 100), GPU);
        cr_assert(fcntl(share.fd, F_GETFD) & FD_CLOEXEC);
        cuda_share_free(&share);
        cr_assert_eq(share.fd, -1);
        cuda_share_free(&share);
        fake_must_be_empty();
}

/* fake_driver.c looks at what is asked for. */
Test(runtime, exports_memory_that_network_cards_reach_where_they_can)
{
        struct zero_cuda_share share;

        fake.rdma = true;
        share = share_new();
        cuda_share_free(&share);
        fake_must_be_empty();
}

/* Whichever GPU the thread uses then. */
Test(runtime, gives_exported_memory_back_when_its_own_gpu_is_done)
{
        struct zero_cuda_share share = share_new();
        int fd = share.fd;

        cr_assert_eq(cuda_use(0), 0);
        fake_enqueue(GPU);
        cuda_share_free(&share);
        cr_assert_eq(fake_current(), 0);
        cr_assert_eq(fcntl(fd, F_GETFD), -1);
        fake_must_be_empty();
}

static int export_once(void)
{
        struct zero_cuda_share share;
        int r = cuda_share_new(BYTES, &share);

        fake.fail_at = 0;
        if (r == 0)
                cuda_share_free(&share);
        fake_must_be_empty();
        return r;
}

Test(runtime, leaves_nothing_of_an_export_that_finds_no_memory)
{
        cr_assert_eq(cuda_use(GPU), 0);
        at_every_call(cudaErrorMemoryAllocation, false, export_once);
}

Test(runtime, leaves_nothing_of_an_export_that_fails)
{
        cr_assert_eq(cuda_use(GPU), 0);
        at_every_call(cudaErrorUnknown, true, export_once);
        fake.no_descriptors = true;
        at_every_call(cudaErrorUnknown, true, export_once);
}

Test(runtime, exports_by_a_legacy_handle_where_there_are_no_descriptors)
{
        struct zero_cuda_share share;
        void *memory;

        fake.no_descriptors = true;
        share = share_new();
        cr_assert(share.fd == -1 && share.bytes % FAKE_UNIT == 0 && share.bytes >= BYTES);
        cr_assert_eq(cuda_map(GPU, -1, share.handle, share.bytes, true, &memory), 0);
        memcpy(share.memory, "window", 7);
        cr_assert_str_eq(memory, "window");
        cuda_unmap(memory);
        cuda_share_free(&share);
        fake_must_be_empty();
}

Test(runtime, says_that_a_driver_exports_nothing)
{
        struct zero_cuda_share share;

        cr_assert_eq(cuda_use(GPU), 0);
        fake.no_descriptors = fake.no_handles = true;
        cr_assert_eq(cuda_share_new(BYTES, &share), -ENOTSUP);
        fake.sticky = cudaErrorIllegalAddress;
        cr_assert_eq(cuda_share_new(BYTES, &share), -EIO);
        fake.sticky = 0;
        fake_must_be_empty();
}

Test(runtime, without_the_entry_points_there_is_no_gpu)
{
        struct zero_cuda_share share;
        void *memory;

        fake.old_driver = true;
        cr_assert_eq(cuda_share_new(BYTES, &share), -ENODEV);
        cr_assert_eq(cuda_map(0, 0, NULL, FAKE_UNIT, true, &memory), -ENODEV);
}

/* ---- a trainer's view of it ------------------------------------------------------ */

static struct zero_cuda_share shown;

static int map_once(void)
{
        void *memory = NULL;
        int r = cuda_map(GPU, shown.fd, NULL, shown.bytes, true, &memory);

        fake.fail_at = 0;
        if (r == 0)
                cuda_unmap(memory);
        return r;
}

static void check_view(int current)
{
        int before;
        void *memory;

        shown = share_new();
        fake_set_current(current);
        before = descriptors();
        cr_assert_eq(cuda_map(GPU, shown.fd, NULL, shown.bytes, true, &memory), 0);
        cr_assert_eq(fake_current(), current);
        memcpy(shown.memory, "window", 7);
        cr_assert_str_eq(memory, "window");
        cr_assert_geq(fcntl(shown.fd, F_GETFD), 0, "the descriptor stays the caller's");
        fake_enqueue(GPU);
        cuda_unmap(memory);
        cr_assert_eq(fake_current(), current);
        cr_assert_eq(descriptors(), before);
        cuda_unmap(memory);
        at_every_call(cudaErrorUnknown, false, map_once);
        cuda_share_free(&shown);
        fake_must_be_empty();
}

Test(runtime, maps_a_window_in_a_thread_without_a_gpu)
{
        check_view(FAKE_NO_CONTEXT);
}

Test(runtime, maps_a_window_in_a_thread_with_another_gpu)
{
        check_view(0);
}

Test(runtime, refuses_a_descriptor_that_is_none_or_too_small)
{
        int other = open("/dev/null", O_RDONLY | O_CLOEXEC);
        void *memory;

        shown = share_new();
        cr_assert_eq(cuda_map(GPU, other, NULL, FAKE_UNIT, true, &memory), -EINVAL);
        cr_assert_eq(cuda_map(GPU, shown.fd, NULL, 2 * ROUNDED, true, &memory), -EINVAL);
        cr_assert_eq(cuda_map(GPU, shown.fd, NULL, 0, true, &memory), -EINVAL);
        cr_assert_eq(cuda_map(FAKE_GPUS, shown.fd, NULL, ROUNDED, true, &memory), -EINVAL);
        cr_assert_eq(cuda_map(-1, shown.fd, NULL, ROUNDED, true, &memory), -EINVAL);
        cuda_share_free(&shown);
        close(other);
        fake_must_be_empty();
}

/* ---- a trainer's view that is for reading -------------------------------------- */

static bool writable(const void *memory)
{
        int into[2];
        ssize_t n;

        cr_assert_eq(pipe2(into, O_CLOEXEC), 0);
        cr_assert_eq(write(into[1], "x", 1), 1);
        n = read(into[0], (void *)memory, 1); /* EFAULT instead of a signal */
        close(into[0]);
        close(into[1]);
        return n == 1;
}

static void check_for_reading(bool expected)
{
        void *memory;

        shown = share_new();
        cr_assert_eq(cuda_map(GPU, shown.fd, NULL, shown.bytes, false, &memory), 0);
        cr_assert_eq(writable(memory), expected);
        cuda_unmap(memory);
        cuda_share_free(&shown);
        fake_must_be_empty();
}

Test(runtime, maps_for_reading)
{
        check_for_reading(false);
}

Test(runtime, maps_writable_where_the_driver_maps_nothing_for_reading)
{
        fake.all_writable = true;
        check_for_reading(true);
}

Test(runtime, puts_the_next_memory_where_the_last_one_was)
{
        struct zero_cuda_share next;
        void *memory;

        shown = share_new();
        next = share_new();
        memcpy(next.memory, "next", 5);
        cr_assert_eq(cuda_map(GPU, shown.fd, NULL, shown.bytes, false, &memory), 0);
        fake_set_current(FAKE_NO_CONTEXT);
        fake_enqueue(GPU);
        cr_assert_eq(cuda_remap(memory, next.fd), 0);
        cr_assert_not(fake_is_enqueued(GPU), "work may still read what was there");
        cr_assert_eq(fake_current(), FAKE_NO_CONTEXT);
        cr_assert_str_eq(memory, "next");
        cr_assert_not(writable(memory));
        cuda_share_free(&shown);
        cr_assert_eq(cuda_remap(memory, -1), -EINVAL);
        cr_assert_str_eq(memory, "next", "it is as it was");
        cr_assert_eq(cuda_remap(&next, next.fd), -EINVAL, "nothing is mapped there");
        cuda_unmap(memory);
        cuda_share_free(&next);
        fake_must_be_empty();
}

static int remap_once(void)
{
        void *memory = NULL;
        int fail_at = fake.fail_at, r;

        fake.fail_at = 0;
        cr_assert_eq(cuda_map(GPU, shown.fd, NULL, shown.bytes, true, &memory), 0);
        fake.fail_at = fail_at;
        r = cuda_remap(memory, shown.fd);
        fake.fail_at = 0;
        cuda_unmap(memory);
        return r;
}

Test(runtime, leaves_nothing_of_memory_that_cannot_be_put_there)
{
        shown = share_new();
        at_every_call(cudaErrorUnknown, true, remap_once);
        cuda_share_free(&shown);
        fake_must_be_empty();
}

static char pages[4096];

static int pin_once(void)
{
        int r = cuda_pin(GPU, pages, sizeof pages);

        fake.fail_at = 0;
        if (r == 0)
                cuda_unpin(GPU, pages);
        return r;
}

Test(runtime, pins_host_memory_until_the_gpu_has_done_with_it)
{
        fake_set_current(0);
        cr_assert_eq(cuda_pin(GPU, pages, sizeof pages), 0);
        fake_enqueue(GPU);
        cuda_unpin(GPU, pages);
        cr_assert_eq(fake_current(), 0);
        fake_must_be_empty();
        at_every_call(cudaErrorMemoryAllocation, false, pin_once);
        cr_assert_eq(cuda_pin(FAKE_GPUS, pages, sizeof pages), -EINVAL);
}

static int copy_once(void)
{
        int r = cuda_copy_for(GPU, pages, "window", 7, NULL);

        fake.fail_at = 0;
        return r;
}

Test(runtime, copies_for_a_trainer_on_its_own_gpu)
{
        fake_set_current(FAKE_NO_CONTEXT);
        cr_assert_eq(copy_once(), 0);
        cr_assert_str_eq(pages, "window");
        cr_assert_eq(fake_current(), FAKE_NO_CONTEXT);
        at_every_call(cudaErrorUnknown, false, copy_once);
        cr_assert_eq(cuda_copy_for(-1, pages, "window", 7, NULL), -EINVAL);
        fake_must_be_empty();
}

/* ---- events ------------------------------------------------------------------------ */

static int event_once(void)
{
        uint8_t handle[ZERO_GPU_HANDLE];
        void *event = NULL;
        int r = cuda_event_new(GPU, handle, &event);

        fake.fail_at = 0;
        if (r >= 0)
                cuda_event_free(event);
        fake_must_be_empty();
        return r > 0 ? 0 : r;
}

Test(runtime, leaves_nothing_of_an_event_that_is_not_made)
{
        at_every_call(cudaErrorUnknown, true, event_once);
}

static void polls_itself(bool no_events, bool no_event_handles)
{
        uint8_t handle[ZERO_GPU_HANDLE];
        void *event;

        fake.no_events = no_events;
        fake.no_event_handles = no_event_handles;
        cr_assert_eq(cuda_event_new(GPU, handle, &event), 1);
        cr_assert_eq(cuda_event_record(event, NULL), 0);
        cr_assert_eq(cuda_event_done(event), 1);
        cuda_event_free(event);
        fake_must_be_empty();
}

Test(runtime, makes_an_event_of_its_own_where_none_can_be_shared)
{
        polls_itself(false, true);
        polls_itself(true, false);
}

/* A GPU that has failed is not one whose events cannot be shared. */
Test(runtime, makes_no_event_on_a_gpu_that_has_failed)
{
        uint8_t handle[ZERO_GPU_HANDLE];
        void *event;

        fake.sticky = cudaErrorIllegalAddress;
        cr_assert_eq(cuda_event_new(GPU, handle, &event), -EIO);
        fake.sticky = 0;
        fake_must_be_empty();
}

Test(runtime, records_an_event_on_its_own_gpu)
{
        uint8_t handle[ZERO_GPU_HANDLE];
        void *event, *stream;

        cr_assert_eq(cuda_use(GPU), 0);
        cr_assert_eq(zero_cuda_plugin()->stream_new(&stream), 0);
        fake_set_current(FAKE_NO_CONTEXT);
        fake.begun = 0;
        cr_assert_eq(cuda_event_new(GPU, handle, &event), 0);
        cr_assert_eq(cuda_event_record(event, NULL), 0);
        cr_assert_eq(cuda_event_record(event, stream), 0);
        fake.event_pending = true;
        cr_assert_eq(cuda_event_done(event), 0);
        fake.event_pending = false;
        cr_assert_eq(cuda_event_done(event), 1);
        cr_assert_eq(fake_current(), FAKE_NO_CONTEXT);
        cuda_event_free(event);
        cr_assert_eq(fake.begun, 1U << GPU, "another GPU was touched");
        zero_cuda_plugin()->stream_free(stream);
        fake_must_be_empty();
}

/* The thread that looks at events has chosen no GPU. */
Test(runtime, an_opened_event_touches_no_other_gpu)
{
        uint8_t handle[ZERO_GPU_HANDLE];
        void *made, *opened;

        cr_assert_eq(cuda_event_new(GPU, handle, &made), 0);
        cr_assert_eq(cuda_use(GPU), 0);
        cr_assert_eq(cuda_event_open(handle, &opened), 0);
        fake_set_current(FAKE_NO_CONTEXT);
        fake.event_pending = true;
        cr_assert_eq(cuda_event_done(opened), 0);
        fake.event_pending = false;
        cr_assert_eq(cuda_event_done(opened), 1);
        fake.sticky = cudaErrorIllegalAddress;
        cr_assert_eq(cuda_event_done(opened), -EIO);
        cuda_event_free(opened);
        cuda_event_free(made);
        cr_assert_eq(fake_current(), FAKE_NO_CONTEXT);
        cr_assert_eq(fake.begun, 1U << GPU, "another GPU was touched");
        fake_must_be_empty();
}

/* As of a trainer with another /dev/shm. */
Test(runtime, leaves_nothing_of_an_event_that_cannot_be_opened)
{
        uint8_t handle[ZERO_GPU_HANDLE];
        void *made, *opened;

        cr_assert_eq(cuda_event_new(0, handle, &made), 0);
        cr_assert_eq(cuda_use(GPU), 0);
        cr_assert_eq(cuda_event_open(handle, &opened), -EIO);
        cuda_event_free(made);
        fake_must_be_empty();
}

/* ---- what the driver tells --------------------------------------------------------------- */

Test(runtime, tells_attributes_by_name_until_there_are_no_more)
{
        const struct zero_cuda_plugin *plugin = zero_cuda_plugin();
        const char *name = NULL;
        uint32_t i = 0;
        int value;

        cr_assert_eq(cuda_use(GPU), 0);
        while (plugin->attribute(GPU, i, &name, &value) == 0) {
                cr_assert(name[0] && value >= 0, "%s", name);
                i++;
        }
        cr_assert_gt(i, 0);
        cr_assert_eq(plugin->attribute(GPU, i, &name, &value), -ENOENT);
        fake.no_attributes = true;
        cr_assert_eq(plugin->attribute(GPU, 0, &name, &value), 0);
        cr_assert_eq(value, -1);
}

/* ---- GPUs ------------------------------------------------------------------------------ */

Test(runtime, a_gpu_waits_without_spinning_from_its_first_use_on)
{
        fake.fail_at = 1;
        fake.fail_with = cudaErrorDevicesUnavailable;
        cr_assert_eq(cuda_use(GPU), -EBUSY);
        cr_assert_eq(cuda_use(GPU), 0);
        cr_assert_eq(cuda_use(GPU), 0);
        cr_assert_eq(fake.begins, 2);
        cr_assert_eq(cuda_use(FAKE_GPUS), -EINVAL);
        cr_assert_eq(cuda_use(-1), -EINVAL);
        cr_assert_eq(fake_current(), GPU);
}

Test(runtime, other_memory_is_on_no_gpu)
{
        int here;
        void *pinned, *memory;

        cr_assert_eq(cuda_use(GPU), 0);
        cr_assert_eq(cuda_pinned_new(100, &pinned), 0);
        cr_assert_eq(cuda_alloc(100, &memory), 0);
        cr_assert_eq(cuda_gpu_of(&here), -1);
        cr_assert_eq(cuda_gpu_of(pinned), -1);
        cr_assert_eq(cuda_gpu_of(memory), GPU);
        cr_assert_eq(cuda_alloc(0, &memory), -EINVAL);
        cuda_pinned_free(pinned);
        cuda_free(memory);
        cuda_free(NULL);
        cuda_pinned_free(NULL);
        fake_must_be_empty();
}
