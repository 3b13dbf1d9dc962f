/*
 * moves.h - which bytes go from which GPU to which, and when.  Pure: of memory nothing but
 * addresses is known here.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* n bytes from one GPU to another. */
struct move {
        void *dst;
        const void *src;
        size_t n;
        uint32_t to, from;
};

/* ---- the same bytes to several GPUs ---- */

struct place {
        void *memory;
        uint32_t gpu; /* each another */
};

/*
 * One round: the first `have` of the places have the bytes, and each passes them on to one that has
 * not, so that each round doubles those that do, and no GPU sends to two at once.  Their number, by
 * which `have` grows.
 */
uint32_t moves_spread(const struct place *places, uint32_t n_places, uint32_t have, size_t n,
                      struct move *ret);

/* ---- operands that are brought to one GPU, chunk by chunk ---- */

struct operand {
        uint8_t *memory; /* of inputs too: those are never written */
        uint32_t width;  /* bytes of an element */
        bool in, out;
        int gpu;     /* where it lies; -1: host memory */
        bool pinned; /* host memory that GPUs read and write */
        /* Where a chunk of it is while it is computed. */
        enum staged_in { STAGED_NOT, STAGED_PINNED, STAGED_PEERS } staged;
        size_t at; /* in that memory of a lane */
};

/* Elements of a chunk, so that those that are staged in one memory fit side by side into so many
 * bytes of it; SIZE_MAX: none is. */
size_t operands_fit(const struct operand *operands, uint32_t n, enum staged_in in, size_t bytes);
/* Gives those their places; the bytes that they take. */
size_t operands_lay_out(struct operand *operands, uint32_t n, enum staged_in in, size_t chunk);
/* What of elements first... of the inputs on other GPUs is to come into that GPU's buffer. */
uint32_t operands_moves(const struct operand *operands, uint32_t n, uint8_t *buffer, uint32_t gpu,
                        size_t first, size_t elements, struct move *ret);
