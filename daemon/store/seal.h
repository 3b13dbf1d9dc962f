/*
 * A word: a number and its check value in 64 bits, so that one atomic store writes both.
 * Private to the store.
 *
 *   word = number << 24 | check, number < 2^40
 *   check = the upper 24 bits of (number ^ place) * K, place from the table and the index
 *
 * Every flip of one bit is found.  For a bit of the check that is plain.  Bit i of the number
 * changes the product by 2^i K modulo 2^64.  The upper 24 bits of the product can stay the same
 * only if those of 2^i K are all equal, and K has no 24 equal bits in a row.  Any other damage,
 * such as a page of zeros or a word from another place, passes with probability 2^-24.
 */
#pragma once

#include <assert.h>
#include <stdint.h>

enum seal_table {
        SEAL_COPY = 1,
        SEAL_STEPS, /* two values, by side; so has SEAL_PRESENTS */
        SEAL_PRESENTS = SEAL_STEPS + 2,
        SEAL_SETS = SEAL_PRESENTS + 2,
        SEAL_VERSIONS,
        SEAL_UNDO,
        SEAL_UNDO_VERSION,
        SEAL_PUTS,
        SEAL_PLANES,
};

#define SEAL_NUMBER_BITS 40
#define SEAL_CHECK_BITS 24

static inline uint64_t seal_check(uint32_t table, uint32_t index, uint64_t number)
{
        uint64_t place = ((uint64_t)table << 32 | index) * UINT64_C(0xff51afd7ed558ccd);

        return (number ^ place) * UINT64_C(0x9e3779b97f4a7c15) >> SEAL_NUMBER_BITS;
}

static inline uint64_t seal(uint32_t table, uint32_t index, uint64_t number)
{
        assert(number >> SEAL_NUMBER_BITS == 0);
        return number << SEAL_CHECK_BITS | seal_check(table, index, number);
}

/* The number; UINT64_MAX if the word was not sealed for this place. */
static inline uint64_t seal_open(uint32_t table, uint32_t index, uint64_t word)
{
        uint64_t number = word >> SEAL_CHECK_BITS;

        return seal(table, index, number) == word ? number : UINT64_MAX;
}
