/*
 * Directories of checkpoints.  Blocking: not for the loop thread.
 *
 *   DIR/JOB-VERSION/            a whole checkpoint: shards, layout, manifest
 *   DIR/.JOB-VERSION.partial/   being written, or cancelled; never read
 *
 * The rename from the second name to the first is what makes a checkpoint: everything in it has
 * reached the disk by then.  Of several nodes that share a directory the first renames, and the
 * others find that done; nodes with disks of their own each rename theirs.
 *
 * A daemon writes with its own rights for users who may have less.  Where zerod runs as the user
 * who asks, or root asks, any directory will do.  For anybody else the configuration names a
 * directory (checkpoint_dir), and nothing outside it is touched: below it no symbolic link is
 * followed, and what is read back must belong to zerod's user and be writable by nobody else.
 */
#pragma once

#include "daemon/store/snapshot/snapshot.h"

/* `root` is checkpoint_dir, "" if there is none; `path` is absolute. */
struct snapshot_place {
        const char *root, *path;
        uint32_t uid;          /* the asking user */
        const char *state_dir; /* which a checkpoint must outlive; NULL: nothing is written */
};
enum place_use {
        PLACE_READ,
        PLACE_MADE,  /* to write; made if it is missing, with mode 0700 */
        PLACE_TRIED, /* whether PLACE_MADE would do; a missing one is not made, its parent opened */
};

/* Whether the user may name the directory at all: ZERO_EPERM or ZERO_EINVAL.  Does not block. */
int snapshot_place_check(const struct snapshot_place *place, struct fault *fault);
/*
 * Opens DIR, or a checkpoint in it.  Below root, a directory of a third user is used as far as its
 * mode allows everybody.  Whoever writes is refused a missing path, a read-only one, the memory of
 * state_dir, and a unit's own /tmp.
 */
int snapshot_place_open(const struct snapshot_place *place, enum place_use use, int *ret_fd,
                        struct fault *fault);
/*
 * Whether zerod sees the directory as the client does, and may use it.  seen: "DEVICE:INODE PATH"
 * (hexadecimal) of the directory, or of the nearest one above it that the client sees.  ZERO_EINVAL
 * where they differ: each may have file systems of its own.  Other nodes have theirs, and nothing
 * to compare; they know by themselves only what systemd made for their units.
 */
int snapshot_place_look(const struct snapshot_place *place, const char *seen, bool writes,
                        struct fault *fault);
/* Measures the disk's bytes per second: writes and deletes a file of `bytes` bytes. */
int snapshot_probe(int dir, const void *data, size_t bytes, double *ret_rate, struct fault *fault);
/* ZERO_EIO if the file system has too little space. */
int snapshot_check_space(int dir, uint64_t bytes, struct fault *fault);

/* Opens (makes) the directory of a checkpoint to write, and deletes cancelled ones of other
 * versions of the job. */
int snapshot_partial_open(int dir, const char *job, uint64_t version, int *ret_fd,
                          struct fault *fault);
/* Deletes it with everything in it. */
void snapshot_partial_remove(int dir, const char *job, uint64_t version);
/*
 * Makes the partial directory a whole checkpoint: layout, manifest, fsync, rename.  Replaces one of
 * the same job, user and version at once.  0 if another node has done that.
 */
int snapshot_publish(int dir, const struct manifest *m, const char *text, const void *packed,
                     struct fault *fault);
/* Deletes the whole checkpoints of the manifest's job and user, except the newest `keep`. */
void snapshot_keep(int dir, const struct manifest *m, uint32_t keep);

/* A whole checkpoint in a directory. */
struct snapshot_listed {
        char name[ZERO_NAME_MAX + 33];       /* of its directory; "": the listed one is it */
        char job[ZERO_NAME_MAX + 1];         /* "": its manifest cannot be used */
        uint64_t version, created_ms, bytes; /* bytes: of all shards */
        uint32_t n_shards, n_here; /* n_here: whose files are there, of the right length */
        char flaw[256];            /* "": none was seen */
};
/*
 * The checkpoints in the open directory that the user may restore, the newest first; the caller
 * frees them.  Looks at manifests and the shards' lengths alone.
 */
int snapshot_list(int dir, uint32_t uid, struct snapshot_listed **ret, uint32_t *ret_n,
                  struct fault *fault);

/* Where a check of a checkpoint's bytes stands. */
struct snapshot_check {
        uint32_t shard;
        uint64_t block;
        uint64_t bytes; /* of blocks, checked so far */
        bool over;      /* all of it is as it was written */
};
/* Checks the next 256 MiB of an open checkpoint that the user may restore. */
int snapshot_check_next(int dir, uint32_t uid, struct snapshot_check *at, struct fault *fault);

/* Reads and checks the manifest and the packed layout (the caller frees it) of an open checkpoint;
 * ZERO_EPERM if it is another user's than `uid` and that is not root. */
int snapshot_open_checkpoint(int dir, uint32_t uid, struct manifest *ret, uint8_t **ret_layout,
                             struct fault *fault);
/* Unpacks that layout; does not block. */
int snapshot_layout(const uint8_t *packed, size_t bytes, layout **ret, struct fault *fault);
