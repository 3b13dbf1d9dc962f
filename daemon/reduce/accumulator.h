/*
 * accumulator.h - shared by the offers that an owner takes (offer.c, pulling.c, receive_buffer.c),
 * what it computes (adding.c), what of it is left to the update (deferred.c), its sums
 * (accumulator.c), and what follows when they are complete (complete.c).
 */
#pragma once

#include "daemon/reduce/reduce.h"

/* The squares of a group's sum, each times scale. */
struct group_norm {
        double scale;
        struct exact_sum sum;
        bool finite;
};

enum offer_way {
        OFFER_ADDED,    /* to the group's sum */
        OFFER_DEFERRED, /* the norm is taken; the update adds up what it has */
        OFFER_SETTLED,  /* it was deferred, and is the group's sum after all */
};

enum offer_phase { OFFER_WAITING, OFFER_PULLING, OFFER_LANDED };

/* Memory for what is pulled of an offer. */
struct receive_buffer {
        void *memory; /* NULL: none */
        uint64_t bytes;
        int gpu; /* RECEIVE_BUFFER_ON_HOST, or where it lies */
};

enum { RECEIVE_BUFFER_ON_HOST = -1, RECEIVE_BUFFERS_KEPT = 4 };

struct offer {
        struct list link; /* accumulator_group.queues[node], or accumulator.early */
        struct offload_task task;
        struct replica *replica;
        enum offer_phase phase;
        enum offer_way way;
        uint32_t node, group, micro_batch;
        uint64_t attempt;
        uint64_t announced; /* the payload's transfer, until it is expected; 0: none is announced */
        bool last, empty;
        bool void_;          /* its attempt is over: freed when its parts have ended */
        uint64_t generation; /* of the accumulator, when its accumulation began */
        struct node_gradient *node_gradient; /* of this node's own ranks */
        uint8_t *present;                    /* one bit a tensor */
        size_t present_bytes;
        struct receive_buffer buffer; /* where its parts land */
        struct offer_part *parts;
        uint32_t n_parts, next_part, in_flight, landed; /* parts; next: to be asked for */
        bool failed; /* one did; no more are asked for before the others have ended */
        bool cut;    /* the link ended meanwhile */
        bool final;  /* the group's norm is taken with it */
        struct group_norm norm;
};

struct accumulator_group {
        struct list *queues;          /* [node] */
        uint32_t *offered;            /* [node]: micro-batches offered so far */
        bool *finished;               /* [node]: its last was accumulated, or it has no ranks */
        uint32_t micro_batch, cursor; /* whose turn it is */
        bool busy;                    /* an accumulation or the norm is running */
        uint32_t readers;             /* payloads of the sum, to the mirror */
        bool normed;                  /* what was added last was the last: the norm is there */
        bool complete, measured;
        struct group_norm norm;
        struct offer *deferred; /* the sum is not there: it is what this offer has */
};

struct accumulator {
        uint32_t n_groups;
        struct accumulator_group *groups; /* [group] */
        uint8_t *present;                 /* [tensor]: has a gradient in this attempt */
        struct list early; /* offers of attempts that this node has not heard of yet */
        uint32_t n_early;
        uint64_t receive_buffer_bytes; /* that offers have */
        struct receive_buffer
                kept_receive_buffers[RECEIVE_BUFFERS_KEPT]; /* on GPUs, for the next offers */
        uint32_t n_kept_receive_buffers;
        uint64_t kept_ms; /* when one came last */
        bool receive_buffer_asked; /* for one more */
        bool preparing;   /* the coordinator wants this owner's vote */
        bool have_params; /* ... to end the step, not for the norm only */
        bool voted;       /* ... and has it; there is no decision yet */
        struct step_params params;
        struct blob *kept; /* [rank]: what the ranks keep with it */
        uint32_t n_kept;
        uint64_t generation; /* tasks of an older one end in nothing */
};

/* offer.c */
/* Of what is pulled: the wire's, or fp32 for a mirror. */
enum zero_dtype accumulator_dtype(const struct replica *h);
/* Whether the group is reduced here at all; whether a node has something to offer to it: ranks, or
 * the sum that is mirrored. */
bool accumulator_has(const struct replica *h, uint32_t group);
bool accumulator_expects(const struct replica *h, uint32_t group, uint32_t node);

/* Elements that are pulled of an offer, and the first: of the group, or of the mirrored sum. */
struct range accumulator_range(const struct replica *h, uint32_t group);
void offer_free(struct offer *o);

/* pulling.c */
/* Begins to pull it, if it has anything to pull and is not being pulled; its_turn: beyond the
 * budget if need be. */
void offer_pull(struct offer *o, bool its_turn);
/* Frees it, or lets it go when its parts have ended. */
void offer_void(struct offer *o);

/* receive_buffer.c */
/* What is kept goes when nobody has used it for a while and no rank is here. */
void accumulator_tick(struct replica *h);
/* False: not now. */
bool receive_buffer_take(struct replica *h, uint32_t group, bool its_turn,
                         struct receive_buffer *ret);
void receive_buffer_give(struct replica *h, struct receive_buffer *buffer);

/* deferred.c: on the loop thread. */
/* Its sum need not be written. */
bool offer_defers(const struct offer *o);
/* Until it is taken, or the attempt is over; with it what its ranks pushed. */
void deferred_keep(struct offer *o);

/* adding.c */
/* Of nothing yet. */
void group_norm_init(struct group_norm *norm, const struct job *job, uint32_t group);
/* Adds an offer to the group's sum; NULL: nothing.  Then, unless norm is NULL, takes the norm of
 * the sum.  For an offload thread. */
void accumulator_add(const struct replica *h, uint32_t group, const struct offer *o,
                     struct group_norm *norm);

/* complete.c: the norm of a complete group, if it has none yet, and the vote once all have theirs.
 */
void accumulator_measure(struct replica *h, uint32_t group);
void accumulator_measured(struct replica *h, uint32_t group);
void accumulator_vote(struct replica *h);

/* accumulator.c */
void accumulators_tick(struct engine *x);
void accumulators_node_down(struct engine *x, uint32_t node, const char *why);
void accumulator_advance(struct replica *h, uint32_t group);
void accumulator_forget_present(struct replica *h, uint32_t group);
void accumulator_forget_kept(struct accumulator *l);
