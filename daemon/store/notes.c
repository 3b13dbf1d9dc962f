/*
 * Notes about jobs.
 *
 * A note's file is named like a state of the job with another ending, and gets that name when it is
 * complete.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "daemon/store/directory.h"
#include "proto/cleanup.h"

static void note_name(const char *kind, const char *job, char ret[static STORE_FILE_NAME])
{
        const struct state_identity id = { .job = job_spec_named(job) };
        char *ending;

        store_file_name(&id, 0, ret);
        ending = strrchr(ret, '.');
        snprintf(ending, STORE_FILE_NAME - (size_t)(ending - ret), "%s", kind);
}

int note_write(const struct store *store, const char *kind, const char *job, const char *text,
               struct fault *fault)
{
        char name[STORE_FILE_NAME], temporary[STORE_FILE_NAME];
        ssize_t n = (ssize_t)strlen(text);

        note_name(kind, job, name);
        store_temporary_name(name, temporary);
        CLEANUP(cleanup_close)
        int fd = openat(store->dir, temporary,
                        O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW | O_CLOEXEC, 0600);
        if (fd < 0)
                return fault_errno(fault, errno, store->path);
        ssize_t written = write(fd, text, (size_t)n);
        if (written == n && renameat(store->dir, temporary, store->dir, name) == 0)
                return 0;
        int error = written < 0 || written == n ? errno : ENOSPC;
        unlinkat(store->dir, temporary, 0);
        return fault_errno(fault, error, store->path);
}

void note_delete(const struct store *store, const char *kind, const char *job)
{
        char name[STORE_FILE_NAME];

        note_name(kind, job, name);
        unlinkat(store->dir, name, 0);
}

static bool read_file(const struct store *store, const char *file, char ret[static NOTE_SIZE])
{
        CLEANUP(cleanup_close)
        int fd = openat(store->dir, file, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
        ssize_t n = fd < 0 ? -1 : read(fd, ret, NOTE_SIZE - 1);

        ret[n < 0 ? 0 : n] = 0;
        return n >= 0;
}

bool note_read(const struct store *store, const char *kind, const char *job,
               char ret[static NOTE_SIZE])
{
        char name[STORE_FILE_NAME];

        note_name(kind, job, name);
        return read_file(store, name, ret);
}

struct reading {
        const struct store *store;
        void (*each)(char *text, void *arg);
        void *arg;
};

static int read_note(const char *file, void *arg)
{
        struct reading *r = arg;
        char text[NOTE_SIZE];

        if (read_file(r->store, file, text))
                r->each(text, r->arg);
        return 0;
}

void notes_each(const struct store *store, const char *kind, void (*each)(char *text, void *arg),
                void *arg)
{
        struct reading r = { store, each, arg };

        store_each_called(store, kind, read_note, &r);
}
