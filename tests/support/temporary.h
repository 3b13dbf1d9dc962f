/* A new directory in $TMPDIR, which goes with the test (alone.py); on tmpfs for a test by hand. */
#pragma once

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>

static inline bool temporary_directory(char *ret, size_t size)
{
        const char *place = getenv("TMPDIR");
        int n = snprintf(ret, size, "%s/zerod-test-XXXXXX", place ? place : "/dev/shm");

        return n > 0 && (size_t)n < size && mkdtemp(ret);
}
