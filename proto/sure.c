/* See sure.h. */
#include "proto/sure.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <time.h>

enum {
        RESERVE = 64 << 10,
        PAUSE_NS = 10000000
}; /* the reserve is of the heap, not a mapping of its own */

static _Atomic(void *) reserve;

void sure_fill(void)
{
        void *none = NULL, *p = atomic_load(&reserve) ? NULL : malloc(RESERVE);

        if (p && !atomic_compare_exchange_strong(&reserve, &none, p))
                free(p);
}

void *sure_realloc(void *p, size_t n)
{
        void *q;

        while (!(q = realloc(p, n ? n : 1))) {
                void *given = atomic_exchange(&reserve, NULL);

                if (!given)
                        nanosleep(&(struct timespec){ .tv_nsec = PAUSE_NS }, NULL);
                free(given);
        }
        return q;
}
