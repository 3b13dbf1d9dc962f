/*
 * The state directory: the lock, the quota and the names of files.  Private to the store.
 * Any thread may charge the quota.  Only the loop thread uses `parked`; the rest never changes.
 */
#pragma once

#include <stdatomic.h>

#include "daemon/store/store.h"
#include "proto/list.h"

enum { STORE_FILE_NAME = 160 };

struct store {
        char *path;
        int dir, lock;
        uint64_t quota;
        uint64_t number; /* random, not PLANES_HERE; a file whose planes this store has names it */
        _Atomic uint64_t used;
        struct list parked; /* planes of closed states on GPUs; loop thread */
        uint32_t threads;   /* how many carry planes to GPUs and back */
};

/* As store_admit(), and charges the quota. */
int store_take(struct store *store, uint64_t bytes, uint64_t elsewhere, const char *what,
               struct fault *fault);
/* Charges what a job that is already here needs, even above the quota. */
void store_take_up(struct store *store, uint64_t bytes);
void store_give(struct store *store, uint64_t bytes);
/*
 * The name of a state's file, from the owner and from job, copy and epoch of the identity.  It is
 * safe and short whatever the job is called.
 */
void store_file_name(const struct state_identity *id, uint32_t owner,
                     char ret[static STORE_FILE_NAME]);
/* The epoch in such a name, which may be temporary. */
uint64_t store_file_epoch(const char *file);
/* The file's name until the file is complete.  store_open() deletes files with such names. */
void store_temporary_name(const char *file, char ret[static STORE_FILE_NAME]);
/* The file of blobs beside a state's file, either with its temporary name or with its own. */
void store_blobs_name(const char *file, char ret[static STORE_FILE_NAME]);
/* True if the state was lost on a GPU.  Its file is little more than a hole and is not charged. */
bool store_lost(const struct store *store, const char *file);
/* As store_each(), for files whose names end in `suffix`. */
int store_each_called(const struct store *store, const char *suffix,
                      int (*each)(const char *file, void *arg), void *arg);
/* True if a directory entry is named like a state file. */
bool store_is_state(const char *name);
