/*
 * rank_state.h - what a node keeps of its ranks while their sessions come and go.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "daemon/job/step.h"
#include "proto/zero.pb-c.h"

struct job;
struct push_window;

/* What ranks keep with a step, of any number of ranks: owned copies. */
struct blob {
        void *data;
        uint32_t bytes;
};

/*
 * A rank's place on its node.  It outlives the rank's sessions: what one session has handed in
 * its successor need not.
 */
struct rank_state {
        const struct push_window *window; /* of its session; NULL: there is none */
        uint32_t pushed;                  /* groups that the session pushed in this attempt */
        bool closed;                      /* pushes nothing more in this attempt */
        bool stepped;                     /* zero_step() was called, and is not decided */
        bool refused;                     /* a gradient of this attempt was not accepted */
        struct step_params *params;       /* with stepped */
        struct blob handed;               /* with the zero_step() of this attempt */
        struct blob kept;                 /* with the last decided one */
};

/* -ENOMEM. */
int blob_set(struct blob *k, const void *p, size_t n);
void blob_clear(struct blob *k);
void rank_states_free(struct rank_state *rank_states, uint32_t n);
/* The attempt is over: decided, what was handed in is kept; else it is gone. */
void rank_states_reset(struct job *job, bool decided);
/* What the ranks of this node kept with the last decision, as the coordinator knows it. */
void rank_states_keep(struct job *job, Zero__RankBlob **kept, size_t n);
