/*
 * A test makes one of the daemon's own allocations fail.  Those of the tests' code and of loaded
 * libraries always succeed.
 */
#pragma once

#include <stddef.h>

enum { SITES_MAX = 1024 };

/* A place in the code that allocates, by the address to which its call returns. */
struct site {
        const void *at;
        unsigned n; /* calls */
};
struct sites {
        struct site site[SITES_MAX];
        unsigned n;
};

/* Counts from here on, from nothing. */
void allocations_count(void);
void allocations_counted(struct sites *ret);
/* Makes the nth call from the place fail, counted from 1 and from here on. */
void allocations_refuse(const void *at, unsigned nth);
/* Makes calls of malloc() and aligned_alloc() for as many bytes fail; SIZE_MAX: none. */
void allocations_refuse_bytes(size_t bytes);
/* Writes the place to standard error. */
void allocations_name(const void *at);
