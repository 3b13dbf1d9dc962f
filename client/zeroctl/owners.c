/*
 * zeroctl add-node, remove-node and takeover: gives the wish, again and again while the cluster is
 * busy with a change before it, and then follows the jobs that move for it.
 *
 * The daemon that is asked starts anew when the owners change: a lost connection is made again, and
 * whether the wish was fulfilled meanwhile is read from the list of owners.
 */
#include <stdlib.h>
#include <string.h>

#include "progress.h"
#include "view.h"

enum { PATIENCE_S = 60 };

double owners_patience(const struct ctl *ctl)
{
        return ctl->options.timeout_ms ? ctl->options.timeout_ms / 1000.0 : PATIENCE_S;
}

/* ---- what the list says ---------------------------------------------------------------------- */

static bool is_among(const char *names, const char *name)
{
        size_t n = strlen(name);

        for (const char *p = names; p; p = strchr(p, ','), p += p != NULL)
                if (strncmp(p, name, n) == 0 && (p[n] == ',' || p[n] == '\0'))
                        return true;
        return false;
}

bool owners_fit(const json_t *view, const char *what, const char *argument)
{
        bool adds = strcmp(what, "add-node") == 0;
        json_t *owner;
        size_t i;

        json_array_foreach(json_object_get(view, "owners"), i, owner)
        {
                if (json_is_string(owner) && is_among(argument, json_string_value(owner)))
                        return adds;
        }
        return !adds;
}

/* Who is away, if it is waited for. */
static void tell_wait(const json_t *view, const char *dead)
{
        char away[1024] = "";
        size_t i, at = 0;
        json_t *n;

        if (field_true(view, "majority") && field_true(view, "voter"))
                return;
        json_array_foreach(json_object_get(view, "nodes"), i, n)
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

/* ---- the wish -------------------------------------------------------------------------------- */

struct wish {
        struct ctl *ctl;
        const char *what, *argument;
        double until, epoch; /* of the list before */
        char told[600];
};

/* It may be granted later.  A takeover is a person's word about what is now. */
static bool is_passing(const struct wish *w, int status)
{
        return status == ZERO_EBUSY || status == ZERO_ECLOSED ||
               (status == ZERO_ECONFLICT && strcmp(w->what, "takeover") != 0);
}

/* Once each. */
static void tell_again(struct wish *w, const char *why)
{
        if (strncmp(w->told, why, sizeof w->told - 1) == 0)
                return;
        snprintf(w->told, sizeof w->told, "%s", why);
        ctl_error("%s: %s; asking again", w->what, why);
}

/* It was fulfilled, though no answer came. */
static bool is_fulfilled(struct wish *w, json_t **ret_view)
{
        json_t *view;

        if (ctl_query(w->ctl, "view", NULL, &view))
                return false;
        if (field_number(view, "epoch") > w->epoch && owners_fit(view, w->what, w->argument)) {
                *ret_view = view;
                return true;
        }
        json_decref(view);
        return false;
}

static int wish(struct wish *w, json_t **ret_view)
{
        for (;;) {
                int r = ctl_query(w->ctl, w->what, w->argument, ret_view);
                const char *why = zero_error(w->ctl->client);

                if (r == ZERO_OK)
                        return CTL_OK;
                if (!is_passing(w, r) || progress_now() > w->until) {
                        ctl_error("%s: %s (%s)", w->what, why, zero_status_name(r));
                        return CTL_FAILED;
                }
                tell_again(w, why);
                progress_nap(OWNERS_POLL_MS);
                if (r == ZERO_ECLOSED)
                        ctl_connect_again(w->ctl);
                if (is_fulfilled(w, ret_view))
                        return CTL_OK;
        }
}

static int wish_first(struct ctl *ctl, const char *what, const char *argument, json_t **ret_view)
{
        struct wish w = { .ctl = ctl, .what = what, .argument = argument };
        json_t *view;
        int r = ctl_ask_about(ctl, "view", NULL, &view);

        if (r != CTL_OK)
                return r;
        tell_wait(view, ctl->dead);
        w.epoch = field_number(view, "epoch");
        w.until = progress_now() + owners_patience(ctl);
        json_decref(view);
        return wish(&w, ret_view);
}

int change_owners(struct ctl *ctl, const char *what, const char *argument)
{
        char back[OWNERS_WHY] = "";
        json_t *view;
        double epoch;
        int r = wish_first(ctl, what, argument, &view);

        if (r != CTL_OK)
                return r;
        if (ctl->no_wait)
                return ctl_show(ctl, view, show_view);
        epoch = field_number(view, "epoch");
        json_decref(view);
        r = owners_follow(ctl, epoch, &view, back);
        if (r != CTL_OK)
                return r;
        if (owners_fit(view, what, argument))
                return ctl_show(ctl, view, show_view);
        if (back[0])
                ctl_error("%s: the move was taken back: %s", what, back);
        else
                ctl_error("%s: the owners have changed once more, and are not as was wished: see "
                          "zeroctl view, and the logs of the nodes for why",
                          what);
        json_decref(view);
        return CTL_FAILED;
}
