/*
 * The state directory: the lock, the quota and the names of files.  Private to the store.
 * The counters may be used from any thread; everything else does not change.
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
        _Atomic uint64_t used;
        struct list parked; /* planes of closed states on GPUs; loop thread */
};

/* As store_admit(), and charges the quota. */
int store_take(struct store *store, uint64_t bytes, uint64_t elsewhere, const char *what,
               struct fault *fault);
/* Charges the quota for what a job that is here already needs, even above it. */
void store_take_up(struct store *store, uint64_t bytes);
void store_give(struct store *store, uint64_t bytes);
/*
 * The name of the file of an owner's copy of a job's state: safe and short whatever the job is
 * called.  Of the identity job, copy and epoch count.
 */
void store_file_name(const struct state_identity *id, uint32_t owner,
                     char ret[static STORE_FILE_NAME]);
/* The epoch in such a name, which may be temporary. */
uint64_t store_file_epoch(const char *file);
/* The same before the file is complete; such files are deleted when the store is opened. */
void store_temporary_name(const char *file, char ret[static STORE_FILE_NAME]);
/* What a state keeps beside its file, which may have its temporary name. */
void store_blobs_name(const char *file, char ret[static STORE_FILE_NAME]);
/* Whether it is the file of a state that was lost on a GPU: all but a hole, so it is not charged.
 */
bool store_lost(const struct store *store, const char *file);
/* As store_each(), for files whose names end so. */
int store_each_called(const struct store *store, const char *suffix,
                      int (*each)(const char *file, void *arg), void *arg);
/* Whether a directory entry is called like a state file. */
bool store_is_state(const char *name);
