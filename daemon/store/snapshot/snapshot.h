/*
 * A checkpoint's shard: one owner's part of a job's state in a file.
 *
 *   header    struct snapshot_header
 *   meta      struct snapshot_meta; steps uint64_t [tensor]; sets uint64_t [tensor];
 *             for each rank with a blob: uint32_t rank, uint32_t length, the bytes
 *   hashes    BLAKE2b-256 of each block
 *   blocks    the stream, in blocks of SNAPSHOT_BLOCK bytes, the last one shorter
 *
 * The stream holds, group by group, the owner's ranges of master, of the moments of the group's
 * optimizer, and of what is served where that is a part of the master.  So a group may change again
 * as soon as the stream up to the group's end is copied.
 *
 * The header holds the hash of meta, the hash of the hashes and its own: no byte of the file can
 * change unnoticed.  Numbers are little-endian.  Any node of any cluster can read the file, because
 * the layout and the number of owners determine what lies where.
 */
#pragma once

#include "daemon/compute/device/device.h"
#include "daemon/store/snapshot/manifest.h"
#include "daemon/store/store.h"

enum { SNAPSHOT_BLOCK = 4 << 20 };

/* ---- where the stream's bytes are ---- */

/* Contiguous elements of one group in one plane; all of them are frozen, or none. */
struct snapshot_extent {
        uint64_t offset, bytes; /* in the stream */
        struct range part;      /* of the group */
        struct plane plane;
        uint32_t group;
        bool frozen; /* no update changes it */
};

struct snapshot_map {
        struct snapshot_extent *extents; /* in the stream's order; none is empty */
        uint64_t *group_end;             /* [group]: where the group ends in the stream */
        uint32_t n, n_groups;
        uint64_t bytes;
};

int snapshot_map_new(const struct plan *plan, struct snapshot_map *ret);
void snapshot_map_deinit(struct snapshot_map *map);
/* dst = n bytes of the state's stream from `offset` on.  Any thread; several threads may copy at
 * the same time. */
void snapshot_copy(const struct snapshot_map *map, const struct state *state,
                   const struct device_ops *ops, uint64_t offset, uint8_t *dst, size_t n);

/*
 * Writes a chunk's old values to their places in `stream`, a buffer for the whole stream; may leave
 * out values that lie below `from`.  Bypasses the cache, as device_ops.serve does.  For a state in
 * host memory; any thread.
 */
void snapshot_save_chunk(const struct snapshot_map *map, const struct plan *plan,
                         const struct device_ops *ops, uint32_t chunk, struct undo_values old,
                         uint64_t from, uint8_t *stream);

/* ---- what does not lie in planes ---- */

struct snapshot_header {
        char magic[8];
        uint32_t format, header_bytes, owner, n_owners;
        uint32_t uid, world_size, reduce_dtype, block_bytes;
        uint64_t version, attempt; /* meta's version and decided_attempt */
        uint64_t meta_bytes, stream_bytes;
        uint8_t model_hash[MANIFEST_HASH]; /* layout_hash() */
        uint8_t meta_hash[MANIFEST_HASH];
        uint8_t hashes_hash[MANIFEST_HASH];
        char job[ZERO_NAME_MAX + 1];
        uint8_t hash[MANIFEST_HASH]; /* of all fields before it */
};

/* The state's meta, which the caller frees.  Loop thread, while no update runs.  0 or -ENOMEM. */
int snapshot_meta_new(const struct state *state, uint8_t **ret, size_t *ret_bytes);

/* ---- writing: blocking calls of one thread at a time ---- */

struct snapshot_writer;

/* Makes the file in `dir`.  The caller need not set the header's magic, format, header_bytes,
 * block_bytes, meta_hash, hashes_hash and hash. */
int snapshot_writer_new(int dir, const struct snapshot_header *header, const uint8_t *meta,
                        struct snapshot_writer **ret, struct fault *fault);
/* Writes the next block: SNAPSHOT_BLOCK bytes, or what is left of the stream. */
int snapshot_writer_block(struct snapshot_writer *w, const uint8_t *block, struct fault *fault);
/* Writes hashes and header, and syncs the file.  All blocks must be written. */
int snapshot_writer_finish(struct snapshot_writer *w, struct manifest_shard *ret,
                           struct fault *fault);
/* Closes the file and leaves what was written. */
void snapshot_writer_free(struct snapshot_writer *w);

/* ---- a state from a checkpoint ---- */

/* What a load gives besides planes. */
struct snapshot_blob {
        uint32_t rank, bytes;
        uint8_t data[ZERO_BLOB_MAX];
};

struct snapshot_loaded {
        struct state_record record; /* open, at the checkpoint's version and last attempt */
        struct snapshot_blob **blobs;
        uint32_t n_blobs;
};

void snapshot_loaded_deinit(struct snapshot_loaded *loaded);

/*
 * Checks a shard of the checkpoint in `dir`: all but its blocks, and at most n blocks, from *block
 * on.  Advances *block.  *ret_over: no block follows.  The fault (ZERO_EIO) names the file and the
 * flaw.
 */
int snapshot_verify(int dir, const struct manifest *m, uint32_t owner, uint32_t n_tensors,
                    uint64_t n, uint64_t *block, bool *ret_over, struct fault *fault);

/* Shared with the thread that waits for the load. */
struct snapshot_progress {
        _Atomic uint64_t bytes;
        _Atomic bool cancelled; /* set by the waiting thread: the load ends with ZERO_EABORTED */
};

/*
 * Fills a draft (state_draft()): reads its ranges from the checkpoint's shards.  The numbers of
 * owners may differ, and so may whole tensors and formats.  l: the checkpoint's layout; to: the
 * draft's.  Does not touch serve, unless master needs it.
 */
int snapshot_load(int dir, const struct manifest *m, const layout *l, const layout *to,
                  struct state *draft, const struct device_ops *ops,
                  struct snapshot_progress *progress, struct snapshot_loaded *ret,
                  struct fault *fault);
