/*
 * A block is a string of bits, the lowest bit of a byte first, in one of four forms:
 *
 *   SAME  one byte
 *   GAPS  how many change: 4 bits for the length of that number, and its bits below the first;
 *         then each change: the elements skipped, in a Rice code whose parameter follows from how
 *         many change, and the step
 *   MASK  a bit an element, whether it changes; then the steps
 *   RAW   one byte; the new values
 *
 * Zeros fill the last byte.
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

/* The compiler makes such a function anew for each size of an element. */
#define INLINE static inline __attribute__((always_inline))

enum form { SAME, GAPS, MASK, RAW };

enum {
        FORM_BITS = 2,
        LENGTH_BITS = 4, /* of a number of changes: GAPS has fewer than 1 << 15 */
        GAP_BITS = 16,   /* a gap below DELTA_MOST */
        ZEROS_MOST = 20, /* so many in front: the number itself follows, uncoded */
        WORD = 64,
        LANES = 16,      /* bytes of a vector */
        ROW = 8 * LANES, /* elements of a mask: a bit of a vector each */
        PUT_MOST = 56,   /* bits that a word takes beside those of a byte begun */
        CLASSES = 32,
        SLACK = 32, /* bytes: a change of the longest code, and a store of a whole word */
};

/* By old exponent, modulo CLASSES: 8 times the mean length of the steps before, new ones most. */
struct steps {
        uint16_t length[CLASSES];
};

/* The number of the highest bit that is set; x is not 0. */
static inline unsigned last_bit(uint64_t x)
{
        return (unsigned)__builtin_clzll(x) ^ (WORD - 1);
}

/* Bits of x; 0: none. */
static inline unsigned length_of(uint32_t x)
{
        return last_bit(2 * (uint64_t)x + 1);
}

static inline uint64_t low_bits(uint64_t word, unsigned n)
{
        return word & ((1ull << n) - 1);
}

/* The gaps of `count` changes in masks of n bits have about a geometric distribution, whose best
 * parameter follows from the mean. */
static inline unsigned gap_k(size_t n, size_t count)
{
        return length_of((uint32_t)(n - count) / (uint32_t)count | 1) - 1;
}

static inline void learn(uint16_t *length, uint32_t x)
{
        *length = (uint16_t)(*length * 3 / 4 + 2 * length_of(x));
}

/* ---- values -------------------------------------------------------------------- */

/* memcpy(): the values may be floats. */
INLINE int32_t load(const void *values, size_t i, size_t size)
{
        int16_t half;
        int32_t word;

        if (size == sizeof half) {
                memcpy(&half, (const uint8_t *)values + i * sizeof half, sizeof half);
                return half;
        }
        memcpy(&word, (const uint8_t *)values + i * sizeof word, sizeof word);
        return word;
}

INLINE void store(void *values, size_t i, size_t size, uint32_t bits)
{
        uint16_t half = (uint16_t)bits;

        if (size == sizeof half)
                memcpy((uint8_t *)values + i * sizeof half, &half, sizeof half);
        else
                memcpy((uint8_t *)values + i * sizeof bits, &bits, sizeof bits);
}

/* Where bits stand in the order of all values; its own inverse.  Nothing predicts a branch on
 * signs. */
INLINE uint32_t place_of(int32_t bits, size_t size)
{
        return (uint32_t)(bits ^ (bits >> 31 & (size == 2 ? INT16_MAX : INT32_MAX)));
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

/* In front of both stand as many zeros as the number is large, and a one. */
static inline struct code gap_code(size_t gap, unsigned k)
{
        unsigned zeros = (unsigned)(gap >> k);

        if (zeros >= ZEROS_MOST)
                return (struct code){ (uint64_t)gap << ZEROS_MOST, ZEROS_MOST + GAP_BITS };
        return (struct code){ (2 * low_bits(gap, k) + 1) << zeros, zeros + 1 + k };
}

/* x, which is the distance less 1, and the sign. */
static inline struct code step_code(unsigned down, uint32_t x, unsigned k)
{
        uint64_t y = (uint64_t)x + (1u << k);
        unsigned low = last_bit(y), zeros = low - k;

        if (zeros >= ZEROS_MOST)
                return (struct code){ (2 * (uint64_t)x + down) << ZEROS_MOST, ZEROS_MOST + 1 + 32 };
        return (struct code){ (4 * (y ^ 1ull << low) + 2 * down + 1) << zeros, low + zeros + 2 };
}

INLINE struct code code_of(const void *was, const void *is, size_t i, size_t size, unsigned shift,
                           struct steps *s)
{
        int32_t old = load(was, i, size);
        int32_t step = (int32_t)(place_of(load(is, i, size), size) - place_of(old, size));
        int32_t down = step >> 31; /* 0 or -1 */
        uint32_t x = (uint32_t)(step ^ down) - 1 - (uint32_t)down;
        uint16_t *length = &s->length[((uint32_t)old >> shift) % CLASSES];
        struct code code = step_code((unsigned)-down, x, *length / 8u);

        learn(length, x);
        return code;
}

/*
 * Masks: a bit an element, in the order in which vectors of LANES bytes give them without a
 * shuffle. Vector j of a row is bit j of each lane.  Bits of elements that are not there are 0.
 */
typedef uint16_t lanes16 __attribute__((vector_size(LANES)));
typedef uint32_t lanes32 __attribute__((vector_size(LANES)));

/* The element of a bit of a word of the masks. */
INLINE size_t element_of(size_t word, size_t bit, size_t size)
{
        size_t row = word * WORD / ROW, lane = (word * WORD % ROW + bit) / (8 * size);

        return row * ROW + bit % (8 * size) * (LANES / size) + lane;
}

/* Words of the masks of n elements. */
static inline size_t words_of(size_t n)
{
        return (n + ROW - 1) / ROW * (ROW / WORD);
}

/* The mask of a row, which is whole. */
INLINE void scan_row(const uint8_t *was, const uint8_t *is, size_t size, uint64_t mask[2])
{
        lanes16 m16 = { 0 }, a16, b16;
        lanes32 m32 = { 0 }, a32, b32;

        for (unsigned j = 0; j < 8 * size; j++)
                if (size == 2) {
                        memcpy(&a16, was + j * LANES, LANES);
                        memcpy(&b16, is + j * LANES, LANES);
                        m16 |= (lanes16)(a16 == b16) & (uint16_t)(1u << j);
                } else {
                        memcpy(&a32, was + j * LANES, LANES);
                        memcpy(&b32, is + j * LANES, LANES);
                        m32 |= (lanes32)(a32 == b32) & 1u << j;
                }
        m16 = ~m16;
        m32 = ~m32;
        memcpy(mask, size == 2 ? (const void *)&m16 : &m32, LANES);
}

/* As __builtin_popcountll(), which is a call where not every CPU has the instruction. */
static inline size_t ones_in(uint64_t x)
{
        x -= x >> 1 & 0x5555555555555555;
        x = (x & 0x3333333333333333) + (x >> 2 & 0x3333333333333333);
        return ((x + (x >> 4)) & 0x0f0f0f0f0f0f0f0f) * 0x0101010101010101 >> 56;
}

INLINE size_t scan(const void *was, const void *is, size_t n, size_t size, uint64_t *masks)
{
        size_t i = 0, count = 0, rest = n % ROW * size;
        const uint8_t *a = was, *b = is;

        for (; i < n / ROW; i++)
                scan_row(a + i * ROW * size, b + i * ROW * size, size, masks + 2 * i);
        if (rest) {
                uint8_t last[2][ROW * 4] = { 0 };

                memcpy(last[0], a + i * ROW * size, rest);
                memcpy(last[1], b + i * ROW * size, rest);
                scan_row(last[0], last[1], size, masks + 2 * i++);
        }
        for (size_t j = 0; j < words_of(n); j++)
                count += ones_in(masks[j]);
        return count;
}

/* false: not less than the raw values. */
INLINE bool put_changes(struct writer *w, const void *was, const void *is, size_t n, size_t size,
                        unsigned shift, const uint64_t *masks, const unsigned *k,
                        const uint8_t *end)
{
        struct steps steps = { 0 };
        size_t next = 0;

        for (size_t at = 0; at < words_of(n); at++)
                for (uint64_t mask = masks[at]; mask; mask &= mask - 1) {
                        size_t bit = (size_t)__builtin_ctzll(mask);
                        size_t i = element_of(at, bit, size);
                        struct code gap = { 0 }, step = code_of(was, is, i, size, shift, &steps);

                        if (w->at > end)
                                return false;
                        if (k)
                                gap = gap_code(at * WORD + bit - next, *k);
                        next = at * WORD + bit + 1;
                        if (gap.n + step.n > PUT_MOST) {
                                put(w, gap.bits, gap.n);
                                gap = (struct code){ 0 };
                        }
                        put(w, gap.bits | step.bits << gap.n, gap.n + step.n);
                }
        return true;
}

INLINE size_t code_block(const void *was, const void *is, size_t n, size_t size, unsigned shift,
                         uint8_t *out)
{
        uint64_t masks[DELTA_MOST / WORD];
        size_t count = scan(was, is, n, size, masks), room = words_of(n) * WORD;
        struct writer w = { .at = out };
        const uint8_t *end = out + n * size;
        unsigned k;
        bool less;

        if (!count) {
                out[0] = SAME;
                return 1;
        }
        k = gap_k(room, count);
        if (count * (k + 1) + ((room - count) >> k) < room) {
                unsigned length = length_of((uint32_t)count);

                put(&w, GAPS | length << FORM_BITS, FORM_BITS + LENGTH_BITS);
                put(&w, low_bits(count, length - 1), length - 1);
                less = put_changes(&w, was, is, n, size, shift, masks, &k, end);
        } else {
                put(&w, MASK, FORM_BITS);
                for (size_t i = 0; i < words_of(n); i++) {
                        put(&w, masks[i] & UINT32_MAX, WORD / 2);
                        put(&w, masks[i] >> WORD / 2, WORD / 2);
                }
                less = put_changes(&w, was, is, n, size, shift, masks, NULL, end);
        }
        w.at += w.n > 0;
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

static inline unsigned zeros_of(uint64_t word)
{
        return (unsigned)__builtin_ctzll(word | 1u << ZEROS_MOST);
}

static inline size_t take_gap(struct reader *r, unsigned k)
{
        unsigned zeros = zeros_of(r->word);
        size_t gap;

        if (zeros == ZEROS_MOST) {
                gap = low_bits(r->word >> ZEROS_MOST, GAP_BITS);
                drop(r, ZEROS_MOST + GAP_BITS);
        } else {
                gap = (size_t)zeros << k | low_bits(r->word >> (zeros + 1), k);
                drop(r, zeros + 1 + k);
        }
        return gap;
}

static inline uint32_t take_step(struct reader *r, unsigned k, uint32_t *ret_down)
{
        unsigned zeros = zeros_of(r->word), low = k + zeros;
        uint64_t rest = r->word >> zeros; /* a one if not ZEROS_MOST */
        uint32_t x;

        if (zeros == ZEROS_MOST) {
                *ret_down = rest & 1;
                x = (uint32_t)(rest >> 1);
                drop(r, ZEROS_MOST + 1 + 32);
        } else if (low > 32) {
                *ret_down = x = 0;
                r->bad = true;
        } else {
                *ret_down = rest >> 1 & 1;
                x = (uint32_t)((1ull << low) + low_bits(rest >> 2, low) - (1u << k));
                drop(r, low + zeros + 2);
        }
        return x;
}

INLINE void change(struct reader *r, void *values, size_t i, size_t size, unsigned shift,
                   struct steps *s)
{
        int32_t old = load(values, i, size);
        uint16_t *length = &s->length[((uint32_t)old >> shift) % CLASSES];
        uint32_t down, x = take_step(r, *length / 8u, &down);
        uint32_t step = (x + 1 - down) ^ -down;

        learn(length, x);
        store(values, i, size, place_of((int32_t)(place_of(old, size) + step), size));
}

/* What fills the last byte is left, and nothing else. */
static inline bool at_end(const struct reader *r)
{
        return r->n < 8 && low_bits(r->word, r->n) == 0;
}

INLINE bool apply_gaps(struct reader *r, void *values, size_t n, size_t size, unsigned shift)
{
        struct steps steps = { 0 };
        unsigned length = (unsigned)low_bits(r->word, LENGTH_BITS), k;
        size_t next = 0, count, i;

        drop(r, LENGTH_BITS);
        if (length == 0)
                return false;
        count = 1u << (length - 1) | low_bits(r->word, length - 1);
        drop(r, length - 1);
        if (count > n)
                return false;
        k = gap_k(words_of(n) * WORD, count);
        for (; count > 0 && !r->bad; count--) {
                refill(r);
                next += take_gap(r, k);
                i = element_of(next / WORD, next % WORD, size);
                if (i >= n)
                        return false;
                next++;
                refill(r);
                change(r, values, i, size, shift, &steps);
        }
        return true;
}

INLINE bool apply_mask(struct reader *r, void *values, size_t n, size_t size, unsigned shift)
{
        struct steps steps = { 0 };
        uint64_t masks[DELTA_MOST / WORD];

        for (size_t i = 0; i < words_of(n); i++) {
                refill(r);
                masks[i] = low_bits(r->word, WORD / 2);
                drop(r, WORD / 2);
                refill(r);
                masks[i] |= r->word << WORD / 2;
                drop(r, WORD / 2);
        }
        for (size_t at = 0; at < words_of(n) && !r->bad; at++)
                for (uint64_t mask = masks[at]; mask; mask &= mask - 1) {
                        size_t i = element_of(at, (size_t)__builtin_ctzll(mask), size);

                        if (i >= n)
                                return false;
                        refill(r);
                        change(r, values, i, size, shift, &steps);
                }
        return true;
}

INLINE bool apply_block(void *values, size_t n, size_t size, unsigned shift, const uint8_t *p,
                        size_t bytes)
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
        if (!(form == GAPS ? apply_gaps(&r, values, n, size, shift)
                           : apply_mask(&r, values, n, size, shift)))
                return false;
        refill(&r);
        return !r.bad && at_end(&r);
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
