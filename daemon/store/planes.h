/*
 * A state's planes in GPU memory.  Private to the store.
 *
 * The file says where the planes are (enum planes_where): AWAY before the first byte of it changes
 * on the GPU, HERE when all are written back.  Between the two the file has a hole in
 * their place.  What is served is apart: it is made anew from master.
 *
 * Planes of a state that was closed are parked: the process may open it again.  When the store
 * is to be closed those that are parked are written to their files (store_save()).
 */
#pragma once

#include "daemon/device/gpu/gpu.h"
#include "daemon/store/file.h"
#include "daemon/store/directory.h"
#include "proto/list.h"

struct planes {
        struct list link; /* store.parked */
        char file[STORE_FILE_NAME];
        uint32_t gpu;
        uint64_t at, bytes; /* the file's region of planes */
        uint8_t *memory;    /* master, moments and gradients, as in that region */
};

/* Zeroed, on the GPU that the identity names. */
int planes_new(const struct state_identity *id, const struct file_map *places, struct planes **ret,
               struct fault *fault);
void planes_free(struct planes *p);
/* Points the state's arrays to its planes; to nothing if they are lost. */
void planes_bind(struct state *state, const struct file_map *places);
/* Ends the mapping where the planes are not: a read would make them.  The file is locked from here
 * on: that tells it from one of which nobody has the planes (store_lost()). */
void planes_leave_hole(struct state *state, const struct file_map *places);
/* From the file, which has them no more then. */
void planes_load(struct state *state, const struct file_map *places);
/* Takes them from the state, which is to be closed, if they are on a GPU. */
void planes_park(struct state *state);
/* Those that are parked for that file; or NULL. */
struct planes *planes_take(struct store *store, const char *file);
bool planes_parked(const struct store *store, const char *file);
