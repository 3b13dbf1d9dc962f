/*
 * moves.h - plans which bytes go from which GPU to which, and when.  Pure: knows memory only by its
 * address.
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

/* A GPU that is to get the bytes, or has them. */
struct peer {
        void *memory;
        uint32_t gpu; /* all different */
};

/*
 * One round: the first `have` peers have the bytes, and each sends them to one that does not.  So
 * each round doubles the peers that have them, and no GPU sends to two at once.  Returns the
 * number of moves, by which `have` grows.
 */
uint32_t moves_spread(const struct peer *peers, uint32_t n_peers, uint32_t have, size_t n,
                      struct move *ret);

/* ---- operands that are brought to one GPU, chunk by chunk ---- */

struct operand {
        uint8_t *memory; /* inputs, too, are not const, but never written */
        uint32_t width;  /* bytes per element */
        bool in, out;
        int gpu;     /* the GPU that has the operand; -1: host memory */
        bool pinned; /* host memory that GPUs read and write */
        /* Where a chunk of the operand is during the computation. */
        enum staged_in { STAGED_NOT, STAGED_PINNED, STAGED_PEERS } staged;
        size_t at; /* offset in that memory of a lane */
};

/* Elements per chunk, so that the operands staged in one memory fit side by side into n bytes of
 * it; SIZE_MAX: none is staged. */
size_t operands_fit(const struct operand *operands, uint32_t n, enum staged_in in, size_t bytes);
/* Places these operands; returns the bytes that they take. */
size_t operands_lay_out(struct operand *operands, uint32_t n, enum staged_in in, size_t chunk);
/* Lists the moves that bring elements of inputs on other GPUs into that GPU's buffer. */
uint32_t operands_moves(const struct operand *operands, uint32_t n, uint8_t *buffer, uint32_t gpu,
                        size_t first, size_t elements, struct move *ret);
