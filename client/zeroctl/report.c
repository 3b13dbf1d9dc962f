/*
 * zeroctl report: what somebody who helps wants to see, in one archive.
 *
 * A directory beside the archive takes the files; tar packs them there; then the archive gets its
 * name.  So an archive of that name is whole.  Every part is bounded, and a part that cannot be had
 * is named in missing.txt.
 */
#include "ctl.h"

#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <limits.h>
#include <spawn.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/utsname.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { LOG_BYTES = 8 << 20, JOBS_MAX = 32, PATH_SIZE = PATH_MAX };

static const char top[] = "zerod-report", ending[] = ".tar.zst", log_lines[] = "20000";
static const char *log_file;

struct report {
        struct ctl *ctl;
        char directory[PATH_SIZE]; /* for the files, and the archive until it is whole */
        FILE *missing;
        bool failed;
};

static void path_in(const struct report *p, const char *name, char ret[static PATH_SIZE])
{
        if (snprintf(ret, PATH_SIZE, "%.3000s/%s/%.500s", p->directory, top, name) >= PATH_SIZE)
                ret[0] = '\0';
}

/* What the disk says goes for the whole report; a part that cannot be had is only noted. */
static void fail(struct report *p, const char *path, int error)
{
        ctl_error("report: %s: %s", path, strerror(error));
        p->failed = true;
}

static void __attribute__((format(printf, 2, 3))) note(struct report *p, const char *format, ...)
{
        va_list arguments;

        va_start(arguments, format);
        vfprintf(p->missing, format, arguments);
        va_end(arguments);
        fputc('\n', p->missing);
}

static void close_file(struct report *p, FILE *out, const char *path)
{
        bool whole = !ferror(out);

        errno = EIO; /* unless fclose() knows better */
        if (fclose(out) || !whole)
                fail(p, path, errno);
}

/* ---- what zerod knows ---- */

static void save_json(struct report *p, const char *name, const json_t *answer)
{
        char path[PATH_SIZE];
        FILE *out;

        path_in(p, name, path);
        out = fopen(path, "we");
        if (!out) {
                fail(p, path, errno);
                return;
        }
        json_dumpf(answer, out, JSON_INDENT(2) | JSON_PRESERVE_ORDER);
        close_file(p, out, path);
}

static bool ask(struct report *p, const char *what, json_t **ret)
{
        int r = ctl_query(p->ctl, what, "", ret);

        if (r)
                note(p, "%s: %s (%s)", what, zero_error(p->ctl->client), zero_status_name(r));
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

        for (size_t i = 0; i < sizeof parts / sizeof parts[0] && !p->failed; i++) {
                if (!ask(p, parts[i][0], &answer))
                        continue;
                save_json(p, parts[i][1], answer);
                json_decref(answer);
        }
}

static void add_trace(struct report *p, const char *job)
{
        char name[300], path[PATH_SIZE];
        unsigned lines;
        json_t *answer;
        int r = ctl_query(p->ctl, "trace", job, &answer);

        if (r) {
                note(p, "trace of job %s: %s (%s)", job, zero_error(p->ctl->client),
                     zero_status_name(r));
                return;
        }
        snprintf(name, sizeof name, "trace-%s.json", job);
        path_in(p, name, path);
        p->failed = trace_save(p->ctl, job, answer, path, &lines) != CTL_OK;
        json_decref(answer);
}

/* Of the jobs that the caller may see. */
static void add_traces(struct report *p)
{
        json_t *jobs, *job;
        size_t i;

        if (p->failed || !ask(p, "jobs", &jobs))
                return;
        json_array_foreach(json_object_get(jobs, "jobs"), i, job)
        {
                if (i < JOBS_MAX && !p->failed)
                        add_trace(p, field_text(job, "job"));
        }
        if (i > JOBS_MAX)
                note(p, "traces of more than %d jobs", JOBS_MAX);
        json_decref(jobs);
}

/* ---- the log ---- */

static int run_program(char *const arguments[], const char *output)
{
        posix_spawn_file_actions_t files;
        int status = -1, r = posix_spawn_file_actions_init(&files);
        pid_t pid;

        if (r)
                return r;
        if (output)
                r = posix_spawn_file_actions_addopen(&files, STDOUT_FILENO, output,
                                                     O_WRONLY | O_CREAT | O_TRUNC, 0600);
        if (!r)
                r = posix_spawnp(&pid, arguments[0], &files, NULL, arguments, environ);
        posix_spawn_file_actions_destroy(&files);
        if (r)
                return r;
        while (waitpid(pid, &status, 0) < 0 && errno == EINTR)
                ;
        return WIFEXITED(status) && WEXITSTATUS(status) == 0 ? 0 : ECANCELED;
}

/* The last LOG_BYTES of a file. */
static void copy_tail(struct report *p, const char *from, const char *name)
{
        char path[PATH_SIZE], bytes[1 << 16];
        FILE *in = fopen(from, "re"), *out;
        size_t n, left = LOG_BYTES;
        struct stat st;

        if (!in || fstat(fileno(in), &st) || !S_ISREG(st.st_mode)) {
                note(p, "log: %s: %s", from, in ? "not a file" : strerror(errno));
                if (in)
                        fclose(in);
                return;
        }
        path_in(p, name, path);
        out = fopen(path, "we");
        if (!out) {
                fail(p, path, errno);
                fclose(in);
                return;
        }
        if (st.st_size > LOG_BYTES)
                fseeko(in, st.st_size - LOG_BYTES, SEEK_SET);
        while (left && (n = fread(bytes, 1, left < sizeof bytes ? left : sizeof bytes, in)) > 0) {
                fwrite(bytes, 1, n, out);
                left -= n;
        }
        fclose(in);
        close_file(p, out, path);
}

static void add_log(struct report *p)
{
        char path[PATH_SIZE];
        char *const arguments[] = { "journalctl",      "--unit=zerod",
                                    "--no-pager",      "--output=short-iso",
                                    "--quiet",         "--lines",
                                    (char *)log_lines, NULL };
        int r;

        if (log_file) {
                copy_tail(p, log_file, "log");
                return;
        }
        snprintf(path, sizeof path, "%.3000s/journal", p->directory);
        r = run_program(arguments, path);
        if (r)
                note(p, "log: journalctl --unit=zerod: %s; --log names the log's file",
                     r == ECANCELED ? "it failed" : strerror(r));
        else
                copy_tail(p, path, "log");
}

/* ---- the archive ---- */

static void add_about(struct report *p)
{
        char path[PATH_SIZE];
        struct utsname machine;
        time_t now = time(NULL);
        FILE *out;

        path_in(p, "about.txt", path);
        out = fopen(path, "we");
        if (!out) {
                fail(p, path, errno);
                return;
        }
        uname(&machine);
        fprintf(out, "zeroctl %s\n%s%s %s %s\nuser %u\n", ZEROD_VERSION, ctime(&now),
                machine.sysname, machine.release, machine.machine, (unsigned)getuid());
        close_file(p, out, path);
}

static int begin(struct report *p)
{
        char path[PATH_SIZE];

        umask(077);
        if (snprintf(p->directory, sizeof p->directory, "%.3000s.XXXXXX", p->ctl->argument) < 0 ||
            !mkdtemp(p->directory)) {
                ctl_error("report: %s: %s", p->ctl->argument, strerror(errno));
                return CTL_FAILED;
        }
        path_in(p, "", path);
        if (mkdir(path, 0700) == 0) {
                path_in(p, "missing.txt", path);
                p->missing = fopen(path, "we");
        }
        if (!p->missing)
                fail(p, path, errno);
        return p->missing ? CTL_OK : CTL_FAILED;
}

static void pack(struct report *p)
{
        char archive[PATH_SIZE], option[PATH_SIZE + 16], in[PATH_SIZE + 16];
        char *const arguments[] = { "tar",  "--create", "--zstd",    "--force-local",
                                    option, in,         (char *)top, NULL };
        int r;

        snprintf(archive, sizeof archive, "%.3000s/archive", p->directory);
        snprintf(option, sizeof option, "--file=%s", archive);
        snprintf(in, sizeof in, "--directory=%s", p->directory);
        r = run_program(arguments, NULL);
        if (r) {
                ctl_error("report: %s: tar --zstd %s", p->ctl->argument,
                          r == ECANCELED ? "could not write it; see above" : strerror(r));
                p->failed = true;
        } else if (rename(archive, p->ctl->argument)) {
                fail(p, p->ctl->argument, errno);
        }
}

static int remove_one(const char *path, const struct stat *st, int kind, struct FTW *at)
{
        return remove(path);
}

static void connect_if_up(struct report *p)
{
        if (zero_connect(&p->ctl->options, &p->ctl->client) == ZERO_OK)
                return;
        note(p, "all that zerod knows: %s", zero_error(NULL));
        ctl_error("report: %s; the report is without what zerod knows", zero_error(NULL));
        p->ctl->client = NULL;
}

static int run(struct ctl *ctl)
{
        static struct report p;
        char path[PATH_SIZE];
        int r;

        p.ctl = ctl;
        r = begin(&p);
        if (r == CTL_OK) {
                add_about(&p);
                connect_if_up(&p);
                if (ctl->client) {
                        add_answers(&p);
                        add_traces(&p);
                }
                add_log(&p);
                path_in(&p, "missing.txt", path);
                close_file(&p, p.missing, path);
                if (!p.failed)
                        pack(&p);
                r = p.failed ? CTL_FAILED : CTL_OK;
        }
        if (p.directory[0])
                nftw(p.directory, remove_one, 8, FTW_DEPTH | FTW_PHYS);
        if (r == CTL_OK)
                printf("%s: read it before you send it: names of jobs, users, nodes and paths are "
                       "in it, but neither parameters nor keys\n",
                       ctl->argument);
        return r;
}

static int check(const struct ctl *ctl)
{
        size_t n = strlen(ctl->argument), e = strlen(ending);

        if (n > e && strcmp(ctl->argument + n - e, ending) == 0 && n < PATH_MAX / 2)
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
                "On an error there is no <FILE>.",
        .options = options,
        .check = check,
        .run = run,
        .connects = true,
};
