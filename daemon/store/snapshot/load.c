/*
 * Loads a state from a checkpoint of any number of owners.  Each partition is a pure function of a
 * layout, the checkpoint's and the job's, so each range of this owner is found in the shards of the
 * owners that saved it.
 *
 * Where a group has other formats than in the checkpoint, values are unpacked and packed in pieces,
 * with the dither of a put.
 *
 * A tensor's step and set are read only from shards of owners that hold a part of the tensor.
 */
#include <assert.h>
#include <errno.h>
#include <string.h>

#include "daemon/floor/base/crash.h"
#include "daemon/store/snapshot/file.h"
#include "proto/cleanup.h"

/* COARSE: the chunk length of the plans that say where a shard's parts lie.  Nothing uses the
 * chunks. */
enum { COARSE = 65536, PIECE = 4 * SNAPSHOT_BLOCK, VALUES = 1 << 20 };

/* Elements on their way to another format, in host memory. */
struct conversion {
        float values[VALUES];
        uint16_t records[VALUES], served[VALUES];
};

struct loader {
        const struct manifest *m;
        const layout *l, *to; /* of the checkpoint, and of the draft */
        struct state *state;
        struct snapshot_progress *progress;
        struct snapshot_loaded *loaded;
        bool *known; /* [tensor]: its step and set were read */
        uint32_t n_shards;
        /* the shard being read */
        struct snapshot_shard *shard;
        struct plan *plan;
        struct snapshot_map map;
        const struct device_ops *ops;
        const struct device_ops *host;
        struct conversion *conversion; /* made for the first group that needs it */
        uint8_t *stage; /* a piece on its way to another place; NULL: the CPU reaches the draft */
        struct fault *fault;
};

DEFINE_CLEANUP(struct partition *, partition_free)

void snapshot_loaded_deinit(struct snapshot_loaded *loaded)
{
        for (uint32_t i = 0; i < loaded->n_blobs; i++)
                free(loaded->blobs[i]);
        free(loaded->blobs);
        *loaded = (struct snapshot_loaded){ .n_blobs = 0 };
}

static int flawed(const struct loader *ld, const char *why)
{
        return fault_set(ld->fault, ZERO_EIO, "%s cannot be used: %s", ld->shard->name, why);
}

/* ---- what does not lie in planes ---- */

static int take_record(struct loader *ld)
{
        const struct snapshot_meta *m = &ld->shard->meta;
        struct state_record *r = &ld->loaded->record;
        struct state_record record = { .version = m->version,
                                       .attempt = m->decided_attempt + 1,
                                       .phase = ATTEMPT_OPEN,
                                       .decided_attempt = m->decided_attempt };

        DECISION_COPY(&record, m);
        if (m->version > STATE_STEP_MAX)
                return flawed(ld, "it makes no sense");
        if (ld->n_shards++ == 0) {
                *r = record;
                return 0;
        }
        if (memcmp(&r->loss_scale, &record.loss_scale, sizeof(double)) != 0 ||
            r->good_steps != record.good_steps || r->skipped != record.skipped)
                return flawed(ld, "it and another shard come from different steps");
        return 0;
}

static int take_tensors(struct loader *ld)
{
        for (uint32_t i = 0; i < ld->plan->n_segments; i++) {
                uint32_t t = ld->plan->segments[i].tensor;
                uint64_t step = ld->shard->steps[t], set = ld->shard->sets[t];

                if (set >= ZERO_SET_MAX || step > STATE_STEP_MAX)
                        return flawed(ld, "its tensors' steps or sets make no sense");
                if (ld->known[t] &&
                    (ld->state->tensor_step[t] != step || ld->state->tensor_set[t] != set))
                        return flawed(ld, "it and another shard differ in a tensor's steps");
                state_put_step(ld->state, t, step);
                state_put_set(ld->state, t, set);
                ld->known[t] = true;
        }
        return 0;
}

static bool has_blob(const struct snapshot_loaded *loaded, uint32_t rank)
{
        for (uint32_t i = 0; i < loaded->n_blobs; i++)
                if (loaded->blobs[i]->rank == rank)
                        return true;
        return false;
}

static int add_blob(struct loader *ld, uint32_t rank, const uint8_t *data, uint32_t bytes)
{
        struct snapshot_loaded *to = ld->loaded;
        struct snapshot_blob **blobs, *blob = malloc(sizeof(*blob));

        if (!blob)
                return fault_errno(ld->fault, ENOMEM, ld->shard->name);
        blobs = realloc(to->blobs, (to->n_blobs + 1) * sizeof(*blobs));
        if (!blobs) {
                free(blob);
                return fault_errno(ld->fault, ENOMEM, ld->shard->name);
        }
        blob->rank = rank;
        blob->bytes = bytes;
        memcpy(blob->data, data, bytes);
        blobs[to->n_blobs++] = blob;
        to->blobs = blobs;
        return 0;
}

static int take_blobs(struct loader *ld)
{
        uint32_t at = 0, rank, bytes, n = 0;
        const uint8_t *data;
        int r = 0;

        for (; r == 0 && snapshot_shard_blob(ld->shard, &at, &rank, &data, &bytes); n++)
                if (!has_blob(ld->loaded, rank))
                        r = add_blob(ld, rank, data, bytes);
        if (r == 0 && (n != ld->shard->meta.n_blobs || at != ld->shard->meta.blob_bytes))
                r = flawed(ld, "what its ranks kept makes no sense");
        return r;
}

/* ---- planes ---- */

static int read_piece(struct loader *ld, uint64_t offset, void *to, uint64_t n)
{
        int r;

        if (ld->progress->cancelled)
                return fault_set(ld->fault, ZERO_EABORTED, "the restore was cancelled");
        r = snapshot_shard_read(ld->shard, offset, to, n, ld->fault);
        if (r == 0)
                ld->progress->bytes += n;
        return r;
}

static int take_piece(struct loader *ld, uint64_t offset, uint8_t *to, uint64_t n)
{
        int r = read_piece(ld, offset, ld->stage ? ld->stage : to, n);

        if (r == 0 && ld->stage)
                ld->ops->copy(to, ld->stage, n);
        return r;
}

/* What the two shards of a group have in common. */
static struct range in_both(const struct loader *ld, uint32_t group)
{
        return range_common(ld->plan->shards[group].range, ld->state->plan->shards[group].range);
}

/* The byte of a plane that begins at `at` in the stream at which the part begins. */
static uint64_t stream_at(const struct loader *ld, struct plane plane, uint32_t group,
                          struct range part, uint64_t at)
{
        const struct range whole = ld->plan->shards[group].range;

        return at + plan_bytes(ld->plan, plane, group, part).first -
               plan_bytes(ld->plan, plane, group, whole).first;
}

/* Takes what both shards have of a plane, which begins at `at` in the stream.  It is contiguous in
 * both. */
static int take_plane(struct loader *ld, uint32_t group, struct plane plane, uint64_t at)
{
        struct range both = in_both(ld, group);
        struct mapping m = state_map(ld->state, plane, group, both);
        int r = 0;

        at = stream_at(ld, plane, group, both, at);
        for (uint64_t done = 0, n; r == 0 && done < m.bytes; done += n) {
                n = m.bytes - done < PIECE ? m.bytes - done : PIECE;
                r = take_piece(ld, at + done, (uint8_t *)m.at + done, n);
        }
        state_unmap(&m);
        return r;
}

/* ---- planes in other formats ---- */

/* Reads a part of a plane, at most VALUES elements, into conversion->values. */
static int read_values(struct loader *ld, struct plane plane, uint32_t group, struct range part,
                       uint64_t at)
{
        enum format format = plan_format(ld->plan, plane, group, part.first);
        uint64_t bytes = plan_bytes(ld->plan, plane, group, part).count;
        const struct range from = ld->plan->shards[group].range;
        struct conversion *c = ld->conversion;
        bool served = plane.kind == PLANE_MASTER && format != FORMAT_FP32;
        int r = read_piece(ld, stream_at(ld, plane, group, part, at),
                           format == FORMAT_FP32 ? (void *)c->values : c->records, bytes);

        if (r == 0 && served) /* the group's last plane */
                r = read_piece(ld,
                               ld->map.group_end[group] -
                                       (from.first + from.count - part.first) * sizeof *c->served,
                               c->served, part.count * sizeof *c->served);
        if (r == 0 && format != FORMAT_FP32)
                ld->host->unpack(format, c->values, served ? c->served : NULL, c->records,
                                 part.count);
        return r;
}

static void copy_out(struct loader *ld, struct plane plane, uint32_t group, struct range part,
                     const void *from)
{
        struct mapping m = state_map(ld->state, plane, group, part);

        ld->ops->copy(m.at, from, m.bytes);
        state_unmap(&m);
}

static void write_values(struct loader *ld, struct plane plane, uint32_t group, struct range part)
{
        enum format format = plan_format(ld->state->plan, plane, group, part.first);
        uint32_t seed = plane.kind == PLANE_MOMENT ? 1 + plane.index : 0;
        struct conversion *c = ld->conversion;
        bool served = plane.kind == PLANE_MASTER && format != FORMAT_FP32;

        if (format != FORMAT_FP32)
                ld->host->pack(format, c->records, served ? c->served : NULL, c->values, part.count,
                               dither_at(seed, 0, part.first));
        copy_out(ld, plane, group, part,
                 format == FORMAT_FP32 ? (const void *)c->values : c->records);
        if (served)
                copy_out(ld, plane_serve, group, part, c->served);
}

/* at: where the plane begins in the stream.  Shards and tensors begin and end at whole records. */
static int convert_part(struct loader *ld, struct plane plane, uint32_t group, struct range part,
                        uint64_t at)
{
        int r = 0;

        for (uint64_t left = part.count; r == 0 && left > 0; left -= part.count) {
                part.count = left < VALUES ? left : VALUES;
                r = read_values(ld, plane, group, part, at);
                if (r == 0)
                        write_values(ld, plane, group, part);
                part.first += part.count;
        }
        return r;
}

static int convert_moment(struct loader *ld, struct plane plane, uint32_t group, uint64_t at)
{
        const struct plan_shard *from = &ld->plan->shards[group];
        const struct plan_segment *s = &ld->plan->segments[from->first_segment];
        int r = 0;

        for (uint32_t i = 0; r == 0 && i < from->n_segments; i++, s++) {
                struct range part = { s->in_group, s->count };

                if (s->moment != UINT64_MAX && plane.index < ld->plan->runs[s->run].n_moments)
                        r = convert_part(ld, plane, group, range_common(part, in_both(ld, group)),
                                         at);
        }
        return r;
}

static bool same_formats(const struct loader *ld, uint32_t group)
{
        const struct layout_group *a = &ld->l->groups[group], *b = &ld->to->groups[group];

        return strcmp(a->state, b->state) == 0 && strcmp(a->master, b->master) == 0;
}

static int convert_group(struct loader *ld, uint32_t group)
{
        const struct plan_shard *from = &ld->plan->shards[group];
        uint64_t at = group ? ld->map.group_end[group - 1] : 0;
        int r = 0;

        if (!ld->conversion)
                ld->conversion = malloc(sizeof *ld->conversion);
        if (!ld->conversion)
                return fault_errno(ld->fault, ENOMEM, "checkpoint");
        for (uint32_t k = 0; r == 0 && k <= from->n_moments; k++) {
                struct plane plane = plan_kept(ld->plan, group, k);

                r = k ? convert_moment(ld, plane, group, at)
                      : convert_part(ld, plane, group, in_both(ld, group), at);
                at += plan_bytes(ld->plan, plane, group, from->range).count;
        }
        return r;
}

static int take_group(struct loader *ld, uint32_t group)
{
        const struct plan_shard *from = &ld->plan->shards[group];
        uint64_t at = group ? ld->map.group_end[group - 1] : 0;
        int r = 0;

        if (!same_formats(ld, group))
                return convert_group(ld, group);
        for (uint32_t k = 0; r == 0 && plan_kept(ld->plan, group, k).kind != PLANE_NONE; k++) {
                struct plane plane = plan_kept(ld->plan, group, k);

                r = take_plane(ld, group, plane, at);
                at += plan_bytes(ld->plan, plane, group, from->range).count;
        }
        return r;
}

/* ---- a shard ---- */

static int take_shard(struct loader *ld)
{
        int r;

        if (ld->shard->header.stream_bytes != ld->map.bytes)
                return flawed(ld, "its length is not that of its layout");
        r = take_record(ld);
        if (r == 0)
                r = take_tensors(ld);
        if (r == 0)
                r = take_blobs(ld);
        for (uint32_t g = 0; r == 0 && g < ld->l->n_groups; g++)
                r = take_group(ld, g);
        return r;
}

static int load_shard(struct loader *ld, int dir, const struct partition *partition, uint32_t owner)
{
        int r = plan_new(ld->l, partition, owner, COARSE, &ld->plan);

        if (r == 0)
                r = snapshot_map_new(ld->plan, &ld->map);
        if (r)
                r = fault_errno(ld->fault, r, "checkpoint");
        else
                r = snapshot_shard_open(dir, ld->m, owner, ld->l->n_tensors, &ld->shard, ld->fault);
        if (r == 0)
                r = take_shard(ld);
        snapshot_shard_free(STEAL(ld->shard));
        snapshot_map_deinit(&ld->map);
        plan_free(STEAL(ld->plan));
        return r;
}

int snapshot_load(int dir, const struct manifest *m, const layout *l, const layout *to,
                  struct state *draft, const struct device_ops *ops,
                  struct snapshot_progress *progress, struct snapshot_loaded *ret,
                  struct fault *fault)
{
        CLEANUP(cleanup_partition_free) struct partition *partition = NULL;
        CLEANUP(cleanup_free) bool *known = calloc(l->n_tensors + 1, sizeof(*known));
        CLEANUP(cleanup_free) uint8_t *stage = state_for_cpu(draft) ? NULL : malloc(PIECE);
        struct snapshot_loaded loaded = { .n_blobs = 0 };
        struct loader ld = { .m = m,
                             .l = l,
                             .to = to,
                             .state = draft,
                             .ops = ops,
                             .host = device_host(NULL),
                             .progress = progress,
                             .loaded = &loaded,
                             .known = known,
                             .stage = stage,
                             .fault = fault };
        int r = known && !stage == state_for_cpu(draft) ? partition_new(l, m->n_owners, &partition)
                                                        : -ENOMEM;

        if (r)
                return fault_errno(fault, r, "checkpoint");
        for (uint32_t o = 0; r == 0 && o < m->n_owners; o++)
                r = load_shard(&ld, dir, partition, o);
        free(ld.conversion);
        if (r) {
                snapshot_loaded_deinit(&loaded);
                return r;
        }
        *ret = loaded;
        crash_point(CRASH_RESTORE_FILLED);
        return 0;
}
