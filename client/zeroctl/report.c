/*
 * zeroctl report: what somebody who helps wants to see, in one archive.
 *
 * A directory beside the archive takes the files; tar packs them there; then the archive gets its
 * name.  So an archive of that name is whole.  Every part is bounded, and a part that cannot be had
 * is named in missing.txt.  However it ends, by a signal too, the directory and the programs go.
 */
#include "ctl.h"

#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/stat.h>
#include <sys/utsname.h>
#include <time.h>
#include <unistd.h>

#include "program.h"

/* A line of the journal has 32 bytes at least: its time, host, name and number. */
#define LOG_BYTES 8388608
#define LOG_LINES 262144
#define TEXT_OF(x) #x
#define TEXT(x) TEXT_OF(x)

enum { JOBS_MAX = 32 };

static const char top[] = "zerod-report", ending[] = ".tar.zst";
static const char *log_file;

struct report {
        struct ctl *ctl;
        char *directory; /* NULL: not made */
        int files;       /* the directory `top` in it */
        FILE *missing;
        unsigned n_missing; /* lines */
        json_t *status;     /* what zerod answered; NULL: nothing */
        bool failed;
};

/* ---- interrupted ---- */

static volatile sig_atomic_t interrupted; /* by this signal */
static int stop_fd;                       /* can be read then */
static struct zero_client *talking;       /* or NULL */

static void on_signal(int number)
{
        int error = errno;

        interrupted = number;
        eventfd_write(stop_fd, 1);
        if (talking)
                zero_interrupt(talking);
        errno = error;
}

static int catch_signals(struct zero_client *client)
{
        static const int signals[] = { SIGINT, SIGTERM, SIGHUP };
        struct sigaction action = { .sa_handler = on_signal }, now;

        talking = client;
        stop_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
        if (stop_fd < 0)
                return -errno;
        for (size_t i = 0; i < sizeof signals / sizeof signals[0]; i++)
                if (sigaction(signals[i], NULL, &now) == 0 && now.sa_handler != SIG_IGN)
                        sigaction(signals[i], &action, NULL);
        return 0;
}

static bool is_over(const struct report *p)
{
        return p->failed || interrupted;
}

/* ---- parts ---- */

/* What the disk says goes for the whole report; a part that cannot be had is only noted. */
static void fail(struct report *p, const char *name, int error)
{
        ctl_error("report: %s: %s", name, strerror(error));
        p->failed = true;
}

static void __attribute__((format(printf, 2, 3))) note(struct report *p, const char *format, ...)
{
        va_list arguments;

        va_start(arguments, format);
        vfprintf(p->missing, format, arguments);
        va_end(arguments);
        fputc('\n', p->missing);
        p->n_missing++;
}

static FILE *create(struct report *p, const char *name)
{
        int fd = openat(p->files, name, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
        FILE *out = fd < 0 ? NULL : fdopen(fd, "w");

        if (!out)
                fail(p, name, errno);
        return out;
}

static void close_file(struct report *p, FILE *out, const char *name)
{
        int error = !ferror(out) ? 0 : errno ? errno : EIO; /* of the write that failed */

        if (fclose(out))
                error = errno;
        if (error)
                fail(p, name, error);
}

/* ---- what zerod knows ---- */

static void save_json(struct report *p, const char *name, const json_t *answer)
{
        FILE *out = create(p, name);

        if (!out)
                return;
        json_dumpf(answer, out, JSON_INDENT(2) | JSON_PRESERVE_ORDER);
        close_file(p, out, name);
}

/* part: what is missing if there is no answer. */
static bool ask(struct report *p, const char *what, const char *argument, const char *part,
                json_t **ret)
{
        int r = ctl_query(p->ctl, what, argument, ret);

        if (r)
                note(p, "%s: %s (%s)", part, zero_error(p->ctl->client), zero_status_name(r));
        return r == ZERO_OK;
}

static void add_answers(struct report *p)
{
        static const char *const parts[][2] = {
                { "config", "config.json" }, { "nodes", "nodes.json" },
                { "status", "status.json" }, { "members", "members.json" },
                { "moves", "moves.json" },   { "ping", "ping.json" },
                { "examine", "doctor.json" }
        };
        json_t *answer;

        for (size_t i = 0; i < sizeof parts / sizeof parts[0] && !is_over(p); i++) {
                if (!ask(p, parts[i][0], "", parts[i][1], &answer))
                        continue;
                save_json(p, parts[i][1], answer);
                if (strcmp(parts[i][0], "status") == 0)
                        p->status = json_incref(answer);
                json_decref(answer);
        }
}

/* A name has 255 bytes, and so may that of a job. */
static void add_trace(struct report *p, const char *job, size_t i)
{
        char name[200], part[300];
        json_t *answer;
        unsigned lines;
        FILE *out;
        int r;

        snprintf(part, sizeof part, "trace of job %s", job);
        if (!ask(p, "trace", job, part, &answer))
                return;
        snprintf(name, sizeof name, "trace-%.120s-%zu.json", job, i);
        out = create(p, name);
        r = out ? trace_write(p->ctl, job, p->status, answer, out, &lines) : 0;
        if (r == -ENOSPC || r == -EDQUOT)
                fail(p, name, -r);
        else if (r)
                note(p, "%s: %s", part, strerror(-r));
        if (out)
                fclose(out); /* trace_write() has flushed it */
        json_decref(answer);
}

/* Of the jobs that the caller may see. */
static void add_traces(struct report *p)
{
        json_t *jobs, *job;
        size_t i;

        if (is_over(p) || !ask(p, "jobs", "", "traces", &jobs))
                return;
        json_array_foreach(json_object_get(jobs, "jobs"), i, job)
        {
                if (i < JOBS_MAX && !is_over(p))
                        add_trace(p, field_text(job, "job"), i);
        }
        if (i > JOBS_MAX)
                note(p, "traces of more than %d jobs", JOBS_MAX);
        json_decref(jobs);
}

/* ---- the log ---- */

static const char *how(int r)
{
        return r < 0               ? strerror(-r)
               : r == PROGRAM_LATE ? "it did not end; see --timeout"
                                   : "it failed";
}

/* Copies the end of the file; says what is missing, or NULL. */
static const char *copy_end(const char *from, FILE *out)
{
        int fd = open(from, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
        FILE *in = fd < 0 ? NULL : fdopen(fd, "r");
        size_t n, left = LOG_BYTES;
        const char *flaw = NULL;
        char bytes[1 << 16];
        struct stat st;

        if (!in || fstat(fd, &st))
                return strerror(errno);
        if (!S_ISREG(st.st_mode))
                flaw = "not a file";
        else if (st.st_size > LOG_BYTES)
                fseeko(in, st.st_size - LOG_BYTES, SEEK_SET);
        while (!flaw && left &&
               (n = fread(bytes, 1, left < sizeof bytes ? left : sizeof bytes, in)) > 0) {
                fwrite(bytes, 1, n, out);
                left -= n;
        }
        if (ferror(in))
                flaw = strerror(errno);
        fclose(in);
        return flaw;
}

/* Has tail keep the end of what journalctl prints; the same. */
static const char *copy_journal(struct report *p, FILE *out)
{
        char *const tail[] = { "tail", "--bytes=" TEXT(LOG_BYTES), NULL };
        char *const journal[] = { "journalctl", "--unit=zerod",
                                  "--no-pager", "--output=short-iso",
                                  "--quiet",    "--lines=" TEXT(LOG_LINES),
                                  NULL };
        double patience = ctl_patience(p->ctl);
        pid_t keeps, prints;
        int ends[2], r, t;

        if (pipe2(ends, O_CLOEXEC))
                return strerror(errno);
        t = program_start(tail, ends[0], fileno(out), &keeps);
        r = program_start(journal, -1, ends[1], &prints);
        close(ends[0]);
        close(ends[1]);
        if (r == 0)
                r = program_end(prints, patience, stop_fd);
        if (t == 0)
                t = program_end(keeps, patience, stop_fd);
        if (t && !interrupted) {
                ctl_error("report: log: tail: %s", how(t));
                p->failed = true; /* it has read a pipe: the disk is full */
        }
        return r ? how(r) : NULL;
}

static void add_log(struct report *p)
{
        FILE *out = is_over(p) ? NULL : create(p, "log");
        const char *flaw;
        struct stat st;

        if (!out)
                return;
        flaw = log_file ? copy_end(log_file, out) : copy_journal(p, out);
        close_file(p, out, "log");
        if (fstatat(p->files, "log", &st, 0) == 0 && st.st_size == 0) {
                unlinkat(p->files, "log", 0);
                flaw = flaw ? flaw : "nothing is there";
        }
        if (flaw && log_file)
                note(p, "log: %s: %s", log_file, flaw);
        else if (flaw)
                note(p, "log: journalctl --unit=zerod: %s; --log names the log's file", flaw);
}

/* ---- the archive ---- */

static void add_about(struct report *p)
{
        FILE *out = create(p, "about.txt");
        struct utsname machine;
        time_t now = time(NULL);

        if (!out)
                return;
        uname(&machine);
        fprintf(out, "zeroctl %s\n%s%s %s %s\nuser %u\n", ZEROD_VERSION, ctime(&now),
                machine.sysname, machine.release, machine.machine, (unsigned)getuid());
        close_file(p, out, "about.txt");
}

static int make_directory(struct report *p)
{
        char *name, *path;
        int r = 0;

        if (asprintf(&name, "%s.XXXXXX", p->ctl->argument) < 0)
                return -ENOMEM;
        if (!mkdtemp(name)) {
                r = -errno;
                free(name);
                return r;
        }
        p->directory = name;
        if (asprintf(&path, "%s/%s", name, top) < 0)
                return -ENOMEM;
        if (mkdir(path, 0700) || (p->files = open(path, O_DIRECTORY | O_CLOEXEC)) < 0)
                r = -errno;
        free(path);
        return r;
}

static void pack(struct report *p)
{
        char *const tar[] = { "tar",         "--create",   "--zstd",    "--file=-",
                              "--directory", p->directory, (char *)top, NULL };
        int r, out = openat(p->files, "../archive", O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
        pid_t pid;

        if (out < 0) {
                fail(p, p->ctl->argument, errno);
                return;
        }
        r = program_start(tar, -1, out, &pid);
        if (r == 0)
                r = program_end(pid, ctl_patience(p->ctl), stop_fd);
        if (close(out) && r == 0)
                r = -errno;
        if (interrupted)
                return;
        if (r) {
                ctl_error("report: %s: tar --zstd: %s", p->ctl->argument, how(r));
                p->failed = true;
        } else if (renameat(p->files, "../archive", AT_FDCWD, p->ctl->argument)) {
                fail(p, p->ctl->argument, errno);
        }
}

static int remove_one(const char *path, const struct stat *st, int kind, struct FTW *at)
{
        return remove(path);
}

/* unreached: why zerod is not, or NULL. */
static void fill(struct report *p, const char *unreached)
{
        add_about(p);
        if (unreached) {
                note(p, "all that zerod knows: %s", unreached);
                ctl_error("report: %s; the report is without what zerod knows", unreached);
        } else {
                add_answers(p);
                add_traces(p);
        }
        add_log(p);
        close_file(p, p->missing, "missing.txt");
        if (!is_over(p))
                pack(p);
}

static void show(const struct ctl *ctl, FILE *out, const json_t *answer)
{
        fprintf(out,
                "%s: read it before you send it: names of jobs, users, nodes and paths are "
                "in it, but neither parameters nor keys\n",
                ctl->argument);
}

static void end(struct report *p)
{
        talking = NULL; /* it is closed soon */
        if (p->files >= 0)
                close(p->files);
        if (p->directory && nftw(p->directory, remove_one, 8, FTW_DEPTH | FTW_PHYS))
                fail(p, p->directory, errno);
        free(p->directory);
        json_decref(p->status);
        if (interrupted) {
                signal(interrupted, SIG_DFL);
                raise(interrupted);
        }
}

static int run(struct ctl *ctl)
{
        struct report p = { .ctl = ctl, .files = -1 };
        /* before there is anything that an interrupted call would leave */
        bool reached = zero_connect(&ctl->options, &ctl->client) == ZERO_OK;
        int r = catch_signals(reached ? ctl->client : NULL);

        if (r == 0)
                r = make_directory(&p);
        if (r)
                fail(&p, ctl->argument, -r);
        else if ((p.missing = create(&p, "missing.txt")))
                fill(&p, reached ? NULL : zero_error(NULL));
        end(&p);
        if (p.failed)
                return CTL_FAILED;
        return ctl_show(ctl,
                        json_pack("{s:s, s:i}", "file", ctl->argument, "missing", (int)p.n_missing),
                        show);
}

static int check(const struct ctl *ctl)
{
        size_t n = strlen(ctl->argument), e = strlen(ending);

        if (n > e && strcmp(ctl->argument + n - e, ending) == 0)
                return CTL_OK;
        ctl_error("report: the name of the FILE ends in %s", ending);
        return CTL_USAGE;
}

static const struct command_option options[] = {
        { .name = "log",
          .argument = "FILE",
          .help = "where zerod's log is; default: journalctl --unit=zerod",
          .text = &log_file },
        { NULL },
};

const struct command command_report = {
        .name = "report",
        .arguments = "FILE",
        .summary = "what somebody who helps wants to see, as one .tar.zst",
        .description =
                "Writes an archive for a bug report: options in effect and where they come from, "
                "the status of all nodes, owners and moves, round trips, a trace of each job that "
                "the caller may see, what *zeroctl doctor* finds, and the last 8 MiB of this "
                "node's "
                "log. Neither parameters nor keys nor tokens are in it. missing.txt says what "
                "could "
                "not be had, and why; only root and the user zerod runs as get all of it.\n"
                "Works without zerod, too, with what is left then: the log. Needs *tar* and "
                "*zstd*. "
                "On an error <FILE> is left as it was. *--json* prints the name, and how many "
                "lines "
                "missing.txt has.",
        .options = options,
        .check = check,
        .run = run,
        .connects = true,
};
