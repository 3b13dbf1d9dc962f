/* zeroctl members: which nodes hold shards. */
#include "owners.h"

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

/* The owner that a node mirrors, or "-". */
static const char *mirrored(const json_t *members, const char *node)
{
        json_t *m;
        size_t i;

        json_array_foreach(json_object_get(members, "mirrors"), i, m)
        {
                if (strcmp(field_text(m, "node"), node) == 0)
                        return field_text(m, "owner");
        }
        return "-";
}

static void show_nodes(const struct ctl *ctl, FILE *out, const json_t *members)
{
        struct table t;
        json_t *n;
        size_t i;

        table_init(&t, "NODE|STATE|SHARDS|MIRROR OF");
        json_array_foreach(json_object_get(members, "nodes"), i, n)
        {
                bool up = field_true(n, "up");

                table_add(&t, PAINT_NONE, "%s", field_text(n, "node"));
                table_add(&t, up ? PAINT_GOOD : PAINT_BAD, "%s",
                          field_true(n, "self") ? "here"
                          : up                  ? "up"
                                                : "down");
                table_add(&t, PAINT_NONE, "%s", field_true(n, "owner") ? "yes" : "-");
                table_add(&t, PAINT_NONE, "%s", mirrored(members, field_text(n, "node")));
        }
        table_print(&t, out, ctl->colour);
        table_deinit(&t);
}

void show_members(const struct ctl *ctl, FILE *out, const json_t *members)
{
        const json_t *undecided = json_object_get(members, "undecided");
        char owners[2048];

        join(owners, sizeof owners, json_object_get(members, "owners"));
        fprintf(out, "epoch %.0f, owners %s\n", field_number(members, "epoch"), owners);
        show_nodes(ctl, out, members);
        fprintf(out, "%.0f of %zu nodes are reachable; %.0f are enough to change the owners\n",
                field_number(members, "votes_reachable"),
                json_array_size(json_object_get(members, "nodes")),
                field_number(members, "votes_needed"));
        if (!field_true(members, "voter"))
                fputs("this node has no record of votes yet, and votes when it has heard from all "
                      "others\n",
                      out);
        if (json_is_array(undecided)) {
                join(owners, sizeof owners, undecided);
                fprintf(out, "undecided yet: owners %s\n", owners);
        }
}

const struct command command_members = {
        .name = "members",
        .summary = "which nodes hold shards",
        .description = "Which nodes hold shards, which node mirrors which, and the epoch, which "
                       "counts changes of the owners. Which nodes are up, and whether they are "
                       "enough for another change.",
        .show = show_members,
};
