/*
 * zero_types.h - the vocabulary that trainers, daemons and tools share:
 * status codes, data types, planes, tensor flags.
 *
 * Installed beside zero.h.  Everything here is part of the wire protocol: new
 * codes go to the end.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/*
 * X(name, code, text).  Codes are positive; 0 is success.  A function of libzero
 * that can fail returns one of them.  Every refusal on the wire has one, with a
 * sentence that says what to do.
 */
#define ZERO_STATUS_MAP(X)                                                     \
        X(OK, 0, "success")                                                    \
        X(EINVAL, 1, "invalid argument")                                       \
        X(EPROTO, 2, "protocol violation")                                     \
        X(EVERSION, 3, "protocol version not supported by the other side")     \
        X(ENOMEM, 4, "out of memory")                                          \
        X(ESHM, 5, "out of shared memory")                                     \
        X(EQUOTA, 6, "quota reached")                                          \
        X(EPERM, 7, "not permitted")                                           \
        X(ENOJOB, 8, "no such job")                                            \
        X(ELAYOUT, 9, "layouts differ")                                        \
        X(ERANK, 10, "rank is taken or out of range")                          \
        X(ENOTATTACHED, 11, "not attached to a job")                           \
        X(ENOGROUP, 12, "no such group or tensor")                             \
        X(ERANGE, 13, "range lies outside the tensor or group")                \
        X(ENOTHELD, 14, "group is not held")                                   \
        X(EHELD, 15, "more groups held than declared")                         \
        X(EWINDOW, 16, "gather window is too small")                           \
        X(EORDER, 17, "call does not fit the state of the step")               \
        X(ECONFLICT, 18, "ranks of the job do not agree")                      \
        X(EDEADLINE, 19, "deadline passed")                                    \
        X(ELOSTRANK, 20, "a rank of the job was lost")                         \
        X(EPEER, 21, "a node of the cluster is not reachable")                 \
        X(ECLOSED, 22, "connection closed")                                    \
        X(EIO, 23, "input/output error")                                       \
        X(EBUSY, 24, "busy")                                                   \
        X(EINTERNAL, 25, "internal error")                                     \
        X(EABORTED, 26, "the attempt was aborted")                             \
        X(EGPU, 27, "no such GPU, or it cannot be used")                       \
        X(EGONE, 28, "the version is gone")

enum zero_status {
#define X(name, code, text) ZERO_##name = code,
        ZERO_STATUS_MAP(X)
#undef X
};

/* X(name, code, bytes per element, text) */
#define ZERO_DTYPE_MAP(X)                                                      \
        X(FP32, 1, 4, "fp32")                                                  \
        X(BF16, 2, 2, "bf16")                                                  \
        X(FP16, 3, 2, "fp16")
#define ZERO_DTYPES "fp32, bf16 or fp16"

/*
 * X(name, code, text): types of frozen tensors that the service keeps and serves as bytes without a
 * look at their values (quantised weights).  A shape counts bytes.  Everywhere else an element of such
 * a tensor or group is a word of four bytes.  Zeros fill a tensor's last word.
 */
#define ZERO_BYTES_MAP(X)                                                      \
        X(INT8, 4, "int8")                                                     \
        X(UINT8, 5, "uint8")                                                   \
        X(FP8_E4M3, 6, "fp8-e4m3")                                             \
        X(FP8_E5M2, 7, "fp8-e5m2")                                             \
        X(BOOL, 8, "bool")

enum zero_dtype {
#define X(name, code, bytes, text) ZERO_##name = code,
        ZERO_DTYPE_MAP(X)
#undef X
#define X(name, code, text) ZERO_##name = code,
        ZERO_BYTES_MAP(X)
#undef X
};

/*
 * One array over a job's parameters (ZeRO, arXiv 1910.02054, section 3.1).
 * MASTER and the moments are fp32; the group's optimizer says how many moments there
 * are.  EMA is the average of the weights: one moment more, behind the optimizer's own.
 * zero_get() and zero_put() translate it.  SERVE is the parameter in the group's dtype.
 * In a group of bytes MASTER and SERVE are its words.
 * STEP and SET have one element for each tensor: the number of its updates, and the
 * hyperparameter set of a step that applies to it.  GRAD is the accumulator, which
 * clients cannot read or write.
 */
#define ZERO_PLANE_MAP(X)                                                      \
        X(MASTER, 1, "master")                                                 \
        X(MOMENT1, 2, "moment1")                                               \
        X(MOMENT2, 3, "moment2")                                               \
        X(MOMENT3, 4, "moment3")                                               \
        X(SERVE, 5, "serve")                                                   \
        X(GRAD, 6, "grad")                                                     \
        X(STEP, 7, "step")                                                     \
        X(SET, 8, "set")                                                       \
        X(EMA, 9, "ema")

enum zero_plane {
#define X(name, code, text) ZERO_PLANE_##name = code,
        ZERO_PLANE_MAP(X)
#undef X
};

/* How a tensor gets its first values. */
enum zero_init {
        ZERO_INIT_ZEROS = 0,
        ZERO_INIT_CONSTANT = 1, /* init_value everywhere */
        ZERO_INIT_NORMAL = 2,   /* mean 0, standard deviation init_value; the same
                                 * for any partition: element i depends only on
                                 * init_seed and i */
        ZERO_INIT_PUT = 3,      /* zeros until zero_put() */
};

/*
 * The dtype in which an owner keeps a step's sum of gradients (zero_needs.accumulate).
 *
 * ZERO_ACCUMULATE_WIRE is that of gradients between nodes, reduce_dtype.  With two bytes an owner
 * holds 16 bytes a parameter for Adam as ZeRO counts them (section 3.1), and not 18.  In each
 * micro-batch the owner adds the gradients of all nodes in fp32 to what the sum has, and rounds
 * once.  So a node is at most one micro-batch ahead of the others.  With one micro-batch of one
 * node the sum has the bits of ZERO_ACCUMULATE_FP32.  The relative error of a sum in bf16 is 0.18 %
 * for one micro-batch of several nodes, 0.21 % for 2, 0.36 % for 8 and 0.69 % for 32; in fp16 it is
 * an eighth of that.  In fp32 it is below 1e-7.  A sum beyond the range of fp16 counts as not
 * finite, micro-batches before it included.
 *
 * The owner waits for all nodes before it adds.  Ranks that push groups in different orders, or not
 * all groups, may wait for that in vain.  Each half second in which an owner stands still, an
 * eighth of the groups goes on without the missing nodes.  Such a group takes 4 bytes an element
 * beside its sum until the micro-batch ends; the bits stay.  The next step begins with as many
 * groups as this one needed.
 *
 * States on GPUs have sums in fp32 only (ZERO_EGPU).  ZERO_EVERSION: a daemon is of the release
 * before.  A job goes on with the value that it began with (ZERO_ECONFLICT); a checkpoint restores
 * into a job with either.
 */
enum zero_accumulate {
        ZERO_ACCUMULATE_FP32 = 0,
        ZERO_ACCUMULATE_WIRE = 1,
};
#define ZERO_ACCUMULATES "fp32 or wire"

/* The end of a step in which a rank's session ends without zero_close(). */
enum zero_on_lost {
        ZERO_LOST_WAIT = 0, /* the others wait for the rank's successor; ZERO_EDEADLINE if none comes */
        ZERO_LOST_FAIL = 1, /* calls of the others return ZERO_ELOSTRANK at once */
};

/* The place of a rank's stash (zero_stash.where). */
enum zero_stash_where {
        ZERO_STASH_WINDOWS = 0, /* beside views and gradients: on the rank's GPU, if it has one */
        ZERO_STASH_HOST = 1,    /* in host memory */
};

/* The ways in which zero_all_reduce() makes one number of the ranks' numbers. */
enum zero_reduction {
        ZERO_REDUCE_SUM = 0, /* added in the order of ranks */
        ZERO_REDUCE_MAX = 1, /* NaN if any is NaN, as with MIN */
        ZERO_REDUCE_MIN = 2,
};

enum zero_limits {
        ZERO_NAME_MAX = 255,     /* bytes of a group or tensor name */
        ZERO_JOB_MAX = 200,      /* bytes of a job's name, by which files and directories are named */
        ZERO_OPTIMIZER_MAX = 31, /* bytes of an optimizer's name */
        ZERO_DIM_MAX = 8,        /* dimensions of a tensor */
        ZERO_GROUP_MAX = 65536,  /* groups of a layout */
        ZERO_TENSOR_MAX = 262144, /* tensors of a layout */
        ZERO_SET_MAX = 256,      /* hyperparameter sets of a job */
        ZERO_RANK_MAX = 4096,    /* ranks of a job */
        ZERO_NODE_MAX = 64,      /* nodes of a cluster */
        ZERO_BLOB_MAX = 8192,    /* bytes that a rank may keep with a step */
        ZERO_FILE_MAX = 1024,    /* files of a base */
        ZERO_VALUES_MAX = 64,    /* numbers of one zero_all_reduce() */
};

/* Most elements of one group: 2^40. */
#define ZERO_GROUP_ELEMENTS_MAX ((uint64_t)1 << 40)

#ifdef __cplusplus
}
#endif
