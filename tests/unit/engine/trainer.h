/*
 * A rank as a program: a list of operations, each begun when the one before has ended
 * (pushes are not waited for, except for their slot).  The programs of all ranks run
 * side by side, in a random order of turns.  A program whose attempt is aborted begins anew, unless
 * its step was committed meanwhile.
 */
#pragma once

#include "net.h"

/* With each step a rank keeps a blob: its own number and the step's. */
enum { TRAINER_BLOB = 2 };

enum op_kind { OP_ATTACH, OP_FETCH, OP_PREFETCH, OP_RELEASE, OP_PUSH, OP_AHEAD, OP_NORM, OP_STEP, OP_LEAVE };

struct op {
        enum op_kind kind;
        uint32_t group;
        uint32_t micro_batch;
        bool last;
        const uint8_t *present; /* one byte a tensor of the group; NULL: all */
        bool empty;             /* a push without data, which takes no slot */
        bool poison;            /* a push in which one element is not finite */
        const struct step_params *params;
};

struct trainer;
/* Called at the end of every operation, with the status that request_end() got. */
typedef void trainer_heard(struct trainer *t, const struct op *op, int status, const char *text,
                           const struct request *r);

struct trainer {
        struct net *net;
        uint32_t node;
        struct rank_needs needs;
        const layout *layout;
        uint64_t step;        /* number of the data that gradients depend on */
        trainer_heard *heard; /* NULL: everything must succeed */
        void *arg;

        struct rank *rank;
        struct op *ops;
        uint32_t n_ops, next;
        bool busy;          /* the program waits for an operation */
        struct task *tasks; /* requests in progress */
        uint32_t n_tasks;
        uint8_t *slots;        /* [slot]: a push that has not ended is in it */
        struct stream *stream; /* of its GPU, if its windows are on one (stream.h) */
        bool stopped;          /* the work on its GPU never ends */
        const void **views;    /* [group]: as last fetched */
        void *seen;            /* what trainer_view() has copied from a GPU */
        double norm;
        bool finite, skipped;
        uint64_t version;
        uint64_t attempt; /* the one that the rank works in, as far as it knows */
        uint64_t from;    /* the version that the program begins at */
        bool aborted;     /* the attempt is void, and the program has not begun anew */
        bool patient;     /* waits for the next attempt when a rank is lost */
        bool waits;       /* waits for the next attempt */
        double grad_norm, loss_scale;
};

/* A gradient element, a function of the arguments alone. */
float trainer_gradient(uint64_t step, uint32_t rank, uint32_t tensor, uint32_t micro_batch,
                       uint64_t element);
/* Adds an operation to the program. */
void trainer_add(struct trainer *t, struct op op);
/* Runs the programs to their ends and forgets them.  seed: for the order of turns. */
void trainers_run(struct trainer *ts, uint32_t n, uint64_t seed);
/* Runs one turn of each program; true while any goes on. */
bool trainers_turn(struct trainer *ts, uint32_t n, uint64_t *seed);
/* Ends the session at once, like that of a killed process. */
void trainer_kill(struct trainer *t);
void trainer_free(struct trainer *t);
/* The group's bytes from the last fetch; valid while the rank holds the group, and until the next
 * call. */
const void *trainer_view(struct trainer *t, uint32_t group);
/* What a push takes; something else. */
void trainer_write_gradient(const struct trainer *t, const struct op *op, uint32_t slot);
void trainer_spoil_slot(const struct trainer *t, const struct op *op, uint32_t slot);
