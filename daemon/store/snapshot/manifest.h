/*
 * A checkpoint's manifest: what the checkpoint holds, and the hash of each of its files.
 *
 * The text is JSON whose first field is the BLAKE2b-256 hash of everything behind that field, so
 * that no byte can change unnoticed.  The manifest is written last: a directory without one is no
 * checkpoint.  Pure.
 */
#pragma once

#include "proto/job_spec.h"

/* Raise MANIFEST_FORMAT with any change to the manifest or to a shard's file (snapshot.h). */
enum { MANIFEST_FORMAT = 2, MANIFEST_HASH = 32, MANIFEST_NODE = 64, MANIFEST_FILE_NAME = 40 };
enum { MANIFEST_BYTES_MAX = 1 << 20 };

#define MANIFEST_FILE "manifest.json"
#define MANIFEST_LAYOUT_FILE "layout"

struct manifest_shard {
        uint64_t bytes;
        uint8_t hash[MANIFEST_HASH]; /* of the header, which has the hashes of the rest */
        char node[MANIFEST_NODE];    /* the node that wrote it: for people */
};

struct manifest {
        struct job_spec job;       /* without the layout */
        uint64_t version, attempt; /* committed steps; the last decided attempt */
        uint64_t created_ms;       /* since 1970; tells which checkpoint of a job is the newest */
        uint64_t parameters;
        char optimizers[256];  /* optimizers and their planes, for people; model_hash covers the
                                  optimizers */
        uint64_t layout_bytes; /* of the file with the packed layout */
        uint8_t layout_hash[MANIFEST_HASH]; /* of that file's bytes */
        uint8_t model_hash[MANIFEST_HASH];  /* layout_hash() of the layout */
        uint32_t n_owners;
        struct manifest_shard shards[ZERO_NODE_MAX]; /* [owner] */
};

/* The caller frees the text.  0 or -ENOMEM. */
int manifest_format(const struct manifest *m, char **ret_text);
/* ZERO_EIO if the text is damaged, or comes from another version of zerod. */
int manifest_parse(const char *text, size_t size, struct manifest *ret, struct fault *fault);
void manifest_hash(uint8_t ret[static MANIFEST_HASH], const void *p, size_t n);
void manifest_shard_name(uint32_t owner, uint32_t n_owners, char ret[static MANIFEST_FILE_NAME]);
