/* In the place of malloc() and its like, by the linker; see refusing.h. */
#include "tests/support/refusing.h"

#include <execinfo.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <unistd.h>

/* malloc() and the others are macros for __real_malloc() here, as in all of the tests' code */
void *__wrap_malloc(size_t n);
void *__wrap_calloc(size_t n, size_t size);
void *__wrap_realloc(void *p, size_t n);
void *__wrap_aligned_alloc(size_t alignment, size_t n);

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static bool counts;
static struct sites counted;
static const void *refused_at;
static unsigned refused_nth;
static size_t refused_bytes = SIZE_MAX;

/* With the mutex held. */
static bool site_refused(const void *at)
{
        unsigned i = 0;

        if (refused_at)
                return at == refused_at && --refused_nth == 0;
        if (!counts)
                return false;
        while (i < counted.n && counted.site[i].at != at)
                i++;
        if (i == SITES_MAX)
                abort();
        counted.n = i < counted.n ? counted.n : i + 1;
        counted.site[i].at = at;
        counted.site[i].n++;
        return false;
}

static bool refused(const void *at)
{
        bool is;

        pthread_mutex_lock(&mutex);
        is = site_refused(at);
        pthread_mutex_unlock(&mutex);
        return is;
}

void *__wrap_malloc(size_t n)
{
        return n >= refused_bytes || refused(__builtin_return_address(0)) ? NULL : malloc(n);
}

void *__wrap_calloc(size_t n, size_t size)
{
        return refused(__builtin_return_address(0)) ? NULL : calloc(n, size);
}

void *__wrap_realloc(void *p, size_t n)
{
        return refused(__builtin_return_address(0)) ? NULL : realloc(p, n);
}

void *__wrap_aligned_alloc(size_t alignment, size_t n)
{
        return n >= refused_bytes || refused(__builtin_return_address(0))
                       ? NULL
                       : aligned_alloc(alignment, n);
}

void allocations_count(void)
{
        pthread_mutex_lock(&mutex);
        counted.n = 0;
        counted = (struct sites){ .n = 0 };
        counts = true;
        refused_at = NULL;
        pthread_mutex_unlock(&mutex);
}

void allocations_counted(struct sites *ret)
{
        pthread_mutex_lock(&mutex);
        *ret = counted;
        counts = false;
        pthread_mutex_unlock(&mutex);
}

void allocations_refuse(const void *at, unsigned nth)
{
        pthread_mutex_lock(&mutex);
        refused_at = at;
        refused_nth = nth;
        pthread_mutex_unlock(&mutex);
}

void allocations_name(const void *at)
{
        backtrace_symbols_fd((void *const *)&at, 1, STDERR_FILENO);
}

void allocations_refuse_bytes(size_t bytes)
{
        refused_bytes = bytes;
}
