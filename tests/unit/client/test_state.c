/* zero_put(), zero_put_file() and zero_get(): pieces, slots, ranges, planes. */
#include <criterion/criterion.h>
#include <pthread.h>
#include <sys/syscall.h>
#include <sys/uio.h>

#include "fake.h"

enum {
        WTE = 0,
        MASK = 1,
        H0 = 2,
        SLOTS = 4,
        SLOT = FAKE_TRANSFER / SLOTS,
        PIECE = FAKE_TRANSFER / sizeof(float)
};

static struct fake f;
static float stored[3000];

static void store(struct fake *d)
{
        uint64_t next = 100;

        fake_begin(d);
        while (next < 2900) {
                const Zero__Access *a = fake_expect(d, ZERO__REQUEST__BODY_PUT)->put;

                MUST(a->tensor == H0 && a->plane == ZERO_PLANE_MASTER && a->first == next);
                MUST(a->count > 0 && a->first + a->count <= 3000);
                MUST(a->at % SLOT == 0 &&
                     a->at + a->count * sizeof(float) <= a->at / SLOT * SLOT + SLOT);
                memcpy(stored + a->first, d->session + a->at, a->count * sizeof(float));
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

/* Takes as many pieces as the client sends without an answer; answers the second with a refusal. */
static void refuse_one_of_several(struct fake *d)
{
        uint64_t seq[SLOTS];

        fake_begin(d);
        for (int i = 0; i < SLOTS; i++) {
                seq[i] = fake_expect(d, ZERO__REQUEST__BODY_PUT)->seq;
                MUST(d->request->put->at == (uint64_t)i * SLOT);
        }
        fake_refuse(d, seq[1], ZERO_EORDER, "not at a step boundary");
        fake_ok(d, seq[3]);
        fake_ok(d, seq[0]);
        fake_ok(d, seq[2]);
        MUST(fake_expect(d, ZERO__REQUEST__BODY_PUT)->put->count ==
             1); /* of the next call: there was no fifth */
        fake_ok(d, d->request->seq);
        fake_expect_end(d);
}

Test(state, refusal_of_one_piece_ends_the_put_and_nothing_else)
{
        struct zero_client *c = fake_open(&f, refuse_one_of_several, 1);
        float in[3000] = { 0 };

        cr_assert_eq(zero_put(c, H0, ZERO_PLANE_MASTER, 0, 3000, in), ZERO_EORDER);
        cr_assert(strstr(zero_error(c), "not at a step boundary"), "%s", zero_error(c));
        cr_assert(strstr(zero_error(c), "h.0.w"), "%s", zero_error(c));
        cr_assert_eq(zero_put(c, H0, ZERO_PLANE_MASTER, 0, 1, in), ZERO_OK);
        fake_close(&f, c);
}

/* ---- files ------------------------------------------------------------------- */

static int file_of(const void *data, size_t n)
{
        char path[] = "/tmp/zerod-test-XXXXXX";
        int fd = mkstemp(path);

        cr_assert(fd >= 0 && unlink(path) == 0);
        cr_assert_eq(write(fd, data, n), (ssize_t)n);
        return fd;
}

/* Slots are used again only when their pieces are answered; the last answer comes first. */
static void store_16_bits(struct fake *d)
{
        uint64_t seq[SLOTS], next = 0;
        uint16_t *to = (uint16_t *)stored;

        fake_begin(d);
        while (next < 2500) {
                int n = 0;

                for (; n < SLOTS && next < 2500; n++) {
                        const Zero__Access *a = fake_expect(d, ZERO__REQUEST__BODY_PUT)->put;
                        bool first = next < 1500;

                        MUST(a->tensor == H0 && a->plane == ZERO_PLANE_MASTER);
                        MUST(a->dtype == (first ? ZERO_BF16 : ZERO_FP16));
                        MUST(a->first == (first ? next : next - 1500 + 2000));
                        MUST(a->at % SLOT == 0 && a->count * 2 <= SLOT);
                        memcpy(to + next, d->session + a->at, a->count * 2);
                        next += a->count;
                        seq[n] = d->request->seq;
                }
                while (n-- > 0)
                        fake_ok(d, seq[n]);
        }
        fake_expect_end(d);
}

Test(state, runs_of_a_file_come_in_its_own_type)
{
        struct zero_client *c = fake_open(&f, store_16_bits, 1);
        struct zero_values runs[] = { { H0, ZERO_PLANE_MASTER, ZERO_BF16, 0, 1500, 7 },
                                      { H0, ZERO_PLANE_MASTER, ZERO_FP16, 2000, 1000, 3007 + 5 } };
        uint16_t values[2500];
        char data[7 + 3000 + 5 + 2000];
        int fd;

        for (int i = 0; i < 2500; i++)
                values[i] = (uint16_t)(i * 13);
        memset(data, 0xff, sizeof(data));
        memcpy(data + 7, values, 3000);
        memcpy(data + 3012, values + 1500, 2000);
        fd = file_of(data, sizeof(data));
        cr_assert_eq(zero_put_file(c, fd, runs, 2), ZERO_OK, "%s", zero_error(c));
        fake_close(&f, c);
        cr_assert_arr_eq(stored, values, sizeof(values));
        close(fd);
}

static int file; /* that put_all_then_some() reads */

/* A file has all of H0.  The first call ends with this status, the second one, with so many values,
 * well. */
static void put_all_then_some(void (*serve)(struct fake *), int status, const char *why,
                              uint64_t count)
{
        struct zero_client *c = fake_open(&f, serve, 1);
        struct zero_values run = { H0, ZERO_PLANE_MASTER, ZERO_FP32, 0, 3000, 0 };
        static const char data[12000];

        file = file_of(data, sizeof(data));
        cr_assert_eq(zero_put_file(c, file, &run, 1), status);
        cr_assert(strstr(zero_error(c), why), "%s", zero_error(c));
        run.count = count;
        cr_assert_eq(zero_put_file(c, file, &run, 1), ZERO_OK, "%s", zero_error(c));
        fake_close(&f, c);
        close(file);
}

/* With all slots under way the file becomes shorter. */
static void shorten(struct fake *d)
{
        uint64_t seq[SLOTS];

        fake_begin(d);
        for (int i = 0; i < SLOTS; i++)
                seq[i] = fake_expect(d, ZERO__REQUEST__BODY_PUT)->seq;
        MUST(ftruncate(file, SLOTS * SLOT + 3) == 0);
        for (int i = 0; i < SLOTS; i++)
                fake_ok(d, seq[i]);
        fake_ok(d, fake_expect(d, ZERO__REQUEST__BODY_PUT)->seq);
        fake_expect_end(d);
}

Test(state, a_file_that_ends_early_ends_the_call_alone)
{
        put_all_then_some(shorten, ZERO_ECONFLICT, "'h.0.w': the file is shorter", 1);
}

Test(state, runs_are_checked_before_the_first_is_put)
{
        struct zero_client *c = fake_open(&f, fake_only_begin, 1);
        struct zero_values good = { H0, ZERO_PLANE_MASTER, ZERO_FP32, 0, 1, 0 };
        struct {
                int status;
                struct zero_values values;
        } bad[] = {
                { ZERO_ENOGROUP, { 99, ZERO_PLANE_MASTER, ZERO_FP32, 0, 1, 0 } },
                { ZERO_ERANGE, { H0, ZERO_PLANE_MASTER, ZERO_FP32, 2999, 2, 0 } },
                { ZERO_ERANGE, { H0, ZERO_PLANE_MASTER, ZERO_FP32, 0, 1, INT64_MAX - 3 } },
                { ZERO_ECONFLICT, { H0, ZERO_PLANE_MASTER, ZERO_FP32, 0, 1, 13 } },
                { ZERO_ECONFLICT, { H0, ZERO_PLANE_MASTER, ZERO_FP32, 0, 1, 17 } },
                { ZERO_ECONFLICT, { H0, ZERO_PLANE_MASTER, ZERO_FP32, 0, 5, 0 } },
                { ZERO_EINVAL, { H0, ZERO_PLANE_STEP, ZERO_FP32, 0, 1, 0 } },
                { ZERO_EINVAL, { H0, ZERO_PLANE_SERVE, ZERO_FP32, 0, 1, 0 } },
                { ZERO_EINVAL, { H0, ZERO_PLANE_MASTER, ZERO_INT8, 0, 1, 0 } },
                { ZERO_EINVAL, { H0, ZERO_PLANE_MASTER, 77, 0, 1, 0 } },
        };
        int fd = file_of("0123456789abcdef", 16);

        for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
                struct zero_values runs[] = { good, bad[i].values };

                cr_assert_eq(zero_put_file(c, fd, runs, 2), bad[i].status, "run %zu", i);
                cr_assert(bad[i].status != ZERO_ECONFLICT || strstr(zero_error(c), "h.0.w"), "%s",
                          zero_error(c));
        }
        cr_assert_eq(zero_put_file(c, -1, &good, 1), ZERO_EINVAL);
        cr_assert_eq(zero_put_file(c, fd, NULL, 1), ZERO_EINVAL);
        cr_assert_eq(zero_put_file(c, fd, NULL, 0), ZERO_OK);
        fake_close(&f, c);
        close(fd);
}

/* ---- disks ------------------------------------------------------------------- */

/* Of libzero: the page cache has all of a file or nothing, and a disk does not answer while it is
 * held. */
static bool nothing_is_cached;
static pthread_mutex_t disk = PTHREAD_MUTEX_INITIALIZER;

__attribute__((visibility("default"))) ssize_t pread(int fd, void *to, size_t bytes, off_t at)
{
        ssize_t n;

        pthread_mutex_lock(&disk);
        n = syscall(SYS_pread64, fd, to, bytes, at);
        pthread_mutex_unlock(&disk);
        return n;
}

__attribute__((visibility("default"))) ssize_t preadv2(int fd, const struct iovec *to, int n,
                                                       off_t at, int flags)
{
        if (!nothing_is_cached)
                return syscall(SYS_preadv, fd, to, n, at, 0L);
        errno = EAGAIN;
        return -1;
}

static int put_from_a_held_disk(struct zero_client *c)
{
        struct zero_values run = { H0, ZERO_PLANE_MASTER, ZERO_FP32, 0, 3000, 0 };
        static const char data[12000];
        int fd = file_of(data, sizeof(data)), status;

        nothing_is_cached = true;
        pthread_mutex_lock(&disk);
        status = zero_put_file(c, fd, &run, 1);
        pthread_mutex_unlock(&disk);
        close(fd);
        return status;
}

Test(state, a_disk_that_does_not_answer_ends_the_call_by_its_deadline)
{
        struct zero_layout *l = fake_layout();
        struct zero_needs needs = fake_needs(1);
        struct zero_options options;
        struct zero_client *c;

        fake_start(&f, fake_only_begin);
        options = fake_options(&f);
        options.timeout_ms = 10;
        cr_assert_eq(zero_connect(&options, &c), ZERO_OK);
        cr_assert_eq(zero_attach(c, l, &needs), ZERO_OK);
        zero_layout_free(l);
        cr_assert_eq(put_from_a_held_disk(c), ZERO_EDEADLINE);
        cr_assert(strstr(zero_error(c), "'h.0.w': reading the file: the disk"), "%s",
                  zero_error(c));
        fake_close(&f, c);
}

static void *interrupter(void *c)
{
        usleep(50000);
        zero_interrupt(c);
        return NULL;
}

Test(state, a_wait_for_a_disk_can_be_interrupted)
{
        struct zero_client *c = fake_open(&f, fake_only_begin, 1);
        pthread_t thread;

        cr_assert_eq(pthread_create(&thread, NULL, interrupter, c), 0);
        cr_assert_eq(put_from_a_held_disk(c), ZERO_ECLOSED);
        cr_assert(strstr(zero_error(c), "interrupted"), "%s", zero_error(c));
        pthread_join(thread, NULL);
        fake_close(&f, c);
}

/* The daemon is lost with pieces under way. */
static void die_with_pieces(struct fake *d)
{
        fake_begin(d);
        fake_ok(d, fake_expect(d, ZERO__REQUEST__BODY_PUT)->seq);
        for (int i = 0; i < SLOTS; i++)
                fake_expect(d, ZERO__REQUEST__BODY_PUT);
        fake_restart(d);
        for (int i = 0; i < 3; i++)
                fake_ok(d, fake_expect(d, ZERO__REQUEST__BODY_PUT)->seq);
        fake_expect_end(d);
}

Test(state, a_lost_daemon_aborts_a_put_of_many_pieces)
{
        put_all_then_some(die_with_pieces, ZERO_EABORTED, "", 2 * SLOT / sizeof(float) + 1);
}
