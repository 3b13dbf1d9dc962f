/*
 * A drained node takes no new ranks.  The file NODE.drained in membership_dir says so, so that a
 * restart changes nothing.  Its lines are the processes of the node's ranks: a person waits for
 * them before the node is powered off.
 *
 * A rank that loses its session because a daemon restarts is not new: it comes back (resume), and
 * until then its process runs.
 */
#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "daemon/base/log.h"
#include "daemon/base/process.h"
#include "daemon/membership/membership.h"
#include "daemon/rank/rank.h"
#include "proto/cleanup.h"

struct drained {
        struct engine *x;
        bool on;
        uint32_t n;
        struct drained_rank *ranks;
        struct blocking_work disk;
        bool writing, wanted; /* wanted: what is being written */
        int error;            /* errno */
        void (*done)(void *arg, int error);
        void *arg;
};

/* ---- its processes ---- */

static void add_rank(struct drained *d, const char *job, uint32_t rank, uint32_t pid,
                     uint64_t start)
{
        struct drained_rank *more;

        for (uint32_t i = 0; i < d->n; i++)
                if (d->ranks[i].pid == pid && d->ranks[i].rank == rank &&
                    strcmp(d->ranks[i].job, job) == 0)
                        return;
        more = realloc(d->ranks, (d->n + 1) * sizeof *more);
        if (!more)
                return;
        d->ranks = more;
        more = &d->ranks[d->n++];
        *more = (struct drained_rank){ .rank = rank, .pid = pid, .start = start };
        snprintf(more->job, sizeof more->job, "%s", job);
}

static void add_session(struct drained *d, const struct rank *rank)
{
        add_rank(d, rank->job_name, rank->rank, rank->needs.pid, rank->needs.process_start);
}

static void add_sessions(struct drained *d)
{
        list_for_each (&d->x->jobs, item) {
                const struct job *job = CONTAINER_OF(item, struct job, link);

                for (uint32_t r = 0; r < job->world_size; r++)
                        if (job->ranks[r].session)
                                add_session(d, job->ranks[r].session);
        }
        list_for_each (&d->x->ranks->joining, item) {
                add_session(d, CONTAINER_OF(item, struct rank, link));
        }
}

static void remove_ended(struct drained *d)
{
        uint32_t n = 0;

        for (uint32_t i = 0; i < d->n; i++)
                if (process_life(d->ranks[i].pid, d->ranks[i].start) != PROCESS_ENDED)
                        d->ranks[n++] = d->ranks[i];
        d->n = n;
}

uint32_t drained_ranks(const struct engine *x, const struct drained_rank **ret)
{
        struct drained *d = x->membership->drained;

        add_sessions(d);
        remove_ended(d);
        *ret = d->ranks;
        return d->n;
}

/* ---- the file ---- */

static void name_file(const struct engine *x, const char *end, char *ret, size_t size)
{
        snprintf(ret, size, "%s/%s.drained%s", x->conf->membership_dir,
                 node_name(x, x->cluster->self), end);
}

static int sync_directory(const char *path)
{
        CLEANUP(cleanup_close) int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);

        return fd < 0 || fsync(fd) ? errno : 0;
}

static int write_file(const struct drained *d, const char *path)
{
        FILE *out = fopen(path, "we");
        int error = 0;

        if (!out)
                return errno;
        for (uint32_t i = 0; i < d->n; i++)
                fprintf(out, "%s %u %u %llu\n", d->ranks[i].job, d->ranks[i].rank, d->ranks[i].pid,
                        (unsigned long long)d->ranks[i].start);
        if (fflush(out) || fsync(fileno(out)))
                error = errno;
        if (fclose(out) && !error)
                error = errno;
        return error;
}

static void disk_run(struct blocking_work *work)
{
        struct drained *d = CONTAINER_OF(work, struct drained, disk);
        char path[PATH_MAX], fresh[PATH_MAX];

        name_file(d->x, "", path, sizeof path);
        name_file(d->x, ".new", fresh, sizeof fresh);
        if (d->wanted)
                d->error = write_file(d, fresh);
        else
                d->error = unlink(path) && errno != ENOENT ? errno : 0;
        if (!d->error && d->wanted && rename(fresh, path))
                d->error = errno;
        if (!d->error)
                d->error = sync_directory(d->x->conf->membership_dir);
}

static void disk_done(struct blocking_work *work)
{
        struct drained *d = CONTAINER_OF(work, struct drained, disk);

        d->writing = false;
        if (!d->error) {
                d->on = d->wanted;
                log_info(d->on ? "drain: the node takes no new ranks"
                               : "the drain is over: the node takes ranks again");
        }
        d->done(d->arg, d->error);
}

int drained_set(struct engine *x, bool on, void (*done)(void *arg, int error), void *arg)
{
        struct drained *d = x->membership->drained;

        if (d->writing)
                return -EBUSY;
        if (on == d->on) {
                done(arg, 0);
                return 0;
        }
        d->n = 0;
        if (on)
                add_sessions(d);
        d->wanted = on;
        d->done = done;
        d->arg = arg;
        d->disk.run = disk_run;
        d->disk.done = disk_done;
        d->writing = true;
        blocking_submit(x->loop, &d->disk);
        return 0;
}

/* ---- start and end ---- */

static void read_file(struct drained *d, FILE *in)
{
        char job[ZERO_NAME_MAX + 1];
        unsigned long long start;
        unsigned rank, pid;

        while (d->n < DRAINED_MAX && fscanf(in, "%255s %u %u %llu", job, &rank, &pid, &start) == 4)
                add_rank(d, job, rank, pid, start);
}

int drained_start(struct engine *x, struct fault *fault)
{
        struct drained *d = calloc(1, sizeof *d);
        char path[PATH_MAX];
        FILE *in;

        if (!d)
                return fault_set(fault, ZERO_ENOMEM, "out of memory");
        d->x = x;
        x->membership->drained = d;
        if (!x->membership->ballots)
                return 0;
        name_file(x, "", path, sizeof path);
        in = fopen(path, "re");
        if (!in)
                return errno == ENOENT ? 0 : fault_errno(fault, errno, path);
        d->on = true;
        read_file(d, in);
        fclose(in);
        log_info("drain: the node takes no new ranks until zeroctl undrain %s",
                 node_name(x, x->cluster->self));
        return 0;
}

void drained_free(struct membership *v)
{
        assert(!v->drained || !v->drained->writing);
        if (v->drained)
                free(v->drained->ranks);
        free(v->drained);
}

bool drained_idle(const struct engine *x)
{
        return !x->membership->drained || !x->membership->drained->writing;
}

bool membership_drained(const struct engine *x)
{
        const struct drained *d = x->membership ? x->membership->drained : NULL;

        return d && (d->on || (d->writing && d->wanted));
}
