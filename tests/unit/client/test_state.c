/* zero_put() and zero_get(): pieces, ranges, planes. */
#include <criterion/criterion.h>

#include "fake.h"

enum { WTE = 0, MASK = 1, H0 = 2, PIECE = FAKE_TRANSFER / sizeof(float) };

static struct fake f;
static float stored[3000];

static void store(struct fake *d)
{
        uint64_t next = 100;

        fake_begin(d);
        while (next < 2900) {
                const Zero__Access *a = fake_expect(d, ZERO__REQUEST__BODY_PUT)->put;

                MUST(a->tensor == H0 && a->plane == ZERO_PLANE_MASTER && a->first == next);
                MUST(a->count > 0 && a->count <= PIECE && a->first + a->count <= 3000);
                memcpy(stored + a->first, d->session, a->count * sizeof(float));
                next += a->count;
                fake_ok(d, d->request->seq);
        }
        MUST(next == 2900);
        while (next > 100) {
                const Zero__Access *a = fake_expect(d, ZERO__REQUEST__BODY_GET)->get;

                MUST(a->first + a->count <= 3000 && a->count <= PIECE);
                memcpy(d->session, stored + a->first, a->count * sizeof(float));
                next -= a->count;
                fake_ok(d, d->request->seq);
        }
        fake_expect_end(d);
}

Test(state, what_is_put_in_pieces_is_got_again)
{
        struct zero_client *c = fake_open(&f, store, 1);
        float in[2800], out[2800] = { 0 };

        for (int i = 0; i < 2800; i++)
                in[i] = (float)i;
        cr_assert_eq(zero_put(c, H0, ZERO_PLANE_MASTER, 100, 2800, in), ZERO_OK);
        cr_assert_eq(zero_get(c, H0, ZERO_PLANE_MASTER, 100, 2800, out), ZERO_OK);
        cr_assert_arr_eq(in, out, sizeof(in));
        fake_close(&f, c);
}

static void serve_bf16(struct fake *d)
{
        fake_begin(d);
        MUST(fake_expect(d, ZERO__REQUEST__BODY_GET)->get->count == 300);
        memset(d->session, 0x3f, 600);
        fake_ok(d, d->request->seq);
        fake_expect_end(d);
}

Test(state, serve_is_read_in_the_groups_dtype)
{
        struct zero_client *c = fake_open(&f, serve_bf16, 1);
        uint16_t out[301] = { 0 };

        cr_assert_eq(zero_get(c, WTE, ZERO_PLANE_SERVE, 0, 300, out), ZERO_OK);
        cr_assert_eq(out[299], 0x3f3f);
        cr_assert_eq(out[300], 0);
        fake_close(&f, c);
}

static void steps(struct fake *d)
{
        uint64_t step = 12;

        fake_begin(d);
        fake_expect(d, ZERO__REQUEST__BODY_GET);
        memcpy(d->session, &step, sizeof(step));
        fake_ok(d, d->request->seq);
        fake_expect_end(d);
}

Test(state, step_is_one_number_a_tensor)
{
        struct zero_client *c = fake_open(&f, steps, 1);
        uint64_t step = 0;

        cr_assert_eq(zero_get(c, H0, ZERO_PLANE_STEP, 0, 1, &step), ZERO_OK);
        cr_assert_eq(step, 12u);
        cr_assert_eq(zero_get(c, H0, ZERO_PLANE_STEP, 1, 1, &step), ZERO_ERANGE);
        fake_close(&f, c);
}

Test(state, ranges_and_planes_are_checked_here)
{
        struct zero_client *c = fake_open(&f, fake_only_begin, 1);
        float x = 0;

        cr_assert_eq(zero_get(c, 99, ZERO_PLANE_MASTER, 0, 1, &x), ZERO_ENOGROUP);
        cr_assert_eq(zero_get(c, H0, ZERO_PLANE_MASTER, 3000, 1, &x), ZERO_ERANGE);
        cr_assert_eq(zero_get(c, H0, ZERO_PLANE_MASTER, 2, UINT64_MAX, &x), ZERO_ERANGE);
        cr_assert_eq(zero_put(c, H0, ZERO_PLANE_MASTER, UINT64_MAX, 2, &x), ZERO_ERANGE);
        cr_assert_eq(zero_put(c, H0, ZERO_PLANE_SERVE, 0, 1, &x), ZERO_EINVAL);
        cr_assert_eq(zero_get(c, H0, ZERO_PLANE_GRAD, 0, 1, &x), ZERO_EINVAL);
        cr_assert_eq(zero_get(c, H0, 77, 0, 1, &x), ZERO_EINVAL);
        cr_assert_eq(zero_get(c, MASK, ZERO_PLANE_EXP_AVG, 0, 1, &x), ZERO_EINVAL);
        cr_assert_eq(zero_get(c, H0, ZERO_PLANE_MASTER, 3000, 0, &x), ZERO_OK);
        fake_close(&f, c);
}

static void refuse_second_piece(struct fake *d)
{
        fake_begin(d);
        fake_ok(d, fake_expect(d, ZERO__REQUEST__BODY_PUT)->seq);
        fake_expect(d, ZERO__REQUEST__BODY_PUT);
        fake_refuse(d, d->request->seq, ZERO_EORDER, "not at a step boundary");
        fake_expect_end(d);
}

Test(state, refusal_ends_the_transfer)
{
        struct zero_client *c = fake_open(&f, refuse_second_piece, 1);
        float in[3000] = { 0 };

        cr_assert_eq(zero_put(c, H0, ZERO_PLANE_MASTER, 0, 3000, in), ZERO_EORDER);
        cr_assert_str_eq(zero_error(c), "not at a step boundary");
        fake_close(&f, c);
}
