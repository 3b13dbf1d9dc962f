/*
 * A draft takes the name of its job's state.
 *
 * The state's rename is what counts; that of what ranks keep follows.  Where the process dies in
 * between, the ranks' bytes are gone and the state is whole.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "daemon/base/crash.h"
#include "daemon/store/store.h"
#include "proto/cleanup.h"

int state_vacant(const struct store *store, const struct state_identity *id, uint32_t owner,
                 struct fault *fault)
{
        char file[STORE_FILE_NAME];

        store_file_name(id, owner, file);
        if (faccessat(store->dir, file, F_OK, AT_SYMLINK_NOFOLLOW) != 0)
                return 0;
        return fault_set(fault, ZERO_EBUSY, "job %s has a state in %s already: drop it first",
                         id->job, store->path);
}

/* What stands under the name is another state's: the old one's, or one that nobody knows. */
static void replace_blobs(const struct state *draft, const char *temporary, const char *file,
                          bool orphan)
{
        char from[STORE_FILE_NAME], to[STORE_FILE_NAME];
        struct store *store = draft->store;
        struct stat st;

        store_blobs_name(temporary, from);
        store_blobs_name(file, to);
        if (orphan && fstatat(store->dir, to, &st, AT_SYMLINK_NOFOLLOW) == 0)
                store_give(store, (uint64_t)st.st_size);
        if (draft->blobs.fd < 0 || renameat(store->dir, from, store->dir, to) < 0)
                unlinkat(store->dir, to, 0);
}

int state_replace(struct state *draft, struct state *old, struct fault *fault)
{
        char name[STORE_FILE_NAME];
        CLEANUP(cleanup_free) char *file = NULL, *temporary = NULL;
        int dir = draft->store->dir;

        store_file_name(&draft->id, draft->plan->owner, name);
        file = strdup(name);
        if (!file)
                return fault_errno(fault, ENOMEM, name);
        if (renameat2(dir, draft->file, dir, file, old ? 0 : RENAME_NOREPLACE) < 0)
                return fault_errno(fault, errno, name);
        crash_point(CRASH_RESTORE_NAMED);
        temporary = draft->file;
        draft->file = STEAL(file);
        replace_blobs(draft, temporary, draft->file, !old);
        if (old)
                free(STEAL(old->file));
        return 0;
}

static void discard(struct store *store, const char *name)
{
        struct stat st;

        if (fstatat(store->dir, name, &st, AT_SYMLINK_NOFOLLOW) < 0 ||
            unlinkat(store->dir, name, 0) < 0)
                return;
        store_give(store, (uint64_t)st.st_size);
}

void state_discard(struct store *store, const struct state_identity *id, uint32_t owner)
{
        char file[STORE_FILE_NAME], blobs[STORE_FILE_NAME];

        store_file_name(id, owner, file);
        store_blobs_name(file, blobs);
        discard(store, blobs);
        discard(store, file);
}
