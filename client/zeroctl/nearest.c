/* See nearest.h: edit distance (insertions, deletions, substitutions), bounded in length. */
#include "nearest.h"

#include <string.h>

enum { WORD_MAX = 31 };

static unsigned least(unsigned a, unsigned b, unsigned c)
{
        unsigned ab = a < b ? a : b;

        return ab < c ? ab : c;
}

/* One row of the distance matrix at a time. */
static unsigned distance(const char *a, const char *b)
{
        size_t n = strlen(b);
        unsigned row[WORD_MAX + 1];

        for (size_t j = 0; j <= n; j++)
                row[j] = (unsigned)j;
        for (size_t i = 1; a[i - 1]; i++) {
                unsigned diagonal = row[0];

                row[0] = (unsigned)i;
                for (size_t j = 1; j <= n; j++) {
                        unsigned above = row[j];

                        row[j] =
                                least(above + 1, row[j - 1] + 1, diagonal + (a[i - 1] != b[j - 1]));
                        diagonal = above;
                }
        }
        return row[n];
}

const char *nearest(const char *word, const char *const *words, unsigned n)
{
        const char *best = NULL;
        unsigned best_distance = 3; /* what is farther is not the same word */

        if (strlen(word) > WORD_MAX)
                return NULL;
        for (unsigned i = 0; i < n; i++) {
                unsigned d = strlen(words[i]) > WORD_MAX ? best_distance : distance(word, words[i]);

                if (d < best_distance) {
                        best_distance = d;
                        best = words[i];
                }
        }
        return best;
}
