/* Shared by writing (snapshot.c) and reading (read.c, load.c) of shards. */
#pragma once

#include "daemon/store/snapshot/snapshot.h"

struct snapshot_meta {
        uint64_t version, decided_attempt;
        double grad_scale, loss_scale, grad_norm;
        uint32_t commit, good_steps, skipped;
        uint32_t n_tensors, n_blobs, blob_bytes; /* blob_bytes includes ranks and lengths */
};

static const char snapshot_magic[8] = { 'z', 'e', 'r', 'o', 'd', '.', 'c', 'k' };

uint64_t snapshot_blocks(const struct snapshot_header *h);
/* The byte offset of the stream in the file. */
uint64_t snapshot_stream_at(const struct snapshot_header *h);
/* Sets and returns ZERO_EIO with errno's text. */
int snapshot_failed(struct fault *fault, const char *name, const char *doing);

/* ---- reading ---- */

struct snapshot_shard {
        struct snapshot_header header;
        struct snapshot_meta meta;
        const uint64_t *steps, *sets; /* [tensor] */
        const uint8_t *blobs;         /* meta.blob_bytes */
        /* private from here */
        char name[MANIFEST_FILE_NAME];
        int fd;
        uint8_t *meta_bytes;
        uint8_t (*hashes)[MANIFEST_HASH];
        uint8_t *block;
        uint64_t block_at; /* the number of the block in `block`; UINT64_MAX: none */
};

/*
 * Opens an owner's shard of the checkpoint in `dir` and checks all of it except the blocks against
 * the manifest.  The fault (ZERO_EIO) names the file and the flaw.
 */
int snapshot_shard_open(int dir, const struct manifest *m, uint32_t owner, uint32_t n_tensors,
                        struct snapshot_shard **ret, struct fault *fault);
void snapshot_shard_free(struct snapshot_shard *s);
/* dst = n bytes of the stream.  A block is checked before any of it is copied. */
int snapshot_shard_read(struct snapshot_shard *s, uint64_t offset, uint8_t *dst, size_t n,
                        struct fault *fault);
/* The blob at *at, which it advances to the next one (start with 0); false after the last blob. */
bool snapshot_shard_blob(const struct snapshot_shard *s, uint32_t *at, uint32_t *ret_rank,
                         const uint8_t **ret, uint32_t *ret_bytes);
