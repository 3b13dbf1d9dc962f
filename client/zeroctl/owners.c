/* See owners.h. */
#include "owners.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "progress.h"

enum { POLL_MS = 200, PUZZLED_S = 10, WHY_MAX = 500 };

bool owners_no_wait;

/* ---- reading the list of owners -------------------------------------------------------------- */

static bool is_among(const char *names, const char *name)
{
        size_t n = strlen(name);

        for (const char *p = names; p; p = strchr(p, ','), p += p != NULL)
                if (strncmp(p, name, n) == 0 && (p[n] == ',' || p[n] == '\0'))
                        return true;
        return false;
}

unsigned owners_count(const json_t *object, const char *nodes)
{
        unsigned n = 0;
        json_t *owner;
        size_t i;

        json_array_foreach(json_object_get(object, "owners"), i, owner)
        {
                n += json_is_string(owner) && is_among(nodes, json_string_value(owner));
        }
        return n;
}

/* Whether the owners are as the change wants them. */
static bool owners_fit(const json_t *members, const char *what, const char *argument)
{
        return (owners_count(members, argument) > 0) == (strcmp(what, "add-node") == 0);
}

/* Names the nodes whose votes the change waits for. */
static void tell_wait(const json_t *members, const char *dead)
{
        char away[1024] = "";
        size_t i, at = 0;
        json_t *n;

        if (field_true(members, "majority") && field_true(members, "voter"))
                return;
        json_array_foreach(json_object_get(members, "nodes"), i, n)
        {
                if (!field_true(n, "up") && !is_among(dead, field_text(n, "node")) &&
                    at < sizeof away)
                        at += (size_t)snprintf(away + at, sizeof away - at, "%s%s", at ? ", " : "",
                                               field_text(n, "node"));
        }
        if (at)
                ctl_error("waiting for the votes of %s; if that node will not come back, interrupt "
                          "this and see takeover in zeroctl(1)",
                          away);
}

/* ---- asking for a change --------------------------------------------------------------------- */

struct change {
        struct ctl *ctl;
        const char *what, *argument;
        double until;   /* when to give up */
        double epoch;   /* before the change */
        char told[600]; /* the last reason to wait that was printed */
};

/* Whether the change may be granted later.  A takeover may not: it is a person's word about now. */
static bool is_passing(const struct change *c, int status)
{
        return status == ZERO_EBUSY || status == ZERO_ECLOSED ||
               (status == ZERO_ECONFLICT && strcmp(c->what, "takeover") != 0);
}

/* Prints a reason once. */
static void tell_again(struct change *c, const char *why)
{
        if (strncmp(c->told, why, sizeof c->told - 1) == 0)
                return;
        snprintf(c->told, sizeof c->told, "%s", why);
        ctl_error("%s: %s; asking again", c->what, why);
}

/* Whether the change was made although no answer came. */
static bool is_made(struct change *c, json_t **ret_members)
{
        json_t *members;

        if (ctl_query(c->ctl, "members", NULL, &members))
                return false;
        if (field_number(members, "epoch") > c->epoch &&
            owners_fit(members, c->what, c->argument)) {
                *ret_members = members;
                return true;
        }
        json_decref(members);
        return false;
}

static int ask_until_made(struct change *c, json_t **ret_members)
{
        for (;;) {
                int r = ctl_query(c->ctl, c->what, c->argument, ret_members);
                const char *why = zero_error(c->ctl->client);

                if (r == ZERO_OK)
                        return CTL_OK;
                if (!is_passing(c, r) || progress_now() > c->until) {
                        ctl_error("%s: %s (%s)", c->what, why, zero_status_name(r));
                        return CTL_FAILED;
                }
                tell_again(c, why);
                progress_nap(POLL_MS);
                if (r == ZERO_ECLOSED)
                        ctl_connect_again(c->ctl);
                if (is_made(c, ret_members))
                        return CTL_OK;
        }
}

static int ask_for_change(struct ctl *ctl, const char *what, const char *argument,
                          json_t **ret_members)
{
        struct change c = { .ctl = ctl, .what = what, .argument = argument };
        json_t *members;
        int r = ctl_ask_about(ctl, "members", NULL, &members);

        if (r != CTL_OK)
                return r;
        tell_wait(members, strcmp(what, "takeover") == 0 ? argument : NULL);
        c.epoch = field_number(members, "epoch");
        c.until = progress_now() + ctl_patience(ctl);
        json_decref(members);
        return ask_until_made(&c, ret_members);
}

/* ---- following the moves ------------------------------------------------------------------- */

struct follow {
        struct ctl *ctl;
        double epoch; /* of the owners that jobs move to, or a later one */
        struct progress progress;
        double until;         /* when to give up if nothing moves */
        double puzzled_until; /* how long to wait for the node that took the change back; 0: no wait
                               */
        double bytes, total;
        size_t jobs;
        char wait[700]; /* whom and what it waits for */
        char told[700]; /* the last trouble of a job that was printed */
        char *back;     /* why the change was taken back */
};

/* ---- interrupted ----------------------------------------------------------------------------- */

static struct sigaction before_moves;

/* What SIGINT does before and after the moves happens behind this. */
static void on_interrupt(int signal_number)
{
        static const char text[] =
                "\nzeroctl: interrupted: the owners are changed, and jobs go on moving; "
                "zeroctl status shows their progress\n";
        ssize_t n = write(STDERR_FILENO, text, sizeof text - 1);

        (void)n;
        sigaction(signal_number, &before_moves, NULL);
        raise(signal_number);
}

/* ---- one look -------------------------------------------------------------------------------- */

static void note_wait(struct follow *f, const char *job, const json_t *wait)
{
        if (f->wait[0] || !json_is_object(wait))
                return;
        snprintf(f->wait, sizeof f->wait, "%s%s%s%s, %s", job[0] ? "job " : "", job,
                 job[0] ? " waits for " : "", field_text(wait, "for"), field_text(wait, "what"));
}

/* Prints why a job needs the help of a person, once. */
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
                f->until = progress_now() + ctl_patience(f->ctl);
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
                        snprintf(f->back, WHY_MAX, "%s", field_text(back, "why"));
        }
}

static void draw(struct follow *f)
{
        char what[64];

        snprintf(what, sizeof what, "moving %zu job%s,", f->jobs, f->jobs == 1 ? "" : "s");
        if (f->total > 0)
                progress_show(&f->progress, what, f->bytes, f->total);
}

/* ---- until it is over ------------------------------------------------------------------------ */

static int give_up(struct follow *f)
{
        ctl_error("the owners are changed, but nothing has moved for %.0f s: %s; the move goes on "
                  "without zeroctl, and zeroctl status shows its progress",
                  ctl_patience(f->ctl), f->wait[0] ? f->wait : "this node's zerod is away");
        return CTL_FAILED;
}

/* Whether the owners have changed again and a node that has not answered yet may know why. */
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

/* False: ask again later. */
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

static bool ask_once(struct follow *f, json_t **ret_members)
{
        json_t *answer;
        bool over;

        if (!ask(f, "moves", &answer))
                return false;
        look(f, answer);
        note_back(f, answer);
        over = is_over(f, answer);
        json_decref(answer);
        return over && ask(f, "members", ret_members);
}

static int follow(struct ctl *ctl, double epoch, json_t **ret_members, char back[static WHY_MAX])
{
        struct follow f = { .ctl = ctl, .epoch = epoch, .back = back };
        struct sigaction action = { .sa_handler = on_interrupt };
        bool over;

        sigaction(SIGINT, &action, &before_moves);
        progress_init(&f.progress, ctl->json);
        f.until = progress_now() + ctl_patience(ctl);
        while (!(over = ask_once(&f, ret_members)) && progress_now() <= f.until) {
                draw(&f);
                progress_nap(POLL_MS);
        }
        progress_end(&f.progress);
        sigaction(SIGINT, &before_moves, NULL);
        return over ? CTL_OK : give_up(&f);
}

/* ---- the command ----------------------------------------------------------------------------- */

int owners_settle(struct ctl *ctl, double epoch, json_t **ret_members)
{
        char back[WHY_MAX] = "";

        return follow(ctl, epoch, ret_members, back);
}

int owners_become(struct ctl *ctl, const char *what, const char *argument, json_t **ret_members)
{
        char back[WHY_MAX] = "";
        json_t *members;
        double epoch;
        int r = ask_for_change(ctl, what, argument, &members);

        if (r != CTL_OK || owners_no_wait) {
                if (r == CTL_OK)
                        *ret_members = members;
                return r;
        }
        epoch = field_number(members, "epoch");
        json_decref(members);
        r = follow(ctl, epoch, &members, back);
        if (r != CTL_OK)
                return r;
        if (owners_fit(members, what, argument)) {
                *ret_members = members;
                return CTL_OK;
        }
        if (back[0])
                ctl_error("%s: the move was taken back: %s", what, back);
        else
                ctl_error(
                        "%s: the owners have changed again, and not as asked: see zeroctl members, "
                        "and the nodes' logs for the reason",
                        what);
        json_decref(members);
        return CTL_FAILED;
}

int owners_change(struct ctl *ctl, const char *what, const char *argument)
{
        json_t *members;
        int r = owners_become(ctl, what, argument, &members);

        return r == CTL_OK ? ctl_show(ctl, members, show_members) : r;
}
