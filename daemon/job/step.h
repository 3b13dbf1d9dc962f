/*
 * The coordinator's view of one job: which ranks are there, and how far the
 * current attempt has come.  I/O-free: events go in, at most one action comes out.
 *
 *   FORMING     ranks are missing; step_join() of the last one gives STEP_START
 *   COLLECTING  ranks work; step_ready() of the last node gives STEP_PREPARE
 *   VOTING      owners finish the reduction; step_vote() of the last gives STEP_DECIDE,
 *               or STEP_REFUSE if an owner refused: the same attempt is COLLECTING again
 *
 * After STEP_DECIDE the next attempt is COLLECTING at once: an owner votes in it only
 * when it has finished the update before, so two decisions cannot cross.
 * A norm request runs through COLLECTING and VOTING without ending the attempt.
 */
#pragma once

#include "daemon/job/decide.h"

enum step_phase { STEP_FORMING, STEP_COLLECTING, STEP_VOTING };
enum step_action { STEP_NOTHING, STEP_START, STEP_PREPARE, STEP_DECIDE, STEP_REFUSE };

enum { RANK_ABSENT = UINT32_MAX };

struct step {
        enum step_phase phase;
        uint32_t world_size, n_nodes, n_owners;
        uint64_t epoch, version, attempt;
        uint32_t *node_of_rank; /* [rank]; RANK_ABSENT */
        bool *rank_lost;        /* [rank]: its session ended without leave in this epoch */
        bool *ready;            /* [node] */
        bool *voted;            /* [owner] */
        bool *done;             /* [owner]: finished the last decided attempt */
        bool norm_only;         /* what is being collected or voted on ends with a norm */
        bool collecting_norm;   /* the ready nodes asked for the norm */
        bool have_params;
        uint32_t params_rank; /* whose they are */
        struct step_params params;
        struct votes votes;
        struct decision decision; /* the last one, with what it was made of; */
        struct step_params decided_params;
        uint64_t decided_attempt; /* ... 0: none yet */
        double norm;              /* ... with norm_only, loss scale left in */
        struct fault refusal;     /* why the owners last refused a step */
        double loss_scale;
        uint32_t good_steps, skipped;
};

int step_init(struct step *s, uint32_t world_size, uint32_t n_nodes, uint32_t n_owners);
void step_deinit(struct step *s);

/* A rank attached on a node.  ZERO_ERANK if it is taken or out of range. */
int step_join(struct step *s, uint32_t rank, uint32_t node, enum step_action *ret,
              struct fault *fault);
/* Its session ended.  The attempt cannot complete until the rank is back. */
void step_part(struct step *s, uint32_t rank, bool orderly);
/* Ranks of a node have all called zero_norm() (params NULL) or zero_step(). */
int step_ready(struct step *s, uint32_t node, uint64_t attempt, const struct step_params *params,
               uint32_t rank, enum step_action *ret, struct fault *fault);
/* An owner's vote.  Votes of other attempts and repeated ones are ignored. */
void step_vote(struct step *s, uint32_t owner, uint64_t attempt, const struct votes *vote,
               enum step_action *ret);
void step_done(struct step *s, uint32_t owner, uint64_t attempt);

/* Does any rank of the job run on the node? */
bool step_node_has_ranks(const struct step *s, uint32_t node);
