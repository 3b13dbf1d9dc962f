/*
 * rank_state.h - what a node knows of a job's ranks, and what it keeps of its own ranks while their
 * sessions come and go.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "daemon/job/rules/step.h"
#include "proto/zero.pb-c.h"

struct job;
struct push_window;
struct rank;

/* The blob of a rank, a copy. */
struct blob {
        void *data;
        uint32_t bytes;
};

/*
 * A rank of a job.  What its node keeps outlives the rank's sessions: what one session has handed
 * in, its successor does not hand in again.
 */
struct rank_state {
        struct rank *session;             /* on this node; NULL: none */
        const struct push_window *window; /* of the session */
        uint32_t pushed;                  /* groups that the session pushed in this attempt */
        bool here;                        /* the coordinator knows of a session on some node */
        bool closed;                      /* the session pushes nothing more in this attempt */
        bool stepped; /* the rank has called zero_step(), and the step is not decided */
        bool refused; /* a gradient of this attempt was not accepted */
        struct step_params *params; /* with stepped */
        struct blob handed;         /* with the zero_step() of this attempt */
        struct blob kept;           /* with the last decided step */
};

/* -ENOMEM. */
int blob_set(struct blob *k, const void *p, size_t n);
void blob_clear(struct blob *k);
void rank_states_free(struct rank_state *rank_states, uint32_t n);
/* The attempt is over.  If it is decided, the ranks' new blobs are kept; else they are lost. */
void rank_states_reset(struct job *job, bool decided);
/* Sets the blobs of the last decision, as the coordinator knows them. */
void rank_states_keep(struct job *job, Zero__RankBlob **kept, size_t n);
