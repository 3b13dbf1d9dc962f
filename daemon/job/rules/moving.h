/*
 * What becomes of a job's states when its owners change.  Pure: decides from what nodes have told
 * and from records.
 *
 * Each placement has its own states.  The states in force say where the job stands if at least one
 * copy of each owner's is there.  Otherwise the newest earlier placement with a copy of each
 * owner's states says it.  A decided step is carried out on those states, and any other step is
 * void (enum settling).  Then each holder in force is filled from them (pieces.h).
 *
 * When no holder lacks its state, the placement in force is complete.  Only then are earlier states
 * deleted, on every node, and only then does a step begin.  States of a move that was given up go
 * before that.
 *
 * So a placement that was never complete never had a step of its own.  If another change ends a
 * move, the states that the move has filled are as they were filled, and do not count.
 *
 * A step needs all nodes of a placement.  So each node that held part of the placement has the
 * step's outcome, or has deleted it for a later one.  If any of them tells what it has, it is known
 * whether the placement was complete.  If all nodes of a list are silent, the last commit may exist
 * there and nowhere else.  A job neither goes back past such a list nor is created anew after it.
 *
 * Fresh states, on which nobody has ever worked, outweigh nothing.  Complete ones give way to
 * states that somebody has worked on.  Incomplete ones are left from an opening that did not come
 * to its end.
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

/* How a node uses a state that it has. */
enum state_use state_use(const struct placement *p, uint32_t node, const struct state_place *s);
/* True if a node deletes a state of `epoch` when it hears that the placement of epoch `whole` is
 * complete. */
bool state_ends(const struct placement *p, uint64_t whole, uint64_t epoch);

/*
 * True if a node deletes a state of `epoch` when it hears that the job stands on states of the
 * earlier epoch `stands`.  The state's placement is not in force: a move that was given up has
 * filled the state, and it makes room.
 */
bool state_void(const struct placement *p, uint64_t stands, uint64_t epoch);

/* What becomes of an old state when it hears where the job stood. */
enum settling {
        SETTLE_STANDS,
        SETTLE_CARRY_OUT, /* the last decision, for which it has voted */
        SETTLE_VOID,      /* its vote */
};

/* prepared: the attempt in which the state has voted without knowing a decision.  last: the last
 * decided attempt.  Each may be 0. */
enum settling settling(uint64_t prepared, uint64_t last);

/* ---- at a job's coordinator ---- */

enum { OLD_PLACEMENT_MAX = 8 }; /* earlier placements whose states are known */

/* An earlier placement, and the states that nodes have told of. */
struct old_placement {
        struct placement placement; /* n_owners 0: the entry is unused */
        struct standing *standings[HOLDER_MAX];
        uint64_t puts[HOLDER_MAX];
        node_set settling, settled; /* nodes */
};

/* A node tells of a state.  A state with impossible numbers, or of one placement too many, is
 * refused. */
int old_placements_hear(struct old_placement *old_placements, uint32_t node,
                        const struct state_place *of, const struct standing *standing,
                        uint64_t puts, struct fault *fault);
/* The node is gone.  It stays known that the node had states, because those may be the newest. */
void old_placements_forget_node(struct old_placement *old_placements, uint32_t node);
/* Call it before a node tells its states again; states that it omits are gone. */
void old_placements_retell(struct old_placement *old_placements, uint32_t node);
void old_placements_free(struct old_placement *old_placements);
/*
 * Recovers where the job stood in an earlier placement with at least one copy of each owner's
 * states, as recover() does.
 *
 * An earlier coordinator may have seen other copies, and some of the copies here may know its
 * result.  If all of those others had voted for a step, it is decided, although a copy here has not
 * voted.  That copy is outdated and counts as gone, if the other copies are enough.
 */
int old_placement_recover(const struct old_placement *f, struct recovery *ret, uint32_t *ret_odd,
                          struct fault *fault);
/* True if the holder has a state that stands where `now` says, or will after it has settled. */
bool old_placement_gives(const struct old_placement *f, uint32_t holder,
                         const struct recovery *now);
/* The nodes with such states that have still to be asked to settle. */
node_set old_placement_unsettled(const struct old_placement *f, const struct recovery *now);
/* True if one such state of each owner is there.  If not, choose another placement, or wait. */
bool old_placement_covers(const struct old_placement *f, const struct recovery *now);
/* True if all such states have settled, and old_placement_covers(). */
bool old_placement_settled(const struct old_placement *f, const struct recovery *now);

enum opening_choice {
        OPENING_STANDS, /* on the states in force */
        OPENING_MOVES,  /* on those of an earlier placement */
        OPENING_MAKES,  /* no states are known: the job is new, or it is lost */
        OPENING_WAITS,  /* a node that holds what is missing is away */
};

/*
 * Chooses the states on which a job opens, once all nodes that should hold states have told.  told:
 * all nodes that have told.  *ret: set with OPENING_MOVES alone: the newest complete earlier
 * placement, unless a later one was worked on.
 */
enum opening_choice opening_choose(const struct standing *const *standings,
                                   const struct placement *placement,
                                   struct old_placement *old_placements, node_set told,
                                   struct old_placement **ret);

/*
 * Looks through the lists from epoch `since` to the one before p's.  Returns the nodes of each list
 * if none of them is in `told`, the nodes that have told what they have.  The job waits for one
 * node of each such list.  since: at most p's epoch.
 */
node_set lists_untold(const struct placement *p, uint64_t since, node_set told);

/*
 * True if a holder in force has to be filled.  s: its state; NULL: it has none.  whole: the
 * placement in force is complete, since the opening or because the move is over.  Before that a
 * state counts only if it was filled from the states that stand where `now` says.
 */
bool holder_lacks(const struct standing *s, const struct recovery *now, bool whole);
/* True if the other copy of a holder in force can fill it.  s: the other copy's state; done: it has
 * carried out the last decision. */
bool twin_gives(const struct standing *s, const struct recovery *now, bool done);
