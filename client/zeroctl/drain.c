/*
 * zeroctl drain: until the node may be powered off.
 *
 * First the node refuses new ranks, then its shards move away, then its ranks end.  If the shards
 * cannot move, the node takes ranks again.  A drain that is interrupted goes on when somebody asks
 * again.
 */
#include <signal.h>
#include <string.h>
#include <unistd.h>

#include "owners.h"
#include "progress.h"
#include "units.h"

enum { POLL_MS = 200, TOLD_SIZE = 400 };

#define GO_ON_OR_END "to go on ask again, to end the drain use zeroctl undrain %s"
#define STAYS "drain: node %s takes no new ranks; " GO_ON_OR_END

static void show(const struct ctl *ctl, FILE *out, const json_t *answer)
{
        fprintf(out, "node %s has no shards and no ranks: it is safe to power off\n",
                field_text(answer, "node"));
}

/* ---- shards ---- */

/* Owners that do not answer may lack room, and what they hold is not known. */
static int check_heard(const json_t *moves, const json_t *members)
{
        json_t *unheard;
        size_t i;

        json_array_foreach(json_object_get(moves, "unheard"), i, unheard)
        {
                const char *node = json_string_value(unheard);

                if (!node || !owners_count(members, node))
                        continue;
                ctl_error("drain: node %s does not answer, so nobody knows whether the shards find "
                          "room: ask again when it does",
                          node);
                return CTL_FAILED;
        }
        return CTL_OK;
}

/* A node keeps its old states until all new ones are whole.  So each owner that stays needs room
 * for its new part beside what it has. */
static int check_room(struct ctl *ctl, const json_t *members)
{
        unsigned leaving = owners_count(members, ctl->argument);
        unsigned left = (unsigned)json_array_size(json_object_get(members, "owners")) - leaving;
        json_t *moves, *room;
        double all = 0;
        size_t i;
        int r = leaving ? ctl_ask_about(ctl, "moves", NULL, &moves) : CTL_OK;

        if (r != CTL_OK || !leaving)
                return r;
        r = check_heard(moves, members);
        json_array_foreach(json_object_get(moves, "rooms"), i, room) all +=
                field_number(room, "used");
        json_array_foreach(json_object_get(moves, "rooms"), i, room)
        {
                const char *node = field_text(room, "node");
                const json_t *free_bytes = json_object_get(room, "free");
                double needs = all * owners_count(members, node) / left;

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
        if (owners_count(members, ctl->argument) ==
            json_array_size(json_object_get(members, "owners"))) {
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
        json_t *members = NULL, *answer;

        if (ctl_query(ctl, "members", NULL, &members) == ZERO_OK &&
            owners_count(members, ctl->argument) &&
            ctl_query(ctl, "undrain", ctl->argument, &answer) == ZERO_OK) {
                json_decref(answer);
                ctl_error("drain: node %s keeps its shards, and takes ranks as before",
                          ctl->argument);
        } else {
                ctl_error(STAYS, ctl->argument, ctl->argument);
        }
        json_decref(members);
}

static int move_shards(struct ctl *ctl)
{
        json_t *members;
        int r = ctl_ask_about(ctl, "members", NULL, &members);

        if (r == CTL_OK && owners_count(members, ctl->argument)) {
                json_decref(members);
                r = owners_become(ctl, "remove-node", ctl->argument, &members);
        } else if (r == CTL_OK) {
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

/* "the end of rank 0 of job gpt (process 123), ...", or nothing. */
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
                                               i ? ", " : "the end of ", field_number(rank, "rank"),
                                               field_text(rank, "job"), field_number(rank, "pid"));
        }
}

static int give_up(const struct ctl *ctl, const char *told)
{
        ctl_error("drain: node %s has no shards any more, but for %.0f s it has waited for %s; "
                  "it takes no new ranks: ask again when they have ended",
                  ctl->argument, ctl_patience(ctl), told);
        return CTL_FAILED;
}

static int ended_by_another(const struct ctl *ctl)
{
        ctl_error("drain: somebody has ended the drain: node %s has no shards, and takes ranks "
                  "again",
                  ctl->argument);
        return CTL_FAILED;
}

static int wait_for_ranks(struct ctl *ctl)
{
        char told[TOLD_SIZE] = "", now[TOLD_SIZE];
        double until = progress_now() + ctl_patience(ctl);
        json_t *answer;

        for (;;) {
                int r = ctl_query(ctl, "drained", ctl->argument, &answer);

                if (r == ZERO_OK && !field_true(answer, "drained")) {
                        json_decref(answer);
                        return ended_by_another(ctl);
                }
                if (r == ZERO_OK) {
                        list_ranks(json_object_get(answer, "ranks"), now);
                        if (!now[0])
                                return ctl_show(ctl, answer, show);
                        json_decref(answer);
                } else {
                        snprintf(now, sizeof now, "its answer: %.300s", zero_error(ctl->client));
                        if (r == ZERO_ECLOSED)
                                ctl_connect_again(ctl);
                }
                if (strcmp(told, now) != 0) {
                        memcpy(told, now, sizeof told);
                        until = progress_now() + ctl_patience(ctl);
                        ctl_error("drain: waiting for %s", told);
                }
                if (progress_now() > until)
                        return give_up(ctl, told);
                progress_nap(POLL_MS);
        }
}

/* ---- interrupted ---- */

static char interrupted[TOLD_SIZE];

static void on_interrupt(int signal_number)
{
        ssize_t n = write(STDERR_FILENO, interrupted, strlen(interrupted));

        (void)n;
        signal(signal_number, SIG_DFL);
        raise(signal_number);
}

static void stay_when_interrupted(const struct ctl *ctl)
{
        struct sigaction action = { .sa_handler = on_interrupt };

        snprintf(interrupted, sizeof interrupted, "\nzeroctl: " STAYS "\n", ctl->argument,
                 ctl->argument);
        sigaction(SIGINT, &action, NULL);
}

static int refuse_ranks(struct ctl *ctl)
{
        json_t *answer;
        int r = ctl_query(ctl, "drain", ctl->argument, &answer);

        if (r == ZERO_OK) {
                json_decref(answer);
                return CTL_OK;
        }
        ctl_error("drain: %s (%s)", zero_error(ctl->client), zero_status_name(r));
        if (r != ZERO_EINVAL && r != ZERO_EPERM)
                ctl_error("drain: node %s may take no new ranks all the same; " GO_ON_OR_END,
                          ctl->argument, ctl->argument);
        return CTL_FAILED;
}

static int run(struct ctl *ctl)
{
        int r = check_owners(ctl);

        if (r != CTL_OK)
                return r;
        stay_when_interrupted(ctl);
        r = refuse_ranks(ctl);
        if (r == CTL_OK)
                r = move_shards(ctl);
        return r == CTL_OK ? wait_for_ranks(ctl) : r;
}

const struct command command_drain = {
        .name = "drain",
        .arguments = "NODE",
        .summary = "empty a node, until it is safe to power off",
        .description =
                "<NODE> takes no new ranks from now on, and its shards move to the other owners, "
                "as with *remove-node*. Then the command waits until the processes of its ranks "
                "have ended, and names them; end them, or let them finish. When it says that the "
                "node is safe to power off it exits with 0.\n"
                "Training goes on: ranks that are on the node stay attached. A node that is the "
                "only owner is refused, and so is one whose shards find no room elsewhere: it "
                "keeps them, and takes ranks again. An owner that does not answer may have none: "
                "the node is refused until it does. When nothing has changed for as long as "
                "*--timeout*, 60 seconds by default, the command says what it waits for and exits "
                "with 1; the drain lasts, also over a restart of the node's zerod. Ask again to go "
                "on. *zeroctl undrain* ends it, and the command that waits.\n"
                "The node's vote counts while it is on: see WHO HOLDS SHARDS in *zeroctl*(1).",
        .run = run,
};
