/*
 * Strings of blocks: the differences of a long array, as far as they were coded.
 *
 * Blocks ascend.  Each has a header: three numbers, LEB128 (its first element, its elements, its
 * bytes), and four bytes that are a sum over the new values.  Values between blocks stay as they
 * are.
 *
 * The sum tells whoever applies a block to other values than those that it was coded from.
 */
#include "daemon/compute/delta/delta.h"

#include <endian.h>
#include <errno.h>
#include <stdbool.h>
#include <string.h>

#include "proto/dtype.h"

enum { NUMBER_BITS = 7, SUM_BYTES = 4 };

/* Four sums side by side, as one would wait for each multiplication. */
static uint32_t sum_of(const void *values, size_t bytes)
{
        const uint64_t odd = UINT64_C(0x9e3779b97f4a7c15);
        uint64_t sums[4] = { 1, 2, 3, 4 }, words[4], sum = bytes;
        const uint8_t *p = values;

        for (; bytes >= sizeof words; p += sizeof words, bytes -= sizeof words) {
                memcpy(words, p, sizeof words);
                for (int i = 0; i < 4; i++)
                        sums[i] = (sums[i] ^ le64toh(words[i])) * odd;
        }
        memset(words, 0, sizeof words);
        memcpy(words, p, bytes);
        for (int i = 0; i < 4; i++)
                sum = ((sum ^ sums[i]) * odd ^ le64toh(words[i])) * odd;
        return (uint32_t)(sum >> 32);
}

static size_t number_write(uint8_t *p, uint64_t v)
{
        size_t n = 0;

        for (; v >= 0x80; v >>= NUMBER_BITS)
                p[n++] = (uint8_t)(v | 0x80);
        p[n++] = (uint8_t)v;
        return n;
}

static bool number_read(const uint8_t **p, const uint8_t *end, uint64_t *ret)
{
        uint64_t v = 0;

        for (unsigned shift = 0; shift < 63 && *p < end; shift += NUMBER_BITS) {
                uint8_t byte = *(*p)++;

                v |= (uint64_t)(byte & 0x7f) << shift;
                if (!(byte & 0x80)) {
                        *ret = v;
                        return true;
                }
        }
        return false;
}

size_t delta_append(enum zero_dtype dtype, uint64_t first, const void *was, const void *is,
                    size_t n, uint8_t *out)
{
        size_t bytes = delta_code(dtype, was, is, n, out + DELTA_HEADER);
        uint8_t header[DELTA_HEADER];
        size_t head = number_write(header, first);
        uint32_t sum;

        head += number_write(header + head, n);
        head += number_write(header + head, bytes);
        sum = htole32(sum_of(is, dtype_bytes(dtype, n)));
        memcpy(header + head, &sum, SUM_BYTES);
        head += SUM_BYTES;
        memcpy(out, header, head);
        memmove(out + head, out + DELTA_HEADER, bytes);
        return head + bytes;
}

/* A block of a string. */
struct block {
        uint64_t first, n, bytes;
        uint32_t sum;
};

static bool block_read(const uint8_t **p, const uint8_t *end, struct block *ret)
{
        if (!number_read(p, end, &ret->first) || !number_read(p, end, &ret->n) ||
            !number_read(p, end, &ret->bytes) || end - *p < SUM_BYTES)
                return false;
        memcpy(&ret->sum, *p, SUM_BYTES);
        ret->sum = le32toh(ret->sum);
        *p += SUM_BYTES;
        return ret->bytes <= (uint64_t)(end - *p);
}

int delta_apply_string(enum zero_dtype dtype, void *values, uint64_t n, const uint8_t *p,
                       size_t bytes, struct delta_place *at, uint64_t most)
{
        const uint8_t *begin = p, *end = p + bytes;

        for (p += at->bytes; p < end && most > 0; at->bytes = (size_t)(p - begin)) {
                struct block b;
                uint8_t *to;

                if (!block_read(&p, end, &b) || b.first < at->elements || b.first > n ||
                    b.n > n - b.first || b.n > DELTA_MOST)
                        return -EBADMSG;
                to = (uint8_t *)values + dtype_bytes(dtype, b.first);
                if (delta_apply(dtype, to, b.n, p, b.bytes) ||
                    sum_of(to, dtype_bytes(dtype, b.n)) != b.sum)
                        return -EBADMSG;
                p += b.bytes;
                at->elements = b.first + b.n;
                most -= b.n < most ? b.n : most;
        }
        return at->bytes < bytes;
}
