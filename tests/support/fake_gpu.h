/*
 * What the files of the fake plugin share.  See fake_gpu.c.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "cuda/zero_cuda.h"

enum { FAKE_GPUS_MAX = 8 };

/* A number in the environment. */
uint64_t fake_setting(const char *name, uint64_t otherwise);
uint32_t fake_gpus(void);
/* Ends the process for a misuse that CUDA would answer with a fault or with wrong bytes. */
_Noreturn void fake_die(const char *format, ...) __attribute__((format(printf, 1, 2)));
/* 0, or -EIO once the GPU has failed: see $FAKE_GPU_FAULT. */
int fake_state(void);
/* For every call that may wait in CUDA: checks that the call does not come from the loop
 * (fake_loop.c). */
void fake_off_loop(const char *call);
/* Of those that a copy is made of: unless $FAKE_GPU_COPIES_ON_LOOP. */
void fake_copy_off_loop(const char *call);
/* Waits while the file exists that the environment names. */
void fake_pass_gate(const char *variable);
void fake_uuid(uint32_t gpu, uint8_t ret_uuid[ZERO_GPU_UUID]);

/* ---- memory (fake_memory.c) ---- */

enum { FAKE_UNCHOSEN = -1 };
extern _Thread_local int fake_gpu_in_use; /* or FAKE_UNCHOSEN */
/*
 * The thread's GPU, for a call that works on that.  A thread that has chosen none would make a
 * context on the first GPU, and use memory of it: where there are several, the process ends.
 */
int fake_chosen(const char *call);

int fake_alloc(size_t bytes, void **ret_memory);
void fake_free(void *memory);
uint64_t fake_total(void); /* bytes of a GPU */
int fake_memory(uint64_t *ret_free, uint64_t *ret_total);
int fake_share_new(uint64_t bytes, struct zero_cuda_share *ret_share);
void fake_share_free(struct zero_cuda_share *share);
int fake_pinned_new(size_t bytes, void **ret_memory);
void fake_pinned_free(void *memory);
int fake_gpu_of(const void *memory);
enum fake_reach {
        FAKE_KERNEL, /* memory of this GPU, and pinned memory */
        FAKE_COPY,   /* this GPU's, and any of the host */
        FAKE_PEER,   /* this GPU's */
};
/* Where the plugin itself finds n bytes of what the daemon names by p. */
void *fake_inside(const void *p, size_t n, int gpu, enum fake_reach reach);

/* ---- streams (fake_stream.c) ---- */

int fake_stream_new(void **ret_stream);
int fake_stream_wait(void *stream);
void fake_stream_free(void *stream);
/* Everything on all streams, of any thread. */
void fake_finish_all(void);
int fake_stream_gpu(const void *stream);
int fake_update(const struct update_piece *pieces, size_t n, void *stream);
int fake_cast(enum zero_dtype to, void *dst, enum zero_dtype from, const void *src, size_t n,
              void *stream);
int fake_sum(enum zero_dtype to, void *dst, enum zero_dtype from, const void *const *src, size_t k,
             size_t n, void *stream);
int fake_reduce(const struct zero_cuda_reduce *reduce, void *stream);
int fake_product(const struct product *p, void *stream);
int fake_divide(uint16_t *to, const uint16_t *from, float by, size_t n, void *stream);
int fake_pack(enum format format, void *dst, uint16_t *served, const float *src, size_t n,
              uint32_t dither, void *stream);
int fake_unpack(enum format format, enum zero_dtype to, void *dst, const uint16_t *served,
                const void *src, size_t skip, size_t n, void *stream);
int fake_zero(void *dst, size_t n, void *stream);
int fake_copy(void *dst, const void *src, size_t n, void *stream);
int fake_copy_peer(void *dst, int dst_device, const void *src, int src_device, size_t n,
                   void *stream);

/* ---- NCCL (fake_collective.c) ---- */

int fake_nccl_open(int *ret_version);
const char *fake_nccl_error(void);
int fake_comm_new(const int *devices, uint32_t n, void **ret_comm);
void fake_comm_free(void *comm);
void fake_comm_abort(void *comm);
int fake_broadcast(void *comm, uint32_t root, const void *src, void *const *dst, size_t n,
                   void *const *streams);
int fake_exchange(void *comm, const struct zero_cuda_move *moves, uint32_t n_moves,
                  void *const *streams);
int fake_comm_done(void *comm, void *const *streams);

/* ---- what trainers ask (fake_client.c) ---- */

/* For tests, by dlsym(): sets the time (CLOCK_MONOTONIC) at which a trainer's event is done. */
typedef void fake_event_until_fn(void *event, uint64_t done_ns);

/* Ends the process if another one has opened the file by a handle, and not closed it yet. */
void fake_must_be_closed(int fd, const char *what);
int fake_event_open(const uint8_t handle[ZERO_GPU_HANDLE], void **ret_event);
int fake_event_done(void *event);
void fake_event_free(void *event);
