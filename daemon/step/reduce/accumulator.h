/*
 * accumulator.h - shared by an owner's sums (accumulator.c), the offers that it takes for them
 * (pulling.c), and what follows when they are complete (vote.c).
 */
#pragma once

#include "daemon/step/reduce/pool.h"
#include "daemon/step/reduce/reduce.h"

/* The squared norm of a group's sum; every square is multiplied by scale. */
struct group_norm {
        double scale;
        struct exact_sum sum;
        bool finite;
};

enum offer_way {
        OFFER_ADDED,    /* to the group's sum */
        OFFER_DEFERRED, /* to nothing; the update adds the contributions up */
        OFFER_SETTLED,  /* was deferred, and has become the group's sum after all */
};

enum offer_phase { OFFER_WAITING, OFFER_PULLING, OFFER_LANDED };

struct offer {
        struct list link; /* accumulator_node.queue, accumulator.early, or offer.with */
        struct list with; /* others to the same micro-batch that its task adds, in node order */
        struct offload_task task;
        struct replica *replica;
        enum offer_phase phase;
        enum offer_way way;
        uint32_t node, group, micro_batch;
        uint64_t attempt;
        uint64_t announced; /* number of the announced payload until it is expected; 0: none */
        bool last, empty;
        bool void_;          /* its attempt is over: the last of its parts frees it */
        uint32_t until;      /* its task ends with the node before this one */
        float *beside;       /* where its task leaves the sum of a part of the micro-batch */
        uint64_t generation; /* of the accumulator, when the addition began */
        struct node_gradient *node_gradient; /* where this node's own ranks offer */
        uint8_t *present;                    /* a bit per tensor */
        size_t present_bytes;
        struct pool_block *buffer; /* where its parts land; NULL: none yet */
        struct offer_part *parts;
        uint32_t n_parts, next_part, in_flight, landed; /* parts; next_part: the next to ask for */
        bool failed; /* a part failed; nothing more is asked for until the others have ended */
        bool cut;    /* the link went down meanwhile */
        bool final;  /* the group's norm is taken with this offer */
};

/* What a node offers to a group. */
struct accumulator_node {
        struct list queue;
        uint32_t offered; /* number of micro-batches */
        bool finished;    /* its last offer is added */
};

struct accumulator_group {
        struct offload_task task;       /* takes the norm of the whole */
        struct replica *replica;        /* the group is of its shards */
        uint64_t generation;            /* of the accumulator, when the task began */
        struct accumulator_node *nodes; /* [node] */
        uint32_t micro_batch, cursor;   /* whose turn it is */
        float *beside; /* in fp32, the sum and a part of a micro-batch; NULL: none */
        bool ended;    /* nothing else came to the micro-batch; what is beside is not rounded yet */
        bool busy;     /* a task adds, or takes the norm, perhaps of others too */
        uint32_t readers; /* payloads of the sum to the mirror */
        bool normed;      /* the last addition also took the norm */
        bool complete, measured;
        struct group_norm norm;
        struct offer *deferred; /* instead of the sum: the update adds up this offer */
};

struct accumulator {
        uint32_t n_groups;
        struct accumulator_group *groups; /* [group] */
        uint8_t *present;                 /* [tensor]: it has a gradient in this attempt */
        struct list early;                /* offers of attempts that this node has not heard of */
        uint32_t n_early;
        struct pool pool;               /* memory that receives offers */
        uint32_t n_beside, most_beside; /* groups with a sum beside; the most in this attempt */
        uint32_t may_beside;            /* how many may have one at once */
        uint64_t moved_ms;              /* loop time at which an offer last came or was added */
        uint64_t asked_ns;              /* when the coordinator last asked for a vote */
        bool preparing;                 /* the coordinator wants this owner's vote */
        bool have_params;               /* the vote is to end the step, not only for the norm */
        bool voted;                     /* the coordinator has the vote and has not decided */
        bool left; /* a rank has left in this attempt: nothing more is deferred */
        struct step_params params;
        struct blob *kept; /* [rank]: its blob of the step */
        bool kept_lost;    /* there was no memory for the blobs: the vote says so */
        uint32_t n_kept;
        uint64_t generation; /* a task of an older one has no effect */
};

/* accumulator.c */
/* Whether this owner reduces the group.  Whether the node offers to the group: the node has ranks
 * of the group, or the sum that this mirror needs. */
bool accumulator_has(const struct replica *h, uint32_t group);
bool accumulator_expects(const struct replica *h, uint32_t group, uint32_t node);
/* The elements to pull: of the group, or for a mirror of the sum. */
struct range accumulator_range(const struct replica *h, uint32_t group);
/* Whether, as far as this owner knows, only the offer's own node may add to the group after it. */
bool offer_is_alone(const struct offer *o);
/* Writes the sum of a deferred offer after all.  Takes the norm, too, unless the group has its own.
 */
void offer_settle(struct offer *o);
/* Nothing is added to the group any more: none of its tensors has a gradient. */
void accumulator_forget_added(struct replica *h, uint32_t group);
/* Lets more groups begin a micro-batch without all its nodes if the owner stands still. */
void accumulator_tick(struct replica *h);
void accumulator_forget_kept(struct accumulator *l);

/* adding.c */
/* Of so many elements to pull; a mirror pulls the sum. */
uint64_t accumulator_bytes(const struct replica *h, uint64_t elements);
/* Whether the sum is rounded once a micro-batch. */
bool accumulator_rounds(const struct replica *h);
/* The norm of nothing. */
void group_norm_init(struct group_norm *norm, const struct job *job, uint32_t group);
/* The offer's tensors have a gradient from now on. */
void offer_mark_present(const struct offer *o);
/* For an offload thread.  Adds the offer, and those with it, to the group's sum; NULL: nothing.
 * Takes the norm of the sum, unless that is NULL. */
void accumulator_add(const struct replica *h, uint32_t group, const struct offer *o,
                     struct group_norm *norm);
/* For an offload thread.  Takes the norm of several groups' offers, at least one, in one pass. */
void deferred_norm(const struct replica *h, struct offer *const *offers, uint32_t n,
                   struct group_norm *norm);

/* pulling.c */
/* Begins to pull the offer if it has something to pull and is not being pulled. its_turn: beyond
 * the budget if need be. */
void offer_pull(struct offer *o, bool its_turn);
/* Frees the offer, at once or with its last part. */
void offer_void(struct offer *o);
void offer_free(struct offer *o);
/* Queues offers whose attempt has begun; drops those whose attempt will never begin. */
void accumulator_take_early(struct replica *h);
void accumulators_node_down(struct engine *x, uint32_t node, const char *why);

/* vote.c */
/* Whether the sum need not be written. */
bool offer_defers(const struct offer *o);
/* Whether that would be so if nothing followed.  Then the offer waits until that is known. */
bool offer_waits(const struct offer *o);
/* Keeps the offer, and what its ranks pushed, until the update takes it or the attempt is over. */
void deferred_keep(struct offer *o);
/* The group is complete, and measured unless its sum is deferred.  Votes once all groups are. */
void accumulator_complete(struct replica *h, uint32_t group);
void accumulator_vote(struct replica *h);
