/*
 * Reads a shard of a checkpoint.  Every byte is hashed before it is used: the manifest has the
 * header's hash, and the header has the hash of the blocks' hashes.  Bounds are checked
 * nevertheless, because whoever can write to the directory can write hashes too.
 */
#include <errno.h>
#include <fcntl.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "daemon/store/snapshot/file.h"
#include "proto/cleanup.h"

DEFINE_CLEANUP(struct snapshot_shard *, snapshot_shard_free)

static int flawed(const struct snapshot_shard *s, const char *why, struct fault *fault)
{
        return fault_set(fault, ZERO_EIO, "%s cannot be used: %s", s->name, why);
}

/* Reads exactly n bytes. */
static int read_at(const struct snapshot_shard *s, void *to, uint64_t n, uint64_t at,
                   struct fault *fault)
{
        uint8_t *p = to;

        while (n > 0) {
                ssize_t done = pread(s->fd, p, n, (off_t)at);

                if (done < 0 && errno == EINTR)
                        continue;
                if (done < 0)
                        return snapshot_failed(fault, s->name, "reading");
                if (done == 0)
                        return flawed(s, "it is too short", fault);
                p += done;
                at += (uint64_t)done;
                n -= (uint64_t)done;
        }
        return 0;
}

static bool hash_is(const uint8_t *expected, const void *p, size_t n)
{
        uint8_t hash[MANIFEST_HASH];

        manifest_hash(hash, p, n);
        return memcmp(hash, expected, MANIFEST_HASH) == 0;
}

static const char *header_flaw(const struct snapshot_header *h, const struct manifest *m,
                               uint32_t owner, uint64_t bytes)
{
        if (memcmp(h->magic, snapshot_magic, sizeof(snapshot_magic)) != 0)
                return "it is no shard of a checkpoint";
        if (h->format != MANIFEST_FORMAT || h->header_bytes != sizeof(*h) ||
            h->block_bytes != SNAPSHOT_BLOCK)
                return "it was written by another version of zerod";
        if (!hash_is(h->hash, h, offsetof(struct snapshot_header, hash)))
                return "the checksum of its header is wrong";
        if (memcmp(h->hash, m->shards[owner].hash, MANIFEST_HASH) != 0)
                return "it belongs to another checkpoint";
        if (h->owner != owner || h->n_owners != m->n_owners || h->version != m->version ||
            h->attempt != m->attempt || memcmp(h->model_hash, m->model_hash, MANIFEST_HASH) != 0)
                return "it is not what the manifest says";
        if (h->meta_bytes > bytes || h->stream_bytes > bytes || snapshot_blocks(h) > bytes ||
            snapshot_stream_at(h) + h->stream_bytes != bytes || bytes != m->shards[owner].bytes)
                return "its length is wrong";
        return NULL;
}

static int open_file(struct snapshot_shard *s, int dir, const struct manifest *m, uint32_t owner,
                     uint64_t *ret_bytes, struct fault *fault)
{
        struct stat st;

        s->fd = openat(dir, s->name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
        if (s->fd < 0 && errno == ENOENT)
                return fault_set(fault, ZERO_EIO,
                                 "%s is missing: node %s wrote it; a checkpoint is restored from "
                                 "one directory with the files of all nodes",
                                 s->name, m->shards[owner].node);
        if (s->fd < 0 || fstat(s->fd, &st) < 0)
                return snapshot_failed(fault, s->name, "opening");
        if (!S_ISREG(st.st_mode) || st.st_uid != geteuid() || (st.st_mode & 022) ||
            st.st_nlink != 1)
                return flawed(s, "users other than zerod's can write to it", fault);
        *ret_bytes = (uint64_t)st.st_size;
        return 0;
}

static int read_hashes(struct snapshot_shard *s, struct fault *fault)
{
        const struct snapshot_header *h = &s->header;
        uint64_t n = snapshot_blocks(h) * MANIFEST_HASH;
        int r;

        s->hashes = malloc(n + 1);
        s->block = malloc(SNAPSHOT_BLOCK);
        if (!s->hashes || !s->block)
                return fault_errno(fault, ENOMEM, s->name);
        r = read_at(s, s->hashes, n, sizeof(*h) + h->meta_bytes, fault);
        if (r == 0 && !hash_is(h->hashes_hash, s->hashes, n))
                r = flawed(s, "the checksum of its checksums is wrong", fault);
        return r;
}

static bool meta_fits(const struct snapshot_shard *s, uint32_t n_tensors)
{
        const struct snapshot_meta *m = &s->meta;

        return m->n_tensors == n_tensors && m->version == s->header.version &&
               m->decided_attempt == s->header.attempt && m->commit <= 1 &&
               s->header.meta_bytes ==
                       sizeof(*m) + 2 * n_tensors * sizeof(uint64_t) + m->blob_bytes;
}

static int read_meta(struct snapshot_shard *s, uint32_t n_tensors, struct fault *fault)
{
        uint64_t n = s->header.meta_bytes;
        int r;

        s->meta_bytes = malloc(n + 1);
        if (!s->meta_bytes)
                return fault_errno(fault, ENOMEM, s->name);
        r = read_at(s, s->meta_bytes, n, sizeof(s->header), fault);
        if (r)
                return r;
        if (!hash_is(s->header.meta_hash, s->meta_bytes, n))
                return flawed(s, "the checksum of its tensor steps is wrong", fault);
        if (n < sizeof(s->meta))
                return flawed(s, "it makes no sense", fault);
        memcpy(&s->meta, s->meta_bytes, sizeof(s->meta));
        if (!meta_fits(s, n_tensors))
                return flawed(s, "it makes no sense", fault);
        s->steps = (const uint64_t *)(const void *)(s->meta_bytes + sizeof(s->meta));
        s->sets = s->steps + n_tensors;
        s->blobs = (const uint8_t *)(s->sets + n_tensors);
        return 0;
}

int snapshot_shard_open(int dir, const struct manifest *m, uint32_t owner, uint32_t n_tensors,
                        struct snapshot_shard **ret, struct fault *fault)
{
        CLEANUP(cleanup_snapshot_shard_free) struct snapshot_shard *s = calloc(1, sizeof(*s));
        uint64_t bytes = 0;
        const char *flaw;
        int r;

        if (!s)
                return fault_errno(fault, ENOMEM, "checkpoint");
        s->fd = -1;
        s->block_at = UINT64_MAX;
        manifest_shard_name(owner, m->n_owners, s->name);
        r = open_file(s, dir, m, owner, &bytes, fault);
        if (r == 0)
                r = read_at(s, &s->header, sizeof(s->header), 0, fault);
        if (r)
                return r;
        flaw = header_flaw(&s->header, m, owner, bytes);
        if (flaw)
                return flawed(s, flaw, fault);
        r = read_meta(s, n_tensors, fault);
        if (r == 0)
                r = read_hashes(s, fault);
        if (r == 0)
                *ret = STEAL(s);
        return r;
}

void snapshot_shard_free(struct snapshot_shard *s)
{
        if (!s)
                return;
        cleanup_close(&s->fd);
        free(s->meta_bytes);
        free(s->hashes);
        free(s->block);
        free(s);
}

static int take_block(struct snapshot_shard *s, uint64_t block, struct fault *fault)
{
        uint64_t at = block * SNAPSHOT_BLOCK, left = s->header.stream_bytes - at;
        uint64_t n = left < SNAPSHOT_BLOCK ? left : SNAPSHOT_BLOCK;
        char why[64];
        int r;

        if (s->block_at == block)
                return 0;
        s->block_at = UINT64_MAX;
        r = read_at(s, s->block, n, snapshot_stream_at(&s->header) + at, fault);
        if (r)
                return r;
        snprintf(why, sizeof(why), "the checksum of block %llu is wrong",
                 (unsigned long long)block);
        if (!hash_is(s->hashes[block], s->block, n))
                return flawed(s, why, fault);
        s->block_at = block;
        return 0;
}

int snapshot_shard_read(struct snapshot_shard *s, uint64_t offset, uint8_t *dst, size_t n,
                        struct fault *fault)
{
        if (offset > s->header.stream_bytes || n > s->header.stream_bytes - offset)
                return flawed(s, "its length is wrong", fault);
        while (n > 0) {
                uint64_t in_block = offset % SNAPSHOT_BLOCK;
                size_t part = SNAPSHOT_BLOCK - in_block < n ? SNAPSHOT_BLOCK - in_block : n;
                int r = take_block(s, offset / SNAPSHOT_BLOCK, fault);

                if (r)
                        return r;
                memcpy(dst, s->block + in_block, part);
                dst += part;
                offset += part;
                n -= part;
        }
        return 0;
}

bool snapshot_shard_blob(const struct snapshot_shard *s, uint32_t *at, uint32_t *ret_rank,
                         const uint8_t **ret, uint32_t *ret_bytes)
{
        uint32_t head[2], left = s->meta.blob_bytes - *at;

        if (left < sizeof(head))
                return false;
        memcpy(head, s->blobs + *at, sizeof(head));
        if (head[1] > ZERO_BLOB_MAX || head[1] > left - sizeof(head) || head[0] >= ZERO_RANK_MAX)
                return false;
        *ret_rank = head[0];
        *ret_bytes = head[1];
        *ret = s->blobs + *at + sizeof(head);
        *at += (uint32_t)sizeof(head) + head[1];
        return true;
}

int snapshot_verify(int dir, const struct manifest *m, uint32_t owner, uint32_t n_tensors,
                    uint64_t n, uint64_t *block, bool *ret_over, struct fault *fault)
{
        CLEANUP(cleanup_snapshot_shard_free) struct snapshot_shard *s = NULL;
        int r = snapshot_shard_open(dir, m, owner, n_tensors, &s, fault);
        uint64_t end = r ? 0 : snapshot_blocks(&s->header);

        for (; r == 0 && n > 0 && *block < end; n--) {
                r = take_block(s, *block, fault);
                *block += r == 0;
        }
        if (r == 0)
                *ret_over = *block >= end;
        return r;
}
