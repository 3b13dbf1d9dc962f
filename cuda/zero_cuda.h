/*
 * zero_cuda.h - the C interface of the plugin zerod-cuda.so: what the daemon can ask of a GPU.
 *
 * dlopen() the plugin, look up zero_cuda_plugin, call it, and compare abi_version before
 * anything else.  The functions may be called from any thread.  They act on the GPU that the
 * calling thread chose last with use() (at first: 0).  They return 0 or -errno; codes of CUDA
 * do not leave the plugin:
 *
 *   -ENODEV   no driver, a driver older than the plugin, or no GPU
 *   -ENOTSUP  the GPU has a compute capability below 8.0, or (share_new) its driver exports memory
 *             to no other process
 *   -ENOMEM   out of device memory
 *   -EINVAL   an argument is out of range
 *   -EBUSY    the GPU's compute mode lets one process use it, and another does
 *   -EIO      anything else; after a fault on the GPU every further call says so
 *
 * Operations only enqueue on a stream, in order; a fault on the GPU is told by a later call.
 * Pointers are memory of the GPU in use, or of pinned_new(), aligned to their element; where all
 * are aligned to 16 bytes the kernels move 16 bytes at a time.  Ranges of different arguments do
 * not overlap unless stated.  n counts elements and may be 0.  The arithmetic is that of device.h,
 * to the bit; as there, a NaN stays a NaN, of unspecified sign and payload.  Only product() has an
 * order of its own.
 */
#pragma once

#include "daemon/compute/device/device.h"
#include "proto/zero_gpu.h"

#define ZERO_CUDA_ABI_VERSION 12
/* Exported beside ZERO_GPU_SYMBOL, of type zero_cuda_plugin_fn. */
#define ZERO_CUDA_PLUGIN_SYMBOL "zero_cuda_plugin"

enum {
        ZERO_CUDA_NAME_SIZE = 256,         /* bytes of a GPU's name, the ending 0 included */
        ZERO_CUDA_NORM_BLOCK = 128,        /* elements of one block of a norm */
        ZERO_CUDA_SUM_MAX = ZERO_NODE_MAX, /* most sources of a sum() or of a piece of a reduce() */
        ZERO_CUDA_PIECES =
                64, /* that update() and reduce() take in one launch; more need several */
};

struct zero_cuda_info {
        char name[ZERO_CUDA_NAME_SIZE];
        int major, minor; /* compute capability */
        int multiprocessors;
        uint64_t memory_bytes;
        int driver, runtime; /* CUDA versions: 1000 * major + 10 * minor */
        uint8_t uuid[ZERO_GPU_UUID];
};

#define ZERO_CUDA_NORM_MAX ((size_t)1 << 37) /* elements: the bins do not overflow */

/* Memory of the selected GPU that other processes may map (struct zero_gpu_client). */
struct zero_cuda_share {
        void *memory;
        uint64_t bytes; /* the size asked for, rounded up; a trainer maps all of it */
        int fd;         /* -1: the driver exports no descriptors; `handle` is one */
        uint8_t handle[ZERO_GPU_HANDLE];
};

/* A norm on the GPU.  The caller zeroes it first, and adds it to an exact_sum by
 * exact_sum_merge(), with pending 0. */
struct zero_cuda_norm {
        int64_t bin[EXACT_SUM_BINS];
        uint64_t nonfinite; /* not 0: a block was left out */
};

/* device_ops.reduce. */
struct zero_cuda_reduce {
        /* k <= ZERO_CUDA_SUM_MAX.  acc may be NULL if `first`: then the sum is measured and not
         * kept.  Pieces, and their lists of addresses on the GPU, are in host memory and not
         * needed after the call. */
        const struct reduce_piece *pieces;
        size_t n_pieces;
        enum zero_dtype wire, from;
        double scale;
        /* NULL, or the norm of each acc is added to it in the same pass.  The bins are the same
         * after exact_sum_normalize() for any order of calls.  At most ZERO_CUDA_NORM_MAX
         * elements before it is zeroed again. */
        struct zero_cuda_norm *norm;
};

/* Bytes that go from one member of a communicator to another; a member's number is its place in
 * the communicator's list of GPUs. */
struct zero_cuda_move {
        void *dst;
        const void *src;
        size_t n;
        uint32_t to, from; /* different ones */
};

struct zero_cuda_plugin {
        uint32_t abi_version; /* ZERO_CUDA_ABI_VERSION; first in every version */

        /* At least one GPU, else -ENODEV. */
        int (*device_count)(int *ret_count);
        int (*device_info)(int device, struct zero_cuda_info *ret_info);
        int (*use)(int device);

        /* Aligned to 256 bytes; bytes > 0.  free() accepts NULL and waits for the GPU. */
        int (*alloc)(size_t bytes, void **ret_memory);
        void (*free)(void *memory);
        /* Bytes of the selected GPU. */
        int (*memory)(uint64_t *ret_free, uint64_t *ret_total);
        /*
         * Makes its own allocation, zeroed, so that nothing else is exported with it; bytes > 0.
         * share_free() accepts { .memory = NULL }, closes fd and waits for the GPU.
         */
        int (*share_new)(uint64_t bytes, struct zero_cuda_share *ret_share);
        void (*share_free)(struct zero_cuda_share *share);
        /* Host memory that the kernels of every GPU read and write by the same address: for
         * staging. */
        int (*pinned_new)(size_t bytes, void **ret_memory);
        void (*pinned_free)(void *memory);
        /* The number of the GPU that has the memory; -1: the host, pinned or not. */
        int (*gpu_of)(const void *memory);
        /* A trainer's event, by its handle, until the trainer frees it; so this frees it first.
         * done(): 1; 0: not yet; or -errno.  Does not wait. */
        int (*event_open)(const uint8_t handle[ZERO_GPU_HANDLE], void **ret_event);
        int (*event_done)(void *event);
        void (*event_free)(void *event);
        /* A stream belongs to the GPU selected when it is made.  wait() blocks until everything
         * enqueued is done.  free() accepts NULL. */
        int (*stream_new)(void **ret_stream);
        int (*stream_wait)(void *stream);
        void (*stream_free)(void *stream);

        /* n pieces, all of one rule; the list is not needed after the call. */
        int (*update)(const struct update_piece *pieces, size_t n, void *stream);
        /* As device_ops.cast; the same dtype twice keeps every bit. */
        int (*cast)(enum zero_dtype to, void *dst, enum zero_dtype from, const void *src, size_t n,
                    void *stream);
        /* As device_ops.sum.  src itself, k device addresses, is in host memory and not needed
         * after the call.  1 <= k <= ZERO_CUDA_SUM_MAX. */
        int (*sum)(enum zero_dtype to, void *dst, enum zero_dtype from, const void *const *src,
                   size_t k, size_t n, void *stream);
        int (*reduce)(const struct zero_cuda_reduce *reduce, void *stream);
        /*
         * product.h, of any size, but not with both factors transposed.  Tensor cores add an
         * element's sum up in an order that depends on depth and on the kind of GPU alone, and
         * round in their own way: results have the same bits on all GPUs of a kind.
         */
        int (*product)(const struct product *p, void *stream);
        /* to = from / by, of bf16: divided in fp32, and rounded once more.  to may be from. */
        int (*divide)(uint16_t *to, const uint16_t *from, float by, size_t n, void *stream);
        /* As device_ops.pack. */
        int (*pack)(enum format format, void *dst, uint16_t *served, const float *src, size_t n,
                    uint32_t dither, void *stream);
        /* n elements of a format from the one on that is `skip` behind the addresses, of a record
         * and what is served of it; as fp32, or rounded to another dtype. */
        int (*unpack)(enum format format, enum zero_dtype to, void *dst, const uint16_t *served,
                      const void *src, size_t skip, size_t n, void *stream);
        /* Bytes.  copy() takes memory of the selected GPU and of the host on either side. */
        int (*zero)(void *dst, size_t n, void *stream);
        int (*copy)(void *dst, const void *src, size_t n, void *stream);
        /* From one GPU's memory to another's; the stream belongs to either.  Goes straight if
         * they can reach each other, otherwise through the host. */
        int (*copy_peer)(void *dst, int dst_device, const void *src, int src_device, size_t n,
                         void *stream);

        /*
         * Looks for NCCL, libnccl.so.2, and sets variables of its own in the environment
         * (collective.c): not while other threads read that.  -ENOENT: it is not there; -ENOTSUP:
         * it is too old.  *ret_version: 10000 * major + 100 * minor + patch.
         */
        int (*nccl_open)(int *ret_version);
        /* Why the last of these functions to fail in this thread did. */
        const char *(*nccl_error)(void);
        /*
         * A communicator among GPUs of this process, each of them once; n may be 1.  After
         * nccl_open().  One call at a time for each; which GPU the thread uses does not matter, and
         * stays.  After a failure there is only comm_abort().
         */
        int (*comm_new)(const int *devices, uint32_t n, void **ret_comm);
        /* Nothing may be in flight. */
        void (*comm_free)(void *comm);
        /* Ends what is in flight; its destinations may be partly written. */
        void (*comm_abort)(void *comm);
        /* These two enqueue; streams: one of each member's GPU.  From member root, src, to all
         * members, dst[]; dst[root] may be src. */
        int (*broadcast)(void *comm, uint32_t root, const void *src, void *const *dst, size_t n,
                         void *const *streams);
        /* All at once: no move writes what another reads or writes.  Each n > 0. */
        int (*exchange)(void *comm, const struct zero_cuda_move *moves, uint32_t n_moves,
                        void *const *streams);
        /* 1: all is done; 0: not yet; or -errno.  Does not wait. */
        int (*comm_done)(void *comm, void *const *streams);

        /*
         * What the driver says of a GPU, for people: attribute i, counted from 0, by its name and
         * its value in CUDA, -1 if the driver does not tell.  -ENOENT: there are i.  After use().
         */
        int (*attribute)(int device, uint32_t i, const char **ret_name, int *ret_value);
};

/* The plugin's table: static, the same on every call.  Touches no GPU. */
typedef const struct zero_cuda_plugin *zero_cuda_plugin_fn(void);
