/*
 * Memory that lacks once, for LD_PRELOAD: the next allocation at a place of the program, or of its
 * library SCARCE_OBJECT, fails when the test says so.  Those of other libraries never do.  The file
 * SCARCE_MEMORY is shared with the test (scarce.py), and with other processes of it.
 */
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <link.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { PLACES = 1024 };

/* A place is the address to which an allocation returns, from the object's start; 0: none. */
struct board {
        _Atomic(uint64_t) fails;  /* the place whose next allocation does */
        _Atomic(uint64_t) failed; /* allocations */
        _Atomic(uint64_t) places[PLACES];
};

static struct board *board;
static uintptr_t start, text, text_end;

#pragma GCC visibility push(default) /* the build hides what is not said to be seen */
void *malloc(size_t n);
void *calloc(size_t n, size_t size);
void *realloc(void *p, size_t n);
void *aligned_alloc(size_t alignment, size_t n);

static int find_text(struct dl_phdr_info *info, size_t size, void *name)
{
        if (name ? !strstr(info->dlpi_name, name) : *info->dlpi_name)
                return 0;
        start = info->dlpi_addr;
        for (int i = 0; i < info->dlpi_phnum; i++)
                if (info->dlpi_phdr[i].p_type == PT_LOAD && info->dlpi_phdr[i].p_flags & PF_X) {
                        text = start + info->dlpi_phdr[i].p_vaddr;
                        text_end = text + info->dlpi_phdr[i].p_memsz;
                }
        return 1;
}

__attribute__((constructor)) static void open_board(void)
{
        const char *path = getenv("SCARCE_MEMORY");
        int fd = path ? open(path, O_RDWR | O_CLOEXEC) : -1;
        void *memory = mmap(NULL, sizeof *board, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);

        close(fd);
        dl_iterate_phdr(find_text, getenv("SCARCE_OBJECT"));
        board = memory == MAP_FAILED ? NULL : memory;
}

static int lacks(const void *back)
{
        uint64_t at = (uintptr_t)back - start, fails = at, none = 0;

        if (!board || (uintptr_t)back < text || (uintptr_t)back >= text_end)
                return 0;
        for (int i = 0; i < PLACES && atomic_load(&board->places[i]) != at; i++, none = 0)
                if (atomic_compare_exchange_strong(&board->places[i], &none, at) || none == at)
                        break;
        if (!atomic_compare_exchange_strong(&board->fails, &fails, 0))
                return 0;
        atomic_fetch_add(&board->failed, 1);
        errno = ENOMEM;
        return 1;
}

#define NEXT(name, ...)                                    \
        static __typeof__(name) *next;                     \
        if (!next)                                         \
                *(void **)&next = dlsym(RTLD_NEXT, #name); \
        return lacks(__builtin_return_address(0)) ? NULL : next(__VA_ARGS__)

void *malloc(size_t n)
{
        NEXT(malloc, n);
}

void *calloc(size_t n, size_t size)
{
        NEXT(calloc, n, size);
}

void *realloc(void *p, size_t n)
{
        NEXT(realloc, p, n);
}

void *aligned_alloc(size_t alignment, size_t n)
{
        NEXT(aligned_alloc, alignment, n);
}
