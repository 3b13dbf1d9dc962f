/* The frame reader: same frames however the stream is cut, bounded length and memory. */
#include <criterion/criterion.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "layouts.h"
#include "proto/frame.h"

enum { LIMIT = 1 << 20 };

static struct frame_reader reader;

static void make_reader(void)
{
        frame_reader_init(&reader, LIMIT);
}

static void drop_reader(void)
{
        frame_reader_deinit(&reader);
}

TestSuite(frame, .init = make_reader, .fini = drop_reader);

static int feed(const void *p, size_t n, size_t *ret_taken)
{
        return frame_reader_feed(&reader, p, n, ret_taken);
}

static void assert_payload(const void *expected, size_t n)
{
        size_t size;
        const uint8_t *payload = frame_reader_payload(&reader, &size);

        cr_assert_eq(size, n);
        cr_assert_eq(memcmp(payload, expected, n), 0);
}

/* A frame of n random bytes; the caller frees it. */
static uint8_t *make_frame(uint32_t n, uint64_t seed)
{
        struct rng rng = { seed };
        uint8_t *frame = malloc(FRAME_HEADER + n);

        frame_write_header(frame, n);
        for (uint32_t i = 0; i < n; i++)
                frame[FRAME_HEADER + i] = (uint8_t)rng_next(&rng);
        return frame;
}

Test(frame, header_is_little_endian)
{
        uint8_t header[FRAME_HEADER];

        frame_write_header(header, 0x12345678);
        cr_assert_eq(memcmp(header, "\x78\x56\x34\x12", 4), 0);
}

Test(frame, a_frame_comes_whole_at_once)
{
        uint8_t *frame = make_frame(1000, 1);
        size_t taken;

        cr_assert_eq(feed(frame, 1004, &taken), 1);
        cr_assert_eq(taken, 1004);
        assert_payload(frame + FRAME_HEADER, 1000);
        free(frame);
}

Test(frame, byte_by_byte_gives_the_same)
{
        uint8_t *frame = make_frame(3000, 2);
        size_t taken;

        for (size_t i = 0; i < 3004; i++) {
                cr_assert_eq(feed(frame + i, 1, &taken), i == 3003, "at byte %zu", i);
                cr_assert_eq(taken, 1);
        }
        assert_payload(frame + FRAME_HEADER, 3000);
        free(frame);
}

Test(frame, an_empty_frame_is_a_frame)
{
        size_t taken;

        cr_assert_eq(feed("\0\0\0\0", 4, &taken), 1);
        cr_assert_eq(taken, 4);
        assert_payload("", 0);
}

Test(frame, no_more_is_taken_than_the_frame)
{
        size_t taken;

        cr_assert_eq(feed("\3\0\0\0abcXYZ", 10, &taken), 1);
        cr_assert_eq(taken, 7);
        cr_assert_eq(feed("XYZ", 3, &taken), 1);
        cr_assert_eq(taken, 0);
        assert_payload("abc", 3);
}

Test(frame, nothing_fed_changes_nothing)
{
        size_t taken = 7;

        cr_assert_eq(feed("", 0, &taken), 0);
        cr_assert_eq(taken, 0);
}

Test(frame, random_streams_in_random_pieces_give_the_frames_that_were_sent)
{
        struct rng rng = { 3 };

        for (int round = 0; round < 300; round++) {
                uint32_t n = rng_below(&rng, round % 10 == 0 ? 100000 : 600);
                uint8_t *frame = make_frame(n, (uint64_t)round);
                size_t at = 0, taken;
                int r = 0;

                while (r == 0) {
                        size_t piece = 1 + rng_below(&rng, 1000);
                        size_t left = FRAME_HEADER + n - at;
                        r = feed(frame + at, piece < left ? piece : left, &taken);
                        at += taken;
                }
                cr_assert_eq(r, 1);
                assert_payload(frame + FRAME_HEADER, n);
                frame_reader_next(&reader);
                free(frame);
        }
}

Test(frame, the_limit_itself_is_allowed)
{
        uint8_t *frame = make_frame(LIMIT, 4);
        size_t taken;

        cr_assert_eq(feed(frame, FRAME_HEADER + LIMIT, &taken), 1);
        assert_payload(frame + FRAME_HEADER, LIMIT);
        free(frame);
}

Test(frame, a_length_above_the_limit_is_refused_with_nothing_reserved)
{
        uint8_t header[FRAME_HEADER];
        size_t taken;

        frame_write_header(header, LIMIT + 1);
        cr_assert_eq(feed(header, 3, &taken), 0);
        cr_assert_eq(feed(header + 3, 1, &taken), -EMSGSIZE);
        cr_assert_leq(reader.capacity, 256);
}

Test(frame, a_refused_stream_stays_refused)
{
        size_t taken = 99;

        cr_assert_eq(feed("\xff\xff\xff\xff", 4, &taken), -EMSGSIZE);
        cr_assert_eq(feed("more", 4, &taken), -EMSGSIZE);
        cr_assert_eq(taken, 99, "written only on success");
}

Test(frame, memory_is_bounded_by_what_came)
{
        uint8_t *frame = make_frame(LIMIT, 5);
        size_t taken;

        for (size_t at = 0; at + 61 <= LIMIT; at += 61) {
                cr_assert_eq(feed(frame + at, 61, &taken), 0);
                cr_assert(reader.capacity <= 256 || reader.capacity <= 2 * (at + 61),
                          "%zu reserved for %zu", reader.capacity, at + 61);
        }
        free(frame);
}

Test(frame, nothing_is_reserved_beyond_the_frame)
{
        uint8_t *frame = make_frame(LIMIT, 7);
        size_t taken;

        for (size_t at = 0; at < FRAME_HEADER + LIMIT; at += taken)
                feed(frame + at, at + 1000 < LIMIT ? 1000 : FRAME_HEADER + LIMIT - at, &taken);
        cr_assert_leq(reader.capacity, FRAME_HEADER + LIMIT);
        assert_payload(frame + FRAME_HEADER, LIMIT);
        free(frame);
}

Test(frame, the_buffer_of_a_large_frame_is_given_back)
{
        uint8_t *frame = make_frame(LIMIT, 6);
        size_t taken;

        feed(frame, FRAME_HEADER + LIMIT, &taken);
        frame_reader_next(&reader);
        cr_assert_leq(reader.capacity, 65536);
        cr_assert_eq(feed("\1\0\0\0x", 5, &taken), 1);
        assert_payload("x", 1);
        free(frame);
}

Test(frame, deinit_may_be_repeated)
{
        frame_reader_deinit(&reader);
        frame_reader_deinit(&reader);
}
