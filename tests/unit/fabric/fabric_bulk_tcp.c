/* What only the TCP path has: headers that nobody can forge, and bytes that came early. */
#include <criterion/criterion.h>
#include <endian.h>
#include <errno.h>
#include <signal.h>
#include <sodium.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "daemon/fabric/bulk.h"
#include "nodes.h"

enum { HEADER = 48, TOKEN = 99 };

/* The path, and the bare socket of its other side. */
static struct side {
        uv_loop_t loop;
        struct bulk_peer *peer;
        int fd;
        uint8_t key[CHANNEL_KEY];
        bool broken, closed, ended;
        int status;
} side;

static void on_broken(void *arg, const char *why)
{
        side.broken = true;
}

static void on_done(void *arg, int status)
{
        side.ended = true;
        side.status = status;
}

static void open_side(const void *early, size_t early_size)
{
        struct channel *channel = calloc(1, sizeof *channel);
        int fd[2];

        signal(SIGPIPE, SIG_IGN);
        cr_assert_geq(sodium_init(), 0);
        cr_assert_eq(socketpair(AF_UNIX, SOCK_STREAM, 0, fd), 0);
        uv_loop_init(&side.loop);
        cr_assert_eq(uv_tcp_init(&side.loop, &channel->tcp), 0);
        cr_assert_eq(uv_tcp_open(&channel->tcp, fd[0]), 0);
        side.fd = fd[1];
        memset(side.key, 7, sizeof side.key);
        memcpy(channel->receive_key, side.key, sizeof side.key);
        memset(channel->send_key, 8, sizeof channel->send_key);
        if (early_size) {
                channel->early = malloc(early_size);
                memcpy(channel->early, early, early_size);
                channel->early_size = early_size;
        }
        cr_assert_eq(bulk_tcp_peer_new(channel, TOKEN, on_broken, NULL, &side.peer), 0);
}

static void close_side(void)
{
        side.peer->ops->close(side.peer, set_true, &side.closed);
        run_until(&side.loop, is_true, &side.closed, 5000);
        close(side.fd);
        end_loop(&side.loop);
}

static void header(uint8_t p[static HEADER], uint64_t transfer, uint64_t length, uint64_t sequence)
{
        const uint64_t fields[] = { htole64(TOKEN), htole64(transfer), htole64(length),
                                    htole64(sequence) };

        memset(side.key, 7, sizeof side.key);
        memcpy(p, fields, sizeof fields);
        crypto_generichash(p + sizeof fields, 16, p, sizeof fields, side.key, sizeof side.key);
}

static void expect(uint64_t transfer, void *p, size_t n)
{
        side.ended = false;
        cr_assert_eq(side.peer->ops->expect(side.peer, transfer, p, n, on_done, NULL), 0);
}

static void put(const void *p, size_t n)
{
        cr_assert_eq(write(side.fd, p, n), (ssize_t)n);
}

static void lands(void)
{
        run_until(&side.loop, is_true, &side.ended, 5000);
        cr_assert_eq(side.status, 0);
        cr_assert(!side.broken);
}

static void breaks(void)
{
        run_until(&side.loop, is_true, &side.broken, 5000);
        close_side();
}

Test(bulk_tcp, a_payload_in_single_bytes_lands)
{
        uint8_t out[HEADER + 5] = { 0 }, in[5];

        open_side(NULL, 0);
        header(out, 1, 5, 0);
        memcpy(out + HEADER, "bytes", 5);
        expect(1, in, 5);
        for (size_t i = 0; i < sizeof out; i++) {
                put(out + i, 1);
                uv_run(&side.loop, UV_RUN_NOWAIT);
        }
        lands();
        cr_assert_eq(memcmp(in, "bytes", 5), 0);
        close_side();
}

static uint8_t other_in[5];

static bool other_is_in(void *arg)
{
        return memcmp(other_in, "other", 5) == 0;
}

/* Wherever the handshake's read happened to end. */
Test(bulk_tcp, bytes_that_came_early_are_not_lost)
{
        for (size_t early = 1; early <= 2 * HEADER + 10; early++) {
                uint8_t out[2 * HEADER + 10], in[5];
                header(out, 1, 5, 0);
                memcpy(out + HEADER, "first", 5);
                header(out + HEADER + 5, 2, 5, 1);
                memcpy(out + 2 * HEADER + 5, "other", 5);
                memset(&side, 0, sizeof side);
                memset(other_in, 0, sizeof other_in);
                open_side(out, early);
                expect(1, in, 5);
                expect(2, other_in, 5);
                put(out + early, sizeof out - early);
                run_until(&side.loop, other_is_in, NULL, 5000);
                cr_assert_eq(memcmp(in, "first", 5), 0);
                cr_assert(!side.broken);
                close_side();
        }
}

/* One bit anywhere. */
Test(bulk_tcp, a_damaged_header_breaks)
{
        for (size_t bit = 0; bit < HEADER * 8; bit += 5) {
                uint8_t out[HEADER], in[1];
                memset(&side, 0, sizeof side);
                open_side(NULL, 0);
                header(out, 1, 1, 0);
                out[bit / 8] ^= (uint8_t)(1 << bit % 8);
                expect(1, in, 1);
                put(out, sizeof out);
                breaks();
        }
}

Test(bulk_tcp, a_replayed_header_breaks)
{
        uint8_t out[HEADER + 1] = { 0 }, in[1];

        open_side(NULL, 0);
        header(out, 1, 1, 0);
        expect(1, in, 1);
        put(out, sizeof out);
        lands();
        expect(1, in, 1);
        put(out, sizeof out);
        breaks();
}

Test(bulk_tcp, a_header_left_out_breaks)
{
        uint8_t out[HEADER], in[1];

        open_side(NULL, 0);
        header(out, 1, 1, 1);
        expect(1, in, 1);
        put(out, sizeof out);
        breaks();
}

Test(bulk_tcp, an_end_in_the_middle_breaks)
{
        uint8_t out[HEADER], in[100];

        open_side(NULL, 0);
        header(out, 1, sizeof in, 0);
        expect(1, in, sizeof in);
        put(out, sizeof out);
        put(out, 10);
        shutdown(side.fd, SHUT_WR);
        breaks();
        cr_assert_eq(side.status, -ECANCELED);
}

/* A length far beyond memory is compared, not believed. */
Test(bulk_tcp, a_huge_length_breaks)
{
        uint8_t out[HEADER], in[1];

        open_side(NULL, 0);
        header(out, 1, UINT64_MAX, 0);
        expect(1, in, 1);
        put(out, sizeof out);
        breaks();
}
