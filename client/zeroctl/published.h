/*
 * A directory of published versions: DIR/version-NNNNNNNN.  DIR/latest names the newest.
 *
 * Names that begin with a dot are of what is not whole.  One process at a time writes there (a
 * lock), so what a dead one has left is known by its name, and is deleted.  All versions are of one
 * job, and a new one has a greater number.  Only what was written here is deleted: each version's
 * index lists its files.
 */
#pragma once

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#define PUBLISHED_INDEX "model.safetensors.index.json"

enum { PUBLISHED_NAME = 48 };

struct published {
        const char *path, *job;
        long keep;     /* how many of the newest stay; 0: all */
        int fd;        /* of the directory */
        int lock;      /* until published_close() */
        uint64_t free; /* the first number above all versions there */
};

/* All return CTL_OK, or CTL_FAILED once the error is told. */

/* Makes the directory if it is missing; finishes what was begun there. */
int published_open(const char *path, const char *job, long keep, struct published *ret);
void published_close(struct published *d);
/* Begins a version under a name with a dot; *ret_fd: its directory. */
int published_begin(const struct published *d, uint64_t version, int *ret_fd);
/* Ends the version; it appears if it is whole. */
int published_end(struct published *d, uint64_t version, int fd, bool whole);
void published_name(char name[static PUBLISHED_NAME], uint64_t version, bool partial);
/* Says what failed at a name in the directory, ("": at the directory), and returns CTL_FAILED. */
int published_error(const struct published *d, const char *name, int error);
