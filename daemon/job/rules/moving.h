/*
 * What becomes of a job's states when its owners change.  Pure: decides from what nodes have told
 * and from records.
 *
 * Each placement has its own states.  If at least one copy of each owner's states is there in the
 * placement in force, they tell where the job stands; otherwise those of the newest earlier
 * placement with that property do.  A decided step is carried out on them, and any other is void
 * (enum settling).  Then each holder in force is filled from them (pieces.h).  When no holder lacks
 * its state, the placement in force is complete.  Only then are earlier states deleted, on every
 * node; those of a move that was given up go before.  No step begins earlier.
 *
 * So a placement that was never complete never had a step of its own.  What is left of one, because
 * another change ended its move, is as it was filled, and does not count.
 *
 * Any node that held part of a placement and tells what it has knows whether the placement was
 * complete: a step needs all nodes, so the node has the step's outcome, or has deleted it for a
 * later one.  If all nodes of a list are silent, the last commit may exist there and nowhere else.
 * So a job neither goes back past such a list nor is created anew after it.
 *
 * Fresh states, on which nobody has ever worked, outweigh nothing: complete ones give way to others
 * that were worked on.  Incomplete ones are what an opening left that did not come to its end.
 */
#pragma once

#include "daemon/job/rules/recover.h"

/* ---- at a node ---- */

enum state_use {
        STATE_IN_FORCE,
        STATE_OLD_PLACEMENT, /* of an earlier placement: kept until another is complete */
        STATE_FOREIGN,       /* of a later one, or of another holder: left alone */
};

struct state_place {
        uint64_t epoch;
        uint32_t n_owners, owner, copy;
};

/* What a state on a node is to the node. */
enum state_use state_use(const struct placement *p, uint32_t node, const struct state_place *s);
/* Whether the news that a placement is complete deletes a state of an earlier one on a node. */
bool state_ends(const struct placement *p, uint64_t whole, uint64_t epoch);

/*
 * Whether the news that the job stands on states of an earlier placement deletes a state of a later
 * one, which is not in force: it was filled for a move that was given up, and makes room.
 */
bool state_void(const struct placement *p, uint64_t stands, uint64_t epoch);

/* What an old state does when it hears where the job stood. */
enum settling {
        SETTLE_STANDS,
        SETTLE_CARRY_OUT, /* the last decision, which it has voted for */
        SETTLE_VOID,      /* its vote */
};

/* prepared: the attempt that it has voted in without knowing a decision; last: the last decided
 * attempt.  Each may be 0. */
enum settling settling(uint64_t prepared, uint64_t last);

/* ---- at a job's coordinator ---- */

enum { OLD_PLACEMENT_MAX = 8 }; /* earlier placements whose states are known */

/* The states of one of them. */
struct old_placement {
        struct placement placement; /* n_owners 0: nobody has states */
        struct standing *standings[HOLDER_MAX];
        uint64_t puts[HOLDER_MAX];
        node_set settling, settled; /* nodes */
};

/* A node tells of a state.  A state with impossible numbers, or of one placement too many, is
 * refused. */
int old_placements_hear(struct old_placement *old_placements, uint32_t node,
                        const struct state_place *of, const struct standing *standing,
                        uint64_t puts, struct fault *fault);
/* The node is gone.  That it had states stays known, for those may be the newest. */
void old_placements_forget_node(struct old_placement *old_placements, uint32_t node);
/* Call before a node re-announces its states; any it omits are gone. */
void old_placements_retell(struct old_placement *old_placements, uint32_t node);
void old_placements_free(struct old_placement *old_placements);
/*
 * Where the job stood in an earlier placement with at least one copy of each owner's states; as
 * recover().  An earlier coordinator may have seen other copies, and some of these may know its
 * result: if all of those had voted for a step, it is decided, although this copy has not voted.
 * Then this copy is outdated and counts as gone, if the others are enough.
 */
int old_placement_recover(const struct old_placement *f, struct recovery *ret, uint32_t *ret_odd,
                          struct fault *fault);
/* Whether the holder has a state that stands there, or will after it has settled. */
bool old_placement_gives(const struct old_placement *f, uint32_t holder,
                         const struct recovery *now);
/* Nodes with such states that have to be asked to settle. */
node_set old_placement_unsettled(const struct old_placement *f, const struct recovery *now);
/* Whether one copy of each owner's is there; if not, choose another placement, or wait. */
bool old_placement_covers(const struct old_placement *f, const struct recovery *now);
/* Whether all of them have settled, and old_placement_covers(). */
bool old_placement_settled(const struct old_placement *f, const struct recovery *now);

enum opening_choice {
        OPENING_STANDS, /* on the states in force */
        OPENING_MOVES,  /* on those of an earlier placement */
        OPENING_MAKES,  /* no states are known: the job is new or lost */
        OPENING_WAITS,  /* a node that holds what is missing is away */
};

/*
 * Chooses once all nodes that should hold states have told; told: all nodes that have.  *ret: only
 * with OPENING_MOVES: the newest complete earlier placement, unless a later one was worked on.
 */
enum opening_choice opening_choose(const struct standing *const *standings,
                                   const struct placement *placement,
                                   struct old_placement *old_placements, node_set told,
                                   struct old_placement **ret);

/*
 * For each list from epoch `since` to the one before p's whose nodes have all not told what they
 * have: its nodes.  The job waits for one of each list. since: at most p's epoch; told: nodes.
 */
node_set lists_untold(const struct placement *p, uint64_t since, node_set told);

/*
 * Whether a holder in force has to be filled. s NULL: it has no state. whole: as found at the
 * opening, or because the move is over; before that, a state counts only if it was filled from
 * these.
 */
bool holder_lacks(const struct standing *s, const struct recovery *now, bool whole);
/* Whether the other copy, whose standing is s, can fill a holder in force. done: step_done(). */
bool twin_gives(const struct standing *s, const struct recovery *now, bool done);
