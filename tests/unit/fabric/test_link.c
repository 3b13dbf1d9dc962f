/*
 * A node's links against a peer that misbehaves after the handshake: node b runs members; a is a
 * door whose channels this file drives.
 */
#include "daemon/fabric/link/door.h"
#include "daemon/fabric/link/encrypted.h"
#include "daemon/fabric/link/link.h"
#include "nodes.h"
#include "proto/frame.h"

#include <criterion/criterion.h>
#include <errno.h>
#include <string.h>

enum { SOON_MS = 10000, SILENCE_MS = 200 };

static const struct members_options options = {
        .heartbeat = 20,
        .silence = SILENCE_MS,
        .handshake = 2000,
        .dial_first = 4,
        .dial_last = 40,
        .queue_max = 4 << 20,
};

struct scene {
        uv_loop_t loop;
        struct cluster of_a, of_b;
        struct door *a;
        struct channel *channel; /* of a, to b */
        struct members *b;
        uint32_t ups, downs, bulks;
        uint64_t token;
        char why[256];
        char a_why[256];
        bool down_before_up; /* since the last up */
        bool dialled, linked, a_closed, b_closed;
};

static void on_up(void *arg, uint32_t node)
{
        struct scene *s = arg;
        s->ups++;
        s->down_before_up = s->downs == s->ups - 1;
}

static void on_down(void *arg, uint32_t node, const char *why)
{
        struct scene *s = arg;
        s->downs++;
        snprintf(s->why, sizeof s->why, "%s", why);
}

static void on_message(void *arg, uint32_t node, const Zero__LinkMessage *m)
{
}

static void on_bulk(void *arg, struct channel *channel)
{
        struct scene *s = arg;
        s->bulks++;
        s->token = channel->token;
        channel_close(channel);
}

static void on_nobody(void *arg, struct channel *channel)
{
        channel_close(channel);
}

static void on_dialled(void *arg, struct channel *channel, const char *why)
{
        struct scene *s = arg;
        cr_assert(channel, "%s", why);
        s->channel = channel;
        s->dialled = true;
}

static void dial(struct scene *s, enum channel_role role)
{
        s->dialled = false;
        cr_assert_eq(door_dial(s->a, 1, role, 99, on_dialled, s), 0);
        run_until(&s->loop, is_true, &s->dialled, SOON_MS);
}

static bool is_up(void *arg)
{
        return ((struct scene *)arg)->ups > 0;
}

static bool is_down(void *arg)
{
        return ((struct scene *)arg)->downs > 0;
}

static void init(struct scene *s)
{
        struct members_events events = {
                .up = on_up, .down = on_down, .message = on_message, .bulk = on_bulk, .arg = s
        };
        struct door_events nothing = { .incoming = on_nobody };
        struct fault fault;
        memset(s, 0, sizeof *s);
        uv_loop_init(&s->loop);
        make_cluster(&s->of_a, 2, 0);
        make_cluster(&s->of_b, 2, 1);
        cr_assert_eq(door_open(&s->loop, &s->of_a, &nothing, &s->a, &fault), 0, "%s", fault.text);
        cr_assert_eq(members_new_with(&s->loop, &s->of_b, &options, &events, &s->b, &fault), 0,
                     "%s", fault.text);
}

static void init_up(struct scene *s)
{
        init(s);
        dial(s, CHANNEL_LINK);
        run_until(&s->loop, is_up, s, SOON_MS);
}

static void end(struct scene *s)
{
        channel_close(s->channel);
        door_close(s->a, set_true, &s->a_closed);
        members_close(s->b, set_true, &s->b_closed);
        run_until(&s->loop, is_true, &s->a_closed, SOON_MS);
        run_until(&s->loop, is_true, &s->b_closed, SOON_MS);
        end_loop(&s->loop);
}

static void expect_down(struct scene *s, const char *why)
{
        run_until(&s->loop, is_down, s, SOON_MS);
        cr_assert(strstr(s->why, why), "%s", s->why);
}

static void write_raw(struct scene *s, const void *p, size_t n)
{
        uv_buf_t buffer = uv_buf_init((char *)p, (unsigned)n);
        cr_assert_eq(uv_try_write((uv_stream_t *)&s->channel->tcp, &buffer, 1), (int)n);
}

Test(link, a_silent_peer_is_given_up)
{
        struct scene s;
        init_up(&s);
        uint64_t before = uv_now(&s.loop);
        expect_down(&s, "silent");
        cr_assert_geq(uv_now(&s.loop) - before, SILENCE_MS - 20);
        end(&s);
}

Test(link, a_peer_that_hangs_up_is_down)
{
        struct scene s;
        init_up(&s);
        channel_close(s.channel);
        s.channel = NULL;
        expect_down(&s, "closed the connection");
        end(&s);
}

Test(link, forged_frames_are_refused)
{
        struct scene s;
        uint8_t bytes[24 + FRAME_HEADER + 40] = { 0 };
        init_up(&s);
        frame_write_header(bytes + 24, 40);
        write_raw(&s, bytes, sizeof bytes);
        expect_down(&s, "forged or damaged");
        end(&s);
}

Test(link, a_frame_above_the_limit_is_refused_at_its_length)
{
        struct scene s;
        uint8_t bytes[24 + FRAME_HEADER] = { 0 };
        init_up(&s);
        frame_write_header(bytes + 24, UINT32_MAX);
        write_raw(&s, bytes, sizeof bytes);
        expect_down(&s, "above the limit");
        end(&s);
}

Test(link, a_frame_too_short_to_be_sealed_is_refused)
{
        struct scene s;
        uint8_t bytes[24 + FRAME_HEADER] = { 0 };
        init_up(&s);
        write_raw(&s, bytes, sizeof bytes);
        expect_down(&s, "too short");
        end(&s);
}

Test(link, a_frame_whose_length_is_not_sealed_with_it_is_refused)
{
        struct scene s;
        crypto_secretstream_xchacha20poly1305_state stream;
        uint8_t bytes[24 + FRAME_HEADER + 8 + 17] = { 0 }, *frame = bytes + 24, text[8] = { 0 };
        init_up(&s);
        crypto_secretstream_xchacha20poly1305_init_push(&stream, bytes, s.channel->send_key);
        frame_write_header(frame, 8 + 17);
        crypto_secretstream_xchacha20poly1305_push(&stream, frame + FRAME_HEADER, NULL, text, 8,
                                                   NULL, 0, 0);
        write_raw(&s, bytes, sizeof bytes);
        expect_down(&s, "forged or damaged");
        end(&s);
}

static bool cannot_send(void *arg)
{
        static char text[64 << 10];
        struct scene *s = arg;
        Zero__LinkMessage m = ZERO__LINK_MESSAGE__INIT;
        memset(text, 'x', sizeof text - 1);
        m.text = text;
        return members_send(s->b, 0, &m) == -ENOTCONN;
}

Test(link, a_peer_that_does_not_read_is_cut_before_memory_runs_out)
{
        struct scene s;
        init_up(&s);
        while (!cannot_send(&s))
                ;
        cr_assert_eq(s.downs, 0, "no callback inside the call");
        expect_down(&s, "does not read");
        end(&s);
}

/* ---- a's side as a link of its own ---- */

static void on_a_message(void *arg, const uint8_t *p, size_t n)
{
}

static void on_a_ended(void *arg, const struct link_stats *last, const char *why)
{
        struct scene *s = arg;
        s->linked = false;
        snprintf(s->a_why, sizeof s->a_why, "%s", why);
}

static bool is_unlinked(void *arg)
{
        return !((struct scene *)arg)->linked;
}

static struct link *make_link(struct scene *s)
{
        struct link_options some = { .heartbeat_ms = 20,
                                     .silence_ms = 2000,
                                     .message_max = LINK_MESSAGE_MAX,
                                     .queue_max = 1 << 20 };
        struct link_events events = { .message = on_a_message, .ended = on_a_ended, .arg = s };
        struct link *link = NULL;
        cr_assert_eq(link_new(s->channel, &some, &events, &link), 0);
        s->channel = NULL;
        s->linked = true;
        return link;
}

Test(link, a_message_that_cannot_be_read_ends_the_link_on_both_sides)
{
        struct scene s;
        init_up(&s);
        struct link *link = make_link(&s);
        cr_assert_eq(link_send(link, "\xff\xff\xff", 3), 0);
        expect_down(&s, "malformed message");
        run_until(&s.loop, is_unlinked, &s, SOON_MS);
        cr_assert(strstr(s.a_why, "it ended the link: malformed message"), "%s", s.a_why);
        end(&s);
}

Test(link, a_goodbye_may_say_only_what_can_be_printed)
{
        struct scene s;
        init_up(&s);
        link_cut(make_link(&s), "bell \a and \xff");
        expect_down(&s, "it ended the link: bell ? and ?");
        run_until(&s.loop, is_unlinked, &s, SOON_MS);
        end(&s);
}

static bool is_up_again(void *arg)
{
        return ((struct scene *)arg)->ups == 2;
}

Test(link, a_newer_link_of_the_same_node_wins)
{
        struct scene s;
        init_up(&s);
        make_link(&s);
        dial(&s, CHANNEL_LINK);
        run_until(&s.loop, is_up_again, &s, SOON_MS);
        cr_assert(s.down_before_up);
        cr_assert(strstr(s.why, "made a new link"), "%s", s.why);
        run_until(&s.loop, is_unlinked, &s, SOON_MS);
        end(&s);
}

static bool has_bulk(void *arg)
{
        return ((struct scene *)arg)->bulks > 0;
}

Test(link, a_bulk_channel_is_handed_on_with_its_token)
{
        struct scene s;
        init(&s);
        dial(&s, CHANNEL_BULK);
        run_until(&s.loop, has_bulk, &s, SOON_MS);
        cr_assert_eq(s.token, 99);
        cr_assert_eq(s.ups, 0);
        end(&s);
}
