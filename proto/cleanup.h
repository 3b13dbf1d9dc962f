/* The one cleanup idiom: a local with CLEANUP(fn) is released at the end of its
 * scope unless it was stolen. */
#pragma once

#include <stdlib.h>
#include <unistd.h>

#define CLEANUP(function) __attribute__((cleanup(function)))
/* The value, leaving NULL behind. */
#define STEAL(pointer)                                   \
        ({                                               \
                __typeof__(pointer) stolen_ = (pointer); \
                (pointer) = NULL;                        \
                stolen_;                                 \
        })
#define STEAL_FD(fd)                \
        ({                          \
                int stolen_ = (fd); \
                (fd) = -1;          \
                stolen_;            \
        })
/* DEFINE_CLEANUP(layout *, layout_free) makes cleanup_layout_free. */
#define DEFINE_CLEANUP(type, function)                       \
        static inline void cleanup_##function(type *pointer) \
        {                                                    \
                if (*pointer)                                \
                        function(*pointer);                  \
        }

static inline void cleanup_free(void *pointer)
{
        free(*(void **)pointer);
}

static inline void cleanup_close(const int *fd)
{
        if (*fd >= 0)
                close(*fd);
}

#define CONTAINER_OF(pointer, type, member) \
        ((type *)(void *)((char *)(pointer)-offsetof(type, member)))
