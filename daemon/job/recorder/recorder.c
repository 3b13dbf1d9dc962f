/* Copies the ring on the loop thread and writes the file on another; see recorder.h. */
#include "daemon/job/recorder/recorder.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "daemon/floor/base/log.h"
#include "proto/cleanup.h"
#include "proto/trace_file.h"

enum { FILE_NAME_SIZE = 256 };

/* Files sort by time; the user stands behind the time. */
#define NAME_FORMAT "trace-%Y%m%dT%H%M%SZ-"
enum { NAME_USER = sizeof "trace-20000101T000000Z-" - 1 };

struct waited {
        uint32_t what, rank, group;
        uint64_t begun_ns;
        struct wait_line line;
};

struct recording {
        struct blocking_work work;
        struct engine *x;
        struct job *job; /* held: its layout stays, and does not change */
        uint64_t now_ns, n_traced;
        uint32_t n_waits, rank;
        const char *call;
        char why[480], name[FILE_NAME_SIZE];
        int error; /* errno */
        struct waited waits[WAIT_LINES];
        struct traced trace[TRACE_MAX];
        struct trace_event events[TRACE_MAX + WAIT_LINES];
};

struct recorder {
        struct recording *writing;
};

/* ---- on another thread ---- */

/* Removes the oldest recordings of the user, of all for "", until fewer than `most` are left. */
static void remove_oldest(int directory, const char *user, unsigned most)
{
        char oldest[FILE_NAME_SIZE] = "";
        unsigned n;

        do {
                CLEANUP(cleanup_close) int fd = openat(directory, ".", O_RDONLY | O_CLOEXEC);
                DIR *all = fd < 0 ? NULL : fdopendir(fd);
                const struct dirent *d;

                n = 0;
                if (!all)
                        return;
                fd = -1;
                while ((d = readdir(all))) {
                        if (strncmp(d->d_name, "trace-", 6) != 0 || strlen(d->d_name) < NAME_USER ||
                            strncmp(d->d_name + NAME_USER, user, strlen(user)) != 0)
                                continue;
                        if (n++ == 0 || strcmp(d->d_name, oldest) < 0)
                                snprintf(oldest, sizeof oldest, "%s", d->d_name);
                }
                closedir(all);
        } while (n >= most && unlinkat(directory, oldest, 0) == 0 && n > most);
}

static const char *name_node(const void *arg, uint32_t node)
{
        const struct recording *w = arg;

        return node < w->x->cluster->n_nodes ? node_name(w->x, node) : NULL;
}

static const char *name_group(const void *arg, uint64_t group)
{
        const struct recording *w = arg;

        return group < w->job->layout->n_groups ? w->job->layout->groups[group].name : NULL;
}

static long long group_number(uint32_t group)
{
        return group == NO_GROUP ? -1 : (long long)group;
}

static size_t list_events(struct recording *w)
{
        uint64_t kept = w->n_traced < TRACE_MAX ? w->n_traced : TRACE_MAX;
        struct trace_event *e = w->events;

        for (uint64_t i = w->n_traced - kept; i < w->n_traced; i++, e++) {
                const struct traced *t = &w->trace[i % TRACE_MAX];

                *e = (struct trace_event){ .who = t->who,
                                           .group = group_number(t->group),
                                           .version = t->version,
                                           .begin = (double)t->begun_ns / 1000,
                                           .took = (double)t->took_ns / 1000 };
                snprintf(e->what, sizeof e->what, "%s", wait_names[t->what]);
        }
        for (uint32_t i = 0; i < w->n_waits; i++, e++) {
                const struct waited *wait = &w->waits[i];

                *e = (struct trace_event){ .who = wait->rank,
                                           .group = group_number(wait->group),
                                           .begin = (double)wait->begun_ns / 1000,
                                           .took = (double)(w->now_ns - wait->begun_ns) / 1000,
                                           .waits_for = wait->line.who,
                                           .waits_what = wait->line.what };
                snprintf(e->what, sizeof e->what, "%s", wait_names[wait->what]);
        }
        return (size_t)(e - w->events);
}

static int write_all(struct recording *w, int fd)
{
        struct trace_names names = { name_node, name_group, w };
        struct trace_file *t;
        FILE *out = fdopen(fd, "w");
        int error = 0;

        if (!out) {
                close(fd);
                return ENOMEM;
        }
        t = trace_file_begin(out, &names);
        if (t) {
                trace_file_node(t, w->x->cluster->self, node_name(w->x, w->x->cluster->self),
                                w->events, list_events(w), 0);
                trace_file_end(t);
        }
        errno = 0;
        if (fflush(out) || ferror(out))
                error = errno ? errno : EIO;
        if (fclose(out) && !error)
                error = errno;
        return t ? error : ENOMEM;
}

/* Nobody takes an unfinished file for a whole one: it has no name that ends in .json. */
static int write_file(struct recording *w, int directory)
{
        char part[FILE_NAME_SIZE], user[16];
        int fd, error;

        snprintf(user, sizeof user, "%u-", w->job->uid);
        remove_oldest(directory, user, RECORDINGS_OF_USER);
        remove_oldest(directory, "", RECORDINGS_MAX);
        snprintf(part, sizeof part, ".%.60s.part", node_name(w->x, w->x->cluster->self));
        fd = openat(directory, part, O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW | O_CLOEXEC, 0600);
        if (fd < 0)
                return errno;
        error = write_all(w, fd);
        if (!error && renameat(directory, part, directory, w->name))
                error = errno;
        if (error)
                unlinkat(directory, part, 0);
        return error;
}

static void recording_run(struct blocking_work *work)
{
        struct recording *w = CONTAINER_OF(work, struct recording, work);
        const char *path = w->x->conf->log_dir;

        if (mkdir(path, 0700) < 0 && errno != EEXIST) {
                w->error = errno;
                return;
        }
        CLEANUP(cleanup_close) int directory = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        w->error = directory < 0 ? errno : write_file(w, directory);
}

/* ---- on the loop thread ---- */

static void recording_end(struct recording *w)
{
        const char *directory = w->x->conf->log_dir;
        uint32_t user = w->job->uid;

        if (!directory[0])
                log_warning_for(user,
                                "job '%s': %s of rank %u: %s; with log_dir set, zerod would write "
                                "down what took time before",
                                w->job->name, w->call, w->rank, w->why);
        else if (w->error)
                log_warning_for(user,
                                "job '%s': %s of rank %u: %s; what took time before cannot be "
                                "written to log_dir %s: %s",
                                w->job->name, w->call, w->rank, w->why, directory,
                                strerror(w->error));
        else
                log_warning_for(user,
                                "job '%s': %s of rank %u: %s; what took time before is in %s/%s, "
                                "for ui.perfetto.dev",
                                w->job->name, w->call, w->rank, w->why, directory, w->name);
        w->x->recorder->writing = NULL;
        w->job->onlookers--;
        job_let_go(w->job);
        free(w);
}

static void recording_done(struct blocking_work *work)
{
        recording_end(CONTAINER_OF(work, struct recording, work));
}

static void add_wait(struct recording *w, const struct request *r, const struct wait_line *line)
{
        if (w->n_waits < WAIT_LINES)
                w->waits[w->n_waits++] =
                        (struct waited){ r->traced.what, r->traced.rank, r->traced.group,
                                         r->traced.begun_ns, *line };
}

/* The request itself has forgotten what it waited for; its text has not: "...waiting for WHO: WHAT"
 */
static void add_expired(struct recording *w, const struct request *r)
{
        static const char before[] = "waiting for ";
        const char *who = strstr(w->why, before), *what;
        struct wait_line line = { "" };

        who = who ? who + strlen(before) : w->why;
        what = strstr(who, ": ");
        snprintf(line.who, sizeof line.who, "%.*s", what ? (int)(what - who) : (int)strlen(who),
                 who);
        snprintf(line.what, sizeof line.what, "%s", what ? what + 2 : "");
        add_wait(w, r, &line);
}

static void add_waits(struct recording *w)
{
        list_for_each (&w->x->requests.all, item) {
                const struct request *r = CONTAINER_OF(item, struct request, deadline);
                struct wait_line line = { "" };

                if (r->traced.job != w->job || !r->describe)
                        continue;
                r->describe(r, &line);
                add_wait(w, r, &line);
        }
}

static void name_file(struct recording *w)
{
        time_t now = time(NULL);
        char begin[NAME_USER + 1];
        struct tm utc;

        strftime(begin, sizeof begin, NAME_FORMAT, gmtime_r(&now, &utc));
        snprintf(w->name, sizeof w->name, "%s%u-%.60s-%.120s.json", begin, w->job->uid,
                 node_name(w->x, w->x->cluster->self), w->job->name);
}

void recorder_deadline(struct job *job, const struct request *r, const char *why)
{
        struct engine *x = job->x;
        struct progress *p = job->progress;
        uint64_t now = engine_now(x);
        struct recording *w;

        if (x->recorder->writing || (p->recorded_ms && now - p->recorded_ms < RECORD_EVERY_MS))
                return;
        w = calloc(1, sizeof *w);
        if (!w)
                return;
        p->recorded_ms = now;
        x->recorder->writing = w;
        w->x = x;
        w->job = job;
        job_hold(job); /* not job_ref(): a drop waits for such references */
        job->onlookers++;
        w->call = wait_names[r->traced.what];
        w->rank = r->traced.rank;
        snprintf(w->why, sizeof w->why, "%s", why);
        if (!x->conf->log_dir[0]) {
                recording_end(w);
                return;
        }
        w->now_ns = uv_hrtime();
        w->n_traced = p->n_traced;
        memcpy(w->trace, p->trace, sizeof w->trace);
        add_expired(w, r);
        add_waits(w);
        name_file(w);
        w->work = (struct blocking_work){ .run = recording_run,
                                          .done = recording_done,
                                          .what = "to write to log_dir about job",
                                          .of = job->name,
                                          .uid = job->uid };
        blocking_submit(x->blocking, LANE_FILES, &w->work);
}

static bool recorder_idle(const struct engine *x)
{
        return !x->recorder->writing;
}

const struct module recorder_module = { .node_at = offsetof(struct engine, recorder),
                                        .node_bytes = sizeof(struct recorder),
                                        .idle = recorder_idle };
