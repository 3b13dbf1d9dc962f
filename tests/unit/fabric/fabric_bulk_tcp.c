/* What only the TCP path has: sealed headers, and bytes that come early. */
#include <criterion/criterion.h>
#include <endian.h>
#include <errno.h>
#include <signal.h>
#include <sodium.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "daemon/fabric/bulk/bulk.h"
#include "nodes.h"

enum { TAG = 16, HEADER = 24 + 2 * TAG, TOKEN = 99 };

/* The path, and the bare socket of its other side. */
static struct side {
        uv_loop_t loop;
        struct bulk_peer *peer;
        int fd;
        bool broken, closed, ended;
        int status;
        char why[128];
} side;

static void on_broken(void *arg, const char *why)
{
        side.broken = true;
        snprintf(side.why, sizeof side.why, "%s", why);
}

static void on_done(void *arg, int status)
{
        side.ended = true;
        side.status = status;
}

static void open_with(enum bulk_seal seal, bool aes, int receive, int send, const void *early,
                      size_t early_size)
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
        memset(channel->receive_key, receive, sizeof channel->receive_key);
        memset(channel->send_key, send, sizeof channel->send_key);
        if (early_size) {
                channel->early = malloc(early_size);
                memcpy(channel->early, early, early_size);
                channel->early_size = early_size;
        }
        cr_assert_eq(bulk_tcp_peer_new(channel, TOKEN, seal, aes, on_broken, NULL, &side.peer), 0);
}

static void open_side(const void *early, size_t early_size)
{
        open_with(BULK_AUTHENTICATED, false, 7, 8, early, early_size);
}

static void close_side(void)
{
        side.peer->ops->close(side.peer, set_true, &side.closed);
        run_until(&side.loop, is_true, &side.closed, 5000);
        close(side.fd);
        end_loop(&side.loop);
}

/* The tag of plain bytes: the header is part 0, its payload part 1. */
static void sign(uint8_t *tag, const void *p, size_t n, uint64_t sequence, uint8_t part)
{
        uint8_t nonce[12] = { [8] = part }, key[CHANNEL_KEY], nothing[1];

        sequence = htole64(sequence);
        memcpy(nonce, &sequence, sizeof sequence);
        memset(key, 7, sizeof key);
        crypto_aead_chacha20poly1305_ietf_encrypt_detached(nothing, tag, NULL, NULL, 0, p, n, NULL,
                                                           nonce, key);
}

/* A header for n bytes, with the tag of those at payload unless that is NULL. */
static void header(uint8_t ret[static HEADER], uint64_t transfer, const void *payload, uint64_t n,
                   uint64_t sequence)
{
        const uint64_t fields[] = { htole64(TOKEN), htole64(transfer), htole64(n) };

        memcpy(ret, fields, sizeof fields);
        memset(ret + sizeof fields, 0, TAG);
        if (payload)
                sign(ret + sizeof fields, payload, n, sequence, 1);
        sign(ret + sizeof fields + TAG, ret, sizeof fields + TAG, sequence, 0);
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
        header(out, 1, "bytes", 5, 0);
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

/* The handshake's read may end anywhere. */
Test(bulk_tcp, bytes_that_came_early_are_not_lost)
{
        for (size_t early = 1; early <= 2 * HEADER + 10; early++) {
                uint8_t out[2 * HEADER + 10], in[5];
                header(out, 1, "first", 5, 0);
                memcpy(out + HEADER, "first", 5);
                header(out + HEADER + 5, 2, "other", 5, 1);
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

/* Flips one bit anywhere. */
Test(bulk_tcp, a_damaged_header_breaks)
{
        for (size_t bit = 0; bit < HEADER * 8; bit += 5) {
                uint8_t out[HEADER], in[1];
                memset(&side, 0, sizeof side);
                open_side(NULL, 0);
                header(out, 1, NULL, 1, 0);
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
        header(out, 1, out + HEADER, 1, 0);
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
        header(out, 1, NULL, 1, 1);
        expect(1, in, 1);
        put(out, sizeof out);
        breaks();
}

Test(bulk_tcp, an_end_in_the_middle_breaks)
{
        uint8_t out[HEADER], in[100];

        open_side(NULL, 0);
        header(out, 1, NULL, sizeof in, 0);
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
        header(out, 1, NULL, UINT64_MAX, 0);
        expect(1, in, 1);
        put(out, sizeof out);
        breaks();
}

/* The sender's end of a path, as bytes on the wire. */
static void seal_payload(enum bulk_seal seal, bool aes, const void *p, size_t n, uint8_t *ret)
{
        memset(&side, 0, sizeof side);
        open_with(seal, aes, 7, 8, NULL, 0);
        cr_assert_eq(side.peer->ops->send(side.peer, 1, p, n, on_done, NULL), 0);
        lands();
        cr_assert_eq(read(side.fd, ret, HEADER + n), (ssize_t)(HEADER + n));
        close_side();
        memset(&side, 0, sizeof side);
}

/* Gives these bytes to a receiver whose keys are the sender's. */
static void open_receiver(enum bulk_seal seal, bool aes, const uint8_t *sent, void *in, size_t n)
{
        memset(&side, 0, sizeof side);
        open_with(seal, aes, 8, 7, NULL, 0);
        expect(1, in, n);
        put(sent, HEADER + n);
}

static void only_encrypted_is_unreadable(bool aes)
{
        static const char text[] = "what nobody is to read";
        for (enum bulk_seal seal = BULK_PLAIN; seal <= BULK_ENCRYPTED; seal++) {
                uint8_t sent[HEADER + sizeof text];
                char in[sizeof text] = "";
                seal_payload(seal, aes, text, sizeof text, sent);
                cr_assert_eq(memcmp(sent + HEADER, text, sizeof text) != 0, seal == BULK_ENCRYPTED);
                open_receiver(seal, aes, sent, in, sizeof in);
                lands();
                cr_assert_str_eq(in, text);
                close_side();
        }
}

static void a_flipped_bit_breaks(bool aes)
{
        for (enum bulk_seal seal = BULK_PLAIN; seal <= BULK_ENCRYPTED; seal++) {
                uint8_t out[300] = { 1, 2, 3 }, in[300], sent[HEADER + sizeof out];
                seal_payload(seal, aes, out, sizeof out, sent);
                sent[sizeof sent - 1] ^= 1;
                open_receiver(seal, aes, sent, in, sizeof in);
                if (seal == BULK_PLAIN) {
                        lands();
                        close_side();
                } else {
                        breaks();
                        cr_assert_eq(side.status, -ECANCELED, "it does not count as landed");
                        cr_assert(strstr(side.why, "damaged on its way"), "%s", side.why);
                }
        }
}

static void needs_aes(void)
{
        if (!bulk_tcp_has_aes())
                cr_skip("this CPU does not compute AES");
}

Test(bulk_tcp, only_an_encrypted_payload_cannot_be_read)
{
        only_encrypted_is_unreadable(false);
}

Test(bulk_tcp, only_an_encrypted_payload_cannot_be_read_by_aes)
{
        needs_aes();
        only_encrypted_is_unreadable(true);
}

Test(bulk_tcp, a_flipped_bit_of_a_payload_breaks_unless_it_is_plain)
{
        a_flipped_bit_breaks(false);
}

Test(bulk_tcp, a_flipped_bit_of_a_payload_breaks_aes_unless_it_is_plain)
{
        needs_aes();
        a_flipped_bit_breaks(true);
}

/* A node of the release before, or on another make of CPU, has the other cipher. */
Test(bulk_tcp, sides_of_different_ciphers_break)
{
        uint8_t out[300] = { 1, 2, 3 }, in[300], sent[HEADER + sizeof out];

        needs_aes();
        seal_payload(BULK_AUTHENTICATED, true, out, sizeof out, sent);
        open_receiver(BULK_AUTHENTICATED, false, sent, in, sizeof in);
        breaks();
}

/* The next beat reveals a missing payload, if no other payload comes. */
Test(bulk_tcp, a_beat_behind_a_lost_payload_breaks)
{
        uint8_t out[HEADER];

        open_side(NULL, 0);
        header(out, UINT64_MAX, NULL, 0, 1);
        put(out, sizeof out);
        breaks();
}

static bool has_beaten(void *arg)
{
        uint8_t in[HEADER];
        return recv(side.fd, in, sizeof in, MSG_DONTWAIT) == sizeof in;
}

Test(bulk_tcp, beats_are_sent_and_taken)
{
        uint8_t out[HEADER + 5], in[5];

        open_side(NULL, 0);
        header(out, UINT64_MAX, "", 0, 0);
        put(out, HEADER);
        header(out, 1, "bytes", 5, 1);
        memcpy(out + HEADER, "bytes", 5);
        expect(1, in, sizeof in);
        put(out, sizeof out);
        lands();
        run_until(&side.loop, has_beaten, NULL, 10 * BULK_BEAT_MS);
        close_side();
}

Test(bulk_tcp, a_connection_without_a_beat_breaks)
{
        open_side(NULL, 0);
        run_until(&side.loop, is_true, &side.broken, 5 * BULK_SILENCE_MS);
        cr_assert(strstr(side.why, "nothing came"), "%s", side.why);
        close_side();
}
