/* Planes between their file and a GPU; see carry.h. */
#include "daemon/store/carry.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <time.h>

#include "daemon/compute/device/place/place.h"

enum { CARRIERS_MAX = 64 };

struct carrying {
        const struct carry *c;
        _Atomic uint64_t next, done; /* bytes */
        _Atomic int error;
};

/* Reserves pages by touching them, which threads do at the same time.  posix_fallocate() holds a
 * lock of the file, so it is called only if that fails: its code tells why there is no room. */
static int reserve(const struct carry *c, uint64_t first, uint64_t n)
{
        int r;

        if (madvise(c->file + first, n, MADV_POPULATE_WRITE) == 0)
                return 0;
        do
                r = posix_fallocate(c->fd, (off_t)(c->at + first), (off_t)n);
        while (r == EINTR);
        return -r;
}

static void carry_piece(struct carrying *w, uint64_t first)
{
        const struct carry *c = w->c;
        uint64_t left = c->bytes - first, n = left < CARRY_PIECE ? left : CARRY_PIECE;
        int r = c->save ? reserve(c, first, n) : 0;

        if (r)
                w->error = r;
        else if (c->save)
                place_ops()->copy(c->file + first, c->memory + first, n);
        else
                place_ops()->copy(c->memory + first, c->file + first, n);
        w->done += n;
}

static void *carry_main(void *arg)
{
        struct carrying *w = arg;
        uint64_t first;

        while (!w->error && (first = atomic_fetch_add(&w->next, CARRY_PIECE)) < w->c->bytes)
                carry_piece(w, first);
        return NULL;
}

static void join(pthread_t thread, const struct carrying *w)
{
        struct timespec until;

        do {
                clock_gettime(CLOCK_REALTIME, &until); /* the clock of the call below */
                until.tv_sec += CARRY_TELL_S;
                if (pthread_timedjoin_np(thread, NULL, &until) == 0)
                        return;
                if (w->c->tell)
                        w->c->tell(w->c->arg, w->done);
        } while (true);
}

int carry_run(const struct carry *c)
{
        uint64_t pieces = (c->bytes + CARRY_PIECE - 1) / CARRY_PIECE;
        uint32_t most = c->threads < CARRIERS_MAX ? c->threads : CARRIERS_MAX, n = 0;
        struct carrying w = { .c = c };
        pthread_t threads[CARRIERS_MAX];
        sigset_t all, old;

        sigfillset(&all);
        pthread_sigmask(SIG_SETMASK, &all, &old); /* signals belong to the loop thread */
        while (n < most && n < pieces && pthread_create(&threads[n], NULL, carry_main, &w) == 0)
                n++;
        pthread_sigmask(SIG_SETMASK, &old, NULL);
        if (n == 0)
                carry_main(&w);
        for (uint32_t i = 0; i < n; i++)
                join(threads[i], &w);
        return w.error;
}
