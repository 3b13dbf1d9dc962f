/*
 * node_gradient.h - shared by contributions (contributions.c), the node gradients made of them
 * (node_gradient.c), and their way to the owners (offering.c).
 */
#pragma once

#include "daemon/step/reduce/parts.h"
#include "daemon/step/reduce/pool.h"
#include "daemon/step/reduce/reduce.h"

/* What a rank pushed for one micro-batch. */
struct contribution {
        struct list link; /* contributor.queue */
        struct job *job;
        struct push_window *window; /* NULL: the data, if any, is a copy */
        uint32_t group, rank, slot; /* slot: in the window */
        const void *data;           /* NULL: the rank has no gradient */
        bool queued;                /* otherwise in a node gradient */
        bool counted;               /* in reduce.waiting */
        struct copy task;           /* copies the data */
        void *copy;
        bool copying, freed;     /* freed: the end of the copy frees it */
        struct request *request; /* to acknowledge; NULL if the session is gone */
        uint8_t *present;        /* [tensor of the group]; NULL: all */
        uint32_t micro_batch;
        uint32_t more; /* number of micro-batches without data behind this one */
};

/* A local rank that contributes to a group. */
struct contributor {
        struct list queue;
        uint32_t pushed; /* micro-batches pushed so far */
        bool finished;   /* it has pushed its last one, or is closed */
};

struct reduce_group {
        bool several;         /* micro-batches, in this attempt or the one before */
        uint32_t micro_batch; /* next to reduce */
        uint32_t offered;     /* next to offer: sums end in any order */
        bool ended;           /* no more node gradients */
        bool ends_empty;      /* an empty offer follows the last node gradient */
        bool offering;        /* somebody does, and goes on with what becomes ready meanwhile */
        uint32_t told;        /* of the owners of the group: those that have the next offer */
};

enum { PUSH_WAITS_MS = 500 };

struct reduce {
        struct job *job;
        enum zero_dtype grad_dtype;       /* of what local ranks push */
        struct reduce_group *groups;      /* [group] */
        node_set *nodes;                  /* [group]: with ranks that have it */
        struct contributor *contributors; /* [group * world_size + rank] */
        struct list node_gradients;       /* all, oldest first */
        uint32_t *waiting;                /* [rank]: its slots that queued contributions use */
        bool *spilled;                    /* [rank]: one of its contributions was copied aside */
        struct pool pool;                 /* memory of sums */
        uint64_t elements_sent, deferred;
        void (*ready)(struct job *job, uint32_t group); /* a node gradient can be offered */
        bool lacking; /* something had no memory: the next tick goes on with it */
};

/* Sums the parts of one place. */
struct node_gradient_sum {
        struct offload_task task;
        struct node_gradient *node_gradient;
        const struct pool_block *block;
};

struct node_gradient {
        struct list link; /* reduce.node_gradients */
        struct job *job;
        uint32_t group, micro_batch;
        uint64_t attempt;
        enum zero_dtype grad_dtype; /* of the sources; the job's may change before they end */
        bool last, ready, offered, starved;
        uint32_t summing; /* tasks that sum */
        struct node_gradient_sum *sums;
        bool void_;            /* its attempt is over: the last reader frees it */
        bool aborted;          /* the attempt ended without a decision */
        uint64_t *untaken;     /* [owner]: elements of its range still to take */
        uint32_t takers;       /* owners that still have elements to take */
        uint32_t readers;      /* payloads and copies in progress */
        struct list announced; /* deliveries still unread */
        uint8_t *present;      /* a bit per tensor */
        struct part *parts;    /* of a sum away from the host; NULL: none */
        struct list blocks;    /* memory of the parts, or in host memory of the sum */
        uint64_t sum_bytes;
        /* the contribution in place, or the sum in host memory.  NULL with parts; otherwise owners
         * take the sources. */
        const void *data;
        uint32_t n_sources;
        struct contribution *sources[];
};

/* contributions.c */
struct contributor *contributor_of(struct reduce *r, uint32_t group, uint32_t rank);
bool is_local(const struct job *job, uint32_t group, uint32_t rank);
void contribution_free(struct contribution *c, int status, const char *text);
/* Takes the contribution out of its rank's queue. */
void contribution_take(struct contribution *c);
/* Refuses the push and frees the contribution. */
void contribution_abort(struct contribution *c, const struct job *job);
/* Reduces every micro-batch of the group that all local ranks have pushed or left out. */
void reduce_advance(struct job *job, uint32_t group);
/* Copies a gradient aside if otherwise nobody could push. */
void spill_check(struct job *job);

/* node_gradient.c */
/* An owner begins or ends to read its range of an offered node gradient.  The elements that it has
 * taken are not read again. */
void node_gradient_read_begin(struct node_gradient *p);
void node_gradient_read_end(struct node_gradient *p, uint32_t owner, uint64_t taken);
/*
 * Whether everything lies in that place, in memory that may come back with the end of the step, and
 * reading it twice costs less than writing and reading its sum.
 */
bool node_gradient_may_stay(const struct node_gradient *p, uint32_t place);
/*
 * Whether an owner may let it wait in order to learn what follows.  A rank whose slot waits with it
 * says when it needs the slot.  Then the group's micro-batches are taken as they come, and so are
 * those of the next attempt: no rank says that twice.
 */
bool node_gradient_may_wait(const struct node_gradient *p);
/* The sources stay until the step ends.  Their pushes are answered then, and have no deadline of
 * their own. */
void node_gradient_keep(struct node_gradient *p);
/* Makes the group's next micro-batch from the queues of local ranks; `queued` of them have
 * something.  NULL: out of memory. */
struct node_gradient *node_gradient_new(struct job *job, uint32_t group, uint32_t queued);
void node_gradient_start(struct node_gradient *p);
/* Memory for sums is free: node gradients that wait for memory go on, the oldest first. */
void reduce_feed(struct job *job);
void node_gradient_free(struct node_gradient *p);
/* Frees the node gradient once nobody needs it. */
void node_gradient_check(struct node_gradient *p);
/* Whether the data lies in memory that the rank can write to. */
bool node_gradient_is_pushed_memory(const struct node_gradient *p);
/* Address of an element of the group; only for a sum or a contribution in place. */
const void *node_gradient_data(const struct node_gradient *p, uint64_t first);

/* offering.c */
/* Tells owners to forget what was announced to them. */
void node_gradient_withdraw(struct node_gradient *p);
/* Offers what is ready, in the order of micro-batches. */
void group_offer(struct job *job, uint32_t group);
