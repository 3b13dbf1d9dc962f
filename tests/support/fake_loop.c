/*
 * The loop thread must never block, and calls of the driver may.  A call from inside uv_run() on
 * the process's first thread ends the process.  Calls before and after the loop may block.
 */
#include "tests/support/fake_gpu.h"

#include <dlfcn.h>
#include <execinfo.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { FRAMES = 64 };

static bool is_inside(void *function)
{
        void *frames[FRAMES];
        int n = backtrace(frames, FRAMES);
        Dl_info info;

        for (int i = 0; i < n; i++)
                if (dladdr(frames[i], &info) && info.dli_saddr == function)
                        return true;
        return false;
}

void fake_off_loop(const char *call)
{
        void *loop;

        if (syscall(SYS_gettid) != getpid())
                return;
        loop = dlsym(RTLD_DEFAULT, "uv_run"); /* not known to a trainer */
        if (loop && is_inside(loop))
                fake_die("%s: a call that may block, on the loop thread", call);
}

void fake_copy_off_loop(const char *call)
{
        if (!fake_setting("FAKE_GPU_COPIES_ON_LOOP", 0))
                fake_off_loop(call);
}
