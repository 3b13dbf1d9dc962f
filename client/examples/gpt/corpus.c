/*
 * Reading the text, sampling from it, and the bigram baseline.
 */
#include "corpus.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "proto/cleanup.h"
#include "random.h"

static void cleanup_fclose(FILE **file)
{
        if (*file)
                fclose(*file);
}

/* Reads to the end of the file, whatever kind of file it is. */
static int read_all(FILE *file, uint8_t **ret_bytes, size_t *ret_size)
{
        CLEANUP(cleanup_free) uint8_t *bytes = NULL;
        size_t size = 0, capacity = 0;
        while (!feof(file)) {
                if (size == capacity) {
                        capacity = capacity ? 2 * capacity : 1 << 20;
                        uint8_t *more = realloc(bytes, capacity);
                        if (!more)
                                return -ENOMEM;
                        bytes = more;
                }
                size += fread(bytes + size, 1, capacity - size, file);
                if (ferror(file))
                        return -errno;
        }
        *ret_bytes = STEAL(bytes);
        *ret_size = size;
        return 0;
}

int corpus_load(const char *path, uint32_t context, struct fault *fault, struct corpus *ret_text)
{
        CLEANUP(cleanup_fclose) FILE *file = fopen(path, "re");
        if (!file)
                return fault_errno(fault, -errno, path);
        struct corpus text = { 0 };
        int r = read_all(file, &text.bytes, &text.size);
        if (r)
                return fault_errno(fault, r, path);
        text.n_train = text.size - text.size / 10;
        if (text.size / 10 < (size_t)context + 1) {
                corpus_deinit(&text);
                return fault_set(fault, ZERO_EINVAL,
                                 "%s has %zu bytes; a context of %u needs at least %zu", path,
                                 text.size, context, ((size_t)context + 1) * 10);
        }
        *ret_text = text;
        return 0;
}

void corpus_deinit(struct corpus *text)
{
        free(text->bytes);
        *text = (struct corpus){ 0 };
}

void corpus_sample(const struct corpus *text, struct corpus_sequence which, uint32_t context,
                   uint8_t *ret_inputs, uint8_t *ret_targets)
{
        uint64_t key = random_key(which.seed, which.step);
        const uint8_t *at = text->bytes + random_below(key, which.index, text->n_train - context);
        memcpy(ret_inputs, at, context);
        memcpy(ret_targets, at + 1, context);
}

size_t corpus_window(const struct corpus *text, uint32_t context, uint32_t index, uint32_t count)
{
        uint64_t places = text->size - text->n_train - context;
        return text->n_train + (size_t)(places * index / count);
}

struct bigram {
        uint64_t pairs[256][256];
        uint64_t singles[256], total;
};

static void count(const struct corpus *text, struct bigram *counts)
{
        for (size_t i = 1; i < text->n_train; i++) {
                counts->pairs[text->bytes[i - 1]][text->bytes[i]]++;
                counts->singles[text->bytes[i]]++;
        }
        counts->total = text->n_train - 1;
}

static uint64_t occurrences(const struct bigram *counts, uint8_t before)
{
        uint64_t sum = 0;
        for (unsigned i = 0; i < 256; i++)
                sum += counts->pairs[before][i];
        return sum;
}

/* p(byte | before), a Dirichlet prior of weight 8 around p(byte), itself add-one. */
static void log_probabilities(const struct bigram *counts, double (*ret)[256])
{
        const double weight = 8;
        for (unsigned before = 0; before < 256; before++) {
                double n = (double)occurrences(counts, (uint8_t)before) + weight;
                for (unsigned byte = 0; byte < 256; byte++) {
                        double single =
                                ((double)counts->singles[byte] + 1) / ((double)counts->total + 256);
                        double pairs = (double)counts->pairs[before][byte];
                        ret[before][byte] = log((pairs + weight * single) / n);
                }
        }
}

double corpus_bigram_loss(const struct corpus *text, uint32_t context, uint32_t windows)
{
        static struct bigram counts;
        static double probabilities[256][256];
        memset(&counts, 0, sizeof(counts));
        count(text, &counts);
        log_probabilities(&counts, probabilities);
        double loss = 0;
        for (uint32_t i = 0; i < windows; i++) {
                const uint8_t *at = text->bytes + corpus_window(text, context, i, windows);
                for (uint32_t k = 0; k < context; k++)
                        loss -= probabilities[at[k]][at[k + 1]];
        }
        return loss / ((double)windows * context);
}
