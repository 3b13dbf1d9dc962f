/* The translation of CUDA's codes: none of them leaves the plugin.  Internal to cuda/. */
#pragma once

#include <cuda_runtime_api.h>

#ifdef __cplusplus
extern "C" {
#endif

/* 0 or -errno.  Takes an error that is not fatal off this thread's record. */
int cuda_errno(cudaError_t error);

#ifdef __cplusplus
}
#endif
