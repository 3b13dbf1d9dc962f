/*
 * A draft takes the name of its job's state.
 *
 * Renaming the draft's file replaces the state; its file of blobs is renamed after that.  If the
 * process dies in between, store_open() renames the blobs.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "daemon/floor/base/crash.h"
#include "daemon/store/planes.h"
#include "proto/cleanup.h"

bool store_has(const struct store *store, const char *file)
{
        return faccessat(store->dir, file, F_OK, AT_SYMLINK_NOFOLLOW) == 0;
}

int state_vacant(const struct store *store, const struct state_identity *id, uint32_t owner,
                 struct fault *fault)
{
        char file[STORE_FILE_NAME];

        store_file_name(id, owner, file);
        if (!store_has(store, file))
                return 0;
        if (store_lost(store, file))
                return fault_set(fault, ZERO_EBUSY,
                                 "this node's state of job %s was lost with the GPU memory of an "
                                 "earlier process: restore a checkpoint, or delete %s/%s to give "
                                 "the job up",
                                 id->job.name, store->path, file);
        return fault_set(fault, ZERO_EBUSY,
                         "job %s has the state file %s/%s, which this node does not use: zeroctl "
                         "doctor says why",
                         id->job.name, store->path, file);
}

bool state_was_lost(const struct store *store, const struct state_identity *id, uint32_t owner)
{
        char file[STORE_FILE_NAME];

        store_file_name(id, owner, file);
        return store_lost(store, file);
}

/* Gives the draft's blobs their name.  A file that has the name already belongs to the old state,
 * or was left without a state (orphan). */
static void replace_blobs(const struct state *draft, const char *temporary, const char *file,
                          bool orphan)
{
        char from[STORE_FILE_NAME], to[STORE_FILE_NAME];
        struct store *store = draft->in->store;
        struct stat st;

        store_blobs_name(temporary, from);
        store_blobs_name(file, to);
        if (orphan && fstatat(store->dir, to, &st, AT_SYMLINK_NOFOLLOW) == 0)
                store_give(store, (uint64_t)st.st_size);
        if (draft->in->blobs.fd < 0 || renameat(store->dir, from, store->dir, to) < 0)
                unlinkat(store->dir, to, 0);
}

int state_replace(struct state *draft, struct state *old, struct fault *fault)
{
        char name[STORE_FILE_NAME];
        CLEANUP(cleanup_free) char *file = NULL, *temporary = NULL;
        int dir = draft->in->store->dir;

        store_file_name(&draft->id, draft->plan->owner, name);
        file = strdup(name);
        if (!file)
                return fault_errno(fault, ENOMEM, name);
        if (renameat2(dir, draft->in->file, dir, file, old ? 0 : RENAME_NOREPLACE) < 0)
                return fault_errno(fault, errno, name);
        crash_point(CRASH_RESTORE_NAMED);
        temporary = draft->in->file;
        draft->in->file = STEAL(file);
        replace_blobs(draft, temporary, draft->in->file, !old);
        if (old)
                free(STEAL(old->in->file));
        return 0;
}

static void discard(struct store *store, const char *name, bool charged)
{
        struct stat st;

        if (fstatat(store->dir, name, &st, AT_SYMLINK_NOFOLLOW) < 0 ||
            unlinkat(store->dir, name, 0) < 0)
                return;
        store_give(store, charged ? (uint64_t)st.st_size : 0);
}

void store_discard(struct store *store, const char *file)
{
        char blobs[STORE_FILE_NAME];
        bool lost = store_lost(store, file);

        store_blobs_name(file, blobs);
        planes_free(planes_take(store, file));
        discard(store, blobs, true);
        discard(store, file, !lost);
}

void state_discard(struct store *store, const struct state_identity *id, uint32_t owner)
{
        char file[STORE_FILE_NAME];

        store_file_name(id, owner, file);
        store_discard(store, file);
}

bool state_is_of(const char *file, const char *job)
{
        const struct state_identity id = { .job = job_spec_named(job) };
        char name[STORE_FILE_NAME];

        store_file_name(&id, 0, name);
        return strncmp(file, name, strlen(name) - strlen("0.state")) == 0;
}

struct sweep {
        struct store *store;
        const char *job;
        uint64_t before;
        uint32_t swept;
};

static int sweep_file(const char *file, void *arg)
{
        struct sweep *s = arg;

        if (!state_is_of(file, s->job) || store_file_epoch(file) >= s->before ||
            !store_lost(s->store, file))
                return 0;
        store_discard(s->store, file);
        s->swept++;
        return 0;
}

uint32_t store_sweep_lost(struct store *store, const char *job, uint64_t before)
{
        struct sweep s = { .store = store, .job = job, .before = before };

        store_each(store, sweep_file, &s);
        return s.swept;
}
