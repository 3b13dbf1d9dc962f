/*
 * The base: frozen weights of files, of which the node has one copy for all processes of a user.
 *
 * Files lie in the base one behind the other, each from the begin of a page, with zeros between
 * them.  The hash is over all of that.
 *
 * Rule: what was mapped stays mapped at its address until the caller unmaps it, whatever happens to
 * the daemon, and beyond zero_close().  A daemon that was started again gets the base from that
 * memory.
 */
#include "client.h"

#include <errno.h>
#include <fcntl.h>
#include <sodium.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "proto/cleanup.h"

enum {
        PAGE = 4096,
        PIECE = 1 << 20,
        COPIES = 7, /* the first protocol with copies on GPUs */
};

struct file {
        const char *path;
        int fd;
        uint64_t bytes, at; /* at: in the base */
};

struct base_files {
        uint32_t n;
        uint64_t bytes; /* of the base */
        uint8_t hash[LAYOUT_HASH];
        struct file all[ZERO_FILE_MAX];
};

/* Takes a piece of the base, the first byte of which is number `at`. */
typedef int taker(void *arg, const uint8_t *p, size_t n, uint64_t at);

/* ---- files ----------------------------------------------------------------- */

void base_files_close(struct base_files *files)
{
        for (uint32_t i = 0; files && i < files->n; i++)
                close(files->all[i].fd);
        free(files);
}
DEFINE_CLEANUP(struct base_files *, base_files_close)

static int open_file(struct zero_client *c, struct base_files *files, const char *path)
{
        uint64_t most = (uint64_t)sysconf(_SC_PHYS_PAGES) * (uint64_t)sysconf(_SC_PAGESIZE);
        struct stat st;

        CLEANUP(cleanup_close) int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
        if (fd < 0 || fstat(fd, &st) < 0)
                return client_fail(c, ZERO_EIO, "cannot open %s: %s", path, strerror(errno));
        if (!S_ISREG(st.st_mode) || st.st_size == 0)
                return client_fail(c, ZERO_EINVAL, "%s is %s", path,
                                   S_ISREG(st.st_mode) ? "empty" : "not a regular file");
        /* before all of it is read: a sparse file may have any size */
        if (files->bytes > most || (uint64_t)st.st_size > most - files->bytes)
                return client_fail(c, ZERO_ESHM,
                                   "%s: with its %.1f MiB the base is larger than the %.1f MiB of "
                                   "memory that this node has",
                                   path, (double)st.st_size / 0x1p20, (double)most / 0x1p20);
        files->all[files->n++] =
                (struct file){ path, STEAL_FD(fd), (uint64_t)st.st_size, files->bytes };
        files->bytes += ((uint64_t)st.st_size + PAGE - 1) / PAGE * PAGE;
        return 0;
}

static int open_files(struct zero_client *c, const char *const *paths, uint32_t n,
                      struct base_files **ret)
{
        CLEANUP(cleanup_base_files_close) struct base_files *files = calloc(1, sizeof(*files));
        int r = 0;

        if (!files)
                return client_fail(c, ZERO_ENOMEM, "out of memory");
        for (uint32_t i = 0; i < n && r == 0; i++)
                r = open_file(c, files, paths[i]);
        if (r == 0)
                *ret = STEAL(files);
        return r;
}

static int read_file(struct zero_client *c, const struct file *f, uint8_t *piece, taker *take,
                     void *arg)
{
        uint64_t at = 0;

        while (at < f->bytes) {
                ssize_t n = pread(f->fd, piece, PIECE, (off_t)at);
                int r;

                if (n < 0 && errno == EINTR)
                        continue;
                if (n < 0)
                        return client_fail(c, ZERO_EIO, "reading %s: %s", f->path, strerror(errno));
                if (n == 0 || (uint64_t)n > f->bytes - at)
                        return client_fail(c, ZERO_ECONFLICT, "%s changes while it is read",
                                           f->path);
                r = take(arg, piece, (size_t)n, f->at + at);
                if (r)
                        return client_fail(c, ZERO_ESHM, "memory of the base: %s", strerror(-r));
                at += (uint64_t)n;
                if (wire_sleep(c->interrupt_fd, wire_now()))
                        return client_shut(c, "a call was interrupted");
        }
        return 0;
}

static int read_files(struct zero_client *c, const struct base_files *files, taker *take, void *arg)
{
        CLEANUP(cleanup_free) uint8_t *piece = malloc(PIECE);
        int r = piece ? 0 : client_fail(c, ZERO_ENOMEM, "out of memory");

        for (uint32_t i = 0; i < files->n && r == 0; i++)
                r = read_file(c, &files->all[i], piece, take, arg);
        return r;
}

/* ---- the hash -------------------------------------------------------------- */

struct hash {
        crypto_generichash_state state;
        uint64_t at;
};

static int hash_take(void *arg, const uint8_t *p, size_t n, uint64_t at)
{
        static const uint8_t zeros[PAGE];
        struct hash *h = arg;

        crypto_generichash_update(&h->state, zeros, at - h->at);
        crypto_generichash_update(&h->state, p, n);
        h->at = at + n;
        return 0;
}

int base_files_open(struct zero_client *c, const char *const *paths, uint32_t n,
                    struct base_files **ret)
{
        CLEANUP(cleanup_base_files_close) struct base_files *files = NULL;
        struct hash h = { .at = 0 };
        int r = open_files(c, paths, n, &files);

        if (r)
                return r;
        crypto_generichash_init(&h.state, NULL, 0, LAYOUT_HASH);
        r = read_files(c, files, hash_take, &h);
        if (r)
                return r;
        hash_take(&h, NULL, 0, files->bytes);
        crypto_generichash_final(&h.state, files->hash, LAYOUT_HASH);
        *ret = STEAL(files);
        return 0;
}

/* ---- the service's copy ---------------------------------------------------- */

static int write_take(void *arg, const uint8_t *p, size_t n, uint64_t at)
{
        const int *fd = arg;

        while (n > 0) {
                ssize_t done = pwrite(*fd, p, n, (off_t)at);

                if (done < 0 && errno != EINTR)
                        return -errno;
                if (done > 0) {
                        p += done;
                        n -= (size_t)done;
                        at += (uint64_t)done;
                }
        }
        return 0;
}

struct base_call {
        const uint8_t *hash;
        uint64_t bytes;
        const struct base_files *files; /* NULL: the base is mapped, and comes from there */
};

/* gpu: NULL, or which copy. */
static int ask(struct zero_client *c, const struct base_call *b, bool filled, const struct gpu *gpu,
               int *ret_fd, const Zero__BaseReply **ret_reply)
{
        Zero__Base base = ZERO__BASE__INIT;
        const Zero__Reply *reply;
        int r;

        base.hash = (ProtobufCBinaryData){ LAYOUT_HASH, (uint8_t *)b->hash };
        base.bytes = b->bytes;
        base.filled = filled;
        if (gpu)
                base.gpu = (ProtobufCBinaryData){ ZERO_GPU_UUID, (uint8_t *)gpu->uuid };
        c->began_ms = wire_now(); /* reading files took time that is not the daemon's */
        wire_expect_fds(&c->wire, true);
        r = client_ask(c, REQUEST(OPEN_BASE, open_base, &base), &reply);
        if (r == 0) {
                *ret_fd = wire_take_fd(&c->wire, 0);
                *ret_reply = reply->opened_base;
        }
        wire_expect_fds(&c->wire, false);
        return r;
}

static int fill(struct zero_client *c, const struct base_call *b, int fd)
{
        int r;

        if (b->files)
                return read_files(c, b->files, write_take, &fd);
        r = write_take(&fd, c->base.base, b->bytes, 0);
        return r ? client_fail(c, ZERO_ESHM, "memory of the base: %s", strerror(-r)) : 0;
}

static int map(struct zero_client *c, int fd, uint64_t bytes)
{
        struct mapping next = { 0 };
        struct stat st;
        int r;

        if (fd < 0 || fstat(fd, &st) < 0 || (uint64_t)st.st_size < bytes)
                return client_shut(c, "zerod did not pass the base");
        r = mapping_open(fd, bytes, PROT_READ, bytes, &next);
        if (r == 0)
                r = mapping_replace(&c->base, &next);
        mapping_deinit(&next);
        return r ? client_shut(c, "cannot map the base: %s", strerror(-r)) : 0;
}

static int open_base(struct zero_client *c, const struct base_call *b)
{
        CLEANUP(cleanup_close) int fd = -1;
        const Zero__BaseReply *reply;
        int r = ask(c, b, false, NULL, &fd, &reply);

        if (r == 0 && reply->fill) {
                r = fill(c, b, fd);
                close(fd);
                fd = -1;
                if (r == 0)
                        r = ask(c, b, true, NULL, &fd, &reply);
        }
        return r ? r : map(c, fd, b->bytes);
}

int client_take_base(struct zero_client *c, const struct base_files *files,
                     struct zero_file *ret_files)
{
        struct base_call b = { files->hash, files->bytes, files };
        int r = open_base(c, &b);

        if (r)
                return r;
        memcpy(c->base_hash, files->hash, sizeof(c->base_hash));
        for (uint32_t i = 0; i < files->n; i++)
                ret_files[i] =
                        (struct zero_file){ c->base.base + files->all[i].at, files->all[i].bytes };
        return 0;
}

/* Tensors have the address, so the next copy takes it. */
static int map_copy(struct zero_client *c, int fd, uint64_t bytes)
{
        const struct zero_gpu_client *plugin = c->copy.gpu->plugin;
        int r = -EINVAL;

        if (fd < 0 || bytes < c->base.bytes)
                return client_shut(c, "zerod did not pass the copy of the base");
        if (!c->copy.memory) {
                r = plugin->map(c->copy.gpu->ordinal, fd, NULL, bytes, false, &c->copy.memory);
                if (r)
                        return client_fail(c, r == -ENOMEM ? ZERO_ENOMEM : ZERO_EGPU,
                                           "cannot map the copy of the base: %s", strerror(-r));
        } else if (bytes == c->copy.bytes) {
                r = plugin->remap(c->copy.memory, fd);
        }
        if (r == -EINVAL)
                return 0; /* what is mapped has the same bytes */
        if (r)
                return client_shut(c, "cannot map the copy of the base: %s", strerror(-r));
        c->copy.bytes = bytes;
        return 0;
}

int client_take_copy(struct zero_client *c)
{
        struct base_call b = { c->base_hash, c->base.bytes, NULL };
        CLEANUP(cleanup_close) int fd = -1;
        const Zero__BaseReply *reply;
        int r;

        if (c->protocol < COPIES)
                return client_fail(c, ZERO_EVERSION,
                                   "zerod is of a release that has no copies of bases on GPUs");
        r = ask(c, &b, false, c->copy.gpu, &fd, &reply);
        return r ? r : map_copy(c, fd, reply->gpu_bytes);
}

int client_take_base_again(struct zero_client *c)
{
        struct base_call b = { c->base_hash, c->base.bytes, NULL };
        int r = c->base.bytes ? open_base(c, &b) : 0;

        if (r || !c->copy.memory)
                return r;
        r = client_take_copy(c);
        /* refused, because two copies are too many for the GPU, say: keeps the one it has */
        return r > 0 && !c->closed && !c->lost ? 0 : r;
}

int client_name_base(const struct zero_client *c, Zero__Layout *m)
{
        if (c->base.bytes == 0)
                return 0;
        m->base_hash.data = malloc(LAYOUT_HASH);
        if (!m->base_hash.data)
                return -ENOMEM;
        memcpy(m->base_hash.data, c->base_hash, LAYOUT_HASH);
        m->base_hash.len = LAYOUT_HASH;
        return 0;
}
