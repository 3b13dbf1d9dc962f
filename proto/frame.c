/*
 * The frame reader.
 *
 * Invariants: length <= capacity; a reservation is at most FRAME_START, or twice what has come
 * and not beyond the frame's end; between frames at most FRAME_KEEP is kept.
 */
#include "proto/frame.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

enum {
        FRAME_START = 256,  /* first reservation */
        FRAME_KEEP = 65536, /* a larger buffer is not kept for the next frame */
};

void frame_reader_init(struct frame_reader *reader, size_t limit)
{
        *reader = (struct frame_reader){ .limit = limit };
}

void frame_reader_deinit(struct frame_reader *reader)
{
        free(reader->data);
        *reader = (struct frame_reader){ .limit = reader->limit };
}

static size_t payload_size(const struct frame_reader *reader)
{
        const uint8_t *h = reader->data;
        return (size_t)h[0] | (size_t)h[1] << 8 | (size_t)h[2] << 16 | (size_t)h[3] << 24;
}

size_t frame_reader_size(const struct frame_reader *reader)
{
        return reader->length >= FRAME_HEADER ? payload_size(reader) : 0;
}

/* Bytes up to the end of the header or, once the header has come, of the frame. */
static int bytes_wanted(const struct frame_reader *reader, size_t *ret_end, size_t *ret_wanted)
{
        size_t end = FRAME_HEADER;

        if (reader->length >= FRAME_HEADER) {
                if (payload_size(reader) > reader->limit)
                        return -EMSGSIZE;
                end += payload_size(reader);
        }
        *ret_end = end;
        *ret_wanted = end - reader->length;
        return 0;
}

/* Reserves room for `bytes` bytes of a frame that ends at `end`. */
static int reserve(struct frame_reader *reader, size_t bytes, size_t end)
{
        if (bytes <= reader->capacity)
                return 0;

        size_t capacity = reader->capacity * 2;
        if (capacity > end)
                capacity = end;
        if (capacity < bytes)
                capacity = bytes;
        if (capacity < FRAME_START)
                capacity = FRAME_START;

        uint8_t *data = realloc(reader->data, capacity);
        if (!data)
                return -ENOMEM;
        reader->data = data;
        reader->capacity = capacity;
        return 0;
}

int frame_reader_feed(struct frame_reader *reader, const void *p, size_t n, size_t *ret_taken)
{
        const uint8_t *bytes = p;
        size_t taken = 0;

        for (;;) {
                size_t end, wanted;
                int r = bytes_wanted(reader, &end, &wanted);
                if (r < 0)
                        return r;
                if (wanted == 0 || taken == n) {
                        *ret_taken = taken;
                        return wanted == 0;
                }

                size_t part = wanted < n - taken ? wanted : n - taken;
                r = reserve(reader, reader->length + part, end);
                if (r < 0)
                        return r;
                memcpy(reader->data + reader->length, bytes + taken, part);
                reader->length += part;
                taken += part;
        }
}

const uint8_t *frame_reader_payload(const struct frame_reader *reader, size_t *ret_size)
{
        assert(reader->length >= FRAME_HEADER);
        assert(reader->length == FRAME_HEADER + payload_size(reader));
        *ret_size = reader->length - FRAME_HEADER;
        return reader->data + FRAME_HEADER;
}

void frame_reader_next(struct frame_reader *reader)
{
        reader->length = 0;
        if (reader->capacity > FRAME_KEEP)
                frame_reader_deinit(reader);
}

void frame_write_header(uint8_t header[static FRAME_HEADER], uint32_t payload)
{
        for (int i = 0; i < FRAME_HEADER; i++)
                header[i] = (uint8_t)(payload >> 8 * i);
}
