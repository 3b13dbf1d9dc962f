/*
 * Sealed memfds.  A descriptor alone, even one opened for reading, can be opened again
 * for writing through /proc; the seals and the mode prevent it.  The order is mode, size,
 * mapping, seals: after F_SEAL_FUTURE_WRITE this process could not map writable either.
 */
#include "daemon/compute/device/segment/segment.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <linux/magic.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include "daemon/compute/device/gpu/gpu.h"
#include "daemon/floor/base/memory.h"
#include "proto/cleanup.h"

/* Pages of tmpfs stay, so the kernel would end this process for those beyond its group's limit. */
bool segment_fits(int fd, uint64_t bytes)
{
        struct statfs fs;
        struct stat st;
        uint64_t there;

        if (fstatfs(fd, &fs) || fs.f_type != TMPFS_MAGIC || fstat(fd, &st))
                return true;
        there = (uint64_t)st.st_blocks * 512;
        return bytes <= there || bytes - there <= memory_of_groups("");
}

int segment_reserve(int fd, uint64_t bytes)
{
        int r;

        if (!segment_fits(fd, bytes))
                return -ENOMEM;
        do
                r = posix_fallocate(fd, 0, (off_t)bytes);
        while (r == EINTR);
        return -r;
}

static int set_size(int fd, uint64_t bytes, unsigned flags)
{
        if (flags & SEGMENT_SPARSE)
                return ftruncate(fd, (off_t)bytes) < 0 ? -errno : 0;
        return segment_reserve(fd, bytes);
}

static int seal(int fd, unsigned flags)
{
        int seals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;

        if (flags & SEGMENT_READ_ONLY)
                seals |= F_SEAL_FUTURE_WRITE;
        return fcntl(fd, F_ADD_SEALS, seals) < 0 ? -errno : 0;
}

static int refuse(struct fault *fault, const char *name, uint64_t bytes, int error)
{
        if (error == -ENOSPC || error == -ENOMEM || error == -EFBIG)
                return fault_set(fault, ZERO_ESHM,
                                 "%s needs %" PRIu64 " bytes of shared memory: not available", name,
                                 bytes);
        return fault_errno(fault, error, name);
}

int segment_new(const char *name, uint64_t bytes, unsigned flags, struct segment *ret,
                struct fault *fault)
{
        assert(bytes > 0);
        if (bytes > INT64_MAX - 4096)
                return refuse(fault, name, bytes, -EFBIG);
        CLEANUP(cleanup_close) int fd = memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING);
        if (fd < 0 || fchmod(fd, 0600) < 0)
                return refuse(fault, name, bytes, -errno);
        int r = set_size(fd, bytes, flags);
        if (r)
                return refuse(fault, name, bytes, r);
        void *data = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
        if (data == MAP_FAILED)
                return refuse(fault, name, bytes, -errno);
        r = seal(fd, flags);
        if (r) {
                munmap(data, bytes);
                return refuse(fault, name, bytes, r);
        }
        *ret = (struct segment){ .fd = STEAL_FD(fd), .data = data, .bytes = bytes };
        return 0;
}

int segment_new_away(uint32_t place, const char *name, uint64_t bytes, struct segment *ret,
                     struct fault *fault)
{
        struct zero_cuda_share share;
        int r = gpu_share(place_gpu(place), bytes, name, &share, fault);

        if (r)
                return r;
        *ret = (struct segment){
                .fd = share.fd, .data = share.memory, .bytes = share.bytes, .place = place
        };
        memcpy(ret->handle, share.handle, sizeof ret->handle);
        return 0;
}

static void free_on_gpu(const struct segment *s)
{
        struct zero_cuda_share share = { .memory = s->data, .bytes = s->bytes, .fd = s->fd };

        memcpy(share.handle, s->handle, sizeof share.handle);
        gpu_unshare(&share);
}

void segment_free(struct segment *s)
{
        if (!place_is_host(s->place))
                free_on_gpu(s);
        else if (s->fd < 0)
                return;
        else {
                munmap(s->data, s->bytes);
                close(s->fd);
        }
        *s = (struct segment){ .fd = -1 };
}
