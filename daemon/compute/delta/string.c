/*
 * Strings of blocks: the differences of a long array, as far as they were coded.
 *
 * Blocks ascend.  Each has a header of three numbers, LEB128: its first element, its elements, its
 * bytes.  Values between blocks stay as they are.
 */
#include "daemon/compute/delta/delta.h"

#include <errno.h>
#include <stdbool.h>
#include <string.h>

#include "proto/dtype.h"

enum { NUMBER_BITS = 7 };

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

        head += number_write(header + head, n);
        head += number_write(header + head, bytes);
        memcpy(out, header, head);
        memmove(out + head, out + DELTA_HEADER, bytes);
        return head + bytes;
}

int delta_apply_string(enum zero_dtype dtype, void *values, uint64_t n, const uint8_t *p,
                       size_t bytes)
{
        const uint8_t *end = p + bytes;
        uint64_t done = 0;

        while (p < end) {
                uint64_t first, count, block;

                if (!number_read(&p, end, &first) || !number_read(&p, end, &count) ||
                    !number_read(&p, end, &block) || first < done || first > n ||
                    count > n - first || count > DELTA_MOST || block > (uint64_t)(end - p) ||
                    delta_apply(dtype, (char *)values + dtype_bytes(dtype, first), count, p, block))
                        return -EBADMSG;
                p += block;
                done = first + count;
        }
        return 0;
}
