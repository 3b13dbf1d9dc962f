/*
 * Windows on a GPU: a device that cannot be opened, and windows that do not fit.  The plugin is the
 * fake one, whose memory this process can read.
 */
#include <criterion/criterion.h>

#include "fake.h"
#include "proto/zero_gpu.h"

static struct fake f;

#define OK(call) cr_assert_eq(call, ZERO_OK, "%s", zero_error(c))

enum { BYTES = 3000 * 4 }; /* of FAKE_FP32 */

static void set_up(void)
{
        setenv("ZEROD_CUDA_PLUGIN", FAKE_GPU, 1);
}

TestSuite(gpu, .init = set_up);

/* ---- a device that cannot be had ------------------------------------------------- */

static void greet_only(struct fake *d)
{
        fake_hello(d);
        fake_expect_end(d);
}

/* A sentence of the refusal. */
static void refused(const char *device, bool private_views, int status, const char *word)
{
        struct zero_needs needs = fake_needs(1);
        struct zero_layout *l = fake_layout();
        struct zero_client *c;

        fake_start(&f, greet_only);
        c = fake_connect(&f);
        needs.device = device;
        needs.private_views = private_views;
        cr_assert_eq(zero_attach(c, l, &needs), status, "%s: %s", device, zero_error(c));
        cr_assert(strstr(zero_error(c), word), "%s", zero_error(c));
        zero_layout_free(l);
        fake_close(&f, c);
}

Test(gpu, a_device_is_cuda_and_a_number)
{
        static const char *const bad[] = { "",        "cuda",    "cuda:",     "cuda:x",
                                           "cuda:1x", "cuda:-1", "cuda:1024", "cuda:99999",
                                           "cpu",     "gpu:0" };

        for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
                refused(bad[i], false, ZERO_EINVAL, "cuda:0");
}

Test(gpu, private_views_are_of_host_memory)
{
        refused("cuda:0", true, ZERO_EINVAL, "private_views");
}

Test(gpu, one_that_is_not_there_is_refused)
{
        refused("cuda:5", false, ZERO_EGPU, "cuda:5");
}

Test(gpu, no_gpu_at_all_is_refused)
{
        setenv("FAKE_GPUS", "0", 1);
        refused("cuda:0", false, ZERO_EGPU, "driver");
}

Test(gpu, a_plugin_that_is_missing_is_named)
{
        setenv("ZEROD_CUDA_PLUGIN", "/nonexistent/plugin.so", 1);
        refused("cuda:0", false, ZERO_EGPU, "/nonexistent/plugin.so");
}

Test(gpu, a_library_that_is_no_plugin_is_refused)
{
        setenv("ZEROD_CUDA_PLUGIN", "libm.so.6", 1);
        refused("cuda:0", false, ZERO_EGPU, "libm.so.6");
}

Test(gpu, a_plugin_of_another_version_is_refused)
{
        setenv("FAKE_GPU_CLIENT_ABI", "99", 1);
        refused("cuda:0", false, ZERO_EGPU, "99");
}

/* ---- windows --------------------------------------------------------------------- */

static void look_and_take(struct fake *d)
{
        const Zero__Attach *a;

        fake_hello(d);
        fake_attach(d);
        a = d->request->attach;
        MUST(a->gpu.len == ZERO_GPU_UUID && a->n_events == ZERO_GPU_EVENTS);
        for (size_t i = 0; i < a->n_events; i++)
                MUST(a->events[i].len == ZERO_GPU_HANDLE);
        MUST(d->session_bytes == FAKE_TRANSFER);
        fake_expect(d, ZERO__REQUEST__BODY_FETCH);
        memset(d->gather + 4096, 11, BYTES);
        fake_fetched(d, d->request->seq, false, 4096);
        fake_expect(d, ZERO__REQUEST__BODY_FETCH);
        memset(d->serve, 22, 1024);
        fake_fetched(d, d->request->seq, true, 0);
        MUST(fake_expect(d, ZERO__REQUEST__BODY_PUSH)->push->event == 0);
        MUST(d->slots[0] == 33 && d->slots[BYTES - 1] == 44);
        fake_ok(d, d->request->seq);
        fake_expect_end(d);
}

Test(gpu, views_and_gradients_lie_in_the_daemon_s_memory)
{
        struct zero_client *c = fake_open_gpu(&f, look_and_take, 5000);
        const void *view;
        void *grad;

        OK(zero_fetch(c, FAKE_FP32, &view));
        cr_assert_eq(((const uint8_t *)view)[BYTES - 1], 11);
        OK(zero_fetch(c, FAKE_BF16, &view));
        cr_assert_eq(((const uint8_t *)view)[0], 22);
        OK(zero_grad(c, FAKE_FP32, &grad));
        ((uint8_t *)grad)[0] = 33;
        ((uint8_t *)grad)[BYTES - 1] = 44;
        OK(zero_push(c, FAKE_FP32, NULL, true, NULL));
        fake_close(&f, c);
}

/* Attaching fails, and says why. */
static void cannot_attach(void (*script)(struct fake *d), const char *word)
{
        struct zero_needs needs = fake_needs(1);
        struct zero_layout *l = fake_layout();
        struct zero_client *c;

        fake_start(&f, script);
        c = fake_connect(&f);
        needs.device = "cuda:0";
        cr_assert_eq(zero_attach(c, l, &needs), ZERO_ECLOSED);
        cr_assert(strstr(zero_error(c), word), "%s", zero_error(c));
        zero_layout_free(l);
        fake_close(&f, c);
}

/* Windows as told, each of so many bytes, and descriptors for them. */
static void answer(struct fake *d, Zero__AttachReply *attach, size_t n_fds)
{
        Zero__Reply reply = ZERO__REPLY__INIT;
        uint8_t frame[4096];
        int fds[4];
        size_t size;

        fake_hello(d);
        reply.seq = fake_expect(d, ZERO__REQUEST__BODY_ATTACH)->seq;
        reply.body_case = ZERO__REPLY__BODY_ATTACH;
        reply.attach = attach;
        size = zero__reply__pack(&reply, frame + FRAME_HEADER);
        frame_write_header(frame, (uint32_t)size);
        for (size_t i = 0; i < n_fds; i++)
                fds[i] = fake_memfd(1 << 20, NULL);
        fake_send_fds(d, frame, FRAME_HEADER + size, fds, n_fds);
        for (size_t i = 0; i < n_fds; i++)
                close(fds[i]);
        fake_expect_end(d);
}

static Zero__AttachReply told(uint64_t session_bytes, uint64_t push_bytes)
{
        Zero__AttachReply attach = ZERO__ATTACH_REPLY__INIT;

        attach.version = 7;
        attach.attempt = 20;
        attach.transfer_bytes = FAKE_TRANSFER;
        attach.session_bytes = session_bytes;
        attach.push_bytes = push_bytes;
        attach.gather_bytes = FAKE_GATHER;
        return attach;
}

static void stay_in_host_memory(struct fake *d)
{
        Zero__AttachReply attach = told(1 << 20, 0);

        answer(d, &attach, 2);
}

Test(gpu, a_daemon_that_has_its_windows_in_host_memory_is_refused)
{
        cannot_attach(stay_in_host_memory, "host memory");
}

static void give_short_slots(struct fake *d)
{
        Zero__AttachReply attach = told(FAKE_TRANSFER, 4096);

        answer(d, &attach, 3);
}

Test(gpu, a_push_window_that_is_too_small_is_refused)
{
        cannot_attach(give_short_slots, "push window of 4096 bytes");
}

static void give_short_handle(struct fake *d)
{
        Zero__AttachReply attach = told(FAKE_TRANSFER, 1 << 20);
        uint8_t handle[ZERO_GPU_HANDLE - 1] = { 0 };

        attach.gather_handle = (ProtobufCBinaryData){ sizeof(handle), handle };
        answer(d, &attach, 2);
}

Test(gpu, a_handle_of_another_length_is_refused)
{
        cannot_attach(give_short_handle, "gather window");
}

static void give_too_few(struct fake *d)
{
        Zero__AttachReply attach = told(FAKE_TRANSFER, 1 << 20);

        answer(d, &attach, 2);
}

Test(gpu, a_descriptor_for_each_window_is_expected)
{
        cannot_attach(give_too_few, "2 descriptors instead of 3");
}

static void on_a_gpu_unasked(struct fake *d)
{
        Zero__AttachReply attach = told(1 << 20, 1 << 20);

        answer(d, &attach, 3);
}

Test(gpu, a_rank_without_a_device_takes_no_windows_on_one)
{
        struct zero_needs needs = fake_needs(1);
        struct zero_layout *l = fake_layout();
        struct zero_client *c;

        fake_start(&f, on_a_gpu_unasked);
        c = fake_connect(&f);
        cr_assert_eq(zero_attach(c, l, &needs), ZERO_ECLOSED);
        cr_assert(strstr(zero_error(c), "not in host memory"), "%s", zero_error(c));
        zero_layout_free(l);
        fake_close(&f, c);
}
