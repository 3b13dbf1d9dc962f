/*
 * A checkpoint's shard: one owner's part of a job's state in a file.
 *
 *   header    struct snapshot_header
 *   meta      struct snapshot_meta; steps uint64_t [tensor]; sets uint64_t [tensor];
 *             each rank's blob: uint32_t rank, uint32_t bytes, bytes
 *   hashes    BLAKE2b-256 of each block
 *   blocks    the stream, in blocks of SNAPSHOT_BLOCK bytes, the last one shorter
 *
 * The stream is, group by group, the owner's ranges of master and of the moments of the group's
 * optimizer, one behind the other, so that a group may change again as soon as the stream up to its end was copied.
 * The header holds the hashes of meta and of the hashes, and its own: no byte of the file can
 * change unseen.  Numbers are little-endian; any node of any cluster can read the file, for the
 * layout and the number of owners say what lies where.
 */
#pragma once

#include "daemon/device/device.h"
#include "daemon/store/snapshot/manifest.h"
#include "daemon/store/store.h"

enum { SNAPSHOT_BLOCK = 4 << 20 };

/* ---- where the stream's bytes are ---- */

/* Of one group, and all of it frozen, or nothing. */
struct snapshot_extent {
        uint64_t offset, bytes; /* in the stream */
        uint64_t element;       /* the first, in its plane */
        enum zero_plane plane;
        uint32_t group;
        bool frozen; /* no update changes it */
};

struct snapshot_map {
        struct snapshot_extent *extents; /* none is empty; in the stream's order */
        uint64_t *group_end;             /* [group]: the stream's bytes up to its end */
        uint32_t n, n_groups;
        uint64_t bytes;
};

int snapshot_map_new(const struct plan *plan, struct snapshot_map *ret);
void snapshot_map_deinit(struct snapshot_map *map);
/* dst = n bytes of the state's stream from offset on, by gpu_ops() if the state is on a GPU.  Any
 * thread; blocks may be copied at once. */
void snapshot_copy(const struct snapshot_map *map, const struct state *state,
                   const struct device_ops *ops, uint64_t offset, uint8_t *dst, size_t n);

/*
 * A chunk's old values go to their places in `stream`, which has room for all of it; those below
 * `from` there need not.  Past the cache, as device_ops.serve.  For a state in host memory; any
 * thread.
 */
void snapshot_save_chunk(const struct snapshot_map *map, const struct plan *plan,
                         const struct device_ops *ops, uint32_t chunk, struct undo_values old,
                         uint64_t from, uint8_t *stream);

/* ---- what does not lie in planes ---- */

struct snapshot_header {
        char magic[8];
        uint32_t format, header_bytes, owner, n_owners;
        uint32_t uid, world_size, reduce_dtype, block_bytes;
        uint64_t version, attempt; /* as in the meta */
        uint64_t meta_bytes, stream_bytes;
        uint8_t model_hash[MANIFEST_HASH]; /* layout_hash() */
        uint8_t meta_hash[MANIFEST_HASH];
        uint8_t hashes_hash[MANIFEST_HASH];
        char job[ZERO_NAME_MAX + 1];
        uint8_t hash[MANIFEST_HASH]; /* of all before */
};

/* The state's meta, between two updates; the caller frees it.  Loop thread. */
int snapshot_meta_new(const struct state *state, uint8_t **ret, size_t *ret_bytes);

/* ---- writing: blocking calls of one thread at a time ---- */

struct snapshot_writer;

/* A new file in `dir`.  What the header says of sizes and hashes is filled in here. */
int snapshot_writer_new(int dir, const struct snapshot_header *header, const uint8_t *meta,
                        struct snapshot_writer **ret, struct fault *fault);
/* The next block: SNAPSHOT_BLOCK bytes, or what is left of the stream. */
int snapshot_writer_block(struct snapshot_writer *w, const uint8_t *block, struct fault *fault);
/* All blocks are written: hashes, header, fsync. */
int snapshot_writer_finish(struct snapshot_writer *w, struct manifest_shard *ret,
                           struct fault *fault);
/* Closes; what was written stays. */
void snapshot_writer_free(struct snapshot_writer *w);

/* ---- a state from a checkpoint ---- */

/* What a load brings besides planes. */
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

/* How far it is, for another thread; and whether that one wants it to end. */
struct snapshot_progress {
        _Atomic uint64_t bytes;
        _Atomic bool cancelled;
};

/*
 * Fills a draft (state_draft()) of any number of owners: reads those ranges of the checkpoint's
 * shards that lie here.  Serve is left as it is.
 */
int snapshot_load(int dir, const struct manifest *m, const layout *l, struct state *draft,
                  struct snapshot_progress *progress, struct snapshot_loaded *ret,
                  struct fault *fault);
