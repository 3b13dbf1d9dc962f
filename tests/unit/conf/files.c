#include "files.h"

#include <criterion/criterion.h>
#include <fcntl.h>
#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/support/temporary.h"

static char directory[256];

void files_setup(void)
{
        cr_assert(temporary_directory(directory, sizeof(directory)));
        for (char **e = environ; *e;) {
                char name[64];

                if (strncmp(*e, "ZEROD_", 6) != 0) {
                        e++;
                        continue;
                }
                snprintf(name, sizeof(name), "%.*s", (int)strcspn(*e, "="), *e);
                unsetenv(name);
        }
}

static int remove_one(const char *path, const struct stat *st, int type, struct FTW *place)
{
        return remove(path);
}

void files_teardown(void)
{
        nftw(directory, remove_one, 8, FTW_DEPTH | FTW_PHYS);
}

const char *files_write(const char *name, const void *data, size_t size, mode_t mode)
{
        static char paths[4][320];
        static int next;
        char *path = paths[next++ % 4];
        int fd;

        snprintf(path, sizeof(paths[0]), "%s/%s", directory, name);
        fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, mode);
        cr_assert_geq(fd, 0);
        cr_assert_eq(write(fd, data, size), (ssize_t)size);
        fchmod(fd, mode);
        close(fd);
        return path;
}

const char *files_text(const char *name, const char *text)
{
        return files_write(name, text, strlen(text), 0644);
}
