/* GPUs through the fake plugin: what is refused, memory, sharing, events. */
#include <criterion/criterion.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "daemon/compute/device/gpu/core.h"
#include "gpu_fixture.h"

static struct fault fault;

/* Checks that opening fails and that the refusal has each of the words. */
static void refused(const char *path, const char *words)
{
        cr_assert_eq(gpus_open(path, device_host(NULL), &fault), ZERO_EGPU);
        cr_assert_eq(fault.status, ZERO_EGPU);
        cr_assert_not_null(strstr(fault.text, words), "%s", fault.text);
        cr_assert_eq(gpus_count(), 0);
        cr_assert_null(gpu_ops());
        gpus_close();
}

/* ---- opening ------------------------------------------------------------------- */

Test(gpu_open, refuses_a_plugin_that_is_not_there)
{
        refused("/nonexistent/plugin.so", "/nonexistent/plugin.so: No such file or directory");
        refused("/nonexistent/plugin.so", "cuda_plugin");
}

Test(gpu_open, refuses_what_is_no_library)
{
        refused("/dev/null", "cannot be loaded");
}

Test(gpu_open, refuses_a_library_that_is_no_plugin)
{
        refused(LIBZERO, "is not a CUDA plugin");
}

Test(gpu_open, refuses_a_plugin_of_another_version)
{
        setenv("FAKE_GPU_ABI", "77", 1);
        refused(FAKE_GPU, "interface 77, this zerod needs");
}

Test(gpu_open, refuses_a_machine_without_a_driver)
{
        setenv("FAKE_GPUS", "0", 1);
        refused(FAKE_GPU, "there is no GPU, or no NVIDIA driver");
}

Test(gpu_open, refuses_a_gpu_that_is_too_old)
{
        setenv("FAKE_GPU_MAJOR", "7", 1);
        refused(FAKE_GPU, "compute capability 7.0");
}

Test(gpu_open, finds_gpus_by_their_uuid)
{
        uint8_t unknown[ZERO_GPU_UUID] = { 1 };

        setenv("FAKE_GPUS", "3", 1);
        gpu_fixture_open();
        cr_assert_eq(gpus_count(), 3);
        for (uint32_t i = 0; i < 3; i++)
                cr_assert_eq(gpu_find(gpu_info(i)->uuid), (int)i);
        cr_assert_eq(gpu_find(unknown), -1);
        gpus_close();
}

Test(gpu_open, works_again_after_a_close)
{
        float x = 1, y = 0;
        void *memory;

        for (int i = 0; i < 3; i++) {
                gpu_fixture_open();
                cr_assert_eq(gpu_alloc(0, sizeof x, "a number", &memory, &fault), 0);
                gpu_ops()->copy(memory, &x, sizeof x);
                gpu_ops()->copy(&y, memory, sizeof y);
                cr_assert_eq(y, x);
                gpu_free(memory);
                gpus_close();
        }
}

/* ---- memory -------------------------------------------------------------------- */

TestSuite(gpu_memory, .init = gpu_fixture_open, .fini = gpus_close);

/* EFAULT, as a system call sees it. */
static bool cpu_can_read(const void *memory)
{
        int ends[2];
        bool can;

        cr_assert_eq(pipe(ends), 0);
        can = write(ends[1], memory, 1) == 1;
        cr_assert(can || errno == EFAULT);
        close(ends[0]);
        close(ends[1]);
        return can;
}

Test(gpu_memory, is_out_of_the_cpus_reach)
{
        void *memory;

        cr_assert_eq(gpu_alloc(0, 100, "a test", &memory, &fault), 0);
        cr_assert_not(cpu_can_read(memory));
        cr_assert_eq((uintptr_t)memory % 256, 0);
        gpu_free(memory);
}

Test(gpu_memory, is_told_from_the_hosts_to_the_byte)
{
        uint8_t *memory, host = 0;

        cr_assert_eq(gpu_of(&host), -1);
        cr_assert_eq(gpu_alloc(0, 1000, "a test", (void **)&memory, &fault), 0);
        cr_assert_eq(gpu_of(memory), 0);
        cr_assert_eq(gpu_of(memory + 999), 0);
        cr_assert_eq(gpu_of(memory + 1000), -1);
        cr_assert_eq(gpu_of(memory - 1), -1);
        cr_assert_eq(gpu_of(&host), -1);
        gpu_free(memory);
        cr_assert_eq(gpu_of(memory), -1);
}

Test(gpu_memory, is_told_among_many_ranges)
{
        enum { N = 300 };
        static uint8_t *memory[N];
        uint32_t dice = 1;

        for (int round = 0; round < 3000; round++) {
                uint32_t i = (dice = dice * 1664525 + 1013904223) >> 16;

                i %= N;
                if (memory[i]) {
                        gpu_free(memory[i]);
                        cr_assert_eq(gpu_of(memory[i]), -1);
                        memory[i] = NULL;
                } else {
                        cr_assert_eq(gpu_alloc(0, 64 + i, "a test", (void **)&memory[i], &fault),
                                     0);
                }
                i = (i + 7) % N;
                if (memory[i])
                        cr_assert(gpu_of(memory[i] + 63 + i) == 0 &&
                                  gpu_of(memory[i] + 64 + i) < 0);
        }
        for (int i = 0; i < N; i++)
                gpu_free(memory[i]);
}

struct listing {
        uint32_t n;
        uint64_t bytes;
        bool named;
};

static void list(void *arg, const char *what, uint64_t bytes)
{
        struct listing *l = arg;

        l->n++;
        l->bytes += bytes;
        l->named = l->named || !strcmp(what, "exp_avg of job a");
}

Test(gpu_memory, is_listed_by_what_it_is_for)
{
        struct listing l = { 0 }, after = { 0 };
        struct zero_cuda_share share;
        uint64_t left, total, before;
        void *memory;

        cr_assert_eq(gpu_memory(0, &before, &total), 0);
        cr_assert_eq(gpu_alloc(0, 5120, "exp_avg of job a", &memory, &fault), 0);
        cr_assert_eq(gpu_share(0, 1 << 20, "the gather window of job a", &share, &fault), 0);
        gpu_each(0, list, &l);
        cr_assert(l.n == 2 && l.named && l.bytes == 5120 + share.bytes);
        cr_assert_eq(gpu_memory(0, &left, &total), 0);
        cr_assert_eq(before - left, l.bytes);
        gpu_free(memory);
        gpu_unshare(&share);
        gpu_each(0, list, &after);
        cr_assert_eq(after.n, 0);
        cr_assert_eq(gpu_memory(0, &left, &total), 0);
        cr_assert_eq(left, before);
}

/* Also when the table of what is given out moves. */
Test(gpu_memory, counts_for_its_user)
{
        enum { MANY = 200 };
        void *memory[MANY];

        for (uint32_t i = 0; i < MANY; i++) {
                cr_assert_eq(gpu_alloc(0, 256, "a window", &memory[i], &fault), 0);
                if (i % 4)
                        place_charge(memory[i], i % 4);
        }
        for (uint32_t user = 1; user < 4; user++)
                cr_assert_eq(place_charged(gpu_place(0), user), MANY / 4 * 256);
        cr_assert_eq(place_charged(gpu_place(1), 1), 0);
        for (uint32_t i = 0; i < MANY; i += 2)
                gpu_free(memory[i]);
        cr_assert_eq(place_charged(gpu_place(0), 1), MANY / 4 * 256);
        cr_assert_eq(place_charged(gpu_place(0), 2), 0);
        for (uint32_t i = 1; i < MANY; i += 2)
                gpu_free(memory[i]);
        cr_assert_eq(place_charged(gpu_place(0), 1), 0);
}

static void open_small(void)
{
        setenv("FAKE_GPU_BYTES", "8388608", 1);
        gpu_fixture_open();
}

Test(gpu_lack, of_memory_is_refused_and_told, .init = open_small, .fini = gpus_close)
{
        struct zero_cuda_share share;
        void *memory, *more = NULL;

        cr_assert_eq(gpu_alloc(0, 6 << 20, "master of job a", &memory, &fault), 0);
        cr_assert_eq(gpu_alloc(0, 3 << 20, "exp_avg of job a", &more, &fault), ZERO_ENOMEM);
        cr_assert_str_eq(fault.text,
                         "GPU 0 (fake GPU 0) has not the memory for exp_avg of job a: 3.0 MiB are "
                         "needed, 2.0 of its 8.0 MiB are free");
        cr_assert_eq(gpu_share(0, 3 << 20, "the push slots of rank 3", &share, &fault),
                     ZERO_ENOMEM);
        cr_assert_not_null(strstr(fault.text, "the push slots of rank 3"));
        cr_assert_null(more);
        gpu_free(memory);
        cr_assert_eq(gpu_alloc(0, 3 << 20, "exp_avg of job a", &more, &fault), 0);
        gpu_free(more);
}

/* The next allocation succeeds although another thread frees the memory. */
Test(gpu_lack, what_was_given_back_is_free, .init = open_small, .fini = gpus_close)
{
        uint64_t left, total;
        void *memory;

        for (int i = 0; i < 500; i++) {
                cr_assert_eq(gpu_alloc(0, 8 << 20, "master", &memory, &fault), 0, "%s", fault.text);
                gpu_free(memory);
                cr_assert_eq(gpu_of(memory), -1);
                if (i % 2 == 0)
                        continue;
                cr_assert_eq(gpu_memory(0, &left, &total), 0);
                cr_assert_eq(left, total);
        }
}

Test(gpu_memory, nothing_can_be_given_back)
{
        struct zero_cuda_share none = { .memory = NULL };

        gpu_free(NULL);
        gpu_unshare(&none);
        place_events_close(NULL);
}

/* ---- sharing --------------------------------------------------------------------- */

static void check_shared(void)
{
        const struct zero_gpu_client *trainer = gpu_fixture_trainer();
        struct zero_cuda_share share;
        char text[] = "from the daemon", back[sizeof text];
        uint8_t uuid[ZERO_GPU_UUID];
        void *view;

        cr_assert_eq(gpu_share(0, 5000, "a window", &share, &fault), 0);
        cr_assert_geq(share.bytes, 5000);
        cr_assert_eq(trainer->uuid(0, uuid), 0);
        cr_assert_eq(gpu_find(uuid), 0);
        cr_assert_eq(trainer->map(0, share.fd, share.handle, share.bytes, true, &view), 0);
        for (size_t i = 0; i < share.bytes; i++)
                cr_assert_eq(((char *)view)[i], 0);
        gpu_ops()->copy((char *)share.memory + 4000, text, sizeof text);
        cr_assert_str_eq((char *)view + 4000, text);
        memcpy((char *)view + 17, "from the rank", 14);
        gpu_ops()->copy(back, (char *)share.memory + 17, 14);
        cr_assert_str_eq(back, "from the rank");
        trainer->unmap(view);
        gpu_unshare(&share);
        cr_assert_eq(share.fd, -1);
}

Test(gpu_memory, is_shared_with_a_trainer_by_descriptor)
{
        check_shared();
}

Test(gpu_memory, is_shared_with_a_trainer_by_handle)
{
        setenv("FAKE_GPU_HANDLES", "1", 1);
        check_shared();
}

/* ---- events ---------------------------------------------------------------------- */

Test(gpu_memory, events_are_done_when_their_work_is)
{
        const struct zero_gpu_client *trainer = gpu_fixture_trainer();
        uint8_t handles[2][ZERO_GPU_HANDLE];
        struct place_events *e;
        void *event[2];

        for (int i = 0; i < 2; i++)
                cr_assert_eq(trainer->event_new(0, handles[i], &event[i]), 0);
        cr_assert_eq(place_events_open(gpu_place(0), (const uint8_t(*)[ZERO_GPU_HANDLE])handles, 2,
                                       &e, &fault),
                     0);
        cr_assert_eq(place_events_count(e), 2);
        setenv("FAKE_GPU_DELAY_MS", "3600000", 1);
        trainer->event_record(event[1], NULL);
        cr_assert_eq(place_event_done(e, 0), 1); /* never recorded */
        cr_assert_eq(place_event_done(e, 1), 0);
        setenv("FAKE_GPU_DELAY_MS", "0", 1);
        trainer->event_record(event[1], NULL);
        cr_assert_eq(place_event_done(e, 1), 1);
        cr_assert_lt(place_event_done(e, 2), 0); /* there is none */
        place_events_close(e);
        for (int i = 0; i < 2; i++)
                trainer->event_free(event[i]);
}

Test(gpu_memory, events_that_cannot_be_opened_are_none)
{
        const struct zero_gpu_client *trainer = gpu_fixture_trainer();
        uint8_t handles[ZERO_GPU_EVENTS + 1][ZERO_GPU_HANDLE];
        const uint8_t(*h)[ZERO_GPU_HANDLE] = (const uint8_t(*)[ZERO_GPU_HANDLE])handles;
        struct place_events *e = NULL;
        void *event;

        memset(handles, 0xff, sizeof handles);
        cr_assert_eq(trainer->event_new(0, handles[0], &event), 0);
        cr_assert_eq(place_events_open(gpu_place(0), h, 1, &e, &fault), 0);
        cr_assert_not_null(e);
        place_events_close(e);
        cr_assert_eq(place_events_open(gpu_place(0), h, 2, &e, &fault),
                     0); /* the second one is no event */
        cr_assert_null(e);
        setenv("FAKE_GPU_NO_EVENTS", "1", 1);
        cr_assert_eq(place_events_open(gpu_place(0), h, 1, &e, &fault), 0);
        cr_assert_null(e);
        cr_assert_eq(place_events_open(gpu_place(0), h, ZERO_GPU_EVENTS + 1, &e, &fault),
                     ZERO_EINVAL);
        cr_assert_null(e);
        cr_assert_eq(place_events_open(gpu_place(0), h, 0, &e, &fault), 0);
        place_events_close(e);
        trainer->event_free(event);
}

static void cannot_be_used(int error, int status, const char *words)
{
        const uint8_t(*none)[ZERO_GPU_HANDLE] = NULL;
        struct place_events *e = NULL;
        void *memory = NULL;
        char number[12];

        snprintf(number, sizeof number, "%d", error);
        setenv("FAKE_GPU_USE", number, 1);
        cr_assert_eq(place_events_open(gpu_place(0), none, 0, &e, &fault), status);
        cr_assert_not_null(strstr(fault.text, words), "%s", fault.text);
        cr_assert_null(e);
        fault.text[0] = 0;
        cr_assert_eq(gpu_alloc(0, 1, "a test", &memory, &fault), status);
        cr_assert_not_null(strstr(fault.text, words), "%s", fault.text);
        cr_assert_null(memory);
        unsetenv("FAKE_GPU_USE");
}

/* The daemon goes on: other jobs may be on other GPUs, or in host memory. */
Test(gpu_memory, a_gpu_that_its_trainer_leaves_no_part_of_is_refused)
{
        cannot_be_used(ENOMEM, ZERO_ENOMEM, "no memory left for the daemon");
        cannot_be_used(EBUSY, ZERO_EGPU, "compute mode");
}

/* ---- buffers ------------------------------------------------------------------- */

/* Pins as many buffers as allowed; each is requested when none is left. */
static void pin_all(void)
{
        void *buffers[GPU_BUFFERS + 1];

        for (int i = 0; i <= GPU_BUFFERS; i++) {
                buffers[i] = gpu_buffer_new(1);
                cr_assert_eq(gpu_is_pinned(buffers[i]), i > 0, "nobody waits for the first");
                gpu_chores_wait();
        }
        for (int i = 0; i <= GPU_BUFFERS; i++)
                gpu_buffer_free(buffers[i]);
}

/* More than are pinned, at once and again: each has its own bytes, on the GPU and back. */
Test(gpu_memory, buffers_hold_what_goes_to_and_from_a_gpu)
{
        enum { BUFFERS = GPU_BUFFERS + 3, BYTES = 10000 };
        uint8_t *buffers[BUFFERS], bytes[BYTES];
        void *memory;

        pin_all();
        cr_assert_eq(gpu_alloc(0, (uint64_t)BUFFERS * BYTES, "copies", &memory, &fault), 0);
        for (int round = 0; round < 2; round++) {
                for (int i = 0; i < BUFFERS; i++) {
                        buffers[i] = gpu_buffer_new(BYTES);
                        cr_assert_not_null(buffers[i]);
                        cr_assert_eq(gpu_is_pinned(buffers[i] + GPU_BUFFER - 1), i < GPU_BUFFERS);
                        memset(buffers[i], i + round, BYTES);
                        gpu_ops()->copy((uint8_t *)memory + i * BYTES, buffers[i], BYTES);
                        memset(buffers[i], 0xff, BYTES);
                }
                for (int i = 0; i < BUFFERS; i++) {
                        gpu_ops()->copy(buffers[i], (uint8_t *)memory + i * BYTES, BYTES);
                        memset(bytes, i + round, BYTES);
                        cr_assert_eq(memcmp(buffers[i], bytes, BYTES), 0, "buffer %d", i);
                }
                for (int i = 0; i < BUFFERS; i++)
                        gpu_buffer_free(buffers[i]);
        }
        gpu_free(memory);
}

Test(gpu_memory, a_large_buffer_is_like_any_memory)
{
        uint8_t *buffer = gpu_buffer_new(GPU_BUFFER + 1);

        cr_assert_not_null(buffer);
        cr_assert_not(gpu_is_pinned(buffer));
        buffer[GPU_BUFFER] = 1;
        gpu_buffer_free(buffer);
        gpu_buffer_free(NULL);
}
/* ---- a GPU that fails -------------------------------------------------------------- */

static void open_failing(void)
{
        setenv("FAKE_GPU_FAULT", "1", 1);
        gpu_fixture_open();
}

Test(gpu_fault, ends_the_process, .init = open_failing, .exit_code = 1)
{
        void *memory;

        cr_assert_eq(gpu_alloc(0, 100, "a test", &memory, &fault), 0);
        gpu_ops()->zero(memory, 100);
        cr_assert_fail("the fault was not noticed");
}
