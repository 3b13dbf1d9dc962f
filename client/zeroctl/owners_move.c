/*
 * Follows jobs to where the owner list has them.  The daemon that is asked starts anew meanwhile,
 * and others do: what cannot be asked just now is asked again.  The moves go on without zeroctl.
 */
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "progress.h"
#include "view.h"

enum { PUZZLED_S = 10 };

struct follow {
        struct ctl *ctl;
        double epoch; /* or a later one */
        struct progress progress;
        double until;         /* it gives up, if nothing moves */
        double puzzled_until; /* 0: it is not */
        double bytes, total;
        size_t jobs;
        char wait[700]; /* who keeps it waiting */
        char told[700]; /* what was said of a job that cannot go on */
        char *back;     /* why the owners were taken back */
};

/* ---- interrupted ----------------------------------------------------------------------------- */

static void on_interrupt(int signal_number)
{
        static const char text[] =
                "\nzeroctl: interrupted: the owners are changed, and jobs go on moving; "
                "zeroctl status shows how far they are\n";
        ssize_t n = write(STDERR_FILENO, text, sizeof text - 1);

        (void)n;
        signal(signal_number, SIG_DFL);
        raise(signal_number);
}

/* ---- one look ----------------------------------------------------------------------------------
 */

static void note_wait(struct follow *f, const char *job, const json_t *wait)
{
        if (f->wait[0] || !json_is_object(wait))
                return;
        snprintf(f->wait, sizeof f->wait, "%s%s%s%s, %s", job[0] ? "job " : "", job,
                 job[0] ? " waits for " : "", field_text(wait, "for"), field_text(wait, "what"));
}

/* Of jobs that a person must help. */
static void tell_trouble(struct follow *f, const json_t *job)
{
        const char *what = field_text(job, "trouble");

        if (!what[0] || strncmp(f->told, what, sizeof f->told - 1) == 0)
                return;
        snprintf(f->told, sizeof f->told, "%s", what);
        progress_end(&f->progress);
        ctl_error("job %s cannot move: %s", field_text(job, "job"), what);
}

static void look(struct follow *f, const json_t *answer)
{
        const json_t *jobs = json_object_get(answer, "jobs");
        double bytes = 0, total = 0;
        json_t *item;
        size_t i;

        f->wait[0] = '\0';
        json_array_foreach(json_object_get(answer, "waiting"), i, item) note_wait(f, "", item);
        json_array_foreach(jobs, i, item)
        {
                bytes += field_number(item, "bytes");
                total += field_number(item, "total");
                note_wait(f, field_text(item, "job"), json_object_get(item, "waiting"));
                tell_trouble(f, item);
        }
        if (bytes > f->bytes || total != f->total || json_array_size(jobs) != f->jobs)
                f->until = progress_now() + owners_patience(f->ctl);
        f->bytes = bytes;
        f->total = total;
        f->jobs = json_array_size(jobs);
}

static void note_back(struct follow *f, const json_t *answer)
{
        json_t *back;
        size_t i;

        json_array_foreach(json_object_get(answer, "taken_back"), i, back)
        {
                if (field_number(back, "epoch") == f->epoch)
                        snprintf(f->back, OWNERS_WHY, "%s", field_text(back, "why"));
        }
}

static void draw(struct follow *f)
{
        char what[64];

        snprintf(what, sizeof what, "moving %zu job%s,", f->jobs, f->jobs == 1 ? "" : "s");
        if (f->total > 0)
                progress_show(&f->progress, what, f->bytes, f->total);
}

/* ---- until it is over -------------------------------------------------------------------------
 */

static int give_up(struct follow *f)
{
        progress_end(&f->progress);
        ctl_error(
                "the owners are changed, but for %.0f s nothing has moved: %s; it goes on without "
                "zeroctl, and zeroctl status shows how far it is",
                owners_patience(f->ctl), f->wait[0] ? f->wait : "this node's zerod is away");
        return CTL_FAILED;
}

/* The owners have changed once more: a node that has yet to come may know why. */
static bool is_puzzled(struct follow *f, const json_t *answer)
{
        double now = progress_now();

        if (field_number(answer, "epoch") == f->epoch || f->back[0] ||
            json_array_size(json_object_get(answer, "unheard")) == 0)
                return false;
        if (f->puzzled_until == 0)
                f->puzzled_until = now + PUZZLED_S;
        return now < f->puzzled_until;
}

static bool is_over(struct follow *f, const json_t *answer)
{
        return field_true(answer, "over") && field_number(answer, "epoch") >= f->epoch &&
               !is_puzzled(f, answer);
}

/* False: it is asked again. */
static bool ask(struct follow *f, const char *what, json_t **ret_answer)
{
        int r = ctl_query(f->ctl, what, NULL, ret_answer);

        if (r == ZERO_OK)
                return true;
        snprintf(f->wait, sizeof f->wait, "%s", zero_error(f->ctl->client));
        if (r == ZERO_ECLOSED && ctl_connect_again(f->ctl))
                snprintf(f->wait, sizeof f->wait, "%s", zero_error(NULL));
        return false;
}

static bool ask_once(struct follow *f, json_t **ret_view)
{
        json_t *answer;
        bool over;

        if (!ask(f, "moves", &answer))
                return false;
        look(f, answer);
        note_back(f, answer);
        over = is_over(f, answer);
        json_decref(answer);
        return over && ask(f, "view", ret_view);
}

int owners_follow(struct ctl *ctl, double epoch, json_t **ret_view, char back[static OWNERS_WHY])
{
        struct follow f = { .ctl = ctl, .epoch = epoch, .back = back };
        struct sigaction action = { .sa_handler = on_interrupt };

        sigaction(SIGINT, &action, NULL);
        progress_init(&f.progress, ctl->json);
        f.until = progress_now() + owners_patience(ctl);
        while (!ask_once(&f, ret_view)) {
                if (progress_now() > f.until)
                        return give_up(&f);
                draw(&f);
                progress_nap(OWNERS_POLL_MS);
        }
        progress_end(&f.progress);
        return CTL_OK;
}
