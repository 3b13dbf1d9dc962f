/*
 * drops.h - notes of dropped jobs: which nodes may still hold some of a job and have not heard that
 * it is dropped.  A note is a small file beside the states and outlives the process.
 */
#pragma once

#include "proto/fault.h"

struct store;

/* Writes the note of the job, in the place of an older one; nodes: names with blanks between. */
int drops_write(const struct store *store, const char *job, const char *nodes, struct fault *fault);
/* Deletes the note, if there is one. */
void drops_delete(const struct store *store, const char *job);
/* Calls each() for every note that can be read. */
void drops_each(const struct store *store,
                void (*each)(const char *job, const char *nodes, void *arg), void *arg);
