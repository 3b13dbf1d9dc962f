/* capture.h - shared by an owner's part of a checkpoint (capture.c) and its copy (capture_copy.c,
 * capture_save.c). */
#pragma once

#include "daemon/cluster/checkpoint/operation.h"
#include "daemon/cluster/checkpoint/save_order.h"
#include "daemon/floor/base/memory.h"

enum { SLOTS_PROBED = 2 };

enum capture_phase {
        CAPTURE_PREPARING, /* opens the directory and prepares memory */
        CAPTURE_PREPARED,
        CAPTURE_DUE,     /* copies once the running update is over */
        CAPTURE_WRITING, /* copies and writes, block by block */
        CAPTURE_WRITTEN,
        CAPTURE_PUBLISHING,
        CAPTURE_ENDED, /* cancelled or done: freed once nothing is in flight */
};

struct capture {
        struct list link; /* checkpoints.captures */
        struct engine *x;
        struct replica *replica; /* NULL: given back, though the disk's work may go on */
        uint64_t id, call;       /* call: to answer; 0: none */
        uint32_t node, uid;
        enum capture_phase phase;
        struct fault fault; /* why the capture is cancelled */
        char *directory;
        /* work of the blocking thread, one piece at a time */
        struct blocking_work disk;
        bool disk_busy, published, removed;
        bool measuring;  /* that work reads the planes */
        bool left;       /* the engine has stopped meanwhile: the files stay */
        bool unmeasured; /* the disk's rate is unknown */
        int status;      /* of that work */
        struct fault disk_fault;
        int dir, partial;
        struct snapshot_writer *writer;
        struct manifest_shard shard;
        uint64_t write_end; /* the block before which the work stops */
        uint32_t keep;
        char *text;
        uint8_t *layout;
        uint64_t write_ns;  /* spent on writing */
        double rate;        /* of copying, in bytes a second */
        double probed_rate; /* of the disk */
        /* the copy: memory for all blocks, so that updates save; otherwise a ring */
        bool saves;
        struct snapshot_map map;
        struct snapshot_header header;
        uint8_t *meta, *buffer;
        uint64_t buffer_bytes;
        struct memory_promise promise;
        uint64_t n_blocks, n_slots;
        uint64_t submitted, copied, written; /* blocks given out; copied without a gap; written */
        struct slot *slots;                  /* [n_slots] */
        uint32_t copying;                    /* tasks in flight */
        bool pinned;                         /* groups from next_group on are pinned */
        uint32_t next_group;
        struct piece *pieces; /* if `saves`: capture_save.c */
        struct save_order order;
        uint64_t copy_begun_ns, copy_us;
        bool whole; /* everything is copied */
        struct snapshot_progress progress;
        uint64_t told; /* bytes, in the last progress message */
};

/* capture_copy.c */
/* How much memory the copy takes: another thread then prepares it, and the promise has been kept.
 */
void capture_copy_plan(struct capture *t);
int capture_copy_prepare(struct capture *t, struct fault *fault);
/* An estimate of how much longer the next update takes at most; not 0. */
uint64_t capture_stall_us(const struct capture *t);
void capture_copy_begin(struct capture *t);
void capture_copy_advance(struct capture *t);
void capture_unpin(struct capture *t, uint64_t stream_bytes);
uint64_t capture_block_bytes(const struct capture *t, uint64_t block);
uint8_t *capture_block(const struct capture *t, uint64_t block);
/* Everything is copied. */
void capture_copy_over(struct capture *t);
void capture_copy_deinit(struct capture *t);

/* capture_save.c; see shard_observer */
uint64_t capture_save_begin(struct replica *h, uint32_t group);
void capture_save(const struct replica *h, uint32_t chunk, struct undo_values old, uint64_t from);
void capture_save_end(struct replica *h);
int capture_save_prepare(struct capture *t); /* -ENOMEM */
void capture_save_advance(struct capture *t);
/* Whether pieces or updates are copying. */
bool capture_saves_now(const struct capture *t);
void capture_save_deinit(struct capture *t);

/* capture.c */
void captures_job_dropped(struct job *job, int status, const char *text);
void capture_advance(struct capture *t);
