/* Windows on GPUs, counted; see window.h.  On the loop thread alone: who counts also allocates. */
#include "daemon/exchange/gpu/window.h"

#include "daemon/device/gpu.h"
#include "daemon/exchange/exchange.h"

static int quota_check(const struct job *job, uint32_t gpu, const char *what, uint64_t bytes,
                       struct fault *fault)
{
        uint64_t most = job->x->conf->gpu_windows, used = gpu_charged(gpu, job->uid);

        if (most == 0 || (used <= most && bytes <= most - used))
                return 0;
        return fault_set(fault, ZERO_EQUOTA,
                         "no memory of GPU %u for %.200s: %.1f MiB are needed; user %u's windows "
                         "have %.1f there, and gpu_windows allows %.1f",
                         gpu, what, (double)bytes / 0x1p20, job->uid, (double)used / 0x1p20,
                         (double)most / 0x1p20);
}

int gpu_window_new(const struct job *job, uint32_t gpu, const char *what, uint64_t bytes,
                   struct segment *ret, struct fault *fault)
{
        int r = quota_check(job, gpu, what, bytes, fault);

        if (!r)
                r = segment_new_on_gpu(gpu, what, bytes, ret, fault);
        if (!r)
                gpu_charge(ret->data, job->uid);
        return r;
}
