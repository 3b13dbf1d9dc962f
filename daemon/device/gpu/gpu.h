/*
 * gpu.h - the GPUs of this machine, through the plugin zerod-cuda.so, which is loaded at run time:
 * the daemon itself links no CUDA library.
 *
 * gpu_ops() computes on memory of either kind: what lies on a GPU is computed there, on a stream of
 * the calling thread's own, which then waits for it; if no argument lies on a GPU the host
 * does it.  Where one operand lies in host memory and another on a GPU it passes
 * through pinned buffers in chunks, copied while the chunk before is computed.  Of operands on
 * several GPUs, all are computed on that of the first, to which the others are copied.
 *
 * A fault of the GPU itself (as opposed to a lack of its memory) ends the process with a message:
 * what is lost with it is restored as after any crash.
 *
 * One plugin a process; everything may be called from any thread after gpus_open().
 */
#pragma once

#include "cuda/zero_cuda.h"
#include "daemon/device/device.h"
#include "proto/fault.h"

/* Neither is the plugin installed (a build without CUDA) nor does this machine have NVIDIA's
 * driver. */
bool gpus_absent(void);
/*
 * Loads the plugin: path, or where it is installed if that is NULL.  ZERO_EGPU: no plugin, no
 * driver, no GPU, or one that is too old; the fault says which.  host: its operations on host
 * memory.
 */
int gpus_open(const char *path, const struct device_ops *host, struct fault *fault);
/* Once no other thread uses a GPU any more, and all memory and events are given back. */
void gpus_close(void);
uint32_t gpus_count(void); /* 0 before gpus_open() */
const struct zero_cuda_info *gpu_info(uint32_t gpu);
/* The GPU of that UUID; -1 if there is none here. */
int gpu_find(const uint8_t uuid[ZERO_GPU_UUID]);
/* NULL before gpus_open(). */
const struct device_ops *gpu_ops(void);
/* Copies n bytes to several places, from GPU to GPU where these are several; each, and src, in
 * memory of either kind, and none of them overlaps another.  dst is spoilt. */
void gpu_spread(void **dst, uint32_t n_dst, const void *src, size_t n);

/*
 * How bytes go between GPUs: by NCCL, or copied one by one, to the same bytes.  NCCL is given up
 * until gpus_close() if it fails.
 */
enum gpu_collectives_by {
        GPU_BY_COPIES, /* as it is without gpu_collectives_open() */
        GPU_BY_AUTO,   /* by NCCL where it can be loaded and more than one GPU sends or receives */
        GPU_BY_NCCL,   /* whatever goes between GPUs; ZERO_EGPU if there can be no communicator */
};
enum { GPU_COLLECTIVE_MS = 60000 };
/* After gpus_open(), while no other thread is busy: NCCL takes settings from the environment, where
 * some are put.  What is not done after deadline_ms counts as failed.  Nothing to do where there is
 * one GPU. */
int gpu_collectives_open(enum gpu_collectives_by by, uint32_t deadline_ms, struct fault *fault);

struct gpu_collectives {
        bool nccl;
        int version;    /* 22809: 2.28.9; 0: it is not loaded */
        uint64_t moves; /* that NCCL has carried; a broadcast is one */
        char why[384];  /* not by NCCL; "": as was chosen, or by it */
};
void gpu_collectives(struct gpu_collectives *ret);

/* Chooses the GPU for what this thread asks of it otherwise than through gpu_ops(), such as in
 * another library that uses CUDA.  -errno. */
int gpu_use(uint32_t gpu);

/* Enqueues an update of n pieces, all of one rule and on one GPU: the new states, and in the same
 * pass what is served. */
void gpu_update(const struct zero_cuda_update *pieces, size_t n);
/* What is measured of sums that are not kept: as device_ops.reduce, of pieces without acc that lie
 * on one GPU, none with more than ZERO_CUDA_SUM_MAX sources. */
void gpu_measure(const struct reduce_piece *pieces, size_t n_pieces, enum zero_dtype wire,
                 enum zero_dtype from, double scale, struct exact_sum *norm, bool *finite);
/* Waits for all of them that this thread has enqueued on the GPU. */
void gpu_updated(uint32_t gpu);

/* Bytes of a GPU now, once what was given back is freed; -errno. */
int gpu_memory(uint32_t gpu, uint64_t *ret_free, uint64_t *ret_total);
/*
 * Memory of this process alone, aligned to 256 bytes.  ZERO_ENOMEM names what it was for, and so
 * does `zeroctl status`: "the planes of job x", "the push slots of rank 3 of job x".
 *
 * Giving it back takes no time, and may be done on the loop thread: the driver, which waits for
 * the GPU's work then, is called by another, and who allocates meanwhile waits for that if need be.
 */
int gpu_alloc(uint32_t gpu, uint64_t bytes, const char *what, void **ret, struct fault *fault);
void gpu_free(void *memory);
/* Memory that is passed to other processes, zeroed.  ZERO_EGPU: the driver passes none. */
int gpu_share(uint32_t gpu, uint64_t bytes, const char *what, struct zero_cuda_share *ret,
              struct fault *fault);
void gpu_unshare(struct zero_cuda_share *share);
/* Does it lie in memory of gpu_alloc() or gpu_share()?  Its GPU, or -1. */
int gpu_of(const void *memory);
/* All memory of a GPU that this process has, in order of address; what: as allocated. */
void gpu_each(uint32_t gpu, void (*each)(void *arg, const char *what, uint64_t bytes), void *arg);
/* Memory of gpu_alloc() or gpu_share() counts for a user until it is given back. */
void gpu_charge(const void *memory, uint32_t user);
/* Bytes of a GPU that count for a user. */
uint64_t gpu_charged(uint32_t gpu, uint32_t user);

/*
 * Host memory for bytes on their way between a GPU and another node: pinned, so that GPUs copy from
 * and to it in one go, unless it is larger than GPU_BUFFER, or none is pinned yet, or GPU_BUFFERS
 * of them are in use: then it is like any other.  Contents are undefined.  NULL: out of memory.
 */
enum { GPU_BUFFER = 8 << 20, GPU_BUFFERS = 32 };
void *gpu_buffer_new(size_t bytes);
void gpu_buffer_free(void *buffer);

/* ---- events of trainers ---- */

/*
 * Opens a rank's events (at most ZERO_GPU_EVENTS).  *ret is NULL where the driver does not let this
 * process: they are those of another user, or made with another /dev/shm, or no events at all.
 * ZERO_EINVAL: too many.
 */
struct gpu_events;
int gpu_events_open(uint32_t gpu, const uint8_t (*handles)[ZERO_GPU_HANDLE], uint32_t n,
                    struct gpu_events **ret, struct fault *fault);
void gpu_events_close(struct gpu_events *e);
uint32_t gpu_events_count(const struct gpu_events *e);
/* 1: the event's work is done, 0: not yet, or -errno. */
int gpu_event_done(struct gpu_events *e, uint32_t index);
