/* Private views: one address, the service's bytes at each fetch, and no effect on anybody else's
 * copy. */
#include <criterion/criterion.h>
#include <fcntl.h>
#include <sys/mman.h>

#include "fake.h"

static struct fake f;

#define OK(call) cr_assert_eq(call, ZERO_OK, "%s", zero_error(c))

enum { BYTES = 3072 * 4 }; /* of FAKE_FP32 */

static void answer_fetch(struct fake *d, bool serve, uint64_t offset)
{
        fake_expect(d, ZERO__REQUEST__BODY_FETCH);
        fake_fetched(d, d->request->seq, serve, offset);
}

static void answer_release(struct fake *d)
{
        fake_ok(d, fake_expect(d, ZERO__REQUEST__BODY_RELEASE)->seq);
}

static void two_places(struct fake *d)
{
        fake_begin(d);
        memset(d->gather, 1, BYTES);
        memset(d->gather + 16384, 2, BYTES);
        answer_fetch(d, false, 0);
        answer_release(d);
        answer_fetch(d, false, 16384);
        answer_release(d);
        answer_fetch(d, false, 0);
        fake_expect_end(d);
        for (int i = 0; i < BYTES; i++)
                MUST(d->gather[i] == 1 && d->gather[16384 + i] == 2);
}

static void fetch_and_scribble(struct zero_client *c, uint8_t expected, uint8_t **ret)
{
        const void *view = NULL;

        OK(zero_fetch(c, FAKE_FP32, &view));
        cr_assert(*ret == NULL || *ret == view, "the group has moved");
        *ret = (uint8_t *)view;
        cr_assert_eq((*ret)[0], expected);
        cr_assert_eq((*ret)[BYTES - 1], expected);
        memset(*ret, 99, BYTES);
}

Test(views, one_address_and_the_service_s_bytes_at_each_fetch)
{
        struct zero_client *c = fake_open_private(&f, two_places);
        uint8_t *view = NULL;

        fetch_and_scribble(c, 1, &view);
        OK(zero_release(c, FAKE_FP32, NULL));
        fetch_and_scribble(c, 2, &view);
        OK(zero_release(c, FAKE_FP32, NULL));
        fetch_and_scribble(c, 1, &view);
        fake_close(&f, c);
}

static void nested(struct fake *d)
{
        fake_begin(d);
        answer_fetch(d, false, 0);
        answer_release(d);
        fake_expect_end(d);
}

Test(views, what_was_written_stays_until_the_last_release)
{
        struct zero_client *c = fake_open_private(&f, nested);
        const void *a = NULL, *b = NULL;

        OK(zero_fetch(c, FAKE_FP32, &a));
        *(uint8_t *)a = 7;
        OK(zero_fetch(c, FAKE_FP32, &b));
        cr_assert_eq(a, b);
        OK(zero_release(c, FAKE_FP32, NULL));
        cr_assert_eq(*(const uint8_t *)b, 7);
        OK(zero_release(c, FAKE_FP32, NULL));
        fake_close(&f, c);
}

Test(views, a_released_one_cannot_be_read)
{
        struct zero_client *c = fake_open_private(&f, nested);
        const void *view = NULL;

        OK(zero_fetch(c, FAKE_FP32, &view));
        OK(zero_release(c, FAKE_FP32, NULL));
        cr_assert_not(fake_readable(view));
        fake_close(&f, c);
}

static void step_between(struct fake *d)
{
        fake_begin(d);
        answer_fetch(d, false, 0);
        fake_expect(d, ZERO__REQUEST__BODY_STEP);
        memset(d->gather, 3, BYTES);
        fake_stepped(d, d->request->seq, ZERO_OK, 8, 21);
        answer_fetch(d, false, 0);
        fake_expect_end(d);
}

Test(views, a_step_ends_them)
{
        struct zero_client *c = fake_open_private(&f, step_between);
        static const struct zero_set adamw = { .adamw = { 1e-3, 0.9, 0.999, 1e-8, 0.01 } };
        struct zero_step_options step = { .sets = &adamw, .n_sets = 1 };
        uint8_t *view = NULL;

        fetch_and_scribble(c, 0, &view);
        OK(zero_step(c, &step, NULL));
        cr_assert_eq(msync(view, 4096, MS_ASYNC), 0, "its addresses stay reserved");
        fetch_and_scribble(c, 3, &view);
        fake_close(&f, c);
}

static void serve_and_gather(struct fake *d)
{
        fake_begin(d);
        memset(d->serve + 4096, 5, 1024);
        memset(d->gather, 6, BYTES);
        answer_fetch(d, true, 4096);
        answer_fetch(d, false, 0);
        answer_release(d);
        answer_fetch(d, true, 4096);
        fake_expect_end(d);
        MUST(d->serve[4096] == 5);
}

Test(views, a_view_served_in_place_is_private)
{
        struct zero_client *c = fake_open_private(&f, serve_and_gather);
        const void *served = NULL, *again = NULL;
        uint8_t *gathered = NULL;

        OK(zero_fetch(c, FAKE_BF16, &served));
        cr_assert_eq(*(const uint8_t *)served, 5);
        *(uint8_t *)served = 77;
        fetch_and_scribble(c, 6, &gathered);
        cr_assert_eq(*(const uint8_t *)served, 77, "another group's fetch is none of its business");
        OK(zero_release(c, FAKE_BF16, NULL));
        OK(zero_fetch(c, FAKE_BF16, &again));
        cr_assert_eq(served, again);
        cr_assert_eq(*(const uint8_t *)again, 5);
        fake_close(&f, c);
}

static void astray(struct fake *d)
{
        fake_begin(d);
        answer_fetch(d, false, 100);
        fake_expect_end(d);
}

Test(views, a_place_within_a_page_closes)
{
        struct zero_client *c = fake_open_private(&f, astray);
        const void *view = NULL;

        cr_assert_eq(zero_fetch(c, FAKE_FP32, &view), ZERO_ECLOSED);
        cr_assert_null(view);
        fake_close(&f, c);
}

/* The memory that the daemon passes is sealed: nobody else may write, but a private copy is
 * allowed. */
Test(views, sealed_memory_may_be_mapped_privately)
{
        int fd = memfd_create("sealed", MFD_CLOEXEC | MFD_ALLOW_SEALING);
        uint8_t *shared, *own;

        cr_assert_eq(ftruncate(fd, 4096), 0);
        shared = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
        cr_assert_eq(fcntl(fd, F_ADD_SEALS, F_SEAL_FUTURE_WRITE | F_SEAL_SHRINK | F_SEAL_GROW), 0);
        shared[0] = 1;
        own = mmap(NULL, 4096, PROT_READ, MAP_PRIVATE | MAP_POPULATE, fd, 0);
        cr_assert_neq(own, MAP_FAILED);
        cr_assert_eq(mprotect(own, 4096, PROT_READ | PROT_WRITE), 0);
        own[0] = 2;
        cr_assert_eq(shared[0], 1);
        close(fd);
}
