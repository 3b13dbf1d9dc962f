/*
 * A drained node takes no new ranks.  The file NODE.drained in membership_dir says so, so that a
 * restart changes nothing.  Its lines name the processes of the node's ranks: a person waits for
 * these before the node is powered off.
 *
 * A rank that loses its session because a daemon restarts is not new.  Its process still runs, and
 * the rank comes back (resume).  If the drain began in between, the file has no line of that rank
 * yet.  So a process that started before the drain may come back too, and the file gets its line.
 */
#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "daemon/cluster/membership/membership.h"
#include "daemon/floor/base/log.h"
#include "daemon/floor/base/process.h"
#include "daemon/floor/base/small_file.h"
#include "daemon/step/rank/rank.h"
#include "proto/cleanup.h"

/* Behind it: a line for each rank (job, rank, pid, start), then the boot to which these times
 * belong.  A file of an earlier release lacks that last line, and that release reads no further. */
#define HEAD "drained since %llu"

struct drained {
        struct engine *x;
        bool on;
        uint64_t since; /* when the drain began, as process_start() counts */
        char boot[37];  /* the running boot's id; "": unknown */
        char file[NAME_MAX + 1];
        uint32_t n;
        struct drained_rank *ranks;
        struct blocking_work disk;
        bool writing, wanted; /* wanted: the drain that is being written */
        bool more;            /* ranks have come during the write */
        char *text;           /* the file's contents */
        size_t bytes;
        bool changed; /* the file is as wanted, though a loss of power may undo that */
        int error;    /* errno of the last write */
        struct drained_change *change; /* the change that is being written; NULL: none */
        struct list changes;           /* changes that wait for their turn */
};

/* ---- its processes ---- */

static bool has_rank(const struct drained *d, const char *job, uint32_t rank, uint32_t pid,
                     uint64_t start)
{
        for (uint32_t i = 0; i < d->n; i++)
                if (d->ranks[i].pid == pid && d->ranks[i].start == start &&
                    d->ranks[i].rank == rank && strcmp(d->ranks[i].job, job) == 0)
                        return true;
        return false;
}

static int add_rank(struct drained *d, const char *job, uint32_t rank, uint32_t pid, uint64_t start)
{
        struct drained_rank *more;

        if (has_rank(d, job, rank, pid, start))
                return 0;
        more = realloc(d->ranks, (d->n + 1) * sizeof *more);
        if (!more)
                return -ENOMEM;
        d->ranks = more;
        more = &d->ranks[d->n++];
        *more = (struct drained_rank){ .rank = rank, .pid = pid, .start = start };
        snprintf(more->job, sizeof more->job, "%s", job);
        return 0;
}

static int add_session(struct drained *d, const struct rank *rank)
{
        return add_rank(d, rank->needs.job.name, rank->rank, rank->needs.pid,
                        rank->needs.process_start);
}

static int add_sessions(struct drained *d)
{
        int r = 0;

        list_for_each (&d->x->jobs, item) {
                const struct job *job = CONTAINER_OF(item, struct job, link);

                for (uint32_t i = 0; i < job->world_size && !r; i++)
                        if (job->ranks[i].session)
                                r = add_session(d, job->ranks[i].session);
        }
        list_for_each (&d->x->ranks->joining, item) {
                if (!r)
                        r = add_session(d, CONTAINER_OF(item, struct rank, link));
        }
        return r;
}

static void remove_ended(struct drained *d)
{
        uint32_t n = 0;

        for (uint32_t i = 0; i < d->n; i++)
                if (process_life(d->ranks[i].pid, d->ranks[i].start) != PROCESS_ENDED)
                        d->ranks[n++] = d->ranks[i];
        d->n = n;
}

int drained_ranks(const struct engine *x, const struct drained_rank **ret, uint32_t *ret_n)
{
        struct drained *d = x->membership->drained;
        int r = add_sessions(d);

        if (r)
                return r;
        remove_ended(d);
        *ret = d->ranks;
        *ret_n = d->n;
        return 0;
}

/* ---- the file ---- */

/* Makes the file's text: another thread writes it while ranks come. */
static int make_text(struct drained *d)
{
        FILE *out = open_memstream(&d->text, &d->bytes);
        bool failed;

        if (!out)
                return -ENOMEM;
        fprintf(out, HEAD "\n", (unsigned long long)d->since);
        for (uint32_t i = 0; i < d->n; i++)
                fprintf(out, "%s %u %u %llu\n", d->ranks[i].job, d->ranks[i].rank, d->ranks[i].pid,
                        (unsigned long long)d->ranks[i].start);
        if (d->boot[0])
                fprintf(out, "boot id %s\n", d->boot);
        failed = ferror(out);
        if (fclose(out) == 0 && !failed)
                return 0;
        free(STEAL(d->text));
        return -ENOMEM;
}

static void disk_run(struct blocking_work *work)
{
        struct drained *d = CONTAINER_OF(work, struct drained, disk);
        const char *path = d->x->conf->membership_dir;
        CLEANUP(cleanup_close) int dir = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);

        if (dir < 0)
                d->error = errno;
        else if (d->wanted)
                d->error = -small_file_replace(dir, d->file, d->text, d->bytes);
        else
                d->error = unlinkat(dir, d->file, 0) && errno != ENOENT ? errno : 0;
        d->changed = !d->error;
        if (d->changed && fsync(dir))
                d->error = errno;
}

static void disk_done(struct blocking_work *work);

static int disk_write(struct drained *d, bool wanted)
{
        int r = wanted ? make_text(d) : 0;

        if (r)
                return r;
        d->wanted = wanted;
        d->more = false;
        d->disk = (struct blocking_work){ .run = disk_run,
                                          .done = disk_done,
                                          .what = "to write membership_dir" };
        d->writing = true;
        blocking_submit(d->x->blocking, LANE_VOTES, &d->disk);
        return 0;
}

static void log_unkept(const char *why)
{
        log_error("drain: cannot write the ranks that have come back to membership_dir: %s; after "
                  "a restart of zerod, zeroctl drain does not wait for these ranks until they "
                  "come back again",
                  why);
}

static void changes_begin(struct drained *d);

static void disk_done(struct blocking_work *work)
{
        struct drained *d = CONTAINER_OF(work, struct drained, disk);
        struct drained_change *c = STEAL(d->change);

        d->writing = false;
        free(STEAL(d->text));
        if (d->changed && d->on != d->wanted) {
                d->on = d->wanted;
                log_info(d->on ? "drain: the node takes no new ranks"
                               : "the drain is over: the node takes ranks again");
        }
        if (c)
                c->done(c, d->error);
        else if (d->error)
                log_unkept(strerror(d->error));
        changes_begin(d);
        if (!d->writing && d->on && d->more && disk_write(d, true))
                log_unkept("out of memory");
}

/* Now, by the clock of process_start(). */
static uint64_t ticks_now(void)
{
        struct timespec now;

        clock_gettime(CLOCK_BOOTTIME, &now);
        return (uint64_t)((double)sysconf(_SC_CLK_TCK) *
                          ((double)now.tv_sec + (double)now.tv_nsec / 1e9));
}

/* Begins a write if the change needs one. */
static int change_begin(struct drained *d, bool on)
{
        int r;

        if (on == d->on && !d->error)
                return 0;
        if (!d->on) {
                d->n = 0;
                d->since = ticks_now();
        }
        r = on ? add_sessions(d) : 0;
        return r ? r : disk_write(d, on);
}

static void changes_begin(struct drained *d)
{
        while (!d->writing && !list_empty(&d->changes)) {
                struct drained_change *c =
                        CONTAINER_OF(d->changes.next, struct drained_change, link);
                int r = change_begin(d, c->on);

                list_remove(&c->link);
                if (d->writing)
                        d->change = c;
                else
                        c->done(c, -r);
        }
}

void drained_set(struct engine *x, struct drained_change *change)
{
        struct drained *d = x->membership->drained;

        list_insert(&d->changes, &change->link);
        changes_begin(d);
}

/* ---- start and end ---- */

/* Reads the file.  The times of another boot mean nothing here, and its processes have ended. */
static int read_file(struct drained *d, FILE *in)
{
        char job[ZERO_NAME_MAX + 1], boot[sizeof d->boot];
        unsigned long long start;
        unsigned rank, pid;
        int r = 0;

        if (fscanf(in, HEAD, &start) == 1 && start <= ticks_now())
                d->since = start;
        while (!r && d->n < DRAINED_MAX &&
               fscanf(in, "%255s %u %u %llu", job, &rank, &pid, &start) == 4)
                r = add_rank(d, job, rank, pid, start);
        /* fscanf() has read "boot" as the name of a job */
        if (fscanf(in, "id %36s", boot) == 1 && d->boot[0] && strcmp(boot, d->boot) != 0)
                d->since = d->n = 0;
        return r;
}

static void read_boot(struct drained *d)
{
        FILE *in = fopen("/proc/sys/kernel/random/boot_id", "re");

        if (in && fscanf(in, "%36s", d->boot) != 1)
                d->boot[0] = '\0';
        if (in)
                fclose(in);
}

int drained_start(struct engine *x, struct fault *fault)
{
        struct drained *d = calloc(1, sizeof *d);
        char path[PATH_MAX];
        FILE *in;
        int r;

        if (!d)
                return fault_set(fault, ZERO_ENOMEM, "out of memory");
        d->x = x;
        list_init(&d->changes);
        x->membership->drained = d;
        read_boot(d);
        if (!x->membership->ballots)
                return 0;
        snprintf(d->file, sizeof d->file, "%s.drained", node_name(x, x->cluster->self));
        snprintf(path, sizeof path, "%s/%s", x->conf->membership_dir, d->file);
        in = fopen(path, "re");
        if (!in)
                return errno == ENOENT ? 0 : fault_errno(fault, errno, path);
        d->on = true;
        r = read_file(d, in);
        fclose(in);
        if (r)
                return fault_set(fault, ZERO_ENOMEM, "out of memory");
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

bool drained_admits(const struct engine *x, const char *job, const struct rank_needs *needs)
{
        const struct drained *d = x->membership->drained;

        return has_rank(d, job, needs->rank, needs->pid, needs->process_start) ||
               (needs->process_start > 0 && needs->process_start < d->since);
}

void drained_keep(struct engine *x, const struct rank *rank)
{
        struct drained *d = membership_drained(x) ? x->membership->drained : NULL;
        uint32_t n = d ? d->n : 0;

        if (!d || (add_session(d, rank) == 0 && d->n == n))
                return;
        if (d->n == n)
                log_unkept("out of memory");
        else if (d->writing)
                d->more = true;
        else if (disk_write(d, true))
                log_unkept("out of memory");
}
