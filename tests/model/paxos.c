/*
 * explore-paxos - everything that can happen to the register of placements (daemon/job/rules/paxos.c)
 * among a few nodes: a breadth-first search over all orders in which messages are delivered, lost
 * and delivered again, of nodes that are killed and start again with their record alone, of one
 * that loses its disk, and of one that dies and is declared dead.
 *
 * A message may come at any time, also after those that were sent later, or never; some come twice.
 * Messages that can no longer change anything are removed.  A node that lost its disk starts with
 * new connections, so earlier messages never reach it.
 *
 * In every state: of each epoch one placement is known to be chosen, the same to all, for ever, and
 * one that a node proposed; epochs are known one after the other; records make sense; the proposer
 * hears the truth about who won.  From every sixteenth state: where nothing fails any more, any one
 * node that proposes alone comes to an end.
 *
 * explore-paxos NAME... searches within the bounds of that name; without a name it lists them.
 * The shortest way to a fault is printed, event by event.
 *
 * Each of these changes to paxos.c ends in a violation:
 *
 *   a quorum one smaller, without or with dead; hear_prepare() promises below a promise;
 *   hear_accept() accepts below a promise, or does not raise it; accept_collect() proposes what is
 *   wanted although something was accepted; hear_promise() does not take the highest; votes of
 *   another ballot or phase count; a retry keeps its ballot; promises of an epoch are kept in the
 *   next; a node without a record votes at once, or takes nothing over; the proposer asks others
 *   before its record has its own promise, or acceptance.
 */
#include "paxos.h"

/* Every world comes to its end, because each event may happen only so often. */
static bool is_done(const void *world)
{
        return true;
}

static void no_faults(const void *world, struct event *ret, uint32_t *n)
{
}

static void print_nothing(const void *world)
{
}

static const struct search_case cases[] = {
        { "two", "two nodes that both propose, two epochs, crashes",
          &(const struct bounds){ .n_nodes = 2,
                                  .proposers = 3,
                                  .retriers = 3,
                                  .epochs = 2,
                                  .proposals = 3,
                                  .retries = 1,
                                  .crashes = 1 } },
        { "crashes", "three nodes, two of them propose, one is killed",
          &(const struct bounds){
                  .n_nodes = 3, .proposers = 3, .epochs = 1, .proposals = 2, .crashes = 1 } },
        { "twice", "three nodes, two of them propose, one message comes twice",
          &(const struct bounds){
                  .n_nodes = 3, .proposers = 3, .epochs = 1, .proposals = 2, .twice = 1 } },
        { "again", "three nodes, two of them propose, one of these again",
          &(const struct bounds){ .n_nodes = 3,
                                  .proposers = 3,
                                  .retriers = 1,
                                  .epochs = 1,
                                  .proposals = 2,
                                  .retries = 1 } },
        { "blank", "two nodes on their first start",
          &(const struct bounds){
                  .n_nodes = 2, .proposers = 3, .epochs = 1, .proposals = 2, .blank = true } },
        { "disk", "three nodes, one loses its disk",
          &(const struct bounds){
                  .n_nodes = 3, .proposers = 3, .epochs = 1, .proposals = 2, .losses = 1 } },
        { "dead-two", "two nodes, one dies and is declared dead",
          &(const struct bounds){ .n_nodes = 2,
                                  .proposers = 3,
                                  .retriers = 3,
                                  .epochs = 2,
                                  .proposals = 3,
                                  .retries = 1,
                                  .deaths = 1 } },
        { "dead-three", "three nodes, one dies and is declared dead",
          &(const struct bounds){
                  .n_nodes = 3, .proposers = 3, .epochs = 1, .proposals = 2, .deaths = 1 } },
        { "four", "four nodes, two of them propose",
          &(const struct bounds){ .n_nodes = 4, .proposers = 3, .epochs = 1, .proposals = 2 } },
        { "dead-four", "four nodes, one dies and is declared dead",
          &(const struct bounds){
                  .n_nodes = 4, .proposers = 3, .epochs = 1, .proposals = 2, .deaths = 1 } },
        { "both-again", "three nodes, two of them propose, and one of these again",
          &(const struct bounds){ .n_nodes = 3,
                                  .proposers = 3,
                                  .retriers = 3,
                                  .epochs = 1,
                                  .proposals = 2,
                                  .retries = 1 } },
        { "dead-again", "three nodes, one dies and is declared dead, one proposes again",
          &(const struct bounds){ .n_nodes = 3,
                                  .proposers = 3,
                                  .retriers = 3,
                                  .epochs = 1,
                                  .proposals = 2,
                                  .retries = 1,
                                  .deaths = 1 } },
};

static void begin(const struct bounds *b)
{
        bounds = *b;
}

int main(int argc, char **argv)
{
        static const struct search s = { .size = sizeof(struct world),
                                         .bytes = world_bytes,
                                         .init = world_init,
                                         .ordinary = events,
                                         .faults = no_faults,
                                         .happen = happen,
                                         .done = is_done,
                                         .alone = alone,
                                         .every = 16,
                                         .print_event = print_event,
                                         .print = print_nothing };

        return search_main(argc, argv, &s, cases, sizeof cases / sizeof cases[0], begin);
}
