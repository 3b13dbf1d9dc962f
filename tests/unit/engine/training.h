/* A whole training run over the zoo, and its result to the bit. */
#pragma once

#include "trainer.h"
#include "zoo.h"

enum { RANKS_MAX = 4, STEPS_MAX = 8 };

struct training {
        struct net_options net;
        uint64_t part; /* see zoo.h */
        uint32_t ranks;
        uint32_t node_of_rank[RANKS_MAX];
        uint32_t steps, micro_batches;
        uint32_t hold_groups, push_groups; /* ZOO_GROUPS: everything at once */
        enum zero_dtype grad_dtype, reduce_dtype;
        double clip_norm, loss_scale;
        uint32_t growth_interval;
        uint32_t poisoned_step; /* counts from 1; 0: none */
        int32_t silent_rank;    /* pushes nothing; -1: none */
        int32_t lacking_rank;   /* pushes every group without data; -1: none */
        bool last_lacks;        /* every rank pushes its last micro-batch without data */
        uint32_t restart_after; /* all daemons are stopped and started after this step; 0: never */
        bool masks;             /* some tensors have no gradient, others in each step */
        bool deep;              /* all micro-batches of a group in a row */
        bool uneven;            /* odd ranks push one micro-batch only */
        bool prefetch;
        bool opposite;       /* odd ranks fetch backwards */
        bool crossed;        /* odd ranks swap the order of every two groups that they push */
        bool norm;           /* zero_norm before each step */
        bool eager;          /* all groups are, and zero_ahead comes before each step */
        uint32_t gpu_nodes;  /* bits of nodes whose ranks have windows on a GPU */
        uint32_t host_ranks; /* bits of ranks that have windows in host memory even there */
        uint32_t gpu_of_rank[RANKS_MAX];
        bool spoil_chunks; /* a walk over the chunks of a state ends the process */
        uint64_t seed;     /* for the timing alone */
};

struct outcome {
        struct checksum sum;
        uint64_t views[STEPS_MAX + 1][ZOO_GROUPS]; /* [version][group]: hash; 0: not seen */
        double grad_norm[STEPS_MAX], loss_scale[STEPS_MAX];
        bool skipped[STEPS_MAX];
        uint64_t version;
        uint64_t received; /* elements that all nodes received from others for their ranks */
};

/* Two nodes, two ranks on each, three steps of two micro-batches, clipped. */
struct training training_default(void);
/* Runs the training on nodes of its own and checks that all ranks see the same bytes. */
struct outcome training_run(const struct training *training);
/* Fails unless both results are the same to the bit. */
void outcome_same(const struct outcome *a, const struct outcome *b, const char *what);

/* The parts of a run, for tests that stop in between. */
struct session {
        const struct training *training;
        struct net net;
        layout *layout;
        struct trainer trainers[RANKS_MAX];
        struct step_params params;
        uint8_t masks[RANKS_MAX][ZOO_GROUPS][8];
        struct outcome outcome;
};
void session_open(struct session *s, const struct training *training);
void session_attach(struct session *s);
/* Adds the programs of step `step` (from 1): fetches, pushes, the end. */
void session_program(struct session *s, uint32_t step);
void session_fetches(struct session *s, uint32_t rank);
void session_pushes(struct session *s, uint32_t rank, uint32_t step);
void session_run(struct session *s);
/* Says how the step ends, and hands in the gradients of all groups; the step is not ended. */
void session_push_ahead(struct session *s, uint32_t step);
void session_close(struct session *s);
