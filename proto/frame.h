/*
 * Frames: a 32-bit little-endian length, then that many bytes.  Pure: takes bytes and returns whole
 * frames.
 *
 * A length above the limit is an error before any memory is reserved.  Memory for a frame grows
 * with the bytes that have really come, so a peer that lies about the length gains nothing.
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
 * Takes *ret_taken of the n bytes, at most to the end of the current frame.  1: a frame is whole
 * (frame_reader_payload()); 0: more bytes are needed; -EMSGSIZE: the length is above the limit;
 * -ENOMEM.
 */
int frame_reader_feed(struct frame_reader *reader, const void *p, size_t n, size_t *ret_taken);
/* The payload's length according to the current frame's header; 0: the header has not come. */
size_t frame_reader_size(const struct frame_reader *reader);
/* The whole frame's payload; valid until frame_reader_next(). */
const uint8_t *frame_reader_payload(const struct frame_reader *reader, size_t *ret_size);
/* Forgets the frame and makes ready for the next. */
void frame_reader_next(struct frame_reader *reader);

void frame_write_header(uint8_t header[static FRAME_HEADER], uint32_t payload);
