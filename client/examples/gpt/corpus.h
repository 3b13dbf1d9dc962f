/*
 * The text: its first nine tenths are for training, the rest is for validation.
 *
 * Rule: the bytes of a sequence depend on the seed, the step, and the sequence's number in the
 * whole step (over all ranks and micro-batches), and on nothing else.  So n ranks with a batch of b
 * see the same bytes as one rank with a batch of n * b.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "proto/fault.h"

struct corpus {
        uint8_t *bytes;
        size_t size;
        size_t n_train;
};

/* Reads a file; refuses one that is too short for a sequence of `context` bytes in either part. */
int corpus_load(const char *path, uint32_t context, struct fault *fault, struct corpus *ret_text);
void corpus_deinit(struct corpus *text);

struct corpus_sequence {
        uint64_t seed, step, index;
};

/* [context] bytes of the training part, and the bytes one further on. */
void corpus_sample(const struct corpus *text, struct corpus_sequence which, uint32_t context,
                   uint8_t *ret_inputs, uint8_t *ret_targets);

/* Where window `index` of `count`, evenly spaced over the validation part, begins. */
size_t corpus_window(const struct corpus *text, uint32_t context, uint32_t index, uint32_t count);

/*
 * Nats a byte that a byte-bigram model counted on the training part loses on the targets of
 * the validation windows.  It is smoothed towards the counts of single bytes.
 */
double corpus_bigram_loss(const struct corpus *text, uint32_t context, uint32_t windows);
