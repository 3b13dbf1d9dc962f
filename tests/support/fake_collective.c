/*
 * NCCL of the fake GPUs: enqueued work is done at the second comm_done() and not before; work that
 * fails leaves wrong bytes.
 */
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/support/fake_gpu.h"

enum { VERSION = 22809, SPOILT = 0x5a };

struct item {
        uint8_t *dst;
        const uint8_t *src;
        size_t n;
};

struct comm {
        uint32_t n;
        int devices[FAKE_GPUS_MAX];
        atomic_flag used; /* by one call at a time */
        struct item *items;
        size_t n_items;
        bool asked, broken, hangs;
};

static _Atomic uint64_t calls;
static _Thread_local char why[64];

static int fail(int r, const char *text)
{
        snprintf(why, sizeof why, "%s", text);
        return r;
}

/* Whether this call, or one before it, is the call that the variable names. */
static bool reached(const char *variable, uint64_t call)
{
        uint64_t from = fake_setting(variable, 0);

        return from && call >= from;
}

int fake_nccl_open(int *ret_version)
{
        if (fake_setting("FAKE_GPU_NCCL_NONE", 0))
                return fail(-ENOENT, "libnccl.so.2: there is none");
        *ret_version = VERSION;
        return 0;
}

const char *fake_nccl_error(void)
{
        return why;
}

int fake_comm_new(const int *devices, uint32_t n, void **ret_comm)
{
        struct comm *c;

        if (fake_setting("FAKE_GPU_NCCL_REFUSED", 0))
                return fail(-EIO, "no communicator for these");
        c = calloc(1, sizeof *c);
        if (!c)
                return fail(-ENOMEM, "out of memory");
        c->n = n;
        for (uint32_t i = 0; i < n; i++) {
                c->devices[i] = devices[i];
                for (uint32_t j = 0; j < i; j++)
                        if (devices[j] == devices[i])
                                fake_die("GPU %d is a member twice", devices[i]);
        }
        *ret_comm = c;
        return 0;
}

static void enter(struct comm *c)
{
        if (atomic_flag_test_and_set(&c->used))
                fake_die("two threads use one communicator");
}

static void leave(struct comm *c)
{
        atomic_flag_clear(&c->used);
}

static void comm_end(struct comm *c)
{
        enter(c);
        free(c->items);
        free(c);
}

void fake_comm_free(void *comm)
{
        struct comm *c = comm;

        if (c->n_items || c->broken)
                fake_die("a communicator with work under way is freed");
        comm_end(c);
}

void fake_comm_abort(void *comm)
{
        comm_end(comm);
}

static void add(struct comm *c, uint32_t to, void *dst, uint32_t from, const void *src, size_t n)
{
        struct item item = { fake_inside(dst, n, c->devices[to], FAKE_PEER),
                             fake_inside(src, n, c->devices[from], FAKE_PEER), n };

        c->items = realloc(c->items, (c->n_items + 1) * sizeof item);
        if (!c->items)
                fake_die("out of memory");
        c->items[c->n_items++] = item;
}

static bool overlap(const uint8_t *a, const uint8_t *b, size_t n, size_t m)
{
        return a < b + m && b < a + n;
}

/* Of what is done at once. */
static void check_overlap(const struct comm *c, size_t first)
{
        for (size_t i = first; i < c->n_items; i++)
                for (size_t j = first; j < c->n_items; j++) {
                        const struct item *a = &c->items[i], *b = &c->items[j];

                        if (overlap(a->dst, b->src, a->n, b->n) ||
                            (i != j && overlap(a->dst, b->dst, a->n, b->n)))
                                fake_die("two moves of one exchange are in each other's way");
                }
}

static int begin(struct comm *c, void *const *streams)
{
        uint64_t call = ++calls;

        enter(c);
        for (uint32_t i = 0; i < c->n; i++)
                if (fake_stream_gpu(streams[i]) != c->devices[i])
                        fake_die("member %u has the stream of another GPU", i);
        c->asked = false;
        c->broken = c->broken || reached("FAKE_GPU_NCCL_BREAKS", call);
        c->hangs = c->hangs || reached("FAKE_GPU_NCCL_HANGS", call);
        return reached("FAKE_GPU_NCCL_FAILS", call) ? fail(-EIO, "the call is refused")
                                                    : fake_state();
}

int fake_broadcast(void *comm, uint32_t root, const void *src, void *const *dst, size_t n,
                   void *const *streams)
{
        struct comm *c = comm;
        int r = begin(c, streams);

        for (uint32_t i = 0; i < c->n; i++)
                if (dst[i] != src)
                        add(c, i, dst[i], root, src, n);
        leave(c);
        return r;
}

int fake_exchange(void *comm, const struct zero_cuda_move *moves, uint32_t n_moves,
                  void *const *streams)
{
        struct comm *c = comm;
        int r = begin(c, streams);
        size_t first = c->n_items;

        for (uint32_t i = 0; i < n_moves; i++) {
                if (moves[i].to >= c->n || moves[i].from >= c->n || moves[i].to == moves[i].from)
                        fake_die("a move from %u to %u of %u", moves[i].from, moves[i].to, c->n);
                add(c, moves[i].to, moves[i].dst, moves[i].from, moves[i].src, moves[i].n);
        }
        check_overlap(c, first);
        leave(c);
        return r;
}

static int finish(struct comm *c)
{
        for (size_t i = 0; i < c->n_items; i++) {
                if (c->broken)
                        memset(c->items[i].dst, SPOILT, c->items[i].n);
                else
                        memcpy(c->items[i].dst, c->items[i].src, c->items[i].n);
        }
        c->n_items = 0;
        return c->broken ? fail(-EIO, "a member is gone") : 1;
}

int fake_comm_done(void *comm, void *const *streams)
{
        struct comm *c = comm;
        int r = 0;

        enter(c);
        if (c->asked && !c->hangs)
                r = finish(c);
        c->asked = true;
        leave(c);
        return r;
}
