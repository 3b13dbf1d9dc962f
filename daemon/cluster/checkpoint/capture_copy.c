/*
 * The memory for an owner's copy of its planes; and the copy that updates have to wait for, because
 * the planes are on a GPU or memory is short.
 *
 * The copy goes through a ring of blocks: a block is copied once the one that had its place is on
 * the disk.  All groups are pinned at first.  Each is unpinned as soon as the stream is copied up
 * to its end, so that the next update follows group by group.
 */
#include "daemon/cluster/checkpoint/capture.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "daemon/floor/base/memory.h"
#include "proto/cleanup.h"

enum { TRIAL_BYTES = 128 << 20, PAGE = 4096, SLOTS_MIN = SLOTS_PROBED };

/* A place in the ring. */
struct slot {
        struct offload_task task;
        struct capture *t;
        uint64_t block;
        bool copied;
};

/* ---- memory ------------------------------------------------------------------------- */

void capture_copy_plan(struct capture *t)
{
        uint64_t limit = t->x->conf->checkpoint_memory, spare = memory_available() / 4 * 3;
        uint64_t slots;

        t->n_blocks = (t->map.bytes + SNAPSHOT_BLOCK - 1) / SNAPSHOT_BLOCK;
        if (limit == 0 || limit > spare)
                limit = spare;
        slots = limit / placement_owners_on(&t->x->placement, t->x->cluster->self) / SNAPSHOT_BLOCK;
        if (slots < SLOTS_MIN)
                slots = SLOTS_MIN;
        t->n_slots = slots < t->n_blocks ? slots : t->n_blocks;
        memory_promise(&t->promise, t->n_slots * (uint64_t)SNAPSHOT_BLOCK, -1, false);
}

/* Touches the pages now, so that the update need not wait for that. */
static int buffer_map(struct capture *t)
{
        uint64_t bytes = t->n_slots * (uint64_t)SNAPSHOT_BLOCK;
        void *p;

        if (t->n_slots == t->n_blocks)
                bytes = (t->map.bytes + PAGE - 1) / PAGE * PAGE;
        if (bytes == 0)
                return 0;
        p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (p == MAP_FAILED)
                return -errno;
        t->buffer = p;
        t->buffer_bytes = bytes;
        (void)madvise(p, bytes, MADV_HUGEPAGE); /* a hint */
        if (madvise(p, bytes, MADV_POPULATE_WRITE) == 0)
                return 0;
        if (errno == EINVAL) { /* before Linux 5.14 */
                memset(p, 0, bytes);
                return 0;
        }
        return -errno;
}

static double copy_rate(const struct capture *t)
{
        const struct state *state = t->replica->state;
        uint64_t half = t->buffer_bytes / 2 < TRIAL_BYTES ? t->buffer_bytes / 2 : TRIAL_BYTES;
        uint64_t begin = uv_hrtime();

        if (state_for_cpu(state)) {
                t->x->ops->copy(t->buffer, t->buffer + half, half);
        } else { /* the way that the copy will take */
                half = half < t->map.bytes ? half : t->map.bytes;
                snapshot_copy(&t->map, state, t->x->ops, 0, t->buffer, half);
        }
        return (double)half / ((double)(uv_hrtime() - begin) / 1e9 + 1e-6);
}

int capture_copy_prepare(struct capture *t, struct fault *fault)
{
        int r;

        t->slots = calloc(t->n_slots + 1, sizeof *t->slots);
        r = t->slots ? buffer_map(t) : -ENOMEM;
        if (r)
                return fault_set(fault, ZERO_ENOMEM,
                                 "no memory for the copy of %llu bytes: lower checkpoint_memory",
                                 (unsigned long long)t->map.bytes);
        t->saves = t->n_slots == t->n_blocks && state_for_cpu(t->replica->state);
        if (t->saves && capture_save_prepare(t))
                return fault_set(fault, ZERO_ENOMEM, "out of memory");
        t->rate = copy_rate(t);
        return 0;
}

uint64_t capture_stall_us(const struct capture *t)
{
        double stall = t->rate > 0 ? (double)t->map.bytes / t->rate : 0;

        if (t->saves) /* saved bytes come from the cache: half of the traffic */
                stall /= 2;
        if (t->n_slots < t->n_blocks)
                stall += (double)(t->map.bytes - t->buffer_bytes) / t->x->checkpoints->disk_rate;
        return (uint64_t)(stall * 1e6) + 1;
}

void capture_copy_deinit(struct capture *t)
{
        if (t->buffer)
                munmap(STEAL(t->buffer), t->buffer_bytes);
        free(STEAL(t->slots));
        capture_save_deinit(t);
        snapshot_map_deinit(&t->map);
        free(STEAL(t->meta));
}

/* ---- blocks ---------------------------------------------------------------------------- */

uint64_t capture_block_bytes(const struct capture *t, uint64_t block)
{
        uint64_t left = t->map.bytes - block * SNAPSHOT_BLOCK;

        return left < SNAPSHOT_BLOCK ? left : SNAPSHOT_BLOCK;
}

uint8_t *capture_block(const struct capture *t, uint64_t block)
{
        return t->buffer + block % t->n_slots * SNAPSHOT_BLOCK;
}

/* Unpins the groups that end within the first stream_bytes. */
void capture_unpin(struct capture *t, uint64_t stream_bytes)
{
        while (t->next_group < t->map.n_groups && t->map.group_end[t->next_group] <= stream_bytes)
                shard_unpin(t->replica, t->next_group++);
}

static void copy_run(struct offload_task *task, uint32_t worker)
{
        struct slot *slot = CONTAINER_OF(task, struct slot, task);
        const struct capture *t = slot->t;

        snapshot_copy(&t->map, t->replica->state, t->x->ops, slot->block * SNAPSHOT_BLOCK,
                      capture_block(t, slot->block), capture_block_bytes(t, slot->block));
}

static struct slot *slot_of(const struct capture *t, uint64_t block)
{
        return &t->slots[block % t->n_slots];
}

/* Blocks end in any order; only those without a gap before them count. */
static void copy_note(struct capture *t)
{
        while (t->copied < t->submitted && slot_of(t, t->copied)->copied)
                slot_of(t, t->copied++)->copied = false;
        if (t->phase != CAPTURE_ENDED)
                capture_unpin(t,
                              t->copied == t->n_blocks ? t->map.bytes : t->copied * SNAPSHOT_BLOCK);
}

void capture_copy_over(struct capture *t)
{
        t->whole = true;
        t->replica->copying = false;
        t->copy_us = (uv_hrtime() - t->copy_begun_ns) / 1000;
        shard_settled(t->replica->job);
}

static void copy_done(struct offload_task *task)
{
        struct slot *slot = CONTAINER_OF(task, struct slot, task);
        struct capture *t = slot->t;

        slot->copied = true;
        t->copying--;
        copy_note(t);
        if (t->phase != CAPTURE_ENDED && t->copied == t->n_blocks)
                capture_copy_over(t);
        capture_advance(t);
}

static void copy_submit(struct capture *t)
{
        struct slot *slot = slot_of(t, t->submitted);

        *slot = (struct slot){ .task = { .run = copy_run, .done = copy_done },
                               .t = t,
                               .block = t->submitted++ };
        t->copying++;
        job_compute(t->replica->job, OFFLOAD_STEP, &slot->task);
}

void capture_copy_advance(struct capture *t)
{
        uint32_t most = offload_workers(t->x->offload) + 1;

        while (t->copying < most && t->submitted < t->n_blocks &&
               t->submitted < t->written + t->n_slots)
                copy_submit(t);
}

void capture_copy_begin(struct capture *t)
{
        t->copy_begun_ns = uv_hrtime();
        if (t->saves)
                t->next_group = t->map.n_groups;
        for (uint32_t g = t->next_group; g < t->map.n_groups; g++)
                shard_pin(t->replica, g);
        if (t->n_blocks == 0) {
                capture_unpin(t, 0);
                capture_copy_over(t);
        }
}
