/*
 * The file of the ranks' blobs: an array with two slots for each rank, and nothing else.
 *
 * A slot counts if its checksum is right and its attempt is the record's decided_attempt.
 * state_blob_stage() writes to a slot that does not count.  So a process killed at any instruction
 * has every rank's blob of the last decided attempt by the record.  It never has a blob of an
 * earlier attempt, or of one that came to nothing.
 *
 * For the same reason every rank's blob is staged in every attempt, even if it is the same as
 * before.  The first blob creates the file; a job that keeps nothing has none.
 *
 * Rule: a slot without the right checksum, which is keyed with the state's id, holds nothing.  Such
 * a slot is torn or damaged, or belongs to another rank, another attempt or an earlier job with the
 * same name.  A longer file has more slots, a shorter one fewer.
 *
 * A slot that counts is never written to: it has the last decided attempt, and a staged blob
 * belongs to a later one.  One instruction makes the next decision's record the newest: there the
 * slot stops counting and the rank's other slot starts to.
 */
#include <errno.h>
#include <fcntl.h>
#include <sodium.h>
#include <stddef.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "daemon/floor/base/crash.h"
#include "daemon/store/file.h"
#include "daemon/store/directory.h"
#include "proto/cleanup.h"

struct slot {
        uint8_t hash[FILE_HASH]; /* of all behind it, up to the last byte in use */
        uint64_t attempt;
        uint32_t rank, bytes;
        uint8_t data[ZERO_BLOB_MAX];
};

struct slots {
        struct slot slot[2];
};

_Static_assert(FILE_ID >= crypto_generichash_KEYBYTES_MIN, "an id is a key");

static void slot_hash(const struct state *s, const struct slot *p, uint8_t ret[static FILE_HASH])
{
        const struct file_header *h = s->in->map;
        size_t end = offsetof(struct slot, data) + p->bytes;

        crypto_generichash(ret, FILE_HASH, (const uint8_t *)&p->attempt,
                           end - offsetof(struct slot, attempt), h->id, sizeof(h->id));
}

static bool slot_counts(const struct state *s, const struct slot *p, uint32_t rank)
{
        uint64_t decided = s->record->decided_attempt;
        uint8_t hash[FILE_HASH];

        if (decided == 0 || p->attempt != decided || p->rank != rank || p->bytes > ZERO_BLOB_MAX)
                return false;
        slot_hash(s, p, hash);
        return memcmp(hash, p->hash, FILE_HASH) == 0;
}

static struct slots *slots_of(const struct state *s, uint32_t rank)
{
        return rank < s->in->blobs.n_ranks ? (struct slots *)s->in->blobs.map + rank : NULL;
}

const void *state_blob(const struct state *state, uint32_t rank, size_t *ret_bytes)
{
        const struct slots *both = slots_of(state, rank);

        for (int i = 0; both && i < 2; i++) {
                const struct slot *p = &both->slot[i];

                if (!slot_counts(state, p, rank))
                        continue;
                *ret_bytes = p->bytes;
                return p->data;
        }
        *ret_bytes = 0;
        return NULL;
}

uint32_t state_blob_ranks(const struct state *state)
{
        return state->in->blobs.n_ranks;
}

/* ---- growing ---- */

static int map_ranks(struct state_blobs *b, uint32_t n_ranks)
{
        size_t bytes = n_ranks * sizeof(struct slots), now = b->n_ranks * sizeof(struct slots);
        void *map = b->map ? mremap(b->map, now, bytes, MREMAP_MAYMOVE)
                           : mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, b->fd, 0);

        if (map == MAP_FAILED)
                return -errno;
        b->map = map;
        b->n_ranks = n_ranks;
        return 0;
}

static int make_file(struct state *s)
{
        char name[STORE_FILE_NAME];

        if (s->in->blobs.fd >= 0)
                return 0;
        store_blobs_name(s->in->file, name);
        s->in->blobs.fd = openat(s->in->store->dir, name,
                                 O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
        return s->in->blobs.fd < 0 ? -errno : 0;
}

/* Reserves the room before it is mapped. */
static int extend(struct state *s, uint32_t n_ranks)
{
        struct state_blobs *b = &s->in->blobs;
        uint64_t bytes = n_ranks * sizeof(struct slots);

        int r = make_file(s);
        if (r == 0)
                r = segment_reserve(b->fd, bytes);
        if (r)
                return r;
        r = map_ranks(b, n_ranks);
        if (r && ftruncate(b->fd, (off_t)b->bytes) < 0)
                return r; /* the file stays longer until it next grows */
        if (r == 0)
                b->bytes = bytes;
        return r;
}

static int grow(struct state *s, uint32_t n_ranks)
{
        uint64_t more = n_ranks * sizeof(struct slots) - s->in->blobs.bytes;
        int r = store_take(s->in->store, more, 0, "a rank's bytes", NULL);

        if (r)
                return r == ZERO_EQUOTA ? -EDQUOT : -ENOSPC;
        r = extend(s, n_ranks);
        if (r)
                store_give(s->in->store, more);
        return r;
}

/* ---- staging ---- */

/* The slot that may be written: one that does not count. */
static struct slot *spare(const struct state *s, struct slots *both, uint32_t rank)
{
        return &both->slot[slot_counts(s, &both->slot[0], rank)];
}

int state_blob_stage(struct state *state, uint32_t rank, uint64_t attempt, const void *p, size_t n)
{
        if (rank >= ZERO_RANK_MAX || n > ZERO_BLOB_MAX || attempt <= state->record->decided_attempt)
                return -EINVAL;
        if (rank >= state->in->blobs.n_ranks) {
                int r = n ? grow(state, rank + 1) : 0;
                if (r || n == 0)
                        return r; /* no slot and an empty blob mean the same */
        }
        struct slot *to = spare(state, slots_of(state, rank), rank);

        to->attempt = attempt;
        to->rank = rank;
        to->bytes = (uint32_t)n;
        if (n)
                memcpy(to->data, p, n);
        crash_point(CRASH_BLOB_TORN);
        slot_hash(state, to, to->hash);
        return 0;
}

/* ---- the state's lifetime ---- */

int blobs_open(struct state *s, struct fault *fault)
{
        struct state_blobs *b = &s->in->blobs;
        char name[STORE_FILE_NAME];

        store_blobs_name(s->in->file, name);
        if (faccessat(s->in->store->dir, name, F_OK, AT_SYMLINK_NOFOLLOW) < 0 && errno == ENOENT)
                return 0;
        int r = file_open(s->in->store->dir, name, &b->fd, &b->bytes, fault);
        if (r == 0)
                r = file_reserve(b->fd, b->bytes, name, fault);
        if (r)
                return r;
        uint64_t n_ranks = b->bytes / sizeof(struct slots);
        if (n_ranks == 0)
                return 0;
        r = map_ranks(b, n_ranks < ZERO_RANK_MAX ? (uint32_t)n_ranks : ZERO_RANK_MAX);
        return r ? fault_errno(fault, r, name) : 0;
}

/* True if the slot's attempt may still be decided. */
static bool is_pending(const struct state *s, const struct slot *p)
{
        return s->record->phase == ATTEMPT_PREPARED && p->attempt == s->record->attempt;
}

void blobs_settle(struct state *s)
{
        for (uint32_t rank = 0; rank < s->in->blobs.n_ranks; rank++) {
                struct slots *both = slots_of(s, rank);

                for (int i = 0; i < 2; i++)
                        if (both->slot[i].attempt > s->record->decided_attempt &&
                            !is_pending(s, &both->slot[i]))
                                memset(both->slot[i].hash, 0, FILE_HASH);
        }
}

void blobs_close(struct state *s)
{
        if (s->in->blobs.map)
                munmap(s->in->blobs.map, s->in->blobs.n_ranks * sizeof(struct slots));
        cleanup_close(&s->in->blobs.fd);
        s->in->blobs = (struct state_blobs){ .fd = -1 };
}

void blobs_unlink(struct state *s)
{
        char name[STORE_FILE_NAME];

        if (s->in->blobs.fd < 0)
                return;
        store_blobs_name(s->in->file, name);
        unlinkat(s->in->store->dir, name, 0);
}
