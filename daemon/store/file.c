/* A state file's parts, header and checks; see file.h. */
#include "daemon/store/file.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <sodium.h>
#include <stddef.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "daemon/floor/base/chunk.h"
#include "daemon/store/seal.h"
#include "proto/cleanup.h"

static const char magic[8] = { 'z', 'e', 'r', 'o', 'd', '.', 's', 't' };

void file_hash(uint8_t ret[static FILE_HASH], const void *data, size_t size)
{
        crypto_generichash(ret, FILE_HASH, data, size, NULL, 0);
}

void file_plan_hash(const struct plan *plan, uint8_t ret[static FILE_HASH])
{
        crypto_generichash_state state;

        crypto_generichash_init(&state, NULL, 0, FILE_HASH);
        for (uint32_t g = 0; g < plan->n_groups; g++)
                crypto_generichash_update(&state, (const uint8_t *)&plan->shards[g].range,
                                          sizeof(plan->shards[g].range));
        crypto_generichash_final(&state, ret, FILE_HASH);
}

size_t file_undo_stride(const struct plan *plan)
{
        size_t bytes = sizeof(struct undo_slot) +
                       (size_t)plan->chunk_elements * plan->n_planes * sizeof(float);

        return (bytes + 127) / 128 * 128; /* two cache lines: CPUs prefetch them in pairs */
}

/* *end: of the last part, a multiple of FILE_ALIGN.  at: where the part begins in its page. */
static uint64_t place_at(uint64_t *end, uint64_t at, uint64_t bytes)
{
        uint64_t begin = *end + at;

        *end = (begin + bytes + FILE_ALIGN - 1) / FILE_ALIGN * FILE_ALIGN;
        return begin;
}

static uint64_t place(uint64_t *end, uint64_t bytes)
{
        return place_at(end, 0, bytes);
}

uint32_t file_format(const struct plan *plan, const struct job_spec *job)
{
        if (plan->staggered)
                return FILE_FORMAT;
        /* the release before would take narrow gradients for fp32 */
        return job->accumulate == ZERO_ACCUMULATE_WIRE ? FILE_FORMAT_TIMES : FILE_FORMAT_BEFORE;
}

struct file_map file_map(const struct plan *plan, uint32_t n_tensors, uint32_t n_undo,
                         uint64_t layout_bytes)
{
        uint64_t words = n_tensors * sizeof(uint64_t);
        uint64_t step = plan->staggered ? FILE_STAGGER : 0, end = 0, at = 0;
        struct file_map m;

        place(&end, sizeof(struct file_header));
        m.layout = place(&end, layout_bytes);
        for (int i = 0; i < 2; i++)
                m.copies[i] = place(&end, sizeof(struct record_copy));
        for (int i = 0; i < 2; i++)
                m.steps[i] = place(&end, words);
        for (int i = 0; i < 2; i++)
                m.presents[i] = place(&end, words);
        m.sets = place(&end, words);
        m.puts = place(&end, 2 * sizeof(uint64_t));
        m.versions = place(&end, plan->n_chunks * sizeof(uint64_t));
        m.undo = place(&end, n_undo * file_undo_stride(plan));
        m.serve = place(&end, plan->keeps_served ? plan->serve_bytes : 0);
        m.master = place(&end, plan_plane_bytes(plan, plane_master));
        for (uint32_t i = 0; i < OPTIMIZER_MOMENTS; i++)
                m.moments[i] =
                        place_at(&end, at += step, plan_plane_bytes(plan, plane_updated(1 + i)));
        m.grad = place_at(&end, at += step, plan_plane_bytes(plan, plane_grad));
        m.old = place_at(&end, at + step, plan_plane_bytes(plan, plane_old));
        m.bytes = end;
        return m;
}

void file_bind(struct state *state, const struct file_map *map)
{
        uint8_t *base = state->in->map;

        for (int i = 0; i < 2; i++) {
                state->in->copies[i] = (void *)(base + map->copies[i]);
                state->in->steps[i] = (void *)(base + map->steps[i]);
                state->in->presents[i] = (void *)(base + map->presents[i]);
        }
        state->in->sets = (void *)(base + map->sets);
        state->in->puts_words = (void *)(base + map->puts);
        state->in->versions = (void *)(base + map->versions);
        state->in->undo = (void *)(base + map->undo);
}

void file_write(void *map, const struct file_map *places, const struct file_header *header,
                const void *packed_layout, uint64_t where)
{
        struct file_header *h = map;

        memcpy((uint8_t *)map + places->layout, packed_layout, header->layout_bytes);
        *h = *header;
        memcpy(h->magic, magic, sizeof(magic));
        h->header_bytes = sizeof(struct file_header);
        h->record_bytes = sizeof(struct record_copy);
        h->file_bytes = places->bytes;
        randombytes_buf(h->id, sizeof(h->id));
        file_hash(h->layout_hash, packed_layout, header->layout_bytes);
        file_hash(h->hash, h, offsetof(struct file_header, hash));
        file_set_planes(map, where);
}

void file_set_planes(void *map, uint64_t where)
{
        uint64_t *word = (void *)((uint8_t *)map + FILE_PLANES);

        __atomic_store_n(word, seal(SEAL_PLANES, 0, where), __ATOMIC_SEQ_CST);
}

int file_planes(int fd, uint64_t *ret)
{
        uint64_t word, where;

        if (pread(fd, &word, sizeof(word), FILE_PLANES) != sizeof(word))
                return -EIO;
        where = seal_open(SEAL_PLANES, 0, word);
        if (where == UINT64_MAX)
                return -EIO;
        *ret = where;
        return 0;
}

int file_damaged(struct fault *fault, const char *name, const char *why)
{
        return fault_set(fault, ZERO_EIO,
                         "state file %s cannot be used: %s; move it away, or delete it to give "
                         "its job up",
                         name, why);
}

int file_open(int dir, const char *name, int *ret_fd, uint64_t *ret_bytes, struct fault *fault)
{
        struct stat st;

        CLEANUP(cleanup_close) int fd = openat(dir, name, O_RDWR | O_NOFOLLOW | O_CLOEXEC);
        if (fd < 0 || fstat(fd, &st) < 0)
                return fault_errno(fault, errno, name);
        if (!S_ISREG(st.st_mode) || st.st_uid != geteuid() || (st.st_mode & 077) ||
            st.st_nlink != 1)
                return file_damaged(fault, name, "others have access to it");
        *ret_bytes = (uint64_t)st.st_size;
        *ret_fd = STEAL_FD(fd);
        return 0;
}

int file_reserve(int fd, uint64_t bytes, const char *name, struct fault *fault)
{
        struct stat st;
        int r;

        if (fstat(fd, &st) < 0)
                return fault_errno(fault, errno, name);
        if ((uint64_t)st.st_blocks * 512 >= (uint64_t)st.st_size)
                return 0;
        r = segment_reserve(fd, bytes);
        return r ? fault_errno(fault, r, name) : 0;
}

static const char *header_flaw(const struct file_header *h, uint64_t bytes)
{
        uint8_t hash[FILE_HASH];

        if (memcmp(h->magic, magic, sizeof(magic)) != 0)
                return "it is no state file";
        if (h->format > FILE_FORMAT)
                return "a newer release of zerod wrote it: start that release";
        if (h->format < FILE_FORMAT_BEFORE)
                return "an older release of zerod wrote it, and this release cannot read it: "
                       "start that release, or restore a checkpoint";
        file_hash(hash, h, offsetof(struct file_header, hash));
        if (memcmp(hash, h->hash, FILE_HASH) != 0)
                return "the checksum of its header is wrong";
        if (h->header_bytes != sizeof(*h) || h->record_bytes != sizeof(struct record_copy))
                return "it was written by another build of zerod";
        if (h->file_bytes != bytes || h->layout_bytes > bytes)
                return "its length is wrong";
        if (!memchr(h->job, 0, sizeof(h->job)) || h->n_undo < 1 || h->n_undo > FILE_UNDO_MAX ||
            h->chunk_elements < 1 || h->chunk_elements > CHUNK_MOST ||
            h->chunk_elements % LAYOUT_ALIGN || h->n_owners < 1 || h->owner >= h->n_owners ||
            h->copy >= FILE_COPIES)
                return "its header makes no sense";
        return NULL;
}

int file_read_header(int fd, uint64_t bytes, const char *name, struct file_header *ret,
                     struct fault *fault)
{
        struct file_header h;

        ssize_t n = pread(fd, &h, sizeof(h), 0);
        if (n < 0)
                return fault_errno(fault, errno, name);
        if (n != sizeof(h))
                return file_damaged(fault, name, "it is too short");
        const char *flaw = header_flaw(&h, bytes);
        if (flaw)
                return file_damaged(fault, name, flaw);
        *ret = h;
        return 0;
}

bool state_keeps_times(const struct state *state)
{
        return ((const struct file_header *)state->in->map)->format >= FILE_FORMAT_TIMES;
}

int state_keep_times(struct state *state)
{
        struct file_header h = *(const struct file_header *)state->in->map;

        assert(!state_keeps_times(state)); /* a lower format would move the planes */
        h.format = FILE_FORMAT_TIMES;
        file_hash(h.hash, &h, offsetof(struct file_header, hash));
        /* one call within one page: a process that dies leaves all of it or nothing */
        ssize_t n = pwrite(state->in->fd, &h, sizeof(h), 0);
        return n == sizeof(h) ? 0 : n < 0 ? -errno : -EIO;
}
