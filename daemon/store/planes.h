/*
 * Where a state's planes are: in its file, or in GPU memory.  Private to the store.
 *
 * The file says where the planes are (file_planes()).  It names this process's store before the
 * first byte of the planes changes on the GPU, and PLANES_HERE once all are written back.  In
 * between the file has a hole in their place.  The serve plane is made from master, unless master
 * needs it (plan->keeps_served): then it goes where the planes go.
 *
 * When a state is closed its planes are parked, so that this process may open the state again.
 * store_save() writes parked planes to their files.
 */
#pragma once

#include "daemon/store/file.h"
#include "daemon/store/directory.h"
#include "proto/list.h"

struct planes {
        struct list link; /* store.parked */
        char file[STORE_FILE_NAME];
        uint32_t place;
        uint64_t at, bytes;   /* the file's region of planes */
        uint8_t *memory;      /* master, moments and gradients, laid out as in that region */
        uint64_t serve_at;    /* where the file has the serve plane, or where the planes begin */
        struct segment serve; /* of a parked state whose master needs it; else without memory */
        /* How many bytes from serve_at on the next process needs; set when they are parked. */
        uint64_t needed;
};

/* What differs by where planes are.  Planes that are lost have the row of the place they were in.
 */
struct home {
        bool survives; /* the planes outlive the process, so every chunk has a version */
        bool for_cpu;  /* the CPU reads, writes and updates them */
        bool in_file;  /* the file has no hole in their place */
        /* Makes zeroed planes at id->place.  NULL: the file's space is all they need. */
        int (*make)(struct state *state, const struct state_identity *id,
                    const struct file_map *places, struct fault *fault);
        /* Makes the serve plane, zeroed, beside the planes. */
        int (*make_serve)(struct state *state, uint64_t bytes, const char *what,
                          struct fault *fault);
        /* The planes' memory from master on, laid out as in the file; NULL: they are lost, or take
         * no bytes. */
        uint8_t *(*memory)(const struct state *state, const struct file_map *places);
        /* Before the state is closed: brings all but the planes to the file.  NULL: it is there. */
        void (*leave)(struct state *state);
};

extern const struct home home_file, home_gpu;
const struct home *home_of(uint32_t place);

void planes_free(struct planes *p);
/* Points the state's arrays to its planes; to NULL if the planes are lost.  Unmaps a hole: a stray
 * read there would fill it with pages. */
void planes_bind(struct state *state, const struct file_map *places);
/* Copies the planes from the file to the new home and leaves a hole in the file. */
void planes_load(struct state *state, const struct file_map *places);
/* Takes planes that are on a GPU from a state that is about to be closed. */
void planes_park(struct state *state);
/* Returns the planes parked for that file, and gives them to the caller; NULL: there are none. */
struct planes *planes_take(struct store *store, const char *file);
