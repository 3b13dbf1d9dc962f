/* Attaching: what the daemon must bring, and what is checked on this side. */
#include <criterion/criterion.h>
#include <dirent.h>
#include <string.h>

#include "fake.h"

static const struct zero_needs needs = { 1, 1, ZERO_FP32, ZERO_FP32 };

static unsigned open_fds(void)
{
        DIR *d = opendir("/proc/self/fd");
        unsigned n = 0;

        while (readdir(d))
                n++;
        closedir(d);
        return n;
}

static void answer(struct fake *f, const Zero__AttachReply *attach, const int *fds, size_t n_fds)
{
        Zero__Reply reply = ZERO__REPLY__INIT;
        uint8_t frame[4096];
        size_t size;

        reply.seq = fake_expect(f, ZERO__REQUEST__BODY_ATTACH)->seq;
        reply.body_case = ZERO__REPLY__BODY_ATTACH;
        reply.attach = (Zero__AttachReply *)attach;
        size = zero__reply__pack(&reply, frame + FRAME_HEADER);
        frame_write_header(frame, (uint32_t)size);
        fake_send_fds(f, frame, FRAME_HEADER + size, fds, n_fds);
        for (size_t i = 0; i < n_fds; i++)
                close(fds[i]);
}

/* A client that attaches to a script as rank 0; the error's text goes to ret_text. */
static int attach_to(void (*script)(struct fake *fake), char ret_text[512])
{
        struct fake f = { 0 };
        struct zero_layout *l = fake_layout();
        struct zero_client *c;
        unsigned before = open_fds();
        int r;

        fake_start(&f, script);
        c = fake_connect(&f);
        r = zero_attach(c, l, &needs);
        strcpy(ret_text, zero_error(c));
        zero_layout_free(l);
        zero_close(c);
        fake_stop(&f);
        cr_assert_eq(open_fds(), before);
        return r;
}

static void refuse(struct fake *f)
{
        fake_hello(f);
        fake_refuse(f, fake_expect(f, ZERO__REQUEST__BODY_ATTACH)->seq, ZERO_ELAYOUT,
                    "group 1 'h.0': dtype fp32 here, bf16 there");
        fake_attach(f);
        fake_expect_end(f);
}

Test(attach, refused_rank_may_try_again)
{
        struct fake f = { 0 };
        struct zero_layout *l = fake_layout();
        struct zero_client *c;

        fake_start(&f, refuse);
        c = fake_connect(&f);
        cr_assert_eq(zero_attach(c, l, &needs), ZERO_ELAYOUT);
        cr_assert_str_eq(zero_error(c), "group 1 'h.0': dtype fp32 here, bf16 there");
        cr_assert_null(zero_client_layout(c));
        cr_assert_eq(zero_attach(c, l, &needs), ZERO_OK, "%s", zero_error(c));
        cr_assert_eq(zero_steps(c), 7u);
        cr_assert_eq(zero_loss_scale(c), 2.0);
        zero_layout_free(l);
        zero_close(c);
        fake_stop(&f);
}

static void send_needs(struct fake *f)
{
        const Zero__Attach *a;

        fake_hello(f);
        fake_attach(f);
        a = f->request->attach;
        MUST(a->hold_groups == 2u);
        MUST(a->push_groups == 1u);
        MUST(a->grad_dtype == (uint32_t)ZERO_FP32);
        MUST(a->layout->n_groups == (size_t)FAKE_GROUPS);
        fake_expect_end(f);
}

Test(attach, needs_and_layout_are_sent)
{
        struct fake f = { 0 };

        fake_start(&f, send_needs);
        zero_close(fake_client(&f, 1));
        fake_stop(&f);
}

static void no_fds(struct fake *f)
{
        Zero__AttachReply a = ZERO__ATTACH_REPLY__INIT;

        a.session_bytes = a.transfer_bytes = 4096;
        fake_hello(f);
        answer(f, &a, NULL, 0);
        fake_expect_end(f);
}

Test(attach, missing_descriptor_closes)
{
        char text[512];

        cr_assert_eq(attach_to(no_fds, text), ZERO_ECLOSED);
        cr_assert(strstr(text, "0 descriptors instead of 1"), "%s", text);
}

static void many_fds(struct fake *f)
{
        Zero__AttachReply a = ZERO__ATTACH_REPLY__INIT;
        int fds[5];

        for (int i = 0; i < 5; i++)
                fds[i] = fake_memfd(4096, NULL);
        a.session_bytes = a.transfer_bytes = 4096;
        fake_hello(f);
        answer(f, &a, fds, 5);
        fake_expect_end(f);
}

Test(attach, surplus_descriptors_are_closed)
{
        char text[512];

        cr_assert_eq(attach_to(many_fds, text), ZERO_ECLOSED);
        cr_assert(strstr(text, "5 descriptors instead of 1"), "%s", text);
}

static void small_window(struct fake *f)
{
        Zero__AttachReply a = ZERO__ATTACH_REPLY__INIT;
        int fd = fake_memfd(4096, NULL);

        a.session_bytes = 1 << 20;
        a.transfer_bytes = 4096;
        fake_hello(f);
        answer(f, &a, &fd, 1);
        fake_expect_end(f);
}

Test(attach, window_smaller_than_said_closes)
{
        char text[512];

        cr_assert_eq(attach_to(small_window, text), ZERO_ECLOSED);
        cr_assert(strstr(text, "session window has 4096 bytes"), "%s", text);
}

static void not_a_file(struct fake *f)
{
        Zero__AttachReply a = ZERO__ATTACH_REPLY__INIT;
        int fds[2];

        MUST(pipe(fds) == 0);
        close(fds[1]);
        a.session_bytes = a.transfer_bytes = 4096;
        fake_hello(f);
        answer(f, &a, fds, 1);
        fake_expect_end(f);
}

Test(attach, descriptor_that_is_no_memory_closes)
{
        char text[512];

        cr_assert_eq(attach_to(not_a_file, text), ZERO_ECLOSED);
}

static void no_push_window(struct fake *f)
{
        Zero__AttachReply a = ZERO__ATTACH_REPLY__INIT;
        int fd = fake_memfd(8192, NULL);

        a.session_bytes = 8192; /* one slot of the largest group takes 12288 */
        a.transfer_bytes = 4096;
        fake_hello(f);
        answer(f, &a, &fd, 1);
        fake_expect_end(f);
}

Test(attach, push_window_that_is_too_small_closes)
{
        char text[512];

        cr_assert_eq(attach_to(no_push_window, text), ZERO_ECLOSED);
        cr_assert(strstr(text, "push window"), "%s", text);
}

static void unexpected_fds(struct fake *f)
{
        int fd = fake_memfd(4096, NULL);

        fake_hello(f);
        fake_expect(f, ZERO__REQUEST__BODY_QUERY);
        fake_send_fds(f, "\x02\0\0\0\x08", 5, &fd, 1);
        close(fd);
        fake_send(f, "\x02", 1); /* seq 2, no body: not an answer to a query */
        fake_expect_end(f);
}

Test(attach, unexpected_descriptors_are_closed)
{
        struct fake f = { 0 };
        struct zero_client *c;
        unsigned before = open_fds();
        char *json;

        fake_start(&f, unexpected_fds);
        c = fake_connect(&f);
        cr_assert_eq(zero_query(c, "status", NULL, &json), ZERO_ECLOSED);
        zero_close(c);
        fake_stop(&f);
        cr_assert_eq(open_fds(), before);
}

static void only_hello(struct fake *f)
{
        fake_hello(f);
        fake_expect_end(f);
}

Test(attach, bad_needs_are_refused_without_asking)
{
        struct fake f = { 0 };
        struct zero_layout *l = fake_layout(), *empty;
        struct zero_needs bad = needs;
        struct zero_client *c;

        fake_start(&f, only_hello);
        c = fake_connect(&f);
        cr_assert_eq(zero_attach(c, NULL, &needs), ZERO_EINVAL);
        bad.grad_dtype = (enum zero_dtype)9;
        cr_assert_eq(zero_attach(c, l, &bad), ZERO_EINVAL);
        bad = needs;
        bad.reduce_dtype = ZERO_INT8;
        cr_assert_eq(zero_attach(c, l, &bad), ZERO_EINVAL);
        cr_assert(strstr(zero_error(c), "reduce_dtype is int8"), "%s", zero_error(c));
        zero_layout_new(&empty);
        cr_assert_neq(zero_attach(c, empty, &needs), ZERO_OK);
        zero_layout_free(empty);
        zero_layout_free(l);
        zero_close(c);
        fake_stop(&f);
}

Test(attach, every_other_call_needs_an_attached_client)
{
        struct fake f = { 0 };
        struct zero_step_options step = { 0 };
        struct zero_result result;
        struct zero_client *c;
        const void *view;
        double norm;
        bool finite;
        void *grad;

        fake_start(&f, only_hello);
        c = fake_connect(&f);
        cr_assert_eq(zero_fetch(c, 0, &view), ZERO_ENOTATTACHED);
        cr_assert_eq(zero_prefetch(c, 0), ZERO_ENOTATTACHED);
        cr_assert_eq(zero_release(c, 0, NULL), ZERO_ENOTATTACHED);
        cr_assert_eq(zero_grad(c, 0, &grad), ZERO_ENOTATTACHED);
        cr_assert_eq(zero_push(c, 0, NULL, true, NULL), ZERO_ENOTATTACHED);
        cr_assert_eq(zero_norm(c, &norm, &finite), ZERO_ENOTATTACHED);
        cr_assert_eq(zero_step(c, &step, &result), ZERO_ENOTATTACHED);
        cr_assert_eq(zero_get(c, 0, ZERO_PLANE_MASTER, 0, 1, &norm), ZERO_ENOTATTACHED);
        cr_assert_eq(zero_put(c, 0, ZERO_PLANE_MASTER, 0, 1, &norm), ZERO_ENOTATTACHED);
        zero_close(c);
        fake_stop(&f);
}

static void begin_and_end(struct fake *f)
{
        fake_begin(f);
        fake_expect_end(f);
}

Test(attach, attaching_twice_is_refused)
{
        struct fake f = { 0 };
        struct zero_layout *l = fake_layout();
        struct zero_client *c;

        fake_start(&f, begin_and_end);
        c = fake_client(&f, 1);
        cr_assert_eq(zero_attach(c, l, &needs), ZERO_EORDER);
        zero_layout_free(l);
        zero_close(c);
        fake_stop(&f);
}

static void observe(struct fake *f)
{
        Zero__AttachReply a = ZERO__ATTACH_REPLY__INIT;
        struct zero_layout *l = fake_layout();
        int fd = fake_memfd(4096, NULL);

        a.session_bytes = a.transfer_bytes = 4096;
        a.version = 3;
        MUST(layout_to_message(l, &a.layout) == 0);
        fake_hello(f);
        answer(f, &a, &fd, 1);
        zero__layout__free_unpacked(a.layout, NULL);
        zero_layout_free(l);
        fake_expect_end(f);
}

static struct zero_client *observer(const struct fake *f)
{
        struct zero_options options = fake_options(f);
        struct zero_client *c = NULL;

        options.rank = ZERO_OBSERVER;
        cr_assert_eq(zero_connect(&options, &c), ZERO_OK);
        return c;
}

Test(attach, a_tensor_without_its_shape_is_told_so)
{
        struct zero_tensor t = { .name = "t", .ndim = 2 };
        struct zero_layout *l;
        uint32_t index;

        cr_assert_eq(zero_layout_new(&l), ZERO_OK);
        cr_assert_eq(zero_layout_group(l, "g", ZERO_FP32, NULL, 0, 0, &index), ZERO_OK);
        cr_assert_eq(zero_layout_tensor(l, index, &t, &index), ZERO_EINVAL);
        cr_assert(strstr(zero_layout_error(l), "shape is NULL"), "%s", zero_layout_error(l));
        cr_assert_str_eq(zero_error(NULL), zero_layout_error(l));
        cr_assert_eq(zero_layout_describe(l, 7, &t), ZERO_ENOGROUP);
        cr_assert_str_eq(zero_error(NULL), "no tensor 7: the layout has 0");
        cr_assert_eq(zero_layout_find(l, "t", &index), ZERO_ENOGROUP);
        cr_assert(strstr(zero_error(NULL), "no tensor 't'"), "%s", zero_error(NULL));
        cr_assert(strstr(zero_layout_error(l), "shape is NULL"), "a question changes no layout");
        zero_layout_free(l);
}

Test(attach, a_partition_is_told_and_what_it_cannot_be_of_is_refused)
{
        uint64_t shape = 1 << 20, first[2], count[2];
        struct zero_tensor t = { .name = "t", .ndim = 1, .shape = &shape };
        struct zero_layout *l;
        uint32_t index;

        cr_assert_eq(zero_layout_new(&l), ZERO_OK);
        cr_assert_eq(zero_layout_group(l, "g", ZERO_FP32, NULL, 0, 0, &index), ZERO_OK);
        cr_assert_eq(zero_layout_tensor(l, index, &t, &index), ZERO_OK);
        cr_assert_eq(zero_layout_whole(l, 1), ZERO_EINVAL);
        cr_assert_str_eq(zero_layout_error(l), "there is no tensor 1: the layout has 1");
        cr_assert_eq(zero_layout_partition(l, 2, (enum zero_dtype)0, first, count), ZERO_OK);
        cr_assert(count[0] == shape / 2 && first[1] == shape / 2 && count[1] == shape / 2);
        cr_assert_eq(zero_layout_whole(l, 0), ZERO_OK);
        cr_assert_eq(zero_layout_partition(l, 2, ZERO_BF16, first, count), ZERO_OK);
        cr_assert(count[0] + count[1] == shape && (count[0] == 0 || count[1] == 0));
        cr_assert_eq(zero_layout_partition(l, 0, (enum zero_dtype)0, first, count), ZERO_EINVAL);
        cr_assert_str_eq(zero_error(NULL), "n_owners is 0: at least one owner");
        cr_assert_eq(zero_layout_partition(l, 2, (enum zero_dtype)99, first, count), ZERO_EINVAL);
        cr_assert(strstr(zero_error(NULL), "dtype 99"), "%s", zero_error(NULL));
        zero_layout_free(l);
}

Test(attach, a_partition_does_not_cut_matrices)
{
        uint64_t shape[] = { 1000, 1024 }, rows[] = { 300, 700 }, first[2], count[2];
        struct zero_tensor t = { .name = "t", .ndim = 2, .shape = shape };
        struct zero_layout *l;
        uint32_t index;

        cr_assert_eq(zero_layout_new(&l), ZERO_OK);
        cr_assert_eq(zero_layout_group(l, "g", ZERO_FP32, NULL, 0, 0, &index), ZERO_OK);
        cr_assert_eq(zero_layout_tensor(l, index, &t, &index), ZERO_OK);
        cr_assert_eq(zero_layout_matrices(l, 0, rows, 1), ZERO_EINVAL);
        cr_assert(strstr(zero_layout_error(l), "more rows"), "%s", zero_layout_error(l));
        cr_assert_eq(zero_layout_matrices(NULL, 0, rows, 2), ZERO_EINVAL);
        cr_assert_eq(zero_layout_matrices(l, 0, rows, 2), ZERO_OK);
        cr_assert_eq(zero_layout_partition(l, 2, (enum zero_dtype)0, first, count), ZERO_OK);
        cr_assert(count[0] + count[1] == 1000 * 1024);
        cr_assert(count[0] == 300 * 1024 || count[1] == 300 * 1024);
        zero_layout_free(l);
}

Test(attach, observer_is_given_the_layout)
{
        struct fake f = { 0 };
        const struct zero_layout *l;
        const uint64_t *shape;
        struct zero_client *c;
        uint32_t t, first;

        fake_start(&f, observe);
        c = observer(&f);
        cr_assert_eq(zero_attach(c, NULL, NULL), ZERO_OK, "%s", zero_error(c));
        l = zero_client_layout(c);
        cr_assert_eq(zero_layout_groups(l), (uint32_t)FAKE_GROUPS);
        cr_assert_str_eq(zero_layout_group_name(l, FAKE_FP32), "h.0");
        cr_assert_eq(zero_layout_group_dtype(l, FAKE_BF16), ZERO_BF16);
        cr_assert_eq(zero_layout_group_tensors(l, FAKE_BF16, &first), 2u);
        cr_assert_eq(zero_layout_find(l, "h.0.w", &t), ZERO_OK);
        cr_assert_eq(zero_layout_tensor_group(l, t), (uint32_t)FAKE_FP32);
        cr_assert_eq(zero_layout_tensor_shape(l, t, &shape), 1u);
        cr_assert_eq(shape[0], 3000u);
        cr_assert_eq(zero_layout_find(l, "nothing", &t), ZERO_ENOGROUP);
        cr_assert(strstr(zero_error(NULL), "'nothing'"), "%s", zero_error(NULL));
        zero_close(c);
        fake_stop(&f);
}

Test(attach, observer_cannot_fetch)
{
        struct fake f = { 0 };
        struct zero_client *c;
        const void *view;

        fake_start(&f, observe);
        c = observer(&f);
        cr_assert_eq(zero_attach(c, NULL, NULL), ZERO_OK);
        cr_assert_eq(zero_fetch(c, 0, &view), ZERO_EPERM);
        zero_close(c);
        fake_stop(&f);
}

Test(attach, layout_accessors_bear_any_index)
{
        struct zero_layout *l = fake_layout();
        const uint64_t *shape;

        cr_assert_null(zero_layout_group_name(l, ZERO_ALL));
        cr_assert_null(zero_layout_tensor_name(l, ZERO_ALL));
        cr_assert_eq(zero_layout_group_elements(l, ZERO_ALL), 0u);
        cr_assert_eq(zero_layout_tensor_elements(l, ZERO_ALL), 0u);
        cr_assert_eq(zero_layout_tensor_shape(l, ZERO_ALL, &shape), 0u);
        zero_layout_free(l);
}

Test(attach, refused_tensor_is_explained)
{
        struct zero_layout *l = fake_layout();
        struct zero_tensor t = { .name = "deep", .ndim = ZERO_DIM_MAX + 1 };
        uint32_t index;

        cr_assert_neq(zero_layout_tensor(l, FAKE_OTHERS, &t, &index), ZERO_OK);
        cr_assert(strstr(zero_layout_error(l), "deep"));
        zero_layout_free(l);
}
