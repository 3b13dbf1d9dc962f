/*
 * drops.h - notes of dropped jobs: which nodes may still hold some of a job and have not heard that
 * it is dropped.  A note is a small file beside the states and outlives the process.
 */
#pragma once

#include "proto/fault.h"

struct store;

struct drop_note {
        const char *job;
        const char *nodes; /* names with blanks between */
        uint32_t uid;      /* of the job */
};

/* Writes the note of the job, in the place of an older one. */
int drops_write(const struct store *store, const struct drop_note *note, struct fault *fault);
/* Deletes the note, if there is one. */
void drops_delete(const struct store *store, const char *job);
/* Calls each() for every note that can be read. */
void drops_each(const struct store *store, void (*each)(const struct drop_note *note, void *arg),
                void *arg);
