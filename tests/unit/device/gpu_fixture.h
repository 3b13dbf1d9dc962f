/* The fake plugin for tests of GPUs, opened as the daemon and as a trainer. */
#pragma once

#include <assert.h>
#include <dlfcn.h>
#include <stdlib.h>

#include "daemon/compute/device/gpu/gpu.h"

static inline void gpu_fixture_open(void)
{
        struct fault fault;
        int r = gpus_open(FAKE_GPU, device_host("scalar"), &fault);

        assert(r == 0);
        (void)r;
}

static inline const struct zero_gpu_client *gpu_fixture_trainer(void)
{
        void *library = dlopen(FAKE_GPU, RTLD_NOW | RTLD_LOCAL);
        zero_gpu_fn *get;

        assert(library);
        *(void **)&get = dlsym(library, ZERO_GPU_SYMBOL);
        return get();
}
