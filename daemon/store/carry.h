/*
 * carry.h - carries planes between their file and a GPU.  Private to the store.
 *
 * One thread copies between pinned memory and a file at a fifth of the speed of a GPU's link.  So
 * there are as many threads as compute threads, and each takes a piece at a time.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

enum { CARRY_PIECE = 8 << 20 };

struct carry {
        bool save; /* to the file, otherwise from it */
        int fd;
        uint64_t at;            /* where in the file the bytes begin */
        uint8_t *file, *memory; /* the bytes, in the file's mapping and on the GPU */
        uint64_t bytes;
        uint32_t threads;
        /* NULL, or called every CARRY_TELL_S seconds, on the calling thread. */
        void (*tell)(void *arg, uint64_t done);
        void *arg;
};
enum { CARRY_TELL_S = 5 };

/* Returns when all is done.  Saving reserves the file's space; 0, -ENOSPC or another -errno. */
int carry_run(const struct carry *c);
