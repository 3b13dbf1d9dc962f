/*
 * Frames: a 32-bit little-endian length, then so many bytes.  Pure: it is fed
 * bytes and gives out whole frames.
 *
 * A length above the limit is an error before anything is reserved; memory for
 * a frame grows with the bytes that have really come, so that a lie about the
 * length costs the peer its connection and us nothing.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

enum { FRAME_HEADER = 4 };

struct frame_reader {
        uint8_t *data; /* header and payload of the frame being read */
        size_t length; /* bytes in data */
        size_t capacity;
        size_t limit; /* largest payload */
};

void frame_reader_init(struct frame_reader *reader, size_t limit);
void frame_reader_deinit(struct frame_reader *reader);

/*
 * Takes up to n bytes of p, at most to the end of the current frame; returns in
 * *ret_taken how many.  1: a frame is whole (frame_reader_payload()), 0: more
 * bytes are wanted, -EMSGSIZE: the length is above the limit, -ENOMEM.
 */
int frame_reader_feed(struct frame_reader *reader, const void *p, size_t n, size_t *ret_taken);
/* The length that the header of the current frame tells; 0: the header has not come. */
size_t frame_reader_size(const struct frame_reader *reader);
/* The whole frame's payload; valid until frame_reader_next(). */
const uint8_t *frame_reader_payload(const struct frame_reader *reader, size_t *ret_size);
/* Forgets the frame and makes ready for the next. */
void frame_reader_next(struct frame_reader *reader);

void frame_write_header(uint8_t header[static FRAME_HEADER], uint32_t payload);
