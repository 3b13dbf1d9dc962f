/* See published.h. */
#include "published.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "ctl.h"
#include "safetensors.h"

enum { NAME = PUBLISHED_NAME };

int published_error(const struct published *d, const char *name, int error)
{
        ctl_error("%s%s%s: %s", d->path, *name ? "/" : "", name, strerror(error));
        return CTL_FAILED;
}

/* ---- names -------------------------------------------------------------------------------- */

void published_name(char name[static NAME], uint64_t version, bool partial)
{
        snprintf(name, NAME, partial ? ".version-%08llu.partial" : "version-%08llu",
                 (unsigned long long)version);
}

static bool is_version(const char *name, bool partial, uint64_t *ret)
{
        const char *word = partial ? ".version-" : "version-";
        char again[NAME];

        if (strncmp(name, word, strlen(word)) != 0)
                return false;
        *ret = strtoull(name + strlen(word), NULL, 10);
        published_name(again, *ret, partial);
        return strcmp(name, again) == 0;
}

/* ---- deleting ----------------------------------------------------------------------------- */

static DIR *open_at(const struct published *d, const char *name)
{
        int fd = openat(d->fd, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
        DIR *list = fd < 0 ? NULL : fdopendir(fd);

        if (fd >= 0 && !list)
                close(fd);
        return list;
}

/* Deletes a directory of files, whose name begins with a dot. */
static int delete_partial(const struct published *d, const char *name)
{
        DIR *list = open_at(d, name);
        const struct dirent *entry;

        if (!list)
                return published_error(d, name, errno);
        while ((entry = readdir(list)))
                unlinkat(dirfd(list), entry->d_name, 0); /* what stays keeps the directory */
        closedir(list);
        return unlinkat(d->fd, name, AT_REMOVEDIR) < 0 ? published_error(d, name, errno) : CTL_OK;
}

/* Names of all files that were written into the version; NULL: the version is of somebody else. */
static json_t *written(const struct published *d, const char *name, DIR *list)
{
        int fd = openat(dirfd(list), PUBLISHED_INDEX,
                        O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
        struct stat st;
        bool fits = fd >= 0 && fstat(fd, &st) == 0 && S_ISREG(st.st_mode) &&
                    st.st_size <= SAFETENSORS_HEADER_MAX;
        json_t *index = fits ? json_loadfd(fd, 0, NULL) : NULL, *files = NULL;
        const json_t *metadata = json_object_get(index, "metadata");
        char theirs[NAME];

        if (fd >= 0)
                close(fd);
        published_name(theirs, strtoull(field_text(metadata, "version"), NULL, 10), false);
        if (strcmp(field_text(metadata, "job"), d->job) == 0 && strcmp(theirs, name) == 0)
                files = json_incref(json_object_get(metadata, "files"));
        json_decref(index);
        return files;
}

static bool lists(const json_t *files, const char *name)
{
        json_t *file;
        size_t i;

        json_array_foreach(files, i, file)
        {
                if (json_is_string(file) && strcmp(json_string_value(file), name) == 0)
                        return true;
        }
        return strcmp(name, ".") == 0 || strcmp(name, "..") == 0;
}

/* Whether the version was written here for this job; all: and all that is in its directory. */
static bool is_ours(const struct published *d, const char *name, bool all)
{
        DIR *list = open_at(d, name);
        json_t *files = list ? written(d, name, list) : NULL;
        const struct dirent *entry;
        bool ours = files != NULL;

        while (ours && all && (entry = readdir(list)))
                ours = lists(files, entry->d_name);
        json_decref(files);
        if (list)
                closedir(list);
        return ours;
}

/* Deletes an old version; its name goes first, so that nobody finds half of one. */
static int delete_version(const struct published *d, uint64_t version)
{
        char name[NAME], partial[NAME];

        published_name(name, version, false);
        published_name(partial, version, true);
        if (!is_ours(d, name, true)) {
                ctl_error("%s/%s is kept, for it has what zeroctl publish did not write", d->path,
                          name);
                return CTL_OK;
        }
        if (renameat(d->fd, name, d->fd, partial) < 0)
                return published_error(d, name, errno);
        return delete_partial(d, partial);
}

/* ---- what is there ------------------------------------------------------------------------ */

static int newer(const void *a, const void *b)
{
        uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

        return (x < y) - (x > y);
}

/* Lists the versions, the newest first, and deletes what is not whole. */
static int scan(const struct published *d, uint64_t **ret, size_t *ret_n)
{
        DIR *list = open_at(d, ".");
        const struct dirent *entry;
        uint64_t *versions = NULL, version;
        size_t n = 0;
        int r = list ? CTL_OK : published_error(d, "", errno);

        while (r == CTL_OK && (entry = readdir(list))) {
                uint64_t *grown;

                if (is_version(entry->d_name, true, &version))
                        r = delete_partial(d, entry->d_name);
                if (!is_version(entry->d_name, false, &version))
                        continue;
                grown = realloc(versions, (n + 1) * sizeof(*versions));
                if (!grown)
                        r = published_error(d, "", ENOMEM);
                else
                        (versions = grown)[n++] = version;
        }
        if (list)
                closedir(list);
        if (n)
                qsort(versions, n, sizeof(*versions), newer);
        *ret = versions;
        *ret_n = n;
        return r;
}

/* A link replaces a link, and nothing else. */
static int link_latest(const struct published *d, const char *name)
{
        const char *partial = ".latest.partial";
        struct stat st;

        if (fstatat(d->fd, "latest", &st, AT_SYMLINK_NOFOLLOW) == 0 && !S_ISLNK(st.st_mode))
                return published_error(d, "latest", EEXIST);
        unlinkat(d->fd, partial, 0);
        if (symlinkat(name, d->fd, partial) < 0 || renameat(d->fd, partial, d->fd, "latest") < 0 ||
            fsync(d->fd) < 0)
                return published_error(d, "latest", errno);
        return CTL_OK;
}

/* Finishes what was begun: `latest` names the newest version, and the oldest go. */
static int settle(struct published *d)
{
        char name[NAME];
        uint64_t *versions;
        size_t n;
        int r = scan(d, &versions, &n);

        if (r == CTL_OK && n > 0) {
                published_name(name, versions[0], false);
                if (is_ours(d, name, false)) {
                        d->free = versions[0] + 1;
                        r = link_latest(d, name);
                } else {
                        ctl_error("%s/%s was not written by zeroctl publish for job '%s': each job "
                                  "needs a directory of its own",
                                  d->path, name, d->job);
                        r = CTL_FAILED;
                }
        }
        for (size_t i = (size_t)d->keep; d->keep > 0 && r == CTL_OK && i < n; i++)
                r = delete_version(d, versions[i]);
        free(versions);
        return r;
}

int published_open(const char *path, const char *job, long keep, struct published *ret)
{
        struct published d = { .path = path, .job = job, .keep = keep, .lock = -1 };
        int r;

        if (mkdir(path, 0777) < 0 && errno != EEXIST)
                return published_error(&d, "", errno);
        d.fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        if (d.fd < 0)
                return published_error(&d, "", errno);
        d.lock = openat(d.fd, ".publish", O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0666);
        if (d.lock >= 0 && flock(d.lock, LOCK_EX | LOCK_NB) == 0) {
                r = settle(&d);
        } else if (errno == EWOULDBLOCK) {
                ctl_error("%s: another zeroctl publish writes there", path);
                r = CTL_FAILED;
        } else {
                r = published_error(&d, ".publish", errno);
        }
        if (r == CTL_OK)
                *ret = d;
        else
                published_close(&d);
        return r;
}

void published_close(struct published *d)
{
        if (d->lock >= 0)
                close(d->lock);
        close(d->fd);
}

/* ---- one version -------------------------------------------------------------------------- */

int published_begin(const struct published *d, uint64_t version, int *ret_fd)
{
        char partial[NAME];
        int fd;

        if (version < d->free) {
                ctl_error("job '%s' is at version %llu, and %s has version %llu already", d->job,
                          (unsigned long long)version, d->path, (unsigned long long)d->free - 1);
                return CTL_FAILED;
        }
        published_name(partial, version, true);
        if (mkdirat(d->fd, partial, 0777) < 0)
                return published_error(d, partial, errno);
        fd = openat(d->fd, partial, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
        if (fd < 0)
                return published_error(d, partial, errno);
        *ret_fd = fd;
        return CTL_OK;
}

int published_end(struct published *d, uint64_t version, int fd, bool whole)
{
        char partial[NAME], name[NAME];
        int r = whole ? CTL_OK : CTL_FAILED;

        published_name(partial, version, true);
        published_name(name, version, false);
        if (r == CTL_OK && fsync(fd) < 0)
                r = published_error(d, partial, errno);
        close(fd);
        if (r == CTL_OK && renameat(d->fd, partial, d->fd, name) < 0)
                r = published_error(d, name, errno);
        if (r == CTL_OK)
                return fsync(d->fd) < 0 ? published_error(d, "", errno) : settle(d);
        delete_partial(d, partial);
        return r;
}
