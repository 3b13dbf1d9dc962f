/* Writing a shard of a checkpoint; see snapshot.h for the file. */
#include "daemon/store/snapshot/snapshot.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "daemon/floor/base/crash.h"
#include "daemon/store/snapshot/file.h"
#include "proto/cleanup.h"

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "shards are copied byte for byte");
_Static_assert(offsetof(struct snapshot_header, hash) + MANIFEST_HASH ==
                       sizeof(struct snapshot_header),
               "the hash covers all of the header");

/* ---- the stream ---- */

void snapshot_map_deinit(struct snapshot_map *map)
{
        free(map->extents);
        free(map->group_end);
        *map = (struct snapshot_map){ .n = 0 };
}

static void map_add(struct snapshot_map *map, const struct plan *plan, struct snapshot_extent e)
{
        e.offset = map->bytes;
        e.bytes = plan_bytes(plan, e.plane, e.group, e.part).count;
        if (e.bytes == 0)
                return;
        map->extents[map->n++] = e;
        map->bytes += e.bytes;
}

/* Of a plane that has frozen elements, too: one extent for consecutive segments that are all frozen
 * or all trainable. */
static void map_add_runs(struct snapshot_map *map, const struct plan *plan, uint32_t group,
                         struct plane plane)
{
        const struct plan_shard *shard = &plan->shards[group];
        const struct plan_segment *s = &plan->segments[shard->first_segment];
        struct snapshot_extent run = { .plane = plane, .group = group };

        for (uint32_t i = 0; i < shard->n_segments; i++) {
                bool frozen = s[i].moment == UINT64_MAX;

                if (frozen != run.frozen) {
                        map_add(map, plan, run);
                        run.part.count = 0;
                }
                if (run.part.count == 0)
                        run.part.first = s[i].in_group;
                run.frozen = frozen;
                run.part.count += s[i].count;
        }
        map_add(map, plan, run);
}

int snapshot_map_new(const struct plan *plan, struct snapshot_map *ret)
{
        struct snapshot_map map = { .n_groups = plan->n_groups };

        map.extents =
                calloc(2 * (size_t)plan->n_segments + UPDATE_PLANES * (size_t)plan->n_groups + 1,
                       sizeof(*map.extents));
        map.group_end = calloc(plan->n_groups + 1, sizeof(*map.group_end));
        if (!map.extents || !map.group_end) {
                snapshot_map_deinit(&map);
                return -ENOMEM;
        }
        for (uint32_t g = 0; g < plan->n_groups; g++) {
                struct plane plane;

                for (uint32_t k = 0; (plane = plan_kept(plan, g, k)).kind != PLANE_NONE; k++)
                        if (plane.kind == PLANE_MOMENT)
                                map_add(&map, plan,
                                        (struct snapshot_extent){ .plane = plane,
                                                                  .group = g,
                                                                  .part = plan->shards[g].range });
                        else
                                map_add_runs(&map, plan, g, plane);
                map.group_end[g] = map.bytes;
        }
        *ret = map;
        return 0;
}

static const struct snapshot_extent *extent_at(const struct snapshot_map *map, uint64_t offset)
{
        uint32_t low = 0, high = map->n;

        while (high - low > 1) {
                uint32_t middle = low + (high - low) / 2;

                if (map->extents[middle].offset <= offset)
                        low = middle;
                else
                        high = middle;
        }
        return &map->extents[low];
}

void snapshot_copy(const struct snapshot_map *map, const struct state *state,
                   const struct device_ops *ops, uint64_t offset, uint8_t *dst, size_t n)
{
        assert(offset <= map->bytes && n <= map->bytes - offset);
        for (const struct snapshot_extent *e = extent_at(map, offset); n > 0; e++) {
                uint64_t skip = offset - e->offset;
                size_t part = e->bytes - skip < n ? e->bytes - skip : n;
                struct mapping m = state_map(state, e->plane, e->group, e->part);

                ops->copy(dst, (const uint8_t *)m.at + skip, part);
                state_unmap(&m);
                dst += part;
                offset += part;
                n -= part;
        }
}

/* Whole records have whole floats. */
static void save_part(const struct device_ops *ops, uint64_t from, uint8_t *stream, uint64_t at,
                      const void *values, uint64_t bytes)
{
        if (at + bytes > from)
                ops->serve(ZERO_FP32, stream + at, values, bytes / sizeof(float));
}

void snapshot_save_chunk(const struct snapshot_map *map, const struct plan *plan,
                         const struct device_ops *ops, uint32_t chunk, struct undo_values old,
                         uint64_t from, uint8_t *stream)
{
        const struct plan_chunk c = plan_chunk(plan, chunk);
        const struct plan_shard *shard = &plan->shards[c.group];
        uint64_t plane = c.group ? map->group_end[c.group - 1] : 0; /* where it begins */
        uint64_t serve = map->group_end[c.group] - shard->range.count * sizeof(*old.served);

        /* not by plan_bytes(): its search for a place takes as long as the chunk's update */
        for (uint32_t k = 0; k <= c.run->n_moments; k++) {
                uint64_t first =
                        k ? plan_moment_at(c.run, k - 1, c.moment) - shard->moment_at[k - 1]
                          : plan_master_bytes(shard, c.master - shard->master);

                save_part(ops, from, stream, plane + first, old.planes[k],
                          plan_run_bytes(c.run, k, c.n));
                plane += k ? shard->moment_bytes[k - 1]
                           : plan_master_bytes(shard, shard->range.count);
        }
        if (old.served)
                save_part(ops, from, stream,
                          serve + (c.in_group - shard->range.first) * sizeof(*old.served),
                          old.served, c.n * sizeof(*old.served));
}

/* ---- meta ---- */

static uint32_t blob_bytes(const struct state *state, uint32_t *ret_n)
{
        uint32_t bytes = 0;
        size_t size;

        *ret_n = 0;
        for (uint32_t rank = 0; rank < ZERO_RANK_MAX; rank++) {
                if (!state_blob(state, rank, &size) || size == 0)
                        continue;
                bytes += 2 * sizeof(uint32_t) + (uint32_t)size;
                ++*ret_n;
        }
        return bytes;
}

static void put_blobs(const struct state *state, uint8_t *to)
{
        for (uint32_t rank = 0; rank < ZERO_RANK_MAX; rank++) {
                size_t size;
                const void *blob = state_blob(state, rank, &size);

                if (!blob || size == 0)
                        continue;
                uint32_t head[2] = { rank, (uint32_t)size };
                memcpy(to, head, sizeof(head));
                memcpy(to + sizeof(head), blob, size);
                to += sizeof(head) + size;
        }
}

int snapshot_meta_new(const struct state *state, uint8_t **ret, size_t *ret_bytes)
{
        const struct state_record *r = state->record;
        struct snapshot_meta meta;
        size_t counts = state->n_tensors * sizeof(uint64_t);

        memset(&meta, 0, sizeof(meta));
        meta.version = r->version;
        meta.decided_attempt = r->decided_attempt;
        DECISION_COPY(&meta, r);
        meta.n_tensors = state->n_tensors;
        meta.blob_bytes = blob_bytes(state, &meta.n_blobs);

        size_t bytes = sizeof(meta) + 2 * counts + meta.blob_bytes;
        uint8_t *p = malloc(bytes);
        if (!p)
                return -ENOMEM;
        memcpy(p, &meta, sizeof(meta));
        memcpy(p + sizeof(meta), state->tensor_step, counts);
        memcpy(p + sizeof(meta) + counts, state->tensor_set, counts);
        put_blobs(state, p + sizeof(meta) + 2 * counts);
        *ret = p;
        *ret_bytes = bytes;
        return 0;
}

/* ---- the file ---- */

struct snapshot_writer {
        struct snapshot_header header;
        char name[MANIFEST_FILE_NAME];
        int fd;
        uint64_t written; /* of the stream */
        uint8_t (*hashes)[MANIFEST_HASH];
};

DEFINE_CLEANUP(struct snapshot_writer *, snapshot_writer_free)

uint64_t snapshot_blocks(const struct snapshot_header *h)
{
        return (h->stream_bytes + SNAPSHOT_BLOCK - 1) / SNAPSHOT_BLOCK;
}

uint64_t snapshot_stream_at(const struct snapshot_header *h)
{
        return sizeof(*h) + h->meta_bytes + snapshot_blocks(h) * MANIFEST_HASH;
}

int snapshot_failed(struct fault *fault, const char *name, const char *doing)
{
        int error = errno;
        char why[128];

        return fault_set(fault, ZERO_EIO, "%s %s: %s%s", doing, name,
                         strerror_r(error, why, sizeof(why)),
                         error == ENOSPC || error == EDQUOT ? ": make room there" : "");
}

static int write_at(const struct snapshot_writer *w, const void *data, uint64_t n, uint64_t at,
                    struct fault *fault)
{
        const uint8_t *p = data;

        while (n > 0) {
                ssize_t done = pwrite(w->fd, p, n, (off_t)at);

                if (done < 0 && errno == EINTR)
                        continue;
                if (done <= 0) {
                        errno = done ? errno : EIO;
                        return snapshot_failed(fault, w->name, "writing");
                }
                p += done;
                at += (uint64_t)done;
                n -= (uint64_t)done;
        }
        return 0;
}

int snapshot_writer_new(int dir, const struct snapshot_header *header, const uint8_t *meta,
                        struct snapshot_writer **ret, struct fault *fault)
{
        CLEANUP(cleanup_snapshot_writer_free) struct snapshot_writer *w = calloc(1, sizeof(*w));
        if (!w)
                return fault_errno(fault, ENOMEM, "checkpoint");
        w->fd = -1;
        w->header = *header;
        memcpy(w->header.magic, snapshot_magic, sizeof(w->header.magic));
        w->header.format = MANIFEST_FORMAT;
        w->header.header_bytes = sizeof(w->header);
        w->header.block_bytes = SNAPSHOT_BLOCK;
        manifest_hash(w->header.meta_hash, meta, header->meta_bytes);
        w->hashes = calloc(snapshot_blocks(&w->header) + 1, sizeof(*w->hashes));
        if (!w->hashes)
                return fault_errno(fault, ENOMEM, "checkpoint");
        manifest_shard_name(header->owner, header->n_owners, w->name);
        unlinkat(dir, w->name, 0); /* an interrupted checkpoint may have left one */
        w->fd = openat(dir, w->name, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
        if (w->fd < 0)
                return snapshot_failed(fault, w->name, "making");
        int r = write_at(w, meta, header->meta_bytes, sizeof(*header), fault);
        if (r)
                return r;
        *ret = STEAL(w);
        return 0;
}

int snapshot_writer_block(struct snapshot_writer *w, const uint8_t *block, struct fault *fault)
{
        uint64_t left = w->header.stream_bytes - w->written;
        uint64_t n = left < SNAPSHOT_BLOCK ? left : SNAPSHOT_BLOCK;
        uint64_t at = snapshot_stream_at(&w->header) + w->written;

        assert(n > 0);
        manifest_hash(w->hashes[w->written / SNAPSHOT_BLOCK], block, n);
        int r = write_at(w, block, n, at, fault);
        if (r)
                return r;
        w->written += n;
        crash_point(CRASH_CHECKPOINT_BLOCK);
        /* a hint: the disk starts now, so the fsync at the end has little left to do */
        (void)sync_file_range(w->fd, (off_t)at, (off_t)n, SYNC_FILE_RANGE_WRITE);
        return 0;
}

int snapshot_writer_finish(struct snapshot_writer *w, struct manifest_shard *ret,
                           struct fault *fault)
{
        struct snapshot_header *h = &w->header;
        uint64_t hashes = snapshot_blocks(h) * MANIFEST_HASH;

        assert(w->written == h->stream_bytes);
        manifest_hash(h->hashes_hash, w->hashes, hashes);
        manifest_hash(h->hash, h, offsetof(struct snapshot_header, hash));
        int r = write_at(w, w->hashes, hashes, sizeof(*h) + h->meta_bytes, fault);
        if (r == 0)
                r = write_at(w, h, sizeof(*h), 0, fault);
        if (r)
                return r;
        if (fsync(w->fd) < 0)
                return snapshot_failed(fault, w->name, "writing");
        crash_point(CRASH_CHECKPOINT_SHARD);
        *ret = (struct manifest_shard){ .bytes = snapshot_stream_at(h) + h->stream_bytes };
        memcpy(ret->hash, h->hash, MANIFEST_HASH);
        return 0;
}

void snapshot_writer_free(struct snapshot_writer *w)
{
        if (!w)
                return;
        cleanup_close(&w->fd);
        free(w->hashes);
        free(w);
}
