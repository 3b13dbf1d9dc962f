/*
 * explore - everything that can happen to a small cluster that trains one job: a breadth-first
 * search over all orders of messages, of daemons that are killed and start again, of nodes whose
 * states are lost and filled again from their mirrors, of links that break, of trainers that are
 * killed and of successors on other nodes (world.h defines a state and lists what is left out).
 *
 * In every state: the records of owners and mirrors tell of the last decision or the one before,
 * as it was, and their planes are of that version; an attempt is decided once, after all who hold
 * something have voted in it, and always the same way; what they voted for sums exactly one
 * contribution of each rank to each micro-batch, the same on all, of this attempt, computed at this
 * version, by a session that was not fenced; what a trainer hears of an attempt is true, a trainer
 * never hears an older version than before, and its calls are never refused; the newest process of
 * a rank is never fenced; no node that keeps the rules is cut; what the store asserts of a record
 * holds.  Where nothing can happen any more all trainers are at the last version, all holders have
 * carried it out and none lacks its state: nothing hangs, and no version is lost that was committed
 * while one copy of each owner's shards is left.
 *
 * explore NAME... searches within the bounds of that name; without a name it lists them.
 * The shortest way to a fault is printed, event by event.
 *
 * Each of these changes to the code ends in a violation:
 *
 *   step_vote() takes votes of other attempts, or of a void one, or decides without the last one;
 *   step_links() or step_node_lost() voids nothing; step_join() lets a rank that moved into the
 *   running attempt; step_adopt() goes on with the attempt that was decided; step_ready() refuses
 *   what is over; a slot that nobody has taken yet counts as left; recover() does not decide again,
 *   or with a vote less, or without the good steps before, or what not all have voted for;
 *   a restarted owner aborts what it has voted for; an owner that is behind is not told the
 *   decision; a new attempt keeps what has landed, or what ranks have pushed, in the one before;
 *   a successor begins anew; a session on another node is not fenced, or stays when its rank
 *   starts elsewhere; ranks do not join again when a link is back; an owner votes while it updates;
 *   early offers are dropped; a zero_step() that was in flight is replayed although it was decided;
 *   what a holder has carried out counts only once it is known where the job stands.
 *
 *   With mirrors: step_vote() decides without them, or counts them, or for the wrong holder; a
 *   copy that is gone counts as not voted; one that lacks its state counts as done; the end of an
 *   update counts for another holder; a sum goes on to the mirror before it is complete; a mirror
 *   keeps what it took in a void attempt, or votes while it updates, or aborts what it has voted
 *   for; one record alone of a node hears a decision, or the node goes by the one that is ahead; a
 *   state is filled from one that has not carried the last decision out, with the record first,
 *   at another version, without the last decision or at its attempt, or at the one that begins
 *   next; a fill that a link has lost is not asked for again; what a node held counts though it was
 *   lost.
 *
 *   Eager: what is ahead is not put back when an attempt is void, or an owner votes while it is.
 *
 *   With the norm: a node stays ready when one of its ranks is replaced; a successor goes on in an
 *   attempt whose norm is voted on or was told.
 *
 * Two changes are not found.  step_startable() may forget to wait for updates of owners that have
 * their state: an owner that hears of a new attempt while it updates takes that attempt up
 * afterwards.  Within these bounds, offers ahead of their attempt may outlive the link, because the
 * attempt of a filled state is one further: a number comes twice only after two attempts that no
 * living node knows of.
 */
#include "events.h"

static const struct search_case cases[] = {
        { "orders", "two nodes, two steps (the first is skipped once), any one fault, every order",
          &(const struct bounds){ .n_nodes = 2,
                                  .owners = 3,
                                  .n_ranks = 2,
                                  .micro_batches = 1,
                                  .steps = 2,
                                  .overflow = true,
                                  .crashes = 1,
                                  .cuts = 1,
                                  .kills = 1,
                                  .faults = 1 } },
        { "batches", "two nodes, two micro-batches, any two faults",
          &(const struct bounds){ .n_nodes = 2,
                                  .owners = 3,
                                  .n_ranks = 2,
                                  .micro_batches = 2,
                                  .steps = 1,
                                  .crashes = 2,
                                  .cuts = 2,
                                  .kills = 2,
                                  .faults = 2,
                                  .less = LESS_SELF } },
        { "moves", "two nodes, a rank that moves and another fault",
          &(const struct bounds){ .n_nodes = 2,
                                  .owners = 3,
                                  .n_ranks = 2,
                                  .micro_batches = 1,
                                  .steps = 1,
                                  .crashes = 1,
                                  .cuts = 1,
                                  .kills = 1,
                                  .moves = 1,
                                  .faults = 2,
                                  .less = LESS_SELF } },
        { "faults", "two nodes, two steps (the first is skipped once), any two faults",
          &(const struct bounds){ .n_nodes = 2,
                                  .owners = 3,
                                  .n_ranks = 2,
                                  .micro_batches = 1,
                                  .steps = 2,
                                  .overflow = true,
                                  .crashes = 2,
                                  .cuts = 2,
                                  .kills = 2,
                                  .faults = 2,
                                  .less = LESS_SELF } },
        { "third", "three nodes, two of them own, any one fault or move",
          &(const struct bounds){ .n_nodes = 3,
                                  .owners = 3,
                                  .n_ranks = 3,
                                  .micro_batches = 1,
                                  .steps = 1,
                                  .crashes = 1,
                                  .cuts = 1,
                                  .kills = 1,
                                  .moves = 1,
                                  .faults = 1,
                                  .less = LESS_SELF | LESS_UP } },
        { "mirrors",
          "two nodes that mirror each other, two steps (the first is skipped once), any one fault",
          &(const struct bounds){ .n_nodes = 2,
                                  .owners = 3,
                                  .n_ranks = 2,
                                  .mirror = true,
                                  .micro_batches = 1,
                                  .steps = 2,
                                  .overflow = true,
                                  .crashes = 1,
                                  .wipes = 1,
                                  .cuts = 1,
                                  .kills = 1,
                                  .faults = 1,
                                  .less = LESS_SELF } },
        { "losses", "two nodes that mirror each other, one is lost for good and another fault",
          &(const struct bounds){ .n_nodes = 2,
                                  .owners = 3,
                                  .n_ranks = 2,
                                  .mirror = true,
                                  .micro_batches = 1,
                                  .steps = 1,
                                  .crashes = 1,
                                  .wipes = 2,
                                  .cuts = 1,
                                  .kills = 1,
                                  .faults = 2,
                                  .less = LESS_SELF | LESS_UP } },
        { "ring", "three nodes that mirror each other, one is lost, for good or not, or a link",
          &(const struct bounds){ .n_nodes = 3,
                                  .owners = 7,
                                  .n_ranks = 1,
                                  .mirror = true,
                                  .micro_batches = 1,
                                  .steps = 1,
                                  .crashes = 1,
                                  .wipes = 1,
                                  .cuts = 1,
                                  .faults = 1,
                                  .less = LESS_SELF | LESS_UP | LESS_FLIGHT } },
        { "norm", "two nodes whose ranks ask for the norm, two steps, any two kills, or one and a fault",
          &(const struct bounds){ .n_nodes = 2,
                                  .owners = 3,
                                  .n_ranks = 2,
                                  .micro_batches = 1,
                                  .steps = 2,
                                  .norm = true,
                                  .crashes = 1,
                                  .cuts = 1,
                                  .kills = 2,
                                  .moves = 1,
                                  .faults = 2,
                                  .less = LESS_SELF | LESS_UP | LESS_FLIGHT } },
        { "eager",
          "two nodes that update ahead of decisions, two steps (the first is skipped once), any one "
          "fault or move",
          &(const struct bounds){ .n_nodes = 2,
                                  .owners = 3,
                                  .n_ranks = 2,
                                  .micro_batches = 1,
                                  .steps = 2,
                                  .overflow = true,
                                  .eager = true,
                                  .crashes = 1,
                                  .cuts = 1,
                                  .kills = 1,
                                  .moves = 1,
                                  .faults = 1,
                                  .less = LESS_SELF | LESS_UP } },
        { "eager-mirrors",
          "two nodes that mirror each other and update ahead of decisions, one is lost for good or "
          "not, or a link",
          &(const struct bounds){ .n_nodes = 2,
                                  .owners = 3,
                                  .n_ranks = 1,
                                  .mirror = true,
                                  .micro_batches = 1,
                                  .steps = 1,
                                  .overflow = true,
                                  .eager = true,
                                  .crashes = 1,
                                  .wipes = 1,
                                  .cuts = 1,
                                  .faults = 1,
                                  .less = LESS_SELF | LESS_UP | LESS_FLIGHT } },
        { "owners", "three nodes that own, any one fault",
          &(const struct bounds){ .n_nodes = 3,
                                  .owners = 7,
                                  .n_ranks = 3,
                                  .micro_batches = 1,
                                  .steps = 1,
                                  .crashes = 1,
                                  .cuts = 1,
                                  .kills = 1,
                                  .faults = 1,
                                  .less = LESS_SELF | LESS_UP } },
        { "three-faults", "two nodes, two steps, any three faults",
          &(const struct bounds){ .n_nodes = 2,
                                  .owners = 3,
                                  .n_ranks = 2,
                                  .micro_batches = 1,
                                  .steps = 2,
                                  .crashes = 3,
                                  .cuts = 3,
                                  .kills = 3,
                                  .faults = 3,
                                  .less = LESS_SELF } },
        { "all-orders", "two nodes, one step, any two faults, every order",
          &(const struct bounds){ .n_nodes = 2,
                                  .owners = 3,
                                  .n_ranks = 2,
                                  .micro_batches = 1,
                                  .steps = 1,
                                  .crashes = 2,
                                  .cuts = 2,
                                  .kills = 2,
                                  .faults = 2 } },
        { "mirror-faults", "two nodes that mirror each other, two steps, any two faults",
          &(const struct bounds){ .n_nodes = 2,
                                  .owners = 3,
                                  .n_ranks = 2,
                                  .mirror = true,
                                  .micro_batches = 1,
                                  .steps = 2,
                                  .overflow = true,
                                  .crashes = 2,
                                  .wipes = 2,
                                  .cuts = 2,
                                  .kills = 2,
                                  .faults = 2,
                                  .less = LESS_SELF | LESS_UP } },
        { "mirror-orders",
          "two nodes that mirror each other, one is lost for good and another fault, every order",
          &(const struct bounds){ .n_nodes = 2,
                                  .owners = 3,
                                  .n_ranks = 2,
                                  .mirror = true,
                                  .micro_batches = 1,
                                  .steps = 1,
                                  .crashes = 1,
                                  .wipes = 2,
                                  .cuts = 1,
                                  .kills = 1,
                                  .faults = 2 } },
        { "third-node", "three nodes, two of them own, any two faults or a move and another",
          &(const struct bounds){ .n_nodes = 3,
                                  .owners = 3,
                                  .n_ranks = 2,
                                  .micro_batches = 1,
                                  .steps = 1,
                                  .crashes = 1,
                                  .cuts = 1,
                                  .kills = 1,
                                  .moves = 1,
                                  .faults = 2,
                                  .less = LESS_SELF | LESS_UP | LESS_FLIGHT } },
};

static void begin(const struct bounds *b)
{
        bounds = *b;
        numbers_forget();
}

int main(int argc, char **argv)
{
        static const struct search s = { .size = sizeof(struct world),
                                         .bytes = world_bytes,
                                         .init = world_init,
                                         .ordinary = events_ordinary,
                                         .faults = events_faults,
                                         .happen = event_happen,
                                         .done = world_done,
                                         .print_event = event_print,
                                         .print = world_print };

        return search_main(argc, argv, &s, cases, sizeof cases / sizeof cases[0], begin);
}
