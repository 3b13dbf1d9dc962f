/*
 * What the coordinator knows of one job: which ranks and nodes are there, and how far the current
 * attempt has come.  I/O-free: events go in, at most one action comes out.
 *
 *   FORMING     something is missing; once step_startable() says so, step_start() begins
 *   COLLECTING  ranks work; step_ready() of the last node gives STEP_PREPARE
 *   VOTING      holders finish the reduction; the last step_vote() gives STEP_DECIDE.  If a holder
 *               refuses it gives STEP_REFUSE, and the same attempt is COLLECTING again
 *
 * After STEP_DECIDE the next attempt is COLLECTING at once.  A holder votes in it only after the
 * update of the attempt before, so two decisions cannot cross.  Both copies of an owner's shards
 * vote, but only the owner's vote counts: a mirror that sums the same gradients votes the same.  If
 * the two votes differ, the memory of one of the two nodes is damaged, and the step is refused.  A
 * request for the norm goes through COLLECTING and VOTING without ending the attempt.
 *
 * Ranks may say before zero_step() how they will end the step.  The first rank that does gives
 * STEP_AHEAD, and owners update eager groups by its parameters.  From then on the attempt commits
 * with these parameters, or it does not commit (a step without sets).
 *
 * A rank whose session ends keeps its slot.  What its node has accepted from it stays, and the
 * attempt goes on.  A successor on the same node takes the slot again (STEP_REJOIN).
 *
 * In these cases the attempt is void, and FORMING comes before the next one:
 *   - a rank leaves, or is lost and nobody waits for a successor (fail_on_lost)
 *   - a rank comes back on another node
 *   - a rank comes back after the norm went to a vote or was told: others will not ask for it again
 *   - a node or a link between two nodes is lost, and with it messages between them
 * A rank that comes back begins its step anew, while the others may be anywhere in it.  It asks for
 * the norm anew, so its node is not ready until then.  Reductions of numbers and a rank that comes
 * back do not go together in one attempt: whichever comes second makes the attempt void.
 * An attempt is decided only if all holders have voted in it, so no void attempt was decided.
 */
#pragma once

#include "daemon/job/rules/placement.h"
#include "daemon/job/rules/recover.h"
#include "daemon/job/rules/round.h"

enum step_phase { STEP_FORMING, STEP_COLLECTING, STEP_VOTING };
enum step_action {
        STEP_NOTHING,
        STEP_REJOIN,
        STEP_AHEAD,
        STEP_PREPARE,
        STEP_DECIDE,
        STEP_REFUSE,
        STEP_REDUCED,
};
/* EMPTY: no rank has taken the slot since the coordinator started.  LOST: the session ended without
 * leave, and the node keeps what the rank contributed.  LEFT: the session ended in order. */
enum rank_slot { RANK_SLOT_EMPTY, RANK_SLOT_HERE, RANK_SLOT_LOST, RANK_SLOT_LEFT };

enum { RANK_ABSENT = UINT32_MAX };

struct step {
        enum step_phase phase;
        uint32_t world_size, n_nodes;
        struct placement placement;
        bool fail_on_lost; /* a lost rank voids the attempt, because nobody waits for a successor */
        bool started;      /* an attempt has begun */
        uint64_t version, attempt;
        uint64_t heard;             /* the highest attempt that any node knows of */
        uint32_t *node_of_rank;     /* [rank]; RANK_ABSENT: no node */
        enum rank_slot *rank_slots; /* [rank] */
        node_set open;              /* nodes that are up and know the job */
        node_set *cut;              /* [node]: nodes that it cannot reach */
        bool *ready;                /* [node] */
        bool *voted;                /* [holder] */
        struct votes *ballots;      /* [holder]: its vote */
        bool *done;                 /* [holder]: it has carried out the last decision */
        bool norm_only;             /* the running or the last vote is on the norm alone */
        bool collecting_norm;       /* the ready nodes have asked for the norm */
        bool have_params;
        uint32_t params_rank; /* the rank that passed them */
        struct step_params params;
        struct step_params *ahead; /* how this attempt will end; NULL: nobody has said */
        uint32_t ahead_rank;
        struct decision decision; /* of the last decided attempt */
        uint64_t decided_attempt; /* 0: none */
        double norm;              /* with norm_only; loss scale left in */
        bool normed;              /* this attempt has told a norm */
        struct round round;       /* of this attempt's reductions */
        uint32_t rejoined; /* 2: a rank has come back in this attempt; 1: in the one before, where
                              it may have stepped already; then it begins anew in this one */
        struct fault refusal; /* why the last step was refused; no text if `odd` is set */
        uint32_t odd;         /* the mirror whose vote differs from its owner's, or NO_HOLDER */
        double loss_scale;
        uint32_t skipped; /* steps, in all */
};

int step_init(struct step *s, uint32_t world_size, uint32_t n_nodes,
              const struct placement *placement);
void step_deinit(struct step *s);
/* Changes the number of ranks while none has a session; empties all slots.  -ENOMEM. */
int step_resize(struct step *s, uint32_t world_size);
/* True if any rank has a session. */
bool step_any_here(const struct step *s);
/* True if any rank has a session, or may have one on a node that is away. */
bool step_occupied(const struct step *s);

/* A node knows of the attempt: the next one gets a higher number. */
void step_heard(struct step *s, uint64_t attempt);
/* Takes over where the job stands, as recovered from the holders' records. */
void step_adopt(struct step *s, const struct recovery *r);
struct recovery step_stands(const struct step *s);

/*
 * A rank attaches on a node.  ZERO_ERANK: the rank is taken or out of range.  STEP_REJOIN: the rank
 * is in the running attempt at once.
 */
int step_join(struct step *s, uint32_t rank, uint32_t node, enum step_action *ret,
              struct fault *fault);
/* The rank's session has ended; orderly: in order. */
void step_part(struct step *s, uint32_t rank, bool orderly);
/* A node knows the job, and knows all decisions or will soon. */
void step_node_open(struct step *s, uint32_t node);
/* The node is away, and its ranks' sessions with it. */
void step_node_lost(struct step *s, uint32_t node);
/* The node is up but has to be opened again: no attempt begins before that. */
void step_node_shut(struct step *s, uint32_t node);
/* cut: the nodes that the node cannot reach. */
void step_links(struct step *s, uint32_t node, node_set cut);
/* True if all that the job needs is there, and the last decision is carried out everywhere. */
bool step_startable(const struct step *s);
/* Begins a new attempt. */
void step_start(struct step *s);

/* All ranks of a node have called zero_norm() (params NULL) or zero_step(). */
int step_ready(struct step *s, uint32_t node, uint64_t attempt, const struct step_params *params,
               uint32_t rank, enum step_action *ret, struct fault *fault);
/* A rank says how it will end the step.  ZERO_ECONFLICT: another rank has said something else. */
int step_ahead(struct step *s, uint64_t attempt, const struct step_params *params, uint32_t rank,
               enum step_action *ret, struct fault *fault);
/*
 * A rank gives its numbers to a reduction (round.h).  STEP_REDUCED: it was the last rank, and
 * round.result is there.  ZERO_ECONFLICT: the rank is at another call than the others.  If a rank
 * has come back nobody can tell, and the attempt is void.
 */
int step_reduce(struct step *s, uint32_t node, uint64_t attempt, uint32_t rank,
                const struct numbers *c, enum step_action *ret, struct fault *fault);
/* A holder's vote.  Votes of other attempts and repeated ones are ignored. */
void step_vote(struct step *s, uint32_t holder, uint64_t attempt, const struct votes *vote,
               enum step_action *ret);
void step_done(struct step *s, uint32_t holder, uint64_t attempt);

/* True if any rank of the job runs on the node. */
bool step_node_has_ranks(const struct step *s, uint32_t node);
/* True if the node has ranks of the job or holds some of it.  Other nodes may come and go. */
bool step_needs_node(const struct step *s, uint32_t node);
