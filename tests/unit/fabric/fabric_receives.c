/* The rules of receiving, without a path: pieces, numbers and forgotten payloads. */
#include <criterion/criterion.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/fabric/bulk/common.h"
#include "nodes.h"

static struct {
        uv_loop_t loop;
        struct bulk_queue queue;
        struct bulk_base base;
        int broken, ended[4096], status[4096];
} at;

static void on_broken(void *arg, const char *why)
{
        at.broken++;
}

static void on_done(void *arg, int status)
{
        int i = *(int *)arg;

        at.ended[i]++;
        at.status[i] = status;
}

static void on_closed(void *arg)
{
}

static int numbers[4096];

static void begin(void)
{
        static const struct bulk_ops ops = { .name = "none" };

        memset(&at, 0, sizeof at);
        for (int i = 0; i < 4096; i++)
                numbers[i] = i;
        uv_loop_init(&at.loop);
        bulk_queue_init(&at.queue, &at.loop);
        bulk_base_init(&at.base, &ops, &at.queue, on_broken, NULL);
}

static void end(void)
{
        bulk_base_begin_close(&at.base, on_closed, NULL);
        bulk_queue_drain(&at.queue);
        bulk_base_deinit(&at.base);
        uv_close((uv_handle_t *)&at.queue.idle, NULL);
        end_loop(&at.loop);
}

static int expect(int i, uint64_t transfer, void *p, size_t n)
{
        return bulk_base_expect(&at.base.peer, transfer, p, n, on_done, &numbers[i]);
}

static void piece(uint64_t transfer, uint64_t n, uint64_t offset, const char *text)
{
        bulk_base_piece(&at.base, transfer, n, offset, text, strlen(text));
        bulk_queue_drain(&at.queue);
}

Test(receives, pieces_land_in_any_order)
{
        char in[9] = "";

        begin();
        expect(0, 1, in, 8);
        piece(1, 8, 5, "678");
        piece(1, 8, 0, "12");
        cr_assert_eq(at.ended[0], 0);
        piece(1, 8, 2, "345");
        cr_assert_eq(at.ended[0], 1);
        cr_assert_eq(at.status[0], 0);
        cr_assert_str_eq(in, "12345678");
        cr_assert_eq(at.base.peer.received_bytes, 8);
        end();
}

static void a_piece_breaks(uint64_t transfer, uint64_t n, uint64_t offset, const char *text)
{
        char in[10] = "";

        begin();
        expect(0, 1, in, 8);
        piece(1, 8, 0, "12345");
        piece(transfer, n, offset, text);
        cr_assert_eq(at.broken, 1);
        cr_assert_str_eq(in, "12345");
        end();
        cr_assert_eq(at.status[0], -ECANCELED);
}

Test(receives, a_piece_too_much_breaks)
{
        a_piece_breaks(1, 8, 0, "abcd");
}

Test(receives, a_piece_that_lies_outside_breaks)
{
        a_piece_breaks(1, 8, 6, "abc");
        a_piece_breaks(1, 8, 9, "");
        a_piece_breaks(1, 8, UINT64_MAX, "abc");
        a_piece_breaks(1, 8, UINT64_MAX - 1, "abc");
}

Test(receives, an_empty_piece_breaks)
{
        a_piece_breaks(1, 8, 5, "");
}

Test(receives, a_piece_of_another_total_breaks)
{
        a_piece_breaks(1, 9, 5, "678");
        a_piece_breaks(1, 7, 5, "67");
}

Test(receives, a_piece_nobody_expects_breaks)
{
        a_piece_breaks(2, 8, 5, "678");
}

/* Announced payloads come whole. */
static void an_announced_piece_breaks(bool expected)
{
        char in[4] = "";

        begin();
        at.base.peer.announces = true;
        if (expected)
                expect(0, BULK_ANNOUNCED | 1, in, 3);
        piece(BULK_ANNOUNCED | 1, 3, 0, "abc");
        cr_assert_eq(at.broken, 1);
        cr_assert_str_eq(at.base.why, "it sent a piece of an announced payload");
        cr_assert_str_eq(in, "");
        end();
}

Test(receives, a_piece_of_an_announced_payload_breaks)
{
        an_announced_piece_breaks(false);
        an_announced_piece_breaks(true);
}

Test(receives, an_announced_number_forgotten_twice_is_remembered_once)
{
        struct receive *receive;

        begin();
        at.base.peer.announces = true;
        bulk_base_forget(&at.base.peer, BULK_ANNOUNCED | 1);
        bulk_base_forget(&at.base.peer, BULK_ANNOUNCED | 1);
        cr_assert_eq(bulk_base_arrive(&at.base, BULK_ANNOUNCED | 1, 3, &receive), 1);
        cr_assert_eq(bulk_base_arrive(&at.base, BULK_ANNOUNCED | 1, 3, &receive), 2);
        end();
}

Test(receives, the_rest_of_what_was_forgotten_is_dropped)
{
        char in[9] = "";

        begin();
        expect(0, 1, in, 8);
        piece(1, 8, 0, "12");
        bulk_base_forget(&at.base.peer, 1);
        bulk_queue_drain(&at.queue);
        cr_assert_eq(at.status[0], -ECANCELED);
        piece(1, 8, 2, "345");
        piece(1, 8, 5, "678");
        cr_assert_str_eq(in, "12", "nothing is written behind its end");
        cr_assert_eq(at.broken, 0);
        piece(1, 8, 0, "12");
        cr_assert_eq(at.broken, 1, "behind its last piece it is unknown");
        end();
}

/* Numbers come and go in any order; each ends once, and the table ends empty. */
Test(receives, many_numbers_come_and_go)
{
        enum { N = 4096 };
        static char in[N];

        begin();
        for (int i = 0; i < N; i++)
                cr_assert_eq(expect(i, (uint64_t)i * 64, &in[i], 1), 0);
        for (int k = 0; k < N; k++) {
                int i = k * 1531 % N;
                cr_assert_eq(expect(0, (uint64_t)i * 64, &in[i], 1), -EEXIST);
                if (k % 16 == 3)
                        bulk_base_forget(&at.base.peer, (uint64_t)i * 64);
                else
                        piece((uint64_t)i * 64, 1, 0, "x");
        }
        bulk_queue_drain(&at.queue);
        cr_assert_eq(at.broken, 0);
        cr_assert_eq(at.base.receives.n, 0);
        for (int k = 0; k < N; k++) {
                int i = k * 1531 % N;
                cr_assert_eq(at.ended[i], 1);
                cr_assert_eq(at.status[i], k % 16 == 3 ? -ECANCELED : 0);
        }
        end();
}
