/* See memory.h. */
#include "daemon/base/memory.h"

#include <stdio.h>

uint64_t memory_available(void)
{
        FILE *f = fopen("/proc/meminfo", "re");
        unsigned long long kib = 0;
        char line[128];

        while (f && fgets(line, sizeof line, f))
                if (sscanf(line, "MemAvailable: %llu kB", &kib) == 1)
                        break;
        if (f)
                fclose(f);
        return kib ? kib * 1024 : UINT64_MAX;
}
