/*
 * A state's planes in GPU memory.  Private to the store.
 *
 * The file says where the planes are (file_planes()).  It names this process's store before the
 * first byte of the planes changes on the GPU, and PLANES_HERE once all are written back.  In
 * between the file has a hole in their place.  The serve plane is not in the file: it is made from
 * master.
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
        uint64_t at, bytes; /* the file's region of planes */
        uint8_t *memory;    /* master, moments and gradients, laid out as in that region */
        uint64_t needed; /* how many of these bytes the next process needs; set when the planes are
                            parked */
};

/* Zeroed, on the GPU that id->place names. */
int planes_new(const struct state_identity *id, const struct file_map *places, struct planes **ret,
               struct fault *fault);
void planes_free(struct planes *p);
/* Points the state's arrays to its planes; to NULL if the planes are lost. */
void planes_bind(struct state *state, const struct file_map *places);
/* Unmaps the hole: a stray read there would fill it with pages. */
void planes_leave_hole(struct state *state, const struct file_map *places);
/* Copies the planes from the file to the GPU and leaves a hole in the file. */
void planes_load(struct state *state, const struct file_map *places);
/* Call it before a state whose planes are on a GPU is closed.  Afterwards the file has all but the
 * planes. */
void planes_leave(struct state *state);
/* Takes the planes from a state that is about to be closed, if they are on a GPU. */
void planes_park(struct state *state);
/* Returns the planes parked for that file, and gives them to the caller; NULL: there are none. */
struct planes *planes_take(struct store *store, const char *file);
