/*
 * zeroctl drain: until the node may be powered off.
 *
 * First the node refuses new ranks, then its shards move away, then its ranks end.  If the shards
 * cannot move, the node takes ranks again.  A drain that is interrupted goes on when somebody asks
 * again.
 */
#include <string.h>

#include "owners.h"
#include "progress.h"
#include "units.h"

enum { POLL_MS = 200, TOLD_SIZE = 400 };

static void show(const struct ctl *ctl, FILE *out, const json_t *answer)
{
        fprintf(out, "node %s has no shards and no ranks: it is safe to power off\n",
                field_text(answer, "node"));
}

/* ---- shards ---- */

static bool is_only_owner(const json_t *members, const char *node)
{
        json_t *owner;
        size_t i;

        json_array_foreach(json_object_get(members, "owners"), i, owner)
        {
                if (!json_is_string(owner) || strcmp(json_string_value(owner), node) != 0)
                        return false;
        }
        return true;
}

static unsigned count_owners(const json_t *members, const char *node)
{
        unsigned n = 0;
        json_t *owner;
        size_t i;

        json_array_foreach(json_object_get(members, "owners"), i, owner)
        {
                n += json_is_string(owner) && strcmp(json_string_value(owner), node) == 0;
        }
        return n;
}

/* A node keeps its old states until all new ones are whole.  So each owner that stays needs room
 * for its new part beside what it has. */
static int check_room(struct ctl *ctl, const json_t *members)
{
        unsigned leaving = count_owners(members, ctl->argument);
        unsigned left = (unsigned)json_array_size(json_object_get(members, "owners")) - leaving;
        json_t *moves, *room;
        double all = 0;
        size_t i;
        int r = leaving ? ctl_ask_about(ctl, "moves", NULL, &moves) : CTL_OK;

        if (r != CTL_OK || !leaving)
                return r;
        json_array_foreach(json_object_get(moves, "rooms"), i, room) all +=
                field_number(room, "used");
        json_array_foreach(json_object_get(moves, "rooms"), i, room)
        {
                const char *node = field_text(room, "node");
                const json_t *free_bytes = json_object_get(room, "free");
                double needs = all * count_owners(members, node) / left;

                if (r != CTL_OK || strcmp(node, ctl->argument) == 0 ||
                    !json_is_number(free_bytes) || json_number_value(free_bytes) >= needs)
                        continue;
                ctl_error("drain: node %s has no room for its part of the shards: it needs about "
                          "%s beside what it has, and has %s; raise memory_limit there, make "
                          "state_dir larger, add another node, or drop a job",
                          node, unit_bytes(needs).text,
                          unit_bytes(json_number_value(free_bytes)).text);
                r = CTL_FAILED;
        }
        json_decref(moves);
        return r;
}

static int check_owners(struct ctl *ctl)
{
        json_t *members;
        int r = ctl_ask_about(ctl, "members", NULL, &members);

        if (r != CTL_OK)
                return r;
        if (is_only_owner(members, ctl->argument)) {
                ctl_error("drain: node %s is the only owner: its shards have nowhere to go; add "
                          "another one first, with zeroctl add-node",
                          ctl->argument);
                r = CTL_FAILED;
        }
        if (r == CTL_OK)
                r = check_room(ctl, members);
        json_decref(members);
        return r;
}

/* The shards stay: so do the ranks that come. */
static void take_back(struct ctl *ctl)
{
        json_t *members, *answer;

        if (ctl_query(ctl, "members", NULL, &members))
                return;
        if (owners_have(members, ctl->argument) &&
            ctl_query(ctl, "undrain", ctl->argument, &answer) == ZERO_OK) {
                json_decref(answer);
                ctl_error("drain: node %s keeps its shards, and takes ranks as before",
                          ctl->argument);
        } else {
                ctl_error("drain: node %s takes no new ranks; to go on ask again, to end the drain "
                          "use zeroctl undrain",
                          ctl->argument);
        }
        json_decref(members);
}

static int move_shards(struct ctl *ctl)
{
        json_t *members;
        int r = ctl_ask_about(ctl, "members", NULL, &members);

        if (r != CTL_OK)
                return r;
        if (owners_have(members, ctl->argument)) {
                json_decref(members);
                r = owners_become(ctl, "remove-node", ctl->argument, &members);
        } else {
                double epoch = field_number(members, "epoch");

                json_decref(members);
                r = owners_settle(ctl, epoch, &members);
        }
        if (r == CTL_OK)
                json_decref(members);
        else
                take_back(ctl);
        return r;
}

/* ---- ranks ---- */

/* "rank 0 of job gpt (process 123), ..." */
static void list_ranks(const json_t *ranks, char ret[static TOLD_SIZE])
{
        size_t i, at = 0;
        json_t *rank;

        ret[0] = '\0';
        json_array_foreach(ranks, i, rank)
        {
                if (at < TOLD_SIZE)
                        at += (size_t)snprintf(ret + at, TOLD_SIZE - at,
                                               "%srank %.0f of job %s (process %.0f)",
                                               i ? ", " : "", field_number(rank, "rank"),
                                               field_text(rank, "job"), field_number(rank, "pid"));
        }
}

static int give_up(const struct ctl *ctl, const char *told)
{
        ctl_error("drain: node %s has no shards any more, but for %.0f s it has waited for the end "
                  "of %s; it takes no new ranks: ask again when they have ended",
                  ctl->argument, ctl_patience(ctl), told);
        return CTL_FAILED;
}

static int wait_for_ranks(struct ctl *ctl)
{
        char told[TOLD_SIZE] = "", now[TOLD_SIZE];
        double until = progress_now() + ctl_patience(ctl);
        json_t *answer;

        for (;;) {
                int r = ctl_query(ctl, "drain", ctl->argument, &answer);

                if (r == ZERO_OK) {
                        list_ranks(json_object_get(answer, "ranks"), now);
                        if (!now[0])
                                return ctl_show(ctl, answer, show);
                        json_decref(answer);
                } else {
                        snprintf(now, sizeof now, "an answer: %.300s", zero_error(ctl->client));
                        if (r == ZERO_ECLOSED)
                                ctl_connect_again(ctl);
                }
                if (strcmp(told, now) != 0) {
                        memcpy(told, now, sizeof told);
                        until = progress_now() + ctl_patience(ctl);
                        ctl_error("drain: waiting for the end of %s", told);
                }
                if (progress_now() > until)
                        return give_up(ctl, told);
                progress_nap(POLL_MS);
        }
}

static int run(struct ctl *ctl)
{
        json_t *answer;
        int r = check_owners(ctl);

        if (r == CTL_OK)
                r = ctl_ask(ctl, "drain", &answer);
        if (r != CTL_OK)
                return r;
        json_decref(answer);
        r = move_shards(ctl);
        return r == CTL_OK ? wait_for_ranks(ctl) : r;
}

const struct command command_drain = {
        .name = "drain",
        .arguments = "NODE",
        .summary = "empty a node, until it is safe to power off",
        .description =
                "<NODE> takes no new ranks from now on, and its shards move to the other owners, "
                "as "
                "with *remove-node*. Then the command waits until the processes of its ranks have "
                "ended, and names them; end them, or let them finish. When it says that the node "
                "is "
                "safe to power off it exits with 0.\n"
                "Training goes on: ranks that are on the node stay attached. A node that is the "
                "only owner is refused, and so is one whose shards find no room elsewhere: it "
                "keeps them, and takes ranks again. When nothing has changed for as long as "
                "*--timeout*, 60 seconds by default, the command says what it waits for and exits "
                "with 1; the drain lasts, also over a restart of the node's zerod. Ask again to go "
                "on. *zeroctl undrain* ends it.\n"
                "The node's vote counts while it is on: see WHO HOLDS SHARDS in *zeroctl*(1).",
        .run = run,
};
