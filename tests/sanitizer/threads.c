/*
 * The leak sanitizer in a process whose threads use thread-local storage of a library that was
 * loaded late.
 *
 * glibc allocates that storage by malloc, one block a thread.  Some of so many blocks begin 16
 * bytes into a page, where gcc 12's sanitizer takes the 16 bytes in front for a header of
 * glibc 2.19, reads a size and a start from them, and then dies of a segmentation fault while it
 * looks for leaks.  Which allocation lands there depends on all earlier ones, so on the make of the
 * CPU too.
 *
 *   threads LIBRARY [leak]
 */
#include <dlfcn.h>
#include <err.h>
#include <pthread.h>
#include <sanitizer/lsan_interface.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { THREADS = 256, PAGE = 4096, HEADER = 16 };

static char *(*late_block)(void);
static pthread_barrier_t all;
static unsigned behind_a_header;

static void *touch(void *unused)
{
        if ((uintptr_t)late_block() % PAGE == HEADER)
                __atomic_add_fetch(&behind_a_header, 1, __ATOMIC_RELAXED);
        pthread_barrier_wait(&all);
        pause(); /* the block lives as long as the thread */
        return NULL;
}

int main(int argc, char *argv[])
{
        void *volatile leak;
        pthread_t thread;
        void *library = argc > 1 ? dlopen(argv[1], RTLD_NOW) : NULL;

        if (!library)
                errx(2, "usage: threads LIBRARY [leak]");
        late_block = (char *(*)(void))dlsym(library, "late_block");
        pthread_barrier_init(&all, NULL, THREADS + 1);
        for (int i = 0; i < THREADS; i++)
                if (pthread_create(&thread, NULL, touch, NULL) != 0)
                        errx(2, "no thread");
        pthread_barrier_wait(&all);
        if (behind_a_header == 0)
                errx(77, "skipped: no block lies 16 bytes into a page with this allocator");
        if (argc > 2 && strcmp(argv[2], "leak") == 0) {
                leak = malloc(77);
                leak = NULL;
                (void)leak;
                _exit(__lsan_do_recoverable_leak_check() ? 0 : 1);
        }
        return 0;
}
