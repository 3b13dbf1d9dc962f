/*
 * Where an owner's part of a job lies in its planes.  Pure: computed from layout,
 * partition and owner.
 *
 * The master plane holds the owner's shard of every group, one behind the other, in
 * group order (so a shard of an fp32 group is served from it as it stands).
 * grad holds the trainable segments only, in the same order, and so does each plane of moments
 * for those groups whose optimizer has that many: frozen tensors have neither moments nor gradient.  The serve plane holds the
 * shards of bf16 and fp16 groups, each beginning at a multiple of 4096 bytes.
 *
 * A chunk is the unit of update and of commit: up to chunk_elements consecutive
 * trainable elements of one shard, contiguous in every plane.
 */
#pragma once

#include "daemon/optimizer/optimizer.h"
#include "proto/partition.h"

/* The part of a tensor inside this owner's shard, alignment gap behind it included
 * (gaps count as trainable if their tensor is). */
struct plan_segment {
        uint32_t tensor, group;
        uint64_t in_group; /* first element in the group's flat array */
        uint64_t count;    /* elements, gap included */
        uint64_t master;   /* first element in the master plane */
        uint64_t moment;   /* ... in grad; UINT64_MAX if frozen; see plan_moment() */
};

struct plan_shard {
        struct range range;    /* in the group */
        uint64_t master;       /* first element in the master plane */
        uint64_t moment;       /* first element in grad */
        const struct optimizer *optimizer;
        uint64_t moments[OPTIMIZER_MOMENTS]; /* first element in each plane that it has */
        uint64_t moment_count; /* trainable elements of the shard */
        uint64_t serve;        /* byte offset in the serve plane; UINT64_MAX for fp32 */
        uint32_t first_segment, n_segments;
        uint32_t first_chunk, n_chunks;
};

struct plan_chunk {
        uint32_t group, n;      /* elements */
        uint32_t first_segment; /* the segment the chunk's first element is in */
        uint64_t master, moment, in_group;
};

struct plan {
        uint32_t owner, n_groups, n_segments, n_chunks, chunk_elements;
        struct plan_shard *shards; /* [group] */
        struct plan_segment *segments;
        struct plan_chunk *chunks;
        uint64_t master_elements, moment_elements, serve_bytes;
        uint64_t moments[OPTIMIZER_MOMENTS]; /* elements of each plane of moments */
        uint32_t n_planes; /* that an update changes at most: master and moments */
};

/*
 * chunk_elements: a multiple of LAYOUT_ALIGN.  The tables take about 40 bytes a chunk: ask
 * store_admit() first.  -EOVERFLOW for more than 2^32 chunks.  The layout is of
 * optimizers that there are (optimizer_layout()).
 */
int plan_new(const layout *l, const struct partition *p, uint32_t owner, uint32_t chunk_elements,
             struct plan **ret);
void plan_free(struct plan *p);
/* Where in its plane moment i of an element of the shard lies, whose gradient lies at `moment`. */
static inline uint64_t plan_moment(const struct plan_shard *shard, uint32_t i, uint64_t moment)
{
        return shard->moments[i] + (moment - shard->moment);
}
/*
 * Elements of MASTER, of a moment that the group has, or of GRAD, that a part of the owner's shard of a
 * group has: one behind the other.  Both ends of the part are multiples of LAYOUT_ALIGN.
 */
struct range plan_span(const struct plan *p, enum zero_plane plane, uint32_t group,
                       struct range part);
/* Bytes of a plane (MASTER, moments, GRAD, SERVE) over the owner's part. */
uint64_t plan_plane_bytes(const struct plan *p, enum zero_plane plane);
/* Whether a group has a plane that an update changes: MASTER, or a moment of its optimizer. */
bool plan_has(const struct plan *p, uint32_t group, uint32_t plane);
/* Bytes of all planes that an update changes. */
uint64_t plan_state_bytes(const struct plan *p);

/* Of those that have no plan here.  Trainable elements of a range of a group, gaps behind trainable
 * tensors included; bytes of an owner's master weights and moments. */
uint64_t plan_trainable(const layout *l, uint32_t group, struct range range);
uint64_t plan_owner_bytes(const layout *l, const struct partition *p, uint32_t owner);
