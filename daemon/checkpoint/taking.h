/* taking.h - shared by an owner's part of a checkpoint (taking.c) and its copy (taking_copy.c,
 * taking_save.c). */
#pragma once

#include "daemon/checkpoint/operation.h"
#include "daemon/checkpoint/save_order.h"

enum { SLOTS_PROBED = 2 };

enum taking_phase {
        TAKING_PREPARING, /* the directory is opened, memory is made ready */
        TAKING_PREPARED,
        TAKING_DUE,     /* to be copied when the update that runs is over */
        TAKING_WRITING, /* copied and written, block by block */
        TAKING_WRITTEN,
        TAKING_PUBLISHING,
        TAKING_ENDED, /* broken off, or done: goes when nothing of it is in flight */
};

struct taking {
        struct list link; /* engine.takings */
        struct engine *x;
        struct holding *holding;
        uint64_t id, call; /* call: to be answered; 0: none */
        uint32_t node, uid;
        enum taking_phase phase;
        struct fault fault; /* why it is broken off */
        char *directory;
        /* what the disk's thread works on, one thing at a time */
        struct disk_job disk;
        bool disk_busy, published, removed;
        bool unmeasured; /* nothing is known of the disk yet */
        int status;      /* of that */
        struct fault disk_fault;
        int dir, partial;
        struct snapshot_writer *writer;
        struct manifest_shard shard;
        uint64_t write_end; /* block before which it stops */
        uint32_t keep;
        char *text;
        uint8_t *layout;
        uint64_t write_ns;  /* in writing */
        double rate;        /* of copying; bytes a second */
        double probed_rate; /* of the disk */
        /* the copy: a ring of blocks; or room for all of them, and updates save */
        bool saves;
        struct snapshot_map map;
        struct snapshot_header header;
        uint8_t *meta, *buffer;
        uint64_t buffer_bytes;
        uint64_t n_blocks, n_slots;
        uint64_t submitted, copied, written; /* blocks: handed out; leading ones copied; written */
        struct slot *slots;                  /* [n_slots] */
        uint32_t copying;                    /* tasks in flight */
        bool pinned;                         /* groups are, ... */
        uint32_t next_group;                 /* ... from here on */
        struct piece *pieces;                /* saves: taking_save.c */
        struct save_order order;
        uint64_t copy_begun_ns, copy_us;
        bool whole; /* all of it is copied */
        struct snapshot_progress progress;
        uint64_t told; /* bytes */
};

/* taking_copy.c */
int taking_copy_prepare(struct taking *t, struct fault *fault); /* on the disk's thread */
/* How much longer the next update takes at most, about; not 0. */
uint64_t taking_stall_us(const struct taking *t);
void taking_copy_begin(struct taking *t);
void taking_copy_advance(struct taking *t);
void taking_unpin(struct taking *t, uint64_t stream_bytes);
uint64_t taking_block_bytes(const struct taking *t, uint64_t block);
uint8_t *taking_block(const struct taking *t, uint64_t block);
/* All of it is. */
void taking_copy_over(struct taking *t);
void taking_copy_deinit(struct taking *t);

/* taking_save.c; see shard_observer */
uint64_t taking_save_begin(struct holding *h, uint32_t group);
void taking_save(const struct holding *h, uint32_t chunk, struct undo_values old, uint64_t from);
void taking_save_end(struct holding *h);
int taking_save_prepare(struct taking *t); /* -ENOMEM */
void taking_save_advance(struct taking *t);
/* Pieces or updates are at it. */
bool taking_saves_now(const struct taking *t);
void taking_save_deinit(struct taking *t);

/* taking.c */
void takings_job_dropped(struct job *job, int status, const char *text);
void taking_advance(struct taking *t);
