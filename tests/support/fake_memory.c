/*
 * "GPU memory": the daemon gets address space without access; the bytes are in a memfd that the
 * plugin maps elsewhere.
 */
#include "tests/support/fake_gpu.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { ALIGNMENT = 256, SHARE_UNIT = 2 << 20, GARBAGE = 0xa5 };

struct block {
        struct block *next;
        uint8_t *address; /* as the daemon knows it */
        uint8_t *inside;
        size_t bytes;
        int gpu; /* -1: pinned memory of the host, address == inside */
        int fd;
};

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static struct block *blocks;
static uint64_t used[FAKE_GPUS_MAX];

_Thread_local int fake_gpu_in_use = FAKE_UNCHOSEN;

int fake_chosen(const char *call)
{
        if (fake_gpu_in_use == FAKE_UNCHOSEN && fake_gpus() > 1)
                fake_die("%s: a thread that has chosen no GPU makes a context on the first one",
                         call);
        return fake_gpu_in_use == FAKE_UNCHOSEN ? 0 : fake_gpu_in_use;
}

uint64_t fake_total(void)
{
        return fake_setting("FAKE_GPU_BYTES", UINT64_C(1) << 30);
}

static int map_block(struct block *b)
{
        b->fd = memfd_create("zerod-fake-gpu", MFD_CLOEXEC);
        if (b->fd < 0 || ftruncate(b->fd, (off_t)b->bytes))
                return -errno;
        b->inside = mmap(NULL, b->bytes, PROT_READ | PROT_WRITE, MAP_SHARED, b->fd, 0);
        if (b->inside == MAP_FAILED)
                return -errno;
        b->address =
                mmap(NULL, b->bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        return b->address == MAP_FAILED ? -errno : 0;
}

static int block_new(size_t bytes, struct block **ret)
{
        struct block *b;
        int r = bytes == 0 ? -EINVAL : fake_gpus() == 0 ? -ENODEV : fake_state();

        if (r < 0)
                return r;
        b = calloc(1, sizeof *b);
        if (!b)
                return -ENOMEM;
        b->bytes = bytes;
        b->gpu = fake_chosen("alloc");
        pthread_mutex_lock(&mutex);
        r = used[b->gpu] + bytes > fake_total() ? -ENOMEM : map_block(b);
        if (r == 0) {
                used[b->gpu] += bytes;
                b->next = blocks;
                blocks = b;
        }
        pthread_mutex_unlock(&mutex);
        if (r < 0)
                free(b); /* a process that runs out of address space may leak a descriptor */
        else
                *ret = b;
        return r;
}

static struct block *block_take(const void *address)
{
        struct block **at = &blocks, *b;

        pthread_mutex_lock(&mutex);
        while (*at && (*at)->address != address)
                at = &(*at)->next;
        b = *at;
        if (b) {
                *at = b->next;
                if (b->gpu >= 0)
                        used[b->gpu] -= b->bytes;
        }
        pthread_mutex_unlock(&mutex);
        if (!b)
                fake_die("%p was not allocated, or is free already", address);
        return b;
}

static void block_free(const void *address)
{
        struct block *b;

        fake_off_loop("free");
        fake_chosen("free");
        fake_finish_all();
        b = block_take(address);
        if (b->gpu >= 0)
                fake_must_be_closed(b->fd, "exported memory");
        munmap(b->inside, b->bytes);
        if (b->gpu >= 0) {
                munmap(b->address, b->bytes);
                close(b->fd);
        }
        free(b);
}

static size_t rounded(size_t bytes, size_t unit)
{
        return (bytes + unit - 1) / unit * unit;
}

int fake_alloc(size_t bytes, void **ret_memory)
{
        struct block *b;
        int r;

        fake_copy_off_loop("alloc");
        r = block_new(rounded(bytes, ALIGNMENT), &b);
        if (r < 0)
                return r;
        memset(b->inside, GARBAGE, b->bytes);
        *ret_memory = b->address;
        return 0;
}

void fake_free(void *memory)
{
        if (memory)
                block_free(memory);
}

int fake_memory(uint64_t *ret_free, uint64_t *ret_total)
{
        uint64_t total = fake_total();
        int gpu;

        fake_copy_off_loop("memory");
        fake_pass_gate("FAKE_GPU_LOOK_GATE");
        if (fake_gpus() == 0)
                return -ENODEV;
        gpu = fake_chosen("memory");
        pthread_mutex_lock(&mutex);
        *ret_free = total - used[gpu];
        pthread_mutex_unlock(&mutex);
        *ret_total = total;
        return 0;
}

void fake_pass_gate(const char *variable)
{
        const char *gate = getenv(variable);
        char reached[PATH_MAX];

        if (!gate || access(gate, F_OK))
                return;
        snprintf(reached, sizeof reached, "%s.reached", gate);
        close(open(reached, O_CREAT | O_CLOEXEC, 0600));
        while (access(gate, F_OK) == 0)
                usleep(1000);
}

int fake_share_new(uint64_t bytes, struct zero_cuda_share *ret_share)
{
        struct zero_cuda_share share = { .bytes = rounded(bytes, SHARE_UNIT), .fd = -1 };
        struct block *b;
        int r;

        fake_copy_off_loop("share_new");
        fake_pass_gate("FAKE_GPU_GATE");
        r = fake_setting("FAKE_GPU_ALONE", 0) ? -ENOTSUP : block_new(share.bytes, &b);
        if (r < 0)
                return r;
        share.memory = b->address;
        if (fake_setting("FAKE_GPU_HANDLES", 0))
                snprintf((char *)share.handle, sizeof share.handle, "/proc/%d/fd/%d", getpid(),
                         b->fd);
        else
                share.fd = fcntl(b->fd, F_DUPFD_CLOEXEC, 0);
        *ret_share = share;
        return 0;
}

void fake_share_free(struct zero_cuda_share *share)
{
        if (!share->memory)
                return;
        block_free(share->memory);
        if (share->fd >= 0)
                close(share->fd);
}

int fake_pinned_new(size_t bytes, void **ret_memory)
{
        struct block *b;

        fake_copy_off_loop("pinned_new");
        fake_chosen("pinned_new");
        b = calloc(1, sizeof *b);
        if (!b)
                return -ENOMEM;
        b->bytes = bytes;
        b->gpu = b->fd = -1;
        b->inside = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (b->inside == MAP_FAILED) {
                free(b);
                return -ENOMEM;
        }
        b->address = b->inside;
        pthread_mutex_lock(&mutex);
        b->next = blocks;
        blocks = b;
        pthread_mutex_unlock(&mutex);
        *ret_memory = b->address;
        return 0;
}

void fake_pinned_free(void *memory)
{
        if (memory)
                block_free(memory);
}

static struct block *find(const void *p)
{
        const uint8_t *at = p;
        struct block *b;

        pthread_mutex_lock(&mutex);
        for (b = blocks; b; b = b->next)
                if (at >= b->address && at < b->address + b->bytes)
                        break;
        pthread_mutex_unlock(&mutex);
        return b; /* the caller does not free the memory meanwhile */
}

int fake_gpu_of(const void *memory)
{
        const struct block *b = find(memory);

        return b ? b->gpu : -1;
}

void *fake_inside(const void *p, size_t n, int gpu, enum fake_reach reach)
{
        const struct block *b = find(p);
        size_t at;

        if (!b) {
                if (reach != FAKE_COPY)
                        fake_die("GPU %d reads or writes %p, which is neither its memory nor "
                                 "pinned",
                                 gpu, p);
                return (void *)p;
        }
        at = (size_t)((const uint8_t *)p - b->address);
        if (n > b->bytes - at)
                fake_die("%zu bytes at %p are more than the %zu that are left there", n, p,
                         b->bytes - at);
        if (b->gpu != gpu && (b->gpu >= 0 || reach == FAKE_PEER))
                fake_die("GPU %d was given memory of %d", gpu, b->gpu);
        return b->inside + at;
}
