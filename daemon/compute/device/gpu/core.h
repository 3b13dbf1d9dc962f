/*
 * core.h - what the files behind gpu.h share.
 *
 * Bottom to top:
 *
 *   plugin.c      the plugin, and the GPUs that the plugin finds
 *   chores.c      driver calls that block, on a thread of their own
 *   memory.c      allocations, and the GPU of an address
 *   lane.c        a thread's streams and pinned buffers
 *   pinned.c      pinned buffers for bytes of other nodes
 *   events.c      events of trainers
 *   moves.c       which bytes go from which GPU to which; pure
 *   collective.c  moves by NCCL
 *   staging.c     operations whose operands lie in different places
 *   copy.c        bytes to one address or several
 *   reduce.c      sums of gradients and their norm
 *   ops.c         gpu_ops()
 *   open.c        gpus_open(), gpus_close()
 */
#pragma once

#include "daemon/compute/device/gpu/gpu.h"
#include "daemon/compute/device/place/place.h"
#include "daemon/compute/device/gpu/moves.h"

enum {
        GPUS_MAX = PLACES_MAX - 1,
        GPU_NONE = -1,        /* instead of a GPU's number: host memory */
        LANES = 2,            /* copies one while the other computes */
        LANE_BYTES = 1 << 20, /* of pinned memory, for each lane */
        LANE_PEERS = 4 << 20, /* on the GPU, for each lane: a round among GPUs takes time */
        LANE_SCRATCH = 1024,  /* bytes on the GPU */
};

extern const struct zero_cuda_plugin *gpu_plugin; /* NULL before gpus_open() */
extern const struct device_ops *gpu_host;         /* the operations for host memory */
/* As gpus_open(): loads the plugin, finds the GPUs, sets gpu_plugin and gpu_host. */
int plugin_open(const char *path, const struct device_ops *host, struct fault *fault);
void plugin_close(void);
/* Call once gpu_host is set. */
void gpu_ops_open(void);

/* The plugin's number of the GPU. */
int gpu_ordinal(uint32_t gpu);
/* Ends the process unless r is 0: the GPU cannot go on. */
void gpu_must(uint32_t gpu, const char *what, int r);
/* Chooses the GPU, as gpu_use().  ZERO_ENOMEM, ZERO_EGPU: other processes leave no part of it to
 * this one, which is not a fault of the GPU. */
int gpu_usable(uint32_t gpu, struct fault *fault);
/* True if all memory was given back. */
bool gpu_memory_empty(void);
void gpu_memory_reset(void);

/* ---- chores ---- */

/* Runs once, on the chores thread; its memory then belongs to the caller again. */
struct gpu_chore {
        struct gpu_chore *next; /* private */
        void (*run)(struct gpu_chore *chore);
};

int gpu_chores_open(void); /* -errno */
/* Returns when all chores are done. */
void gpu_chores_close(void);
void gpu_chore(struct gpu_chore *chore);
/* Waits until all chores so far are done; not for the loop thread. */
void gpu_chores_wait(void);

/* True if the address is in a pinned buffer. */
bool gpu_is_pinned(const void *memory);
void gpu_buffers_close(void);

/* ---- lanes ---- */

struct lane {
        void *stream;
        uint8_t *pinned; /* NULL until needed */
        void *scratch;   /* on the GPU; NULL until needed */
        uint8_t *peers;  /* on the GPU, for operands on other GPUs; NULL until needed */
        bool busy;       /* something was enqueued and not yet waited for */
};

int lanes_open(void); /* -errno */
void lanes_close(void);
/* This thread's LANES lanes on a GPU, which this selects. */
struct lane *lanes_of(uint32_t gpu);
void lane_pin(uint32_t gpu, struct lane *lane);
void lane_scratch(uint32_t gpu, struct lane *lane);
void lane_peers(uint32_t gpu, struct lane *lane);
/* Enqueues a copy on a lane of one of the two GPUs, the selected one. */
void lane_copy_peer(struct lane *lane, const struct move *m);
void lane_wait(uint32_t gpu, struct lane *lane);

/* ---- staging ---- */

enum { OPERANDS_MAX = 1 + ZERO_CUDA_SUM_MAX };

/* An operation on n elements; at[i] is where operand i is. */
struct staged {
        struct operand operands[OPERANDS_MAX];
        uint32_t n_operands;
        size_t n;
        int (*device)(const struct staged *s, void *const *at, size_t n, void *stream); /* -errno */
        void (*host)(const struct staged *s, void *const *at, size_t n);
        /* of the operation */
        enum update_rule rule;
        const struct update_scalars *scalars;
        enum zero_dtype to, from;
        enum format format;
        uint32_t dither; /* of its first element */
        size_t begun;    /* the elements before those at at[] */
        bool first;
};

void staged_add(struct staged *s, const void *memory, uint32_t width, bool in, bool out);
void staged_run(struct staged *s);

/* ---- between GPUs ---- */

/*
 * Moves bytes by NCCL and waits; may leave another GPU selected.  Joins the moves of several
 * threads.  No move may write what another reads or writes.  false: the result does not count, copy
 * instead.
 */
bool collective_exchange(const struct move *moves, uint32_t n_moves);
/* From the first peer to all others. */
bool collective_broadcast(const struct peer *peers, uint32_t n_peers, size_t n);
void collective_close(void);

/* ---- operations of gpu_ops() ---- */

void gpu_copy(void *dst, const void *src, size_t n);

enum { SUM_PART = 8192 }; /* elements */

void gpu_accumulate(float *acc, enum zero_dtype from, const void *src, size_t n, bool first);
void gpu_norm(const float *x, size_t n, double scale, struct exact_sum *acc, bool *finite);
void gpu_reduce(const struct reduce_piece *pieces, size_t n_pieces, enum zero_dtype wire,
                enum zero_dtype from, double scale, struct exact_sum *norm, bool *finite);
