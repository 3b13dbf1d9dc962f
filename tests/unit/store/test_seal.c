/* Words: a number and its check value. */
#include <criterion/criterion.h>
#include <stdlib.h>

#include "daemon/store/seal.h"

static uint64_t random_number(void)
{
        uint64_t bits = (uint64_t)random() << 31 ^ (uint64_t)random();

        return bits >> (random() % SEAL_NUMBER_BITS) & ((UINT64_C(1) << SEAL_NUMBER_BITS) - 1);
}

Test(seal, a_word_gives_its_number_back)
{
        srandom(1);
        for (int i = 0; i < 100000; i++) {
                uint32_t table = (uint32_t)random(), index = (uint32_t)random();
                uint64_t number = random_number();

                cr_assert_eq(seal_open(table, index, seal(table, index, number)), number);
        }
}

Test(seal, every_flip_of_one_bit_is_found)
{
        srandom(2);
        for (int i = 0; i < 20000; i++) {
                uint32_t table = (uint32_t)random() % 16, index = (uint32_t)random();
                uint64_t word = seal(table, index, random_number());

                for (int bit = 0; bit < 64; bit++)
                        cr_assert_eq(seal_open(table, index, word ^ UINT64_C(1) << bit),
                                     UINT64_MAX);
        }
}

Test(seal, zeros_and_words_of_other_places_are_found)
{
        uint32_t passed = 0;

        for (uint32_t table = SEAL_COPY; table <= SEAL_UNDO_VERSION; table++)
                for (uint32_t index = 0; index < 1000; index++) {
                        uint64_t word = seal(table, index, index % 3);

                        passed += seal_open(table, index, 0) != UINT64_MAX;
                        passed += seal_open(table + 1, index, word) != UINT64_MAX;
                        passed += seal_open(table, index + 1, word) != UINT64_MAX;
                }
        cr_assert_leq(passed, 1, "%u of 27000", passed);
}
