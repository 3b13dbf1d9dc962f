/*
 * A checkpoint's manifest: what it holds, and the hash of each of its files.
 *
 * The text is JSON whose first field is the BLAKE2b-256 hash of everything behind that field, so
 * that no byte of it can change unseen.  It is written last: a directory without one is no
 * checkpoint.  Pure.
 */
#pragma once

#include "proto/fault.h"

/* Format: to be raised with any change of the manifest or of a shard's file (snapshot.h). */
enum { MANIFEST_FORMAT = 2, MANIFEST_HASH = 32, MANIFEST_NODE = 64, MANIFEST_FILE_NAME = 40 };
enum { MANIFEST_BYTES_MAX = 1 << 20 };

#define MANIFEST_FILE "manifest.json"
#define MANIFEST_LAYOUT_FILE "layout"

struct manifest_shard {
        uint64_t bytes;
        uint8_t hash[MANIFEST_HASH]; /* of its header, which holds those of all behind it */
        char node[MANIFEST_NODE];    /* that wrote it: for people */
};

struct manifest {
        char job[ZERO_NAME_MAX + 1];
        uint32_t uid, world_size;
        enum zero_dtype reduce_dtype;
        uint64_t version, attempt; /* committed steps; the last decided attempt */
        uint64_t created_ms;       /* since 1970: which checkpoint of a job is the newest */
        uint64_t parameters;
        char optimizers[256]; /* and their planes, for people; model_hash covers the optimizers */
        uint64_t layout_bytes; /* the packed layout, a file of its own, */
        uint8_t layout_hash[MANIFEST_HASH];
        uint8_t model_hash[MANIFEST_HASH]; /* ... and what layout_hash() says of it */
        uint32_t n_owners;
        struct manifest_shard shards[ZERO_NODE_MAX]; /* [owner] */
};

/* The text, which the caller frees. */
int manifest_format(const struct manifest *m, char **ret_text);
/* ZERO_EIO: not whole, or written by another version of zerod. */
int manifest_parse(const char *text, size_t size, struct manifest *ret, struct fault *fault);
void manifest_hash(uint8_t ret[static MANIFEST_HASH], const void *p, size_t n);
void manifest_shard_name(uint32_t owner, uint32_t n_owners, char ret[static MANIFEST_FILE_NAME]);
