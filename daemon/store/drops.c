/*
 * Notes of dropped jobs.
 *
 * A note has three lines: the job, the nodes and the job's user.  Its file is named like a state of
 * the job with another ending, and gets that name when it is complete.  Notes of earlier versions
 * lack the user; their jobs count as root's.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "daemon/store/directory.h"
#include "proto/cleanup.h"

enum { NOTE_SIZE = 8192 }; /* 64 nodes, whose names have 63 characters at most, and a job */

static const char suffix[] = ".drop";

static void note_name(const char *job, char ret[static STORE_FILE_NAME])
{
        const struct state_identity id = { .job = job };

        store_file_name(&id, 0, ret);
        strcpy(strrchr(ret, '.'), suffix); /* shorter than a state's suffix */
}

int drops_write(const struct store *store, const struct drop_note *note, struct fault *fault)
{
        char name[STORE_FILE_NAME], temporary[STORE_FILE_NAME], text[NOTE_SIZE];
        int n = snprintf(text, sizeof text, "%s\n%s\n%u\n", note->job, note->nodes, note->uid);

        note_name(note->job, name);
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

void drops_delete(const struct store *store, const char *job)
{
        char name[STORE_FILE_NAME];

        note_name(job, name);
        unlinkat(store->dir, name, 0);
}

struct reading {
        const struct store *store;
        void (*each)(const struct drop_note *note, void *arg);
        void *arg;
};

static int read_note(const char *file, void *arg)
{
        struct reading *r = arg;
        char text[NOTE_SIZE], *job = text, *nodes, *end;
        CLEANUP(cleanup_close)
        int fd = openat(r->store->dir, file, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
        ssize_t n = fd < 0 ? -1 : read(fd, text, sizeof text - 1);

        if (n < 0)
                return 0;
        text[n] = 0;
        nodes = strchr(job, '\n');
        end = nodes ? strchr(nodes + 1, '\n') : NULL;
        if (!end)
                return 0;
        *nodes = *end = 0;
        r->each(&(struct drop_note){ job, nodes + 1, (uint32_t)strtoul(end + 1, NULL, 10) },
                r->arg);
        return 0;
}

void drops_each(const struct store *store, void (*each)(const struct drop_note *note, void *arg),
                void *arg)
{
        struct reading r = { store, each, arg };

        store_each_called(store, suffix, read_note, &r);
}
