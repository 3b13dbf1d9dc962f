/*
 * zeroctl top: jobs and traffic, once a second, on the terminal's alternate screen.
 * Restores the terminal at every end: q, a signal, an error.
 */
#include "ctl.h"

#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <termios.h>
#include <time.h>
#include <unistd.h>

#include "owners.h"
#include "progress.h"
#include "table.h"
#include "units.h"

enum { INTERVAL_MS = 1000, KINDS_MAX = TABLE_COLUMNS - 1 };

static volatile sig_atomic_t ended;

/* ---- the picture ------------------------------------------------------- */

static double now(void)
{
        struct timespec t;

        clock_gettime(CLOCK_MONOTONIC, &t);
        return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

/* Bytes a second since the last picture; "-" for the first picture. */
static void add_rate(struct table *t, const json_t *peer, const json_t *before, const char *way,
                     const char *kind, double seconds)
{
        double bytes = field_number(json_object_get(peer, way), kind);
        double then = field_number(json_object_get(before, way), kind);

        if (before && seconds > 0 && bytes >= then)
                table_add(t, PAINT_NONE, "%s/s", unit_bytes((bytes - then) / seconds).text);
        else
                table_add(t, PAINT_NONE, "-");
}

static void show_rates(const struct ctl *ctl, FILE *out, const json_t *status, const json_t *before,
                       double seconds)
{
        struct table t;
        json_t *peer;
        size_t i;

        table_init(&t, "NODE|STATE|>RTT|BULK|>GATHER OUT|>IN|>REDUCE OUT|>IN");
        json_array_foreach(json_object_get(status, "peers"), i, peer)
        {
                const json_t *last = find_named(json_object_get(before, "peers"), "node",
                                                field_text(peer, "node"));
                bool up = field_true(peer, "up");

                if (field_true(peer, "self"))
                        continue;
                table_add(&t, PAINT_NONE, "%s", field_text(peer, "node"));
                add_peer_state(&t, peer);
                table_add(&t, PAINT_NONE, "%s",
                          up ? unit_seconds(field_number(peer, "round_trip_s")).text : "-");
                table_add(&t, PAINT_NONE, "%s", field_text(peer, "bulk"));
                add_rate(&t, peer, last, "sent", "gather", seconds);
                add_rate(&t, peer, last, "received", "gather", seconds);
                add_rate(&t, peer, last, "sent", "reduce", seconds);
                add_rate(&t, peer, last, "received", "reduce", seconds);
        }
        table_print(&t, out, ctl->colour);
        table_deinit(&t);
}

/* ---- where the time went ------------------------------------------------ */

/* How many ranks or owners of this node share a kind of wait; 1: payloads are not anybody's. */
static double sharers(const json_t *status, const json_t *job, const char *what)
{
        static const char *const calls[] = {
                "fetch", "push", "norm", "step", "all_reduce", "stash"
        };

        for (size_t i = 0; i < sizeof calls / sizeof calls[0]; i++)
                if (strcmp(what, calls[i]) == 0)
                        return (double)json_array_size(json_object_get(job, "sessions"));
        if (strcmp(what, "vote") != 0 && strcmp(what, "update") != 0)
                return 1;
        return owners_count(job, field_text(status, "node"));
}

/* Adds "shares" to each job: parts of the time since `before` that waits took which ended in it. */
static void add_shares(json_t *status, const json_t *before, double seconds)
{
        json_t *job, *wait;
        size_t i, k;

        json_object_set_new(status, "interval_s", json_real(seconds));
        json_array_foreach(json_object_get(status, "jobs"), i, job)
        {
                const json_t *then =
                        find_named(json_object_get(before, "jobs"), "job", field_text(job, "job"));
                json_t *shares = json_object();

                json_object_set_new(job, "shares", shares);
                json_array_foreach(json_object_get(job, "waited"), k, wait)
                {
                        const char *what = field_text(wait, "for");
                        const json_t *last =
                                find_named(json_object_get(then, "waited"), "for", what);
                        double n = sharers(status, job, what);
                        double took = field_number(wait, "sum_s") - field_number(last, "sum_s");

                        if (last && n > 0 && took >= 0 && seconds > 0)
                                json_object_set_new(shares, what, json_real(took / n / seconds));
                }
        }
}

/* Kinds of which a job has some, with names that fit 80 columns. */
static unsigned list_kinds(const json_t *jobs, const char *ret[static KINDS_MAX], char *ret_headers,
                           size_t size)
{
        static const char *const kinds[][2] = {
                { "fetch", "FETCH" },   { "push", "PUSH" },         { "norm", "NORM" },
                { "step", "STEP" },     { "all_reduce", "ALLRED" }, { "stash", "STASH" },
                { "vote", "VOTE" },     { "update", "UPDATE" },     { "gather", "GATHER" },
                { "reduce", "REDUCE" }, { "stash_parts", "PARTS" }, { "state", "STATE" },
        };
        size_t at = (size_t)snprintf(ret_headers, size, "JOB");
        unsigned n = 0;

        for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++) {
                double most = 0;
                json_t *job;
                size_t k;

                json_array_foreach(jobs, k, job)
                {
                        double share = field_number(json_object_get(job, "shares"), kinds[i][0]);

                        most = share > most ? share : most;
                }
                if (most <= 0)
                        continue;
                ret[n++] = kinds[i][0];
                at += (size_t)snprintf(ret_headers + at, size - at, "|>%s", kinds[i][1]);
        }
        return n;
}

static void show_shares(const struct ctl *ctl, FILE *out, const json_t *jobs)
{
        const char *kinds[KINDS_MAX];
        char headers[256];
        unsigned n = list_kinds(jobs, kinds, headers, sizeof headers);
        struct table t;
        json_t *job;
        size_t i;

        if (n == 0)
                return;
        table_init(&t, headers);
        json_array_foreach(jobs, i, job)
        {
                const json_t *shares = json_object_get(job, "shares");

                table_add(&t, PAINT_NONE, "%.24s", field_text(job, "job"));
                for (unsigned k = 0; k < n; k++)
                        table_add(&t, PAINT_NONE, "%.0f%%", 100 * field_number(shares, kinds[k]));
        }
        fputs("time that what ended lately took here:\n", out);
        table_print(&t, out, ctl->colour);
        fputc('\n', out);
        table_deinit(&t);
}

static void show_picture(const struct ctl *ctl, FILE *out, const json_t *status,
                         const json_t *before, double seconds)
{
        const json_t *jobs = json_object_get(status, "jobs");

        show_verdict(ctl, out, status);
        fprintf(out, "%snode %s%s: zerod %s, up %s\n", paint_begin(PAINT_HEAD, ctl->colour),
                field_text(status, "node"), paint_end(PAINT_HEAD, ctl->colour),
                field_text(status, "version"), unit_seconds(field_number(status, "uptime_s")).text);
        show_memory(out, json_object_get(status, "memory"));
        fputc('\n', out);
        show_jobs(ctl, out, jobs);
        show_waiting(ctl, out, jobs);
        fputc('\n', out);
        show_shares(ctl, out, jobs);
        show_rates(ctl, out, status, before, seconds);
}

/* What show() compares with. */
static const json_t *earlier;
static double interval;

static void show(const struct ctl *ctl, FILE *out, const json_t *answer)
{
        show_picture(ctl, out, answer, earlier, interval);
}

/* One picture, of a second. */
static int show_once(struct ctl *ctl, json_t *before)
{
        double asked = now();
        json_t *status;
        int r;

        progress_nap(INTERVAL_MS);
        r = ctl_ask(ctl, "status", &status);
        if (r == CTL_OK) {
                interval = now() - asked;
                earlier = before;
                add_shares(status, before, interval);
                r = ctl_show(ctl, status, show);
        }
        json_decref(before);
        return r;
}

/* ---- the terminal ------------------------------------------------------ */

static void end(int signal_number)
{
        ended = 1;
}

static void redraw(int signal_number)
{
        /* the signal itself ends the wait for a key */
}

static void catch_signals(void)
{
        struct sigaction ending = { .sa_handler = end }, redrawing = { .sa_handler = redraw };

        sigaction(SIGINT, &ending, NULL);
        sigaction(SIGTERM, &ending, NULL);
        sigaction(SIGHUP, &ending, NULL);
        sigaction(SIGWINCH, &redrawing, NULL);
}

/* Alternate screen, no cursor, no wrapping, no echo; each key is read at once. */
static bool terminal_enter(struct termios *ret_before)
{
        struct termios raw;

        if (tcgetattr(STDIN_FILENO, ret_before) < 0)
                return false;
        raw = *ret_before;
        raw.c_lflag &= ~(tcflag_t)(ICANON | ECHO);
        tcsetattr(STDIN_FILENO, TCSANOW, &raw);
        fputs("\033[?1049h\033[?25l\033[?7l", stdout);
        return true;
}

static void terminal_leave(const struct termios *before)
{
        fputs("\033[?7h\033[?25h\033[?1049l", stdout);
        fflush(stdout);
        tcsetattr(STDIN_FILENO, TCSANOW, before);
}

/* Draws as many lines as the terminal has. */
static void draw(const char *picture)
{
        struct winsize size = { 0 };
        unsigned rows;

        ioctl(STDOUT_FILENO, TIOCGWINSZ, &size);
        rows = size.ws_row > 1 ? size.ws_row - 1u : 24;
        fputs("\033[H", stdout);
        for (const char *line = picture; *line && rows > 0; rows--) {
                size_t n = strcspn(line, "\n");

                fwrite(line, 1, n, stdout);
                fputs("\033[K\r\n", stdout);
                line += n + (line[n] == '\n');
        }
        fputs("\033[J", stdout);
        fflush(stdout);
}

static bool quit_pressed(void)
{
        struct pollfd p = { .fd = STDIN_FILENO, .events = POLLIN };
        char key;

        if (poll(&p, 1, 1000) <= 0)
                return false;
        return read(STDIN_FILENO, &key, 1) <= 0 || key == 'q' || key == 'Q';
}

static int draw_status(const struct ctl *ctl, const json_t *status, const json_t *before,
                       double seconds)
{
        char *picture = NULL;
        size_t size;
        FILE *out = open_memstream(&picture, &size);

        if (!out)
                return CTL_FAILED;
        show_picture(ctl, out, status, before, seconds);
        fclose(out);
        draw(picture);
        free(picture);
        return CTL_OK;
}

static int watch(struct ctl *ctl, json_t *status)
{
        json_t *before = NULL;
        double drawn = now(), seconds = 0;
        int r;

        for (;;) {
                r = draw_status(ctl, status, before, seconds);
                json_decref(before);
                before = status;
                if (r != CTL_OK || ended || quit_pressed() || ended)
                        break;
                r = ctl_ask(ctl, "status", &status);
                if (r != CTL_OK)
                        break;
                seconds = now() - drawn;
                drawn += seconds;
                add_shares(status, before, seconds);
        }
        json_decref(before);
        return r;
}

static bool once;

static const struct command_option options[] = {
        { "once", NULL, "print one picture and end", .flag = &once },
        { 0 },
};

static int run(struct ctl *ctl)
{
        struct termios before;
        json_t *status;
        int r;

        r = ctl_ask(ctl, "status", &status);
        if (r != CTL_OK)
                return r;
        if (ctl->json || once || !isatty(STDIN_FILENO) || !isatty(STDOUT_FILENO))
                return show_once(ctl, status);
        catch_signals();
        if (!terminal_enter(&before))
                return show_once(ctl, status);
        r = watch(ctl, status);
        terminal_leave(&before);
        return r;
}

const struct command command_top = {
        .name = "top",
        .summary = "jobs and traffic, live; q ends it",
        .description =
                "Jobs and traffic, drawn again every second until *q* is pressed. Without a "
                "terminal, or with *--once*, one picture of one second.\n"
                "For each job a line says what time the waits took that ended in that second on "
                "this node: calls of its ranks (fetch, push, norm, step, allred, stash) as a share "
                "of the ranks' time, votes and updates as a share of its owners', and payloads "
                "from other nodes (gather, reduce, parts, state), which add up if several travel "
                "at once. A wait that took longer than the second counts whole when it ends. Kinds "
                "that took no time are left out. In JSON they are each job's *shares* of "
                "*interval_s*, 1 for all of it.",
        .options = options,
        .run = run,
};
