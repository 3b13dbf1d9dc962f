/*
 * A base is empty, being filled, being hashed or whole.  No session waits while it is empty or
 * whole.  A base that no session uses is in no list, and is freed when its blocking work is over.
 */
#include "daemon/step/bases/bases.h"

#include <errno.h>
#include <fcntl.h>
#include <sodium.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "daemon/floor/base/memory.h"
#include "daemon/step/bases/copy.h"
#include "proto/cleanup.h"

enum {
        READ_BYTES = 64 << 10,
        PIECE_BYTES = 32 << 20, /* hashed in one go, for which other blocking work waits */
};
#define BASE_MAX (UINT64_C(1) << 50)

struct bases {
        struct list all;
        uint32_t n_working; /* blocking work in flight */
};

struct base {
        struct list link; /* bases.all, while a session uses the base */
        struct engine *x;
        uint32_t uid;
        uint8_t hash[BASE_HASH];
        uint64_t bytes;
        int fd; /* -1: empty */
        struct memory_promise promise;
        struct list uses;        /* struct base_use.link */
        struct list copies;      /* on GPUs */
        struct base_use *filler; /* the use that fills the base; NULL: none, or it has left during
                                    the hashing */
        uint64_t began_ms;       /* when the filler was asked */
        bool whole, hashing;
        struct blocking_work work;
        crypto_generichash_state state;
        uint64_t hashed;
        int error;
};

/* ---- freeing --------------------------------------------------------------- */

struct closing {
        struct blocking_work work;
        int fd;
};

static void closing_run(struct blocking_work *work)
{
        close(CONTAINER_OF(work, struct closing, work)->fd);
}

static void closing_done(struct blocking_work *work)
{
        free(CONTAINER_OF(work, struct closing, work));
}

/* Empties the base.  The last close frees all pages, which takes seconds for a large base.  That
 * work needs no engine, which may end meanwhile. */
static void base_empty(struct base *b)
{
        struct closing *c = b->fd < 0 ? NULL : malloc(sizeof *c);

        memory_kept(&b->promise);
        if (c) {
                c->work = (struct blocking_work){ .run = closing_run,
                                                  .done = closing_done,
                                                  .what = "to free a base",
                                                  .uid = b->uid };
                c->fd = b->fd;
                blocking_submit(b->x->blocking, LANE_MEMORY, &c->work);
        } else if (b->fd >= 0) {
                close(b->fd);
        }
        b->fd = -1;
}

static void base_free(struct base *b)
{
        base_empty(b);
        free(b);
}

/* ---- answers --------------------------------------------------------------- */

static void base_serve(struct base *b);

static void use_end(struct base_use *use, int status, const char *text)
{
        struct request *r = STEAL(use->waiting);

        if (r)
                request_end(r, status, "%s", text);
}

static void use_answer(struct base_use *use, bool fill)
{
        if (!use->waiting)
                return;
        use->waiting->passes = true;
        use->waiting->fd = use->base->fd;
        use->waiting->result.base.fill = fill;
        use_end(use, ZERO_OK, "");
}

void base_leave(struct base_use *use)
{
        struct base *b = STEAL(use->base);

        if (!b)
                return;
        base_copy_leave(use);
        list_remove(&use->link);
        if (list_empty(&b->uses))
                list_remove(&b->link);
        if (b->filler == use)
                b->filler = NULL;
        if (b->hashing)
                return;
        if (list_empty(&b->uses))
                base_free(b);
        else if (!b->whole && !b->filler)
                base_serve(b);
}

/* ---- filling --------------------------------------------------------------- */

/* Makes the base's memory, sparse: its filler allocates the pages, and they count as the filler's.
 */
static int base_memory(const struct base *b)
{
        CLEANUP(cleanup_close)
        int fd = memfd_create("zerod-base", MFD_CLOEXEC | MFD_ALLOW_SEALING);

        if (fd < 0 || fchmod(fd, 0600) < 0 || ftruncate(fd, (off_t)b->bytes) < 0 ||
            fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW) < 0)
                return -errno;
        return STEAL_FD(fd);
}

/* Makes a use that waits the filler, with memory that no earlier filler knows. */
static void base_fill(struct base *b, struct base_use *use)
{
        struct fault fault;
        int fd = base_memory(b);

        base_empty(b);
        if (fd < 0) {
                fault_errno(&fault, fd, "memory for a base");
                use_end(use, fault.status, fault.text);
                base_leave(use);
                return;
        }
        b->fd = fd;
        memory_promise(&b->promise, b->bytes, b->fd, true);
        b->filler = use;
        b->began_ms = engine_now(b->x);
        use_answer(use, true);
}

/* Answers the uses that it can, or makes one of them the filler.  The base may be gone afterwards.
 */
static void base_serve(struct base *b)
{
        list_for_each (&b->uses, item) {
                struct base_use *use = CONTAINER_OF(item, struct base_use, link);

                if (b->whole) {
                        use_answer(use, false);
                } else if (use->waiting) {
                        base_fill(b, use);
                        return;
                }
        }
}

/* ---- hashing --------------------------------------------------------------- */

static int hash_some(struct base *b)
{
        uint8_t bytes[READ_BYTES];
        uint64_t end = b->bytes - b->hashed < PIECE_BYTES ? b->bytes : b->hashed + PIECE_BYTES;

        while (b->hashed < end) {
                size_t most = end - b->hashed < sizeof bytes ? end - b->hashed : sizeof bytes;
                ssize_t n = pread(b->fd, bytes, most, (off_t)b->hashed);

                if (n <= 0)
                        return n < 0 ? -errno : -EIO;
                crypto_generichash_update(&b->state, bytes, (size_t)n);
                b->hashed += (uint64_t)n;
        }
        return 0;
}

/* Seals the memory, so that nobody changes it behind the hash.  Refuses holes: they cost their
 * filler nothing, and hashing them takes hours. */
static int hash_begin(const struct base *b)
{
        struct stat st;

        /* the kernel looks at every page for other writers, so this takes time too */
        if (fcntl(b->fd, F_ADD_SEALS, F_SEAL_WRITE | F_SEAL_SEAL) < 0 || fstat(b->fd, &st) < 0)
                return -errno;
        return (uint64_t)st.st_blocks * 512 < b->bytes ? -ENODATA : 0;
}

static void hash_run(struct blocking_work *work)
{
        struct base *b = CONTAINER_OF(work, struct base, work);

        b->error = b->hashed ? 0 : hash_begin(b);
        if (!b->error)
                b->error = hash_some(b);
}

static void base_check(struct base *b)
{
        uint8_t hash[BASE_HASH];

        crypto_generichash_final(&b->state, hash, sizeof hash);
        b->whole = !b->error && memcmp(hash, b->hash, sizeof hash) == 0;
        if (b->whole)
                memory_kept(&b->promise);
}

/* Refuses what the filler has written: it is not the base. */
static void base_refuse(struct base *b)
{
        struct base_use *use = b->filler;

        if (use && b->error == -EBUSY)
                use_end(use, ZERO_EORDER,
                        "the memory of the base is still mapped writable: write() it instead");
        else if (use && b->error == -ENODATA)
                use_end(use, ZERO_EINVAL,
                        "the memory of the base has holes: write() all of its bytes, zeros too");
        else if (use && b->error)
                use_end(use, ZERO_EIO, strerror(-b->error));
        else if (use)
                use_end(use, ZERO_ECONFLICT,
                        "the bytes that were written do not have the hash of the base: a file has "
                        "changed while it was read");
        if (use)
                base_leave(use);
        else
                base_serve(b);
}

static void hash_done(struct blocking_work *work)
{
        struct base *b = CONTAINER_OF(work, struct base, work);

        b->x->bases->n_working--;
        if (list_empty(&b->uses)) {
                base_free(b);
                return;
        }
        if (!b->error && b->hashed < b->bytes) {
                b->x->bases->n_working++;
                blocking_submit(b->x->blocking, LANE_BASES, &b->work);
                return;
        }
        b->hashing = false;
        base_check(b);
        if (b->whole) {
                b->filler = NULL;
                base_serve(b);
        } else {
                base_refuse(b);
        }
}

static void base_hash(struct base *b)
{
        b->hashing = true;
        b->hashed = 0;
        b->work = (struct blocking_work){
                .run = hash_run, .done = hash_done, .what = "to hash a base", .uid = b->uid
        };
        crypto_generichash_init(&b->state, NULL, 0, BASE_HASH);
        b->x->bases->n_working++;
        blocking_submit(b->x->blocking, LANE_BASES, &b->work);
}

/* ---- asking ---------------------------------------------------------------- */

static int use_describe(const struct request *r, struct wait_line *ret)
{
        const struct base_use *use = r->subject;
        const struct base *b = use->base;

        ret->since_ms = b->began_ms;
        ret->until_ms = b->began_ms + b->x->conf->rank_wait_ms;
        if (b->hashing) {
                snprintf(ret->what, sizeof ret->what, "to hash a base of %.1f MiB, %.1f are done",
                         (double)b->bytes / 0x1p20, (double)b->hashed / 0x1p20);
                return ZERO_EDEADLINE;
        }
        snprintf(ret->who, sizeof ret->who, "process %u", b->filler ? b->filler->pid : 0);
        snprintf(ret->what, sizeof ret->what, "to read the files of a base of %.1f MiB",
                 (double)b->bytes / 0x1p20);
        return ZERO_EDEADLINE;
}

static void use_forget(struct request *r)
{
        struct base_use *use = r->subject;

        use->waiting = NULL;
        base_leave(use);
}

static struct base *base_find(const struct engine *x, uint32_t uid, const Zero__Base *m)
{
        list_for_each (&x->bases->all, item) {
                struct base *b = CONTAINER_OF(item, struct base, link);

                if (b->uid == uid && b->bytes == m->bytes &&
                    memcmp(b->hash, m->hash.data, BASE_HASH) == 0)
                        return b;
        }
        return NULL;
}

static int base_admit(const struct engine *x, uint32_t uid, uint64_t bytes, struct fault *fault)
{
        uint64_t most = x->conf->base_limit, available = memory_of_machine(), used = 0;

        list_for_each (&x->bases->all, item) {
                const struct base *b = CONTAINER_OF(item, struct base, link);

                used += b->uid == uid ? b->bytes : 0;
        }
        if (most && (used > most || bytes > most - used))
                return fault_set(fault, ZERO_EQUOTA,
                                 "no memory for a base of %.1f MiB: user %u's bases have %.1f on "
                                 "this node, and base_limit allows %.1f",
                                 (double)bytes / 0x1p20, uid, (double)used / 0x1p20,
                                 (double)most / 0x1p20);
        if (bytes > available)
                return fault_set(fault, ZERO_ESHM,
                                 "a base needs %.1f MiB of memory: this node can spare %.1f",
                                 (double)bytes / 0x1p20, (double)available / 0x1p20);
        return 0;
}

static int base_new(struct engine *x, uint32_t uid, const Zero__Base *m, struct base **ret,
                    struct fault *fault)
{
        int r = base_admit(x, uid, m->bytes, fault);
        struct base *b = r ? NULL : calloc(1, sizeof *b);

        if (!b)
                return r ? r : fault_set(fault, ZERO_ENOMEM, "out of memory");
        b->x = x;
        b->uid = uid;
        b->bytes = m->bytes;
        b->fd = -1;
        memcpy(b->hash, m->hash.data, sizeof b->hash);
        list_init(&b->uses);
        list_init(&b->copies);
        list_insert(&x->bases->all, &b->link);
        *ret = b;
        return 0;
}

static int check(const Zero__Base *m, const struct base_use *use, struct fault *fault)
{
        const struct base *b = use->base;

        if (m->hash.len != BASE_HASH || m->bytes == 0 || m->bytes > BASE_MAX)
                return fault_set(fault, ZERO_EINVAL,
                                 "a base has a hash of %d bytes, and 1 to 2^50 bytes", BASE_HASH);
        if (b && (b->bytes != m->bytes || memcmp(b->hash, m->hash.data, BASE_HASH) != 0))
                return fault_set(fault, ZERO_EORDER,
                                 "a client has one base, and this client already has another");
        if (m->gpu.len && !(b && b->whole))
                return fault_set(fault, ZERO_EORDER,
                                 "a copy on a GPU needs a base that the client has: call "
                                 "zero_base() first");
        if (use->waiting || use->copying || m->filled != (b && b->filler == use))
                return fault_set(fault, ZERO_EORDER,
                                 m->filled ? "the base is not to be filled"
                                           : "the base is asked for already");
        return 0;
}

static int ask_copy(struct base *b, uint32_t place, struct base_use *use, struct request *r,
                    struct fault *fault)
{
        struct base_source of = {
                b->x, &b->x->bases->n_working, &b->copies, b->uid, b->fd, b->bytes, b->hash
        };

        return base_copy_ask(&of, place, use, r, fault);
}

int base_ask(struct engine *x, uint32_t uid, uint32_t pid, const Zero__Base *m, uint32_t place,
             struct base_use *use, struct request *r, struct fault *fault)
{
        int error = check(m, use, fault);
        struct base *b = error ? NULL : base_find(x, uid, m);

        if (!error && !b)
                error = base_new(x, uid, m, &b, fault);
        if (error)
                return error;
        if (m->gpu.len)
                return ask_copy(b, place, use, r, fault);
        if (!use->base)
                list_insert(&b->uses, &use->link);
        use->base = b;
        use->pid = pid;
        use->waiting = r;
        r->subject = use;
        r->describe = use_describe;
        r->forget = use_forget;
        if (m->filled)
                base_hash(b);
        else if (!b->filler && !b->hashing)
                base_serve(b);
        return 0;
}

/* ---- about bases ----------------------------------------------------------- */

bool base_held(const struct base_use *use, const uint8_t hash[static BASE_HASH])
{
        return use->base && use->base->whole && memcmp(use->base->hash, hash, BASE_HASH) == 0;
}

void bases_each(const struct engine *x, void (*tell)(void *arg, const struct base_info *info),
                void *arg)
{
        list_for_each (&x->bases->all, item) {
                const struct base *b = CONTAINER_OF(item, struct base, link);
                struct base_info info = { .uid = b->uid,
                                          .bytes = b->bytes,
                                          .hash = b->hash,
                                          .whole = b->whole,
                                          .filler = b->filler ? b->filler->pid : 0 };

                list_for_each (&b->uses, use) {
                        info.uses++;
                }
                list_for_each (&b->copies, copy) {
                        info.copies++;
                }
                tell(arg, &info);
        }
}

static void bases_init(struct engine *x)
{
        list_init(&x->bases->all);
}

static bool bases_idle(const struct engine *x)
{
        return x->bases->n_working == 0;
}

const struct module bases_module = { .node_at = offsetof(struct engine, bases),
                                     .node_bytes = sizeof(struct bases),
                                     .node_init = bases_init,
                                     .idle = bases_idle };
