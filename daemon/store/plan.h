/*
 * Where an owner's part of a job lies in its planes.  Pure: computed from layout, partition and
 * owner.
 *
 * The master plane holds the owner's shard of every group, contiguously and in group order.  If
 * there is only one owner, trainers read fp32 groups straight from that plane, so each group begins
 * at a multiple of 4096 bytes.  grad holds the trainable segments alone, in the same order: frozen
 * tensors have neither moments nor a gradient.  A plane of moments is like grad, without the
 * tensors whose optimizer lacks that moment.  Groups may have moments in different formats, so
 * places there are in bytes; whole records (formats.h) lie behind one another.  The serve plane
 * holds the shards of bf16, fp16 and eager groups, each at a multiple of 4096 bytes.
 *
 * An update may change an eager group before its step is decided, so the group has a place for old
 * values (undo_kept.c).  The place has the trainable elements of the group's planes, one plane
 * behind the other.
 *
 * A chunk is consecutive trainable elements of one shard, contiguous in every plane: up to
 * chunk_elements, or as many more as formats leave room for.  The unit of update and of commit is a
 * chunk or all of a shard.
 */
#pragma once

#include "daemon/compute/optimizer/optimizer.h"
#include "proto/partition.h"

/* What an update brings from one version to the next at once (undo.h). */
enum update_unit {
        UNIT_CHUNK, /* in host memory: each with a version that outlives the process */
        UNIT_SHARD, /* on a GPU: all of the shard, in as few launches as possible */
};

/* The part of a tensor inside this owner's shard, with the alignment gap behind it.  A gap counts
 * as trainable if its tensor is. */
struct plan_segment {
        uint32_t tensor, group;
        uint64_t in_group; /* first element in the group's flat array */
        uint64_t count;    /* elements, gap included */
        uint64_t master;   /* first element in the master plane */
        uint64_t moment;   /* first element in grad; UINT64_MAX if frozen; see plan_moment() */
        uint32_t run;      /* the run that the segment is in, unless the segment is frozen */
};

struct plan_shard {
        struct range range;    /* in the group */
        uint64_t master;       /* first element in the master plane */
        uint64_t master_at;    /* first byte there */
        uint64_t moment;       /* first element in grad */
        enum zero_dtype dtype; /* in which trainers get the group */
        enum format format;    /* of master; not fp32: the serve plane has the upper bits */
        bool ema;              /* the last moment of a tensor is the average of its weights */
        bool matrices;         /* some of its tensors are updated matrix by matrix */
        uint32_t n_moments;    /* the most that a tensor of the group has */
        uint64_t moment_at[OPTIMIZER_MOMENTS];    /* first byte in each plane of moments */
        uint64_t moment_bytes[OPTIMIZER_MOMENTS]; /* bytes there */
        uint64_t moment_count;                    /* trainable elements of the shard */
        uint64_t serve; /* byte offset in the serve plane; UINT64_MAX: master is served */
        uint64_t old;   /* first byte of its old values; UINT64_MAX: not eager */
        uint32_t first_segment, n_segments;
        uint32_t first_chunk, n_chunks;
        enum update_unit unit; /* UNIT_CHUNK, until the state comes to a GPU */
};

/* Consecutive trainable segments of a shard whose tensors have one optimizer.  Its chunks have
 * `length` elements; the last one may have fewer. */
struct plan_run {
        uint32_t group, first_segment, first_chunk, length;
        uint64_t count, master, moment, in_group; /* elements */
        const struct optimizer *optimizer;
        uint32_t n_moments;
        uint64_t moment_at[OPTIMIZER_MOMENTS]; /* first byte in each plane of moments it has */
        enum format formats[OPTIMIZER_MOMENTS];
        enum format master_format;
        bool packed; /* some of these are not fp32 */
};

struct plan_chunk {
        uint32_t group, n;      /* elements */
        uint32_t first_segment; /* the segment the chunk's first element is in */
        uint64_t master, moment, in_group;
        const struct plan_run *run;
};

struct plan {
        uint32_t owner, n_groups, n_segments, n_runs, n_chunks, chunk_elements;
        struct plan_shard *shards; /* [group] */
        struct plan_segment *segments;
        struct plan_run *runs;
        uint32_t *chunk_segments; /* [chunk] the segment that its first element is in */
        uint64_t master_elements, moment_elements, old_bytes, serve_bytes;
        uint64_t moment_bytes[OPTIMIZER_MOMENTS]; /* of each plane of moments */
        uint64_t master_bytes;
        bool keeps_served; /* the file has the serve plane, because some master weights need it */
        enum zero_dtype grad_dtype; /* of grad; whoever wants another one than fp32 sets it */
        bool staggered; /* planes begin at different places in their pages (file.h); set likewise */
        uint32_t n_planes; /* the most that an update of one group changes: master and moments */
        uint64_t matrix_bytes; /* ortho_bytes() of the matrix that takes most; 0: it has none */
        uint64_t update_bytes; /* the most that an update takes beside the state while it runs */
};

/*
 * chunk_elements: a multiple of LAYOUT_ALIGN.  The tables take 4 bytes a chunk, so call
 * store_admit() first.  -EOVERFLOW if there could be more than 2^32 chunks.  The layout must have
 * passed optimizer_layout(), which knows its optimizers.
 */
int plan_new(const layout *l, const struct partition *p, uint32_t owner, uint32_t chunk_elements,
             struct plan **ret);
void plan_free(struct plan *p);
/* A chunk is computed, not stored: 40 bytes a chunk would be more than all else that the daemon
 * keeps to itself. */
static inline struct plan_chunk plan_chunk(const struct plan *p, uint32_t chunk)
{
        const uint32_t segment = p->chunk_segments[chunk];
        const struct plan_run *run = &p->runs[p->segments[segment].run];
        const uint64_t at = (uint64_t)(chunk - run->first_chunk) * run->length;
        const uint64_t left = run->count - at;

        return (struct plan_chunk){ .group = run->group,
                                    .n = left < run->length ? (uint32_t)left : run->length,
                                    .first_segment = segment,
                                    .master = run->master + at,
                                    .moment = run->moment + at,
                                    .in_group = run->in_group + at,
                                    .run = run };
}
static inline enum update_unit plan_unit(const struct plan *p, uint32_t chunk)
{
        return p->shards[p->segments[p->chunk_segments[chunk]].group].unit;
}
/* Elements of a segment that belong to its tensor; the gap behind the tensor has no values. */
static inline uint64_t plan_segment_elements(const struct layout_tensor *t,
                                             const struct plan_segment *s)
{
        uint64_t first = s->in_group - t->offset;

        if (first >= t->elements)
                return 0;
        return s->count < t->elements - first ? s->count : t->elements - first;
}
/* Bytes of n elements of a run in plane_updated(k).  n is a multiple of LAYOUT_ALIGN unless the
 * plane is in fp32. */
static inline uint64_t plan_run_bytes(const struct plan_run *run, uint32_t k, uint64_t n)
{
        enum format format = k ? run->formats[k - 1] : run->master_format;

        return format == FORMAT_FP32 ? n * sizeof(float) : format_bytes(format, n);
}
/* Bytes of n elements of a shard in master, likewise. */
static inline uint64_t plan_master_bytes(const struct plan_shard *shard, uint64_t n)
{
        return shard->format == FORMAT_FP32 ? n * sizeof(float) : format_bytes(shard->format, n);
}
/* The first byte in the plane of moment i of the element whose gradient is at index `moment` of
 * grad. */
static inline uint64_t plan_moment_at(const struct plan_run *run, uint32_t i, uint64_t moment)
{
        return run->moment_at[i] + plan_run_bytes(run, 1 + i, moment - run->moment);
}
/* The plane that has the group's values: MASTER in place of SERVE, if trainers get those. */
static inline struct plane plan_stored(const struct plan_shard *shard, struct plane plane)
{
        return plane.kind == PLANE_SERVE && shard->serve == UINT64_MAX ? plane_master : plane;
}
/* Where a part of the owner's shard of a group lies in a plane of the group: contiguous bytes, in
 * whole records.  Frozen elements have none but in MASTER and SERVE. */
struct range plan_bytes(const struct plan *p, struct plane plane, uint32_t group,
                        struct range part);
/* Plane k of those that move and are saved with a group: master, moments, and SERVE if master needs
 * it; PLANE_NONE behind the last. */
struct plane plan_kept(const struct plan *p, uint32_t group, uint32_t k);
/* Bytes of the serve plane that are not in the file. */
static inline uint64_t plan_served_apart(const struct plan *p)
{
        return p->keeps_served ? 0 : p->serve_bytes;
}
/* The format of an element of the group in MASTER or a moment; of another plane FORMAT_FP32. */
enum format plan_format(const struct plan *p, struct plane plane, uint32_t group, uint64_t at);
/* Bytes of one plane. */
uint64_t plan_plane_bytes(const struct plan *p, struct plane plane);
/* True if plan_kept() lists the plane. */
bool plan_has(const struct plan *p, uint32_t group, struct plane plane);
enum { PLAN_DIRECTED = 2 }; /* groups that have directions at a time */
/* Memory beside the file that a state takes or will take. */
static inline uint64_t plan_beside(const struct plan *p)
{
        return plan_served_apart(p) + p->update_bytes;
}
/* Bytes of all planes that an update changes. */
uint64_t plan_state_bytes(const struct plan *p);

/* ---- owners for which this node has no plan ---- */

/* Bytes of an owner's master weights and moments. */
uint64_t plan_owner_bytes(const layout *l, const struct partition *p, uint32_t owner);
/* An owner's elements that have a gradient. */
uint64_t plan_owner_trained(const layout *l, const struct partition *p, uint32_t owner);
