/* zeroctl view: which nodes hold shards. */
#include "view.h"

#include <string.h>

#include "table.h"

/* ---- showing ---- */

static void join(char *text, size_t size, const json_t *names)
{
        size_t i, at = 0;
        json_t *name;

        text[0] = '\0';
        json_array_foreach(names, i, name)
        {
                const char *word = json_string_value(name);

                if (word && at < size)
                        at += (size_t)snprintf(text + at, size - at, "%s%s", i ? " " : "", word);
        }
}

/* Whose shards a node holds a second time; "-" if nobody's. */
static const char *mirrored(const json_t *view, const char *node)
{
        json_t *m;
        size_t i;

        json_array_foreach(json_object_get(view, "mirrors"), i, m)
        {
                if (strcmp(field_text(m, "node"), node) == 0)
                        return field_text(m, "owner");
        }
        return "-";
}

static void show_nodes(const struct ctl *ctl, FILE *out, const json_t *view)
{
        struct table t;
        json_t *n;
        size_t i;

        table_init(&t, "NODE|STATE|SHARDS|MIRROR OF");
        json_array_foreach(json_object_get(view, "nodes"), i, n)
        {
                bool up = field_true(n, "up");

                table_add(&t, PAINT_NONE, "%s", field_text(n, "node"));
                table_add(&t, up ? PAINT_GOOD : PAINT_BAD, "%s",
                          field_true(n, "self") ? "here"
                          : up                  ? "up"
                                                : "down");
                table_add(&t, PAINT_NONE, "%s", field_true(n, "owner") ? "yes" : "-");
                table_add(&t, PAINT_NONE, "%s", mirrored(view, field_text(n, "node")));
        }
        table_print(&t, out, ctl->colour);
        table_deinit(&t);
}

void show_view(const struct ctl *ctl, FILE *out, const json_t *view)
{
        const json_t *undecided = json_object_get(view, "undecided");
        char owners[2048];

        join(owners, sizeof owners, json_object_get(view, "owners"));
        fprintf(out, "epoch %.0f, owners %s\n", field_number(view, "epoch"), owners);
        show_nodes(ctl, out, view);
        fprintf(out, "%.0f of %zu nodes are reachable; %.0f are enough to change the owners\n",
                field_number(view, "votes_reachable"),
                json_array_size(json_object_get(view, "nodes")),
                field_number(view, "votes_needed"));
        if (!field_true(view, "voter"))
                fputs("this node has no record of votes yet, and votes when it has heard from all "
                      "others\n",
                      out);
        if (json_is_array(undecided)) {
                join(owners, sizeof owners, undecided);
                fprintf(out, "undecided yet: owners %s\n", owners);
        }
}

/* ---- changing ---- */

static bool is_among(const char *names, const char *name)
{
        size_t n = strlen(name);

        for (const char *p = names; p; p = strchr(p, ','), p += p != NULL)
                if (strncmp(p, name, n) == 0 && (p[n] == ',' || p[n] == '\0'))
                        return true;
        return false;
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

int change_owners(struct ctl *ctl, const char *what, const char *argument, const char *dead)
{
        json_t *answer;
        int r = ctl_ask_about(ctl, "view", NULL, &answer);

        if (r != CTL_OK)
                return r;
        tell_wait(answer, dead);
        json_decref(answer);
        r = ctl_ask_about(ctl, what, argument, &answer);
        return r == CTL_OK ? ctl_show(ctl, answer, show_view) : r;
}

const struct command command_view = { "view", NULL, "which nodes hold shards", show_view, NULL };
