/* The file of votes; see ballots.h. */
#include "daemon/cluster/membership/ballots.h"

#include <errno.h>
#include <fcntl.h>
#include <sodium.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "daemon/floor/base/small_file.h"
#include "proto/cleanup.h"

/* Raise BALLOTS_FORMAT with any change of struct ballots_file. */
enum { BALLOTS_FORMAT = 2, BALLOTS_HASH = 32, NAME_SIZE = 128, PATH_SIZE = 4096 };

static const char magic[8] = { 'z', 'e', 'r', 'o', 'd', '.', 'v', 'w' };

/* Numbers are in the machine's byte order: the file never leaves the machine.  The struct has no
 * gaps, because the hash covers every byte. */
struct file_placement {
        uint64_t epoch;
        uint32_t n_owners, unused;
        uint32_t node[ZERO_NODE_MAX];
        uint64_t before[BALLOTS_BEFORE], older, dead;
};

struct ballots_file {
        char magic[8];
        uint32_t format, voter;
        uint8_t cluster[BALLOTS_CLUSTER];
        uint64_t promised, accepted;
        struct file_placement chosen, value;
        uint8_t hash[BALLOTS_HASH]; /* of all before */
};

_Static_assert(sizeof(struct ballots_file) == 8 + 8 + BALLOTS_CLUSTER + 16 +
                                                      2 * sizeof(struct file_placement) +
                                                      BALLOTS_HASH,
               "no gaps");

struct ballots {
        int dir;
        char name[NAME_SIZE];
        uint8_t cluster[BALLOTS_CLUSTER];
};
DEFINE_CLEANUP(struct ballots *, ballots_close)

void ballots_close(struct ballots *b)
{
        if (!b)
                return;
        cleanup_close(&b->dir);
        free(b);
}

static void file_hash(const struct ballots_file *f, uint8_t ret[static BALLOTS_HASH])
{
        crypto_generichash(ret, BALLOTS_HASH, (const uint8_t *)f,
                           offsetof(struct ballots_file, hash), NULL, 0);
}

static void placement_to_file(const struct ballots_placement *v, struct file_placement *ret)
{
        ret->epoch = v->epoch;
        ret->n_owners = v->n_owners;
        memcpy(ret->node, v->node, v->n_owners * sizeof *v->node);
        memcpy(ret->before, v->before, sizeof v->before);
        ret->older = v->older;
        ret->dead = v->dead;
}

static bool placement_from_file(const struct file_placement *v, struct ballots_placement *ret)
{
        if (v->n_owners > ZERO_NODE_MAX)
                return false;
        *ret = (struct ballots_placement){
                .epoch = v->epoch, .n_owners = v->n_owners, .older = v->older, .dead = v->dead
        };
        memcpy(ret->node, v->node, v->n_owners * sizeof *v->node);
        memcpy(ret->before, v->before, sizeof v->before);
        return true;
}

/* ---- the directory ---- */

/* Makes the missing directories of a path, for zerod's user alone. */
static int make_path(const char *path, struct fault *fault)
{
        char part[PATH_SIZE];

        if (snprintf(part, sizeof part, "%s", path) >= (int)sizeof part)
                return fault_set(fault, ZERO_EINVAL, "membership_dir: the path is too long");
        for (char *p = part + 1;; p++) {
                char c = *p;

                if (c && c != '/')
                        continue;
                *p = 0;
                if (mkdir(part, 0700) < 0 && errno != EEXIST)
                        return fault_set(fault, ZERO_EIO,
                                         "cannot make the directory %s for this node's votes: %s; "
                                         "set membership_dir to a directory on a disk that zerod "
                                         "may write to",
                                         path, strerror(errno));
                if (!c)
                        return 0;
                *p = c;
        }
}

static int open_directory(const char *path, int *ret, struct fault *fault)
{
        struct stat st;
        int r = make_path(path, fault);

        if (r)
                return r;
        CLEANUP(cleanup_close) int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        if (fd < 0 || fstat(fd, &st) < 0)
                return fault_errno(fault, errno, path);
        if (st.st_uid != geteuid() || st.st_mode & 022)
                return fault_set(
                        fault, ZERO_EPERM,
                        "membership_dir %s belongs to user %u and has mode %03o: it must belong "
                        "to zerod's user, %u, and nobody else may be able to write to it",
                        path, (unsigned)st.st_uid, (unsigned)st.st_mode & 0777,
                        (unsigned)geteuid());
        *ret = STEAL_FD(fd);
        return 0;
}

/* ---- reading ---- */

static int refuse(struct fault *fault, const char *directory, const char *name, const char *why)
{
        return fault_set(fault, ZERO_EIO,
                         "the file of votes %s/%s cannot be used: %s. If this node alone has lost "
                         "its file, move the file away and start the node while all others are up: "
                         "it votes again when it has heard from each of them",
                         directory, name, why);
}

static int refuse_other(struct fault *fault, const char *directory, const char *name)
{
        return fault_set(
                fault, ZERO_EIO,
                "the file of votes %s/%s is of another cluster: it was written with other "
                "`peers`, `owners` or `mirror`, and the states here are cut for those. Start with "
                "those options; new nodes come to the end of `peers`. Change the owners with "
                "zeroctl add-node and remove-node. In a cluster without jobs, move the file away "
                "on every node, and these options count again",
                directory, name);
}

static const char *file_flaw(const struct ballots_file *f)
{
        uint8_t hash[BALLOTS_HASH];

        if (memcmp(f->magic, magic, sizeof magic) != 0)
                return "it is not a file of votes";
        if (f->format != BALLOTS_FORMAT)
                return "it was written by another version of zerod";
        file_hash(f, hash);
        if (memcmp(hash, f->hash, sizeof hash) != 0)
                return "its checksum is wrong";
        return NULL;
}

static bool file_record(const struct ballots_file *f, struct ballots_record *ret)
{
        *ret = (struct ballots_record){ .voter = f->voter != 0,
                                        .promised = f->promised,
                                        .accepted = f->accepted };
        return placement_from_file(&f->chosen, &ret->chosen) &&
               placement_from_file(&f->value, &ret->value);
}

static bool never_voted(const struct ballots_record *r)
{
        return !r->promised && !r->accepted && !r->chosen.epoch;
}

static int read_file(const struct ballots *b, const char *directory, struct ballots_file *ret,
                     bool *ret_found, struct fault *fault)
{
        CLEANUP(cleanup_free) char *bytes = NULL;
        struct stat st;
        int r = small_file_read(b->dir, b->name, sizeof *ret, &st, &bytes);

        *ret_found = r != -ENOENT;
        if (!*ret_found)
                return 0;
        if (r == -EPERM)
                return refuse(fault, directory, b->name,
                              "users other than zerod's can write to it");
        if (r == -EFBIG || (r == 0 && st.st_size != sizeof *ret))
                return refuse(fault, directory, b->name, "its length is wrong");
        if (r)
                return fault_errno(fault, -r, b->name);
        memcpy(ret, bytes, sizeof *ret);
        return 0;
}

static int load(const struct ballots *b, const struct ballots_place *place,
                struct ballots_record *ret, bool *ret_found, struct fault *fault)
{
        struct ballots_file f;
        const char *flaw;
        int r = read_file(b, place->directory, &f, ret_found, fault);

        if (r || !*ret_found)
                return r;
        flaw = file_flaw(&f);
        if (!flaw && !file_record(&f, ret))
                flaw = "it has more owners than a cluster can have";
        if (flaw)
                return refuse(fault, place->directory, b->name, flaw);
        for (uint32_t i = 0; i < place->n_clusters; i++)
                if (memcmp(f.cluster, place->clusters[i], sizeof f.cluster) == 0)
                        return 0;
        *ret_found = false;
        return never_voted(ret) && !place->states ? 0
                                                  : refuse_other(fault, place->directory, b->name);
}

int ballots_open(const struct ballots_place *place, struct ballots **ret,
                 struct ballots_record *ret_record, bool *ret_found, struct fault *fault)
{
        CLEANUP(cleanup_ballots_close) struct ballots *b = calloc(1, sizeof *b);
        struct ballots_record record = { 0 };
        bool found = false;
        int r;

        if (!b)
                return fault_set(fault, ZERO_ENOMEM, "out of memory");
        b->dir = -1;
        memcpy(b->cluster, place->clusters[0], sizeof b->cluster);
        snprintf(b->name, sizeof b->name, "%s.votes", place->node);
        r = open_directory(place->directory, &b->dir, fault);
        if (r == 0)
                r = load(b, place, &record, &found, fault);
        if (r)
                return r;
        if (found)
                *ret_record = record;
        *ret_found = found;
        *ret = STEAL(b);
        return 0;
}

/* ---- writing ---- */

int ballots_write(struct ballots *b, const struct ballots_record *record)
{
        struct ballots_file f = { .format = BALLOTS_FORMAT,
                                  .voter = record->voter,
                                  .promised = record->promised,
                                  .accepted = record->accepted };
        int r;

        memcpy(f.magic, magic, sizeof magic);
        memcpy(f.cluster, b->cluster, sizeof f.cluster);
        placement_to_file(&record->chosen, &f.chosen);
        placement_to_file(&record->value, &f.value);
        file_hash(&f, f.hash);
        r = small_file_replace(b->dir, b->name, &f, sizeof f);
        return r ? r : fsync(b->dir) < 0 ? -errno : 0;
}
