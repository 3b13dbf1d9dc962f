/*
 * The frame reader, fed a stream in pieces.  Input: a byte for the limit, a byte for the size
 * of the pieces, then the stream.
 *
 * What must hold: the frames are those that stand in the stream, a length above the limit
 * ends it, and memory stays within twice what has come.
 */
#include <assert.h>
#include <errno.h>
#include <string.h>

#include "proto/frame.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static size_t length_at(const uint8_t *p)
{
        return p[0] + ((size_t)p[1] << 8) + ((size_t)p[2] << 16) + ((size_t)p[3] << 24);
}

/* Feeds one frame of the stream that starts at p; returns its bytes, 0 at the end. */
static size_t read_one(struct frame_reader *reader, const uint8_t *p, size_t n, size_t piece)
{
        size_t fed = 0;
        int r = 0;

        while (r == 0 && fed < n) {
                size_t taken = 0;

                r = frame_reader_feed(reader, p + fed, piece < n - fed ? piece : n - fed, &taken);
                fed += taken;
                assert(r != -ENOMEM);
                assert(reader->length <= reader->capacity);
                assert(reader->capacity <= 256 || reader->capacity <= 2 * reader->length ||
                       reader->capacity <= 65536);
        }
        if (r == -EMSGSIZE) {
                assert(length_at(p) > reader->limit);
                return 0;
        }
        if (r == 0) {
                assert(n < FRAME_HEADER || length_at(p) > n - FRAME_HEADER);
                return 0;
        }

        size_t payload;
        const uint8_t *frame = frame_reader_payload(reader, &payload);
        assert(payload == length_at(p) && fed == payload + FRAME_HEADER);
        assert(payload <= reader->limit);
        assert(memcmp(frame, p + FRAME_HEADER, payload) == 0);
        frame_reader_next(reader);
        return fed;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
        struct frame_reader reader;
        if (size < 2)
                return 0;

        frame_reader_init(&reader, (size_t)1 << data[0] % 32);
        size_t piece = data[1] > 0 ? data[1] : size;
        size_t at = 2, n;
        do {
                n = read_one(&reader, data + at, size - at, piece);
                at += n;
        } while (n > 0);
        frame_reader_deinit(&reader);
        return 0;
}
