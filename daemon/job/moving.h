/*
 * What becomes of a job's states when its owners change.  Pure: of what nodes have told, and of
 * records.
 *
 * Each placement has states of its own.  Where the job stands is told by those of the placement in
 * force if there is one copy of each owner's at least, else by those of an earlier one: the newest
 * of which that holds.  A step that was decided on these is carried out and any other is void
 * (enum settling); then each holder in force is filled from them (pieces.h).  When none is
 * lacking the placement in force is whole, and only then earlier states are deleted, wherever they
 * are; those of a move that was broken off go before.  No step is begun before.
 *
 * So a placement that has never been whole never had a step of its own: what is left of one, since
 * its move was broken off by another change, stands as it was filled, and does not count.
 *
 * Whether one was whole is known of any node that held part of it and tells what it has: a step
 * needs all of them, so this one has what came of it, or has deleted that for the sake of a later
 * one.  Of a list all of whose nodes are silent nothing is known: what was committed last may be
 * there and nowhere else.  So the job neither goes back past such a list nor is made anew after it.
 */
#pragma once

#include "daemon/job/recover.h"

/* ---- at a node ---- */

enum state_use {
        STATE_IN_FORCE,
        STATE_OLD_PLACEMENT, /* of an earlier placement: kept until one is whole */
        STATE_FOREIGN,       /* of a later one, or of another holder: left alone */
};

struct state_place {
        uint64_t epoch;
        uint32_t n_owners, owner, copy;
};

/* What a state that is found on a node is to it. */
enum state_use state_use(const struct placement *view, uint32_t node, const struct state_place *s);
/* The word that a placement is whole deletes a state of an earlier one on a node. */
bool state_ends(const struct placement *view, uint64_t whole, uint64_t epoch);

/*
 * The word that the job stands where states of an earlier placement do deletes one of a later
 * placement, unless that is in force: it was filled for a move that was broken off, and makes room.
 */
bool state_void(const struct placement *view, uint64_t stands, uint64_t epoch);

/* What an old state does when it hears where the job stood. */
enum settling {
        SETTLE_STANDS,
        SETTLE_CARRY_OUT, /* the last decision: it has voted for that */
        SETTLE_VOID,      /* its vote */
};

/* prepared: the attempt that it has voted in and knows no decision of, or 0; last: or 0. */
enum settling settling(uint64_t prepared, uint64_t last);

/* ---- at a job's coordinator ---- */

enum { OLD_PLACEMENT_MAX = 8 }; /* placements before the one in force, of which states are left */

/* States of one of them. */
struct old_placement {
        struct placement place; /* n_owners 0: nobody has any */
        struct standing *standings[HOLDER_MAX];
        uint64_t puts[HOLDER_MAX];
        uint64_t settling, settled; /* nodes, a bit each */
};

/* A node has told of a state.  What makes no sense, or is too much, is refused. */
int old_placements_hear(struct old_placement *old_placements, uint32_t node,
                        const struct state_place *of, const struct standing *standing,
                        uint64_t puts, struct fault *fault);
/* The node is gone.  That it had states is not forgotten: what it had may be the newest. */
void old_placements_forget_node(struct old_placement *old_placements, uint32_t node);
/* Before a node tells all that it has: what it does not tell of again it has no more. */
void old_placements_retell(struct old_placement *old_placements, uint32_t node);
void old_placements_free(struct old_placement *old_placements);
/*
 * Where the job stood in an earlier placement of which one copy of each owner's states is there;
 * as recover().  Others may have been there when that was found out before, and some of them may
 * know it already: a step that those had all voted for is decided, though this one has not.  Then
 * it is outdated, and counts as gone where the others are enough.
 */
int old_placement_recover(const struct old_placement *f, struct recovery *ret, uint32_t *ret_odd,
                          struct fault *fault);
/* The holder has a state that stands there, or will when it has settled. */
bool old_placement_gives(const struct old_placement *f, uint32_t holder,
                         const struct recovery *now);
/* Nodes with such states that have yet to be asked to settle. */
uint64_t old_placement_unsettled(const struct old_placement *f, const struct recovery *now);
/* One copy of each owner's is there; else another placement is to be chosen, or waited. */
bool old_placement_covers(const struct old_placement *f, const struct recovery *now);
/* All of them have settled, and old_placement_covers(). */
bool old_placement_settled(const struct old_placement *f, const struct recovery *now);

enum opening_choice {
        OPENING_STANDS, /* where the states in force do */
        OPENING_MOVES,  /* where those of an earlier placement do */
        OPENING_MAKES,  /* no states are known: the job is new, or lost */
        OPENING_WAITS,  /* a node that holds what is missing has yet to come */
};

/*
 * When all nodes that are to hold states have told.  *ret: OPENING_MOVES alone: the newest earlier
 * placement that is whole, if none was worked on since.
 */
enum opening_choice opening_choose(const struct standing *const *standings,
                                   const struct placement *view,
                                   struct old_placement *old_placements,
                                   struct old_placement **ret);

/*
 * Nodes of the lists from epoch `since` to the one before the view's, of each of which no node has
 * told what it has: one of each is to be waited for.  since: at most its epoch; told: a bit each.
 */
uint64_t lists_untold(const struct placement *view, uint64_t since, uint64_t told);

/*
 * A holder in force is to be filled; s: NULL: it has no state.  whole: as the opening found, or
 * since the move is over; before that a state counts only if it was filled from these.
 */
bool holder_lacks(const struct standing *s, const struct recovery *now, bool whole);
/* A holder in force can be filled from its other copy, of which s is known.  done: step_done(). */
bool twin_gives(const struct standing *s, const struct recovery *now, bool done);
