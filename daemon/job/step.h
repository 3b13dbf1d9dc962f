/*
 * The coordinator's view of one job: which ranks and nodes are there, and how far the
 * current attempt has come.  I/O-free: events go in, at most one action comes out.
 *
 *   FORMING     something is missing; when step_startable() says so, step_start()
 *   COLLECTING  ranks work; step_ready() of the last node gives STEP_PREPARE
 *   VOTING      holders finish the reduction; step_vote() of the last gives STEP_DECIDE,
 *               or STEP_REFUSE if one refused: the same attempt is COLLECTING again
 *
 * After STEP_DECIDE the next attempt is COLLECTING at once: a holder votes in it only
 * when it has finished the update before, so two decisions cannot cross.
 * Both copies of an owner's shards vote, but one of them counts: a mirror that sums the same
 * gradients votes the same, and if it does not, the memory of one of the two is damaged and the
 * step is refused.
 * A norm request runs through COLLECTING and VOTING without ending the attempt.
 *
 * A rank whose session ends keeps its slot: what its node has accepted from it stays, the attempt
 * goes on, and a successor on the same node takes the slot again (STEP_REJOIN).  An
 * attempt is void, and FORMING comes before the next, when a rank leaves, takes
 * its place on another node or in an attempt whose norm was told (the others will not ask for it
 * again), and when a node or a link between two nodes is lost: what was under
 * way between them is lost with it.  Only what all holders have voted for is
 * decided, so nothing that is void can have been.
 */
#pragma once

#include "daemon/job/placement.h"
#include "daemon/job/recover.h"

enum step_phase { STEP_FORMING, STEP_COLLECTING, STEP_VOTING };
enum step_action { STEP_NOTHING, STEP_REJOIN, STEP_PREPARE, STEP_DECIDE, STEP_REFUSE };
/*
 * EMPTY: nobody has taken it since the coordinator runs.  LOST: its session ended without leave;
 * the node keeps what it contributed.  LEFT: it ended in order.
 */
enum rank_slot { RANK_SLOT_EMPTY, RANK_SLOT_HERE, RANK_SLOT_LOST, RANK_SLOT_LEFT };

enum { RANK_ABSENT = UINT32_MAX };

struct step {
        enum step_phase phase;
        uint32_t world_size, n_nodes;
        struct placement view;
        bool fail_on_lost; /* a lost rank voids the attempt: nobody waits for a successor */
        uint64_t epoch, version, attempt;
        uint64_t heard;         /* the highest attempt that any node knows of */
        uint32_t *node_of_rank; /* [rank]; RANK_ABSENT where the slot is empty */
        enum rank_slot *rank_slots; /* [rank] */
        uint64_t open;          /* nodes that are there and know the job */
        uint64_t *cut;          /* [node]: nodes that it cannot reach */
        bool *ready;            /* [node] */
        bool *voted;            /* [holder] */
        struct votes *ballots;  /* [holder]: what it voted */
        bool *done;             /* [holder]: has carried the last decision out */
        bool norm_only;         /* what is being collected or voted on ends with a norm */
        bool collecting_norm;   /* the ready nodes asked for the norm */
        bool have_params;
        uint32_t params_rank; /* whose they are */
        struct step_params params;
        struct decision decision; /* the last one */
        uint64_t decided_attempt; /* ... 0: none yet */
        double norm;              /* ... with norm_only, loss scale left in */
        bool normed;              /* a norm was told in this attempt */
        struct fault refusal;     /* why a step was last refused; no text where `odd` is one */
        uint32_t odd;             /* the mirror whose vote was not its owner's, or NO_HOLDER */
        double loss_scale;
        uint32_t good_steps, skipped;
};

int step_init(struct step *s, uint32_t world_size, uint32_t n_nodes, const struct placement *view);
void step_deinit(struct step *s);
/* Another number of ranks, while none has a session: all slots are empty then.  -ENOMEM. */
int step_resize(struct step *s, uint32_t world_size);
/* Does any rank have a session? */
bool step_any_here(const struct step *s);
/* ... or may it have one on a node that is away? */
bool step_occupied(const struct step *s);

/* A node knows of an attempt: the next one to be started is beyond it. */
void step_heard(struct step *s, uint64_t attempt);
/* Where the job stands, by what the holders' records say. */
void step_adopt(struct step *s, const struct recovery *r);
struct recovery step_stands(const struct step *s);

/*
 * A rank attached on a node.  ZERO_ERANK if it is taken or out of range.  STEP_REJOIN: it
 * is in the running attempt at once.
 */
int step_join(struct step *s, uint32_t rank, uint32_t node, enum step_action *ret,
              struct fault *fault);
/* Its session ended. */
void step_part(struct step *s, uint32_t rank, bool orderly);
/* A node knows the job and has heard all decisions, or is about to; or it is lost. */
void step_node_open(struct step *s, uint32_t node);
void step_node_lost(struct step *s, uint32_t node);
/* It is there, but is to be opened anew: no attempt begins before. */
void step_node_shut(struct step *s, uint32_t node);
/* Which nodes a node cannot reach. */
void step_links(struct step *s, uint32_t node, uint64_t cut);
/* Everything that the job needs is there, and the last decision is carried out everywhere. */
bool step_startable(const struct step *s);
/* Begins a new attempt in a new epoch. */
void step_start(struct step *s);

/* Ranks of a node have all called zero_norm() (params NULL) or zero_step(). */
int step_ready(struct step *s, uint32_t node, uint64_t attempt, const struct step_params *params,
               uint32_t rank, enum step_action *ret, struct fault *fault);
/* A holder's vote.  Votes of other attempts and repeated ones are ignored. */
void step_vote(struct step *s, uint32_t holder, uint64_t attempt, const struct votes *vote,
               enum step_action *ret);
void step_done(struct step *s, uint32_t holder, uint64_t attempt);

/* Does any rank of the job run on the node? */
bool step_node_has_ranks(const struct step *s, uint32_t node);
/* Has the node ranks of the job, or holds it anything of it?  Others may come and go. */
bool step_needs_node(const struct step *s, uint32_t node);
