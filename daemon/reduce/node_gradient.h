/*
 * node_gradient.h - shared by what ranks pushed (contribution.c, spill.c), the node gradients made
 * of that (node_gradient.c, sums.c), and how owners come by them (delivery.c, offering.c).
 */
#pragma once

#include "daemon/reduce/reduce.h"
#include "daemon/reduce/parts.h"

/* What a rank pushed for one micro-batch. */
struct contribution {
        struct list link; /* contributor.queue */
        struct job *job;
        struct push_window *window; /* NULL: its data, if any, is a copy */
        uint32_t group, rank, slot; /* slot: of the window */
        const void *data;           /* NULL: it has none */
        bool queued;                /* else in a node gradient */
        bool counted;               /* in reduce.waiting */
        struct offload_task task;   /* copies it aside (spill.c) */
        void *copy;
        size_t copy_bytes;
        bool copying, freed;     /* freed: when it was copied */
        struct request *request; /* to acknowledge; NULL if its session is gone */
        uint8_t *present;        /* [tensor of the group]; NULL: all */
        uint32_t micro_batch;
        uint32_t more; /* micro-batches without data behind it: kept as one */
};

/* A local rank of a group. */
struct contributor {
        struct list queue;
        uint32_t pushed; /* micro-batches so far */
        bool finished;   /* pushed its last, or closed */
};

struct reduce_group {
        uint32_t micro_batch; /* next to be reduced */
        uint32_t offered;     /* next to be offered: sums end in any order */
        bool ended;           /* no node gradient is made any more */
        bool ends_empty;      /* behind the last node gradient comes an empty offer */
};

enum { PUSH_WAITS_MS = 500 };
enum { SUMS_KEPT = 4 }; /* as many of the largest group as the budget is by default */

struct reduce {
        struct job *job;
        struct reduce_group *groups;      /* [group] */
        struct contributor *contributors; /* [group * world_size + rank] */
        struct list node_gradients;       /* all, in the order of making */
        uint32_t *waiting;                /* [rank]: slots of contributions in queues */
        bool *spilled;                    /* [rank]: one of its contributions has a copy */
        uint64_t buffer_bytes;            /* of sums */
        struct list kept;                 /* pieces for the next sums */
        uint64_t elements_sent, deferred;
        void (*ready)(struct job *job, uint32_t group); /* a node gradient may be offered */
        uint64_t asked, full; /* GPUs, a bit each: for a piece; without room for it */
};

/* Memory of a GPU for parts of a sum. */
struct piece {
        struct list link; /* node_gradient.pieces, or reduce.kept */
        uint32_t gpu;
        uint64_t bytes;
        void *memory;
};

/* Sums what is to be in one place. */
struct node_gradient_sum {
        struct offload_task task;
        struct node_gradient *node_gradient;
        const struct piece *piece; /* NULL: all, in host memory */
};

struct node_gradient {
        struct list link; /* reduce.node_gradients */
        struct job *job;
        uint32_t group, micro_batch;
        uint64_t attempt;
        enum zero_dtype grad_dtype; /* of the sources; the job's may be another one soon */
        bool last, ready, offered, starved;
        uint32_t summing; /* of sums */
        struct node_gradient_sum *sums;
        bool void_;            /* its attempt is over: freed when nothing reads it */
        bool aborted;          /* ... without a decision */
        uint64_t *untaken;     /* [owner]: elements of its range that it has not taken yet */
        uint32_t takers;       /* owners that have not taken all of theirs */
        uint32_t readers;      /* payloads and copies under way */
        struct list announced; /* deliveries that their owners have not read */
        uint8_t *present;      /* one bit a tensor */
        void *buffer;          /* the sum, in host memory */
        struct part *parts;    /* of the sum on GPUs; NULL: it is not there */
        struct list pieces;    /* that these lie in */
        uint64_t sum_bytes;
        /* Of a contribution in place, or the buffer.  NULL with parts; else owners take the
         * sources. */
        const void *data;
        bool on_gpu; /* none of it is for the CPU */
        uint32_t n_sources;
        struct contribution *sources[];
};

/* contribution.c */
struct contributor *contributor_of(struct reduce *r, uint32_t group, uint32_t rank);
bool is_local(const struct job *job, uint32_t group, uint32_t rank);
void contribution_free(struct contribution *c, int status, const char *text);
/* Its push is acknowledged, or refused, if it was not yet. */
void contribution_answer(struct contribution *c, int status, const char *text);
/* Its data is not for the CPU. */
bool contribution_on_gpu(const struct contribution *c);
/* Out of its rank's queue. */
void contribution_take(struct contribution *c);
/* It counts for nothing: its push is refused. */
void contribution_abort(struct contribution *c, const struct job *job);

/* Its copy, if it has one, is of no use any more. */
void spill_end(struct contribution *c);

/* spill.c */
/* Gives a slot back if nobody could push otherwise. */
void spill_check(struct job *job);

/* sums.c */
bool node_gradient_pushed_on_gpu(const struct node_gradient *p);
/* Its data is best left on the GPU. */
bool node_gradient_stays_on_gpu(const struct node_gradient *p);
/* Memory for the node gradient's sum; false: not before another one is given back. */
bool sum_take(struct node_gradient *p);
/* Where an element of a part of the sum lies. */
void *sum_at(const struct node_gradient *p, const struct part *part, uint64_t element);
void sum_give(struct node_gradient *p);

/* node_gradient.c */
/* An owner reads of its range of an offered node gradient; of what was taken so many elements are
 * not read again. */
void node_gradient_read_begin(struct node_gradient *p);
void node_gradient_read_end(struct node_gradient *p, uint32_t owner, uint64_t taken);
/*
 * All of it lies on that GPU, in memory that nothing else that is pushed in this attempt waits for;
 * and to read it twice is less than to write its sum and to read that.
 */
bool node_gradient_may_stay(const struct node_gradient *p, int gpu);
/* Its pushes are answered when the step has ended, which has a deadline of its own: they have none
 * until then. */
void node_gradient_keep(struct node_gradient *p);
bool node_gradient_on_gpu(const struct node_gradient *p);
struct node_gradient *node_gradient_new(struct job *job, uint32_t group);
void node_gradient_start(struct node_gradient *p);
/* There is memory for sums: the oldest node gradients without it go on. */
void reduce_feed(struct reduce *r);
void node_gradient_free(struct node_gradient *p);
/* Ends with the last that is read of it. */
void node_gradient_check(struct node_gradient *p);
/* Its data lies in host memory that its rank can write to. */
bool node_gradient_is_pushed_memory(const struct node_gradient *p);
/* From an element of the group on; of one that is a sum, or in place. */
const void *node_gradient_data(const struct node_gradient *p, uint64_t first);

/* delivery.c */
/* Sends an owner of another node its range before that asks; the number for the offer, or 0: it has
 * to ask. */
uint64_t node_gradient_announce(struct node_gradient *p, uint32_t owner);
/* Owners are told to forget what was announced to them. */
void node_gradient_withdraw(struct node_gradient *p);

/* offering.c: what is ready. */
void group_offer(struct job *job, uint32_t group);
