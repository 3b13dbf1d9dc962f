/*
 * Blocks of differences, and strings of them.  Input: a byte for the dtype, the number of elements
 * (16 bits, little-endian), then the bytes of a block; they are taken for old and new values too.
 *
 * What must hold: any bytes are refused or give some values, without a read or write out of bounds;
 * what is coded is at most a byte longer than the values, and gives back the new ones.
 */
#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/compute/delta/delta.h"
#include "proto/dtype.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check_any(enum zero_dtype dtype, size_t n, const uint8_t *p, size_t bytes)
{
        size_t raw = dtype_bytes(dtype, n);
        uint8_t *values = malloc(raw);
        struct delta_place at = { 0 };
        int r;

        for (size_t i = 0; i < raw; i++)
                values[i] = (uint8_t)(i * 7);
        r = delta_apply(dtype, values, n, p, bytes);
        assert(r == 0 || r == -EBADMSG);
        do
                r = delta_apply_string(dtype, values, n, p, bytes, &at, 1000);
        while (r == 1);
        assert(r == 0 || r == -EBADMSG);
        free(values);
}

static void check_round_trip(enum zero_dtype dtype, size_t n, const uint8_t *was, const uint8_t *is)
{
        size_t raw = dtype_bytes(dtype, n), bytes;
        uint8_t *out = malloc(DELTA_HEADER + delta_bound(dtype, n)), *values = malloc(raw);
        struct delta_place at = { 0 };
        int r;

        memcpy(values, was, raw);
        bytes = delta_code(dtype, was, is, n, out);
        assert(bytes <= raw + 1);
        out = realloc(out, bytes);
        r = delta_apply(dtype, values, n, out, bytes);
        assert(r == 0 && memcmp(values, is, raw) == 0);
        memcpy(values, was, raw);
        out = realloc(out, DELTA_HEADER + delta_bound(dtype, n));
        bytes = delta_append(dtype, 0, was, is, n, out);
        out = realloc(out, bytes);
        r = delta_apply_string(dtype, values, n, out, bytes, &at, UINT64_MAX);
        assert(r == 0 && memcmp(values, is, raw) == 0);
        free(out);
        free(values);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
        static const enum zero_dtype dtypes[] = { ZERO_BF16, ZERO_FP16, ZERO_FP32 };

        if (size < 3)
                return 0;
        enum zero_dtype dtype = dtypes[data[0] % 3];
        size_t n = data[1] + ((size_t)data[2] << 8);
        check_any(dtype, n, data + 3, size - 3);
        n = (size - 3) / (2 * dtype_bytes(dtype, 1));
        if (n <= DELTA_MOST)
                check_round_trip(dtype, n, data + 3, data + 3 + dtype_bytes(dtype, n));
        return 0;
}
