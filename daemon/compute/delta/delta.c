/*
 * A block is a string of bits, the lowest bit of a byte first, in one of four forms:
 *
 *   SAME  one byte
 *   GAPS  4 bits k; then each change: the elements skipped (Rice code, parameter k) and the step
 *   MASK  a bit an element, whether it changes; then the steps
 *   RAW   one byte; the new values
 *
 * Ones fill the last byte.  A code of GAPS begins with ones that a zero ends, so it is no filling.
 *
 * A step is the distance of two values in the order of all values of the dtype, with -0 below 0:
 * a sign bit, and the distance less 1 in an exponential Golomb code.  The step of a value follows
 * from its exponent: all values move by about the same amount.  So the parameter of a step's code
 * is learned for each old exponent, by coder and decoder alike.
 */
#include "daemon/compute/delta/delta.h"

#include <assert.h>
#include <endian.h>
#include <errno.h>
#include <string.h>

#include "proto/dtype.h"

enum form { SAME, GAPS, MASK, RAW };

enum {
        FORM_BITS = 2,
        GAP_K_BITS = 4,
        GAP_BITS = 16,  /* a gap below DELTA_MOST */
        ONES_MOST = 20, /* so many ones in front: the number itself follows, uncoded */
        WORD = 64,
        PUT_MOST = 56, /* bits that a word takes beside those of a byte begun */
        CLASSES = 32,
        SLACK = 32, /* bytes: a change of the longest code, and a store of a whole word */
};

/* What is known of the steps by old exponent, modulo CLASSES: 16 times the mean of their lengths.
 */
struct steps {
        uint16_t length[CLASSES];
};

static inline unsigned length_of(uint64_t x)
{
        return x ? WORD - (unsigned)__builtin_clzll(x) : 0;
}

/* The parameter for the next step of a class. */
static inline unsigned step_k(uint16_t length)
{
        return (unsigned)(length > 8 ? length - 8 : 0) / 16;
}

static inline void learn(uint16_t *length, uint32_t x)
{
        *length = (uint16_t)(*length - *length / 8 + 2 * length_of(x));
}

/* ---- values -------------------------------------------------------------------- */

static inline __attribute__((always_inline)) uint32_t load(const void *values, size_t i,
                                                           size_t size)
{
        return size == 2 ? ((const uint16_t *)values)[i] : ((const uint32_t *)values)[i];
}

/* Its own inverse but for the sign bit, which is set in the place of positive values. */
static inline uint32_t place_of(uint32_t bits, uint32_t sign)
{
        return bits & sign ? ~bits & (2 * sign - 1) : bits | sign;
}

static inline uint32_t bits_of(uint32_t place, uint32_t sign)
{
        return place & sign ? place ^ sign : ~place & (2 * sign - 1);
}

static inline uint32_t sign_of(size_t size)
{
        return 1u << (8 * size - 1);
}

static inline unsigned exponent_shift(enum zero_dtype dtype)
{
        return dtype == ZERO_BF16 ? 7 : dtype == ZERO_FP16 ? 10 : 23;
}

/* ---- bits out -------------------------------------------------------------------- */

struct writer {
        uint8_t *at;
        uint64_t word; /* what is not stored for good: n bits, less than a byte */
        unsigned n;
};

/* n <= PUT_MOST bits; stores a whole word. */
static inline void put(struct writer *w, uint64_t bits, unsigned n)
{
        uint64_t stored;

        w->word |= bits << w->n;
        w->n += n;
        stored = htole64(w->word);
        memcpy(w->at, &stored, sizeof stored);
        w->at += w->n / 8;
        w->word >>= w->n & ~7u;
        w->n %= 8;
}

/* A code in the making: at most PUT_MOST bits. */
struct code {
        uint64_t bits;
        unsigned n;
};

static inline struct code gap_code(size_t gap, unsigned k)
{
        unsigned ones = (unsigned)(gap >> k);

        if (ones >= ONES_MOST)
                return (struct code){ ((uint64_t)gap << ONES_MOST) | ((1u << ONES_MOST) - 1),
                                      ONES_MOST + GAP_BITS };
        return (struct code){ ((gap & ((1u << k) - 1)) << (ones + 1)) | ((1u << ones) - 1),
                              ones + 1 + k };
}

/* The sign and x, which is the distance less 1. */
static inline struct code step_code(bool down, uint32_t x, unsigned k)
{
        uint64_t y = (uint64_t)x + (1u << k);
        unsigned low = length_of(y) - 1, ones = low - k;

        if (ones >= ONES_MOST)
                return (struct code){ ((uint64_t)x << (ONES_MOST + 1)) | ((2u << ONES_MOST) - 2) |
                                              down,
                                      1 + ONES_MOST + 32 };
        return (struct code){ ((y ^ (1ull << low)) << (ones + 2)) | ((2u << ones) - 2) | down,
                              low + ones + 2 };
}

static inline __attribute__((always_inline)) struct code
code_of(const void *was, const void *is, size_t i, size_t size, unsigned shift, struct steps *s)
{
        uint32_t sign = sign_of(size), old = load(was, i, size);
        uint32_t step = place_of(load(is, i, size), sign) - place_of(old, sign);
        uint16_t *length = &s->length[(old >> shift) % CLASSES];
        bool down = step & sign;
        uint32_t x = ((down ? -step : step) & (2 * sign - 1)) - 1;
        struct code code = step_code(down, x, step_k(*length));

        learn(length, x);
        return code;
}

/* The bits of at most WORD elements, from element i on: which differ. */
static inline __attribute__((always_inline)) uint64_t changed(const void *was, const void *is,
                                                              size_t i, size_t n, size_t size)
{
        uint8_t differs[WORD] = { 0 };
        uint64_t mask = 0;

        for (size_t j = 0; j < n; j++)
                differs[j] = load(was, i + j, size) != load(is, i + j, size);
        for (unsigned j = 0; j < WORD; j += 8) {
                uint64_t eight;

                memcpy(&eight, differs + j, sizeof eight);
                mask |= le64toh(eight) * 0x0102040810204080 >> 56 << j;
        }
        return mask;
}

static inline __attribute__((always_inline)) size_t scan(const void *was, const void *is, size_t n,
                                                         size_t size, uint64_t *masks)
{
        size_t i = 0, count = 0;

        for (; i + WORD <= n; i += WORD) {
                masks[i / WORD] = changed(was, is, i, WORD, size);
                count += (size_t)__builtin_popcountll(masks[i / WORD]);
        }
        if (i < n) {
                masks[i / WORD] = changed(was, is, i, n - i, size);
                count += (size_t)__builtin_popcountll(masks[i / WORD]);
        }
        return count;
}

/* About the bits that the gaps take. */
static inline size_t gaps_cost(size_t n, size_t count, unsigned k)
{
        return count * (k + 1) + ((n - count) >> k);
}

/* false: not less than the raw values. */
static inline __attribute__((always_inline)) bool
put_changes(struct writer *w, const void *was, const void *is, size_t n, size_t size,
            unsigned shift, const uint64_t *masks, const unsigned *gap_k, const uint8_t *end)
{
        struct steps steps = { 0 };
        size_t next = 0;

        for (size_t at = 0; at < n; at += WORD)
                for (uint64_t mask = masks[at / WORD]; mask; mask &= mask - 1) {
                        size_t i = at + (size_t)__builtin_ctzll(mask);
                        struct code gap = { 0 }, step = code_of(was, is, i, size, shift, &steps);

                        if (w->at > end)
                                return false;
                        if (gap_k)
                                gap = gap_code(i - next, *gap_k);
                        next = i + 1;
                        if (gap.n + step.n > PUT_MOST) {
                                put(w, gap.bits, gap.n);
                                gap = (struct code){ 0 };
                        }
                        put(w, gap.bits | step.bits << gap.n, gap.n + step.n);
                }
        return true;
}

static inline __attribute__((always_inline)) size_t
code_block(const void *was, const void *is, size_t n, size_t size, unsigned shift, uint8_t *out)
{
        uint64_t masks[DELTA_MOST / WORD];
        size_t count = scan(was, is, n, size, masks);
        struct writer w = { .at = out };
        const uint8_t *end = out + n * size;
        unsigned k = 0;
        bool less;

        if (!count) {
                out[0] = SAME;
                return 1;
        }
        while (k + 1 < 1 << GAP_K_BITS && gaps_cost(n, count, k + 1) < gaps_cost(n, count, k))
                k++;
        if (gaps_cost(n, count, k) < n) {
                put(&w, GAPS | k << FORM_BITS, FORM_BITS + GAP_K_BITS);
                less = put_changes(&w, was, is, n, size, shift, masks, &k, end);
        } else {
                put(&w, MASK, FORM_BITS);
                for (size_t i = 0; i < n; i += WORD / 2)
                        put(&w, masks[i / WORD] >> i % WORD & UINT32_MAX,
                            n - i < WORD / 2 ? (unsigned)(n - i) : WORD / 2);
                less = put_changes(&w, was, is, n, size, shift, masks, NULL, end);
        }
        put(&w, 0xff, -w.n % 8);
        if (less && w.at <= end)
                return (size_t)(w.at - out);
        out[0] = RAW;
        memcpy(out + 1, is, n * size);
        return 1 + n * size;
}

size_t delta_bound(enum zero_dtype dtype, size_t n)
{
        return dtype_bytes(dtype, n) + SLACK;
}

size_t delta_code(enum zero_dtype dtype, const void *was, const void *is, size_t n, uint8_t *out)
{
        assert(n <= DELTA_MOST);
        return dtype_bytes(dtype, 1) == 2 ? code_block(was, is, n, 2, exponent_shift(dtype), out)
                                          : code_block(was, is, n, 4, exponent_shift(dtype), out);
}

/* ---- bits in --------------------------------------------------------------------- */

struct reader {
        const uint8_t *at, *end;
        uint64_t word; /* n bits, and ones above them that come again */
        unsigned n;
        bool bad; /* more was read than there is */
};

/* Afterwards n > PUT_MOST - 1, or all that is left is in the word. */
static inline void refill(struct reader *r)
{
        if (r->end - r->at >= (ptrdiff_t)sizeof r->word) {
                uint64_t more;

                memcpy(&more, r->at, sizeof more);
                r->word |= le64toh(more) << r->n;
                r->at += (WORD - 1 - r->n) / 8;
                r->n |= PUT_MOST;
                return;
        }
        for (; r->n <= PUT_MOST && r->at < r->end; r->n += 8)
                r->word |= (uint64_t)*r->at++ << r->n;
}

/* n <= PUT_MOST */
static inline void drop(struct reader *r, unsigned n)
{
        r->bad = r->bad || n > r->n;
        r->word >>= n;
        r->n = n > r->n ? 0 : r->n - n;
}

static inline unsigned ones_of(uint64_t word)
{
        return (unsigned)__builtin_ctzll(~word | 1u << ONES_MOST);
}

static inline uint64_t low_bits(uint64_t word, unsigned n)
{
        return word & ((1ull << n) - 1);
}

static inline size_t take_gap(struct reader *r, unsigned k)
{
        unsigned ones = ones_of(r->word);
        size_t gap;

        if (ones == ONES_MOST) {
                gap = low_bits(r->word >> ONES_MOST, GAP_BITS);
                drop(r, ONES_MOST + GAP_BITS);
        } else {
                gap = (size_t)ones << k | low_bits(r->word >> (ones + 1), k);
                drop(r, ones + 1 + k);
        }
        return gap;
}

static inline uint32_t take_step(struct reader *r, unsigned k, bool *ret_down)
{
        unsigned ones = ones_of(r->word >> 1), low = k + ones;
        uint32_t x;

        *ret_down = r->word & 1;
        if (ones == ONES_MOST) {
                x = (uint32_t)(r->word >> (ONES_MOST + 1));
                drop(r, 1 + ONES_MOST + 32);
        } else if (low > 32) {
                x = 0;
                r->bad = true;
        } else {
                x = (uint32_t)((1ull << low) + low_bits(r->word >> (ones + 2), low) - (1u << k));
                drop(r, low + ones + 2);
        }
        return x;
}

static inline __attribute__((always_inline)) void
change(struct reader *r, void *values, size_t i, size_t size, unsigned shift, struct steps *s)
{
        uint32_t sign = sign_of(size), old = load(values, i, size), x;
        uint16_t *length = &s->length[(old >> shift) % CLASSES];
        bool down;

        x = take_step(r, step_k(*length), &down);
        learn(length, x);
        x = bits_of((place_of(old, sign) + (down ? -(x + 1) : x + 1)) & (2 * sign - 1), sign);
        if (size == 2)
                ((uint16_t *)values)[i] = (uint16_t)x;
        else
                ((uint32_t *)values)[i] = x;
}

/* What fills the last byte is left, and nothing else. */
static inline bool at_end(const struct reader *r)
{
        return r->n < 8 && low_bits(~r->word, r->n) == 0;
}

static inline __attribute__((always_inline)) bool apply_gaps(struct reader *r, void *values,
                                                             size_t n, size_t size, unsigned shift)
{
        struct steps steps = { 0 };
        unsigned k = (unsigned)low_bits(r->word, GAP_K_BITS);
        size_t next = 0;

        drop(r, GAP_K_BITS);
        for (refill(r); !at_end(r) && !r->bad; refill(r)) {
                size_t gap = take_gap(r, k);

                if (gap >= n - next)
                        return false;
                refill(r);
                change(r, values, next + gap, size, shift, &steps);
                next += gap + 1;
        }
        return !r->bad;
}

static inline __attribute__((always_inline)) bool apply_mask(struct reader *r, void *values,
                                                             size_t n, size_t size, unsigned shift)
{
        struct steps steps = { 0 };
        uint32_t masks[DELTA_MOST / (WORD / 2)];

        for (size_t i = 0; i < n; i += WORD / 2) {
                unsigned bits = n - i < WORD / 2 ? (unsigned)(n - i) : WORD / 2;

                refill(r);
                masks[i / (WORD / 2)] = (uint32_t)low_bits(r->word, bits);
                drop(r, bits);
        }
        for (size_t at = 0; at < n && !r->bad; at += WORD / 2)
                for (uint32_t mask = masks[at / (WORD / 2)]; mask; mask &= mask - 1) {
                        refill(r);
                        change(r, values, at + (size_t)__builtin_ctz(mask), size, shift, &steps);
                }
        refill(r);
        return !r->bad && at_end(r);
}

static inline __attribute__((always_inline)) bool
apply_block(void *values, size_t n, size_t size, unsigned shift, const uint8_t *p, size_t bytes)
{
        struct reader r = { .at = p, .end = p + bytes };
        enum form form;

        if (bytes == 0)
                return false;
        form = p[0] % (1 << FORM_BITS);
        if (form == SAME)
                return bytes == 1 && p[0] == SAME;
        if (form == RAW) {
                if (p[0] != RAW || bytes != 1 + n * size)
                        return false;
                memcpy(values, p + 1, n * size);
                return true;
        }
        refill(&r);
        drop(&r, FORM_BITS);
        return form == GAPS ? apply_gaps(&r, values, n, size, shift)
                            : apply_mask(&r, values, n, size, shift);
}

int delta_apply(enum zero_dtype dtype, void *values, size_t n, const uint8_t *p, size_t bytes)
{
        unsigned shift = exponent_shift(dtype);
        bool good;

        assert(n <= DELTA_MOST);
        good = dtype_bytes(dtype, 1) == 2 ? apply_block(values, n, 2, shift, p, bytes)
                                          : apply_block(values, n, 4, shift, p, bytes);
        return good ? 0 : -EBADMSG;
}
