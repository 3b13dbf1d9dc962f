/*
 * gpu.h - the GPUs of this machine, through the plugin zerod-cuda.so, which is loaded at run time:
 * the daemon itself links no CUDA library.
 *
 * gpu_ops() computes on memory of either kind.  If an argument is on a GPU, the GPU computes on a
 * stream of the calling thread, which then waits; otherwise the host computes.  If only some
 * operands are on a GPU, those in host memory pass through pinned buffers in chunks.  One chunk is
 * copied while the last one is computed.  If operands are on several GPUs, the GPU of the first
 * computes, and the others are copied to it.
 *
 * A fault of the GPU itself (not a lack of its memory) ends the process with a message.  What is
 * lost is restored as after any crash.
 *
 * One plugin per process; after gpus_open() any thread may call everything.
 */
#pragma once

#include "cuda/zero_cuda.h"
#include "daemon/compute/device/device.h"
#include "proto/fault.h"

/* Neither the plugin (a build without CUDA) nor NVIDIA's driver is installed. */
bool gpus_absent(void);
/*
 * Loads the plugin from path, or from where it is installed if path is NULL.  ZERO_EGPU: no plugin,
 * no driver, no GPU, or one that is too old; the fault says which.  host: the operations on host
 * memory.
 */
int gpus_open(const char *path, const struct device_ops *host, struct fault *fault);
/* Call when no other thread uses a GPU, and all memory and events are given back. */
void gpus_close(void);
uint32_t gpus_count(void); /* 0 before gpus_open() */
const struct zero_cuda_info *gpu_info(uint32_t gpu);
/* The GPU with that UUID; -1: none here. */
int gpu_find(const uint8_t uuid[ZERO_GPU_UUID]);
/* A GPU's place, and the GPU of a place. */
static inline uint32_t gpu_place(uint32_t gpu)
{
        return 1 + gpu;
}
static inline uint32_t place_gpu(uint32_t place)
{
        return place - 1;
}
/* NULL before gpus_open(). */
const struct device_ops *gpu_ops(void);
/* Copies n bytes to several addresses, from GPU to GPU if these are on several.  src and each of
 * them may be in memory of either kind; none of them overlaps another.  Overwrites dst[]. */
void gpu_spread(void **dst, uint32_t n_dst, const void *src, size_t n);

/*
 * How bytes go between GPUs: by NCCL, or in single copies; the result is the same.  NCCL is given
 * up until gpus_close() if it fails.
 */
enum gpu_collectives_by {
        GPU_BY_COPIES, /* the default without gpu_collectives_open() */
        GPU_BY_AUTO,   /* by NCCL, if it can be loaded and more than one GPU sends or receives */
        GPU_BY_NCCL,   /* everything by NCCL; ZERO_EGPU if there can be no communicator */
};
enum { GPU_COLLECTIVE_MS = 60000 };
/* Call after gpus_open(), while no other thread is busy, because this may set environment
 * variables for NCCL.  What is not done after deadline_ms has failed.  Does nothing with one GPU.
 */
int gpu_collectives_open(enum gpu_collectives_by by, uint32_t deadline_ms, struct fault *fault);

struct gpu_collectives {
        bool nccl;
        int version;    /* 22809: 2.28.9; 0: not loaded */
        uint64_t moves; /* carried by NCCL; a broadcast counts as one */
        char why[384];  /* why NCCL is not used; "": it is, or was not chosen */
};
void gpu_collectives(struct gpu_collectives *ret);

/* Selects the GPU for calls of this thread outside gpu_ops(), such as those of another library
 * that uses CUDA.  -errno. */
int gpu_use(uint32_t gpu);

/* Enqueues an update of n pieces, all of one rule and on one GPU: new states, and in the same
 * pass the served parameters. */
void gpu_update(const struct update_piece *pieces, size_t n);
/* The same for a product, for quotients, and for values of a format; see zero_cuda.h. */
void gpu_product(const struct product *p);
void gpu_unpack(enum format format, enum zero_dtype to, void *dst, const void *src, size_t skip,
                size_t n);
void gpu_divide(uint16_t *to, const uint16_t *from, float by, size_t n);
/* Waits for all that this thread has enqueued so on the GPU. */
void gpu_updated(uint32_t gpu);

/* Bytes of the GPU after what was given back is freed; -errno. */
int gpu_memory(uint32_t gpu, uint64_t *ret_free, uint64_t *ret_total);
/*
 * Memory of this process alone, aligned to 256 bytes.  ZERO_ENOMEM and `zeroctl status` name its
 * purpose: "the planes of job x", "the push slots of rank 3 of job x".
 *
 * Giving memory back takes no time, so the loop thread may do it.  Another thread then calls the
 * driver, which waits for the GPU's work.  A thread that allocates meanwhile waits for that if it
 * needs the memory.
 */
int gpu_alloc(uint32_t gpu, uint64_t bytes, const char *what, void **ret, struct fault *fault);
void gpu_free(void *memory);
/* Memory for other processes, too; zeroed.  ZERO_EGPU: the driver shares none. */
int gpu_share(uint32_t gpu, uint64_t bytes, const char *what, struct zero_cuda_share *ret,
              struct fault *fault);
void gpu_unshare(struct zero_cuda_share *share);
/* The GPU whose gpu_alloc() or gpu_share() memory has the address; -1: none. */
int gpu_of(const void *memory);
/* All memory of the GPU that this process has, in order of address; what: as allocated. */
void gpu_each(uint32_t gpu, void (*each)(void *arg, const char *what, uint64_t bytes), void *arg);

/*
 * Host memory for bytes in transit between a GPU and another node: pinned, so that GPUs copy from
 * and to it in one go.  It is a buffer of the base if it is larger than GPU_BUFFER, if none is
 * pinned yet, or if GPU_BUFFERS are in use.  Contents are undefined.  NULL: out of memory.
 */
enum { GPU_BUFFER = 8 << 20, GPU_BUFFERS = 32 };
void *gpu_buffer_new(size_t bytes);
void gpu_buffer_free(void *buffer);
