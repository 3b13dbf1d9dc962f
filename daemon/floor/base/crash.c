/* The point at which a test wants the process to die, and how often the process passed it; see
 * crash.h. */
#include "daemon/floor/base/crash.h"

#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *const names[] = {
#define X(point, name) [CRASH_##point] = name,
        CRASH_POINT_MAP(X)
#undef X
};

static enum crash_point armed = CRASH_POINT_COUNT;
static atomic_uint left;

int crash_arm(const char *text, struct fault *fault)
{
        size_t n = strcspn(text, ":");
        unsigned long times = 1;
        char *end = NULL;

        if (text[n])
                times = strtoul(text + n + 1, &end, 10);
        if (end && (*end || end == text + n + 1 || times < 1 || times > UINT32_MAX))
                return fault_set(fault, ZERO_EINVAL,
                                 "ZEROD_CRASH: '%.100s' is not NAME or NAME:TIMES", text);
        for (uint32_t i = 0; i < CRASH_POINT_COUNT; i++) {
                if (strlen(names[i]) != n || memcmp(names[i], text, n) != 0)
                        continue;
                armed = i;
                atomic_store(&left, (unsigned)times);
                return 0;
        }
        return fault_set(fault, ZERO_EINVAL,
                         "ZEROD_CRASH: there is no point '%.100s'; ZEROD_CRASH=list prints all",
                         text);
}

int crash_setup(bool *ret_done, struct fault *fault)
{
        const char *text = CRASH_POINTS ? getenv("ZEROD_CRASH") : NULL;
        bool list = text && strcmp(text, "list") == 0;
        int r = text && !list ? crash_arm(text, fault) : 0;

        for (uint32_t i = 0; list && i < CRASH_POINT_COUNT; i++)
                puts(names[i]);
        if (text)
                unsetenv("ZEROD_CRASH");
        if (!r)
                *ret_done = list;
        return r;
}

void crash_pass(enum crash_point point)
{
        if (point == armed && atomic_fetch_sub(&left, 1) == 1)
                raise(SIGKILL);
}
