/* Reads and writes small files whole; see small_file.h. */
#include "daemon/floor/base/small_file.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "proto/cleanup.h"

int small_file_read(int dir, const char *name, size_t most, struct stat *ret_stat, char **ret)
{
        CLEANUP(cleanup_close)
        int fd = openat(dir, name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
        CLEANUP(cleanup_free) char *data = NULL;
        struct stat st;

        if (fd < 0 || fstat(fd, &st) < 0)
                return -errno;
        if (!S_ISREG(st.st_mode) || st.st_uid != geteuid() || st.st_mode & 022)
                return -EPERM;
        if ((size_t)st.st_size > most)
                return -EFBIG;
        data = malloc((size_t)st.st_size + 1);
        if (!data)
                return -ENOMEM;
        for (off_t at = 0; at < st.st_size;) {
                ssize_t n = pread(fd, data + at, (size_t)(st.st_size - at), at);

                if (n < 0 && errno == EINTR)
                        continue;
                if (n <= 0)
                        return n ? -errno : -EIO;
                at += n;
        }
        data[st.st_size] = 0;
        *ret_stat = st;
        *ret = STEAL(data);
        return 0;
}

int small_file_write(int dir, const char *name, const void *data, size_t bytes)
{
        CLEANUP(cleanup_close) int fd = -1;

        unlinkat(dir, name, 0);
        fd = openat(dir, name, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
        for (size_t at = 0; fd >= 0 && at < bytes;) {
                ssize_t n = write(fd, (const char *)data + at, bytes - at);

                if (n < 0 && errno == EINTR)
                        continue;
                if (n <= 0)
                        return n ? -errno : -EIO;
                at += (size_t)n;
        }
        return fd < 0 || fsync(fd) < 0 ? -errno : 0;
}

int small_file_replace(int dir, const char *name, const void *data, size_t bytes)
{
        char temporary[NAME_MAX + 1];
        int r;

        snprintf(temporary, sizeof temporary, ".%s.new", name);
        r = small_file_write(dir, temporary, data, bytes);
        if (r == 0 && renameat(dir, temporary, dir, name) < 0)
                r = -errno;
        if (r)
                unlinkat(dir, temporary, 0);
        return r;
}
