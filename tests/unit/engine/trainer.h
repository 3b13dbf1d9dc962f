/*
 * A rank as a program: a list of operations, each begun when the one before has ended
 * (pushes are not waited for, except for their slot).  The programs of all ranks run
 * side by side, in a random order of turns.   When its attempt is aborted
 * a program begins anew, unless its step was committed meanwhile.
 */
#pragma once

#include "net.h"

/* With each step a rank keeps its number and that of the step. */
enum { TRAINER_BLOB = 2 };

enum op_kind { OP_ATTACH, OP_FETCH, OP_PREFETCH, OP_RELEASE, OP_PUSH, OP_NORM, OP_STEP, OP_LEAVE };

struct op {
        enum op_kind kind;
        uint32_t group;
        uint32_t micro_batch;
        bool last;
        const uint8_t *present; /* one byte a tensor of the group; NULL: all */
        bool empty;             /* push: nothing, without a slot */
        bool poison;            /* push: one element is not finite */
        const struct step_params *params;
};

struct trainer;
/* Hears of every operation's end; status as request_end() got it. */
typedef void trainer_heard(struct trainer *t, const struct op *op, int status, const char *text,
                           const struct request *r);

struct trainer {
        struct net *net;
        uint32_t node;
        struct rank_needs needs;
        const char *job_name;
        const layout *layout;
        uint64_t step;        /* of the data: what gradients depend on */
        trainer_heard *heard; /* NULL: everything must succeed */
        void *arg;

        struct rank *rank;
        struct op *ops;
        uint32_t n_ops, next;
        bool busy;          /* an operation that is waited for */
        struct task *tasks; /* requests under way */
        uint32_t n_tasks;
        uint8_t *slots;        /* [slot]: a push that has not ended is in it */
        struct stream *stream; /* of its GPU, if its windows are there (stream.h) */
        bool stopped;          /* its GPU comes to no end */
        const void **views;    /* [group]: as last fetched */
        void *seen;            /* what trainer_view() has copied from a GPU */
        double norm;
        bool finite, skipped;
        uint64_t version;
        uint64_t attempt; /* that it works in, as far as it has been told */
        uint64_t from;    /* version that the program begins at */
        bool aborted;     /* ... and not begun anew yet */
        bool patient;     /* where a rank was lost, waits for the next attempt */
        bool waits;       /* does so */
        double grad_norm, loss_scale;
};

/* A gradient element; depends on nothing but its arguments. */
float trainer_gradient(uint64_t step, uint32_t rank, uint32_t tensor, uint32_t micro_batch,
                       uint64_t element);
/* Adds an operation to the program. */
void trainer_add(struct trainer *t, struct op op);
/* Runs the programs to their ends and forgets them.  seed: of the order of turns. */
void trainers_run(struct trainer *ts, uint32_t n, uint64_t seed);
/* One turn of each; true while any program goes on. */
bool trainers_turn(struct trainer *ts, uint32_t n, uint64_t *seed);
/* The session ends here and now, like that of a killed process. */
void trainer_kill(struct trainer *t);
void trainer_free(struct trainer *t);
/* The group's bytes as the last fetch of it gave them; valid while it is held, and until the next
 * call. */
const void *trainer_view(struct trainer *t, uint32_t group);
/* What a push takes; something else. */
void trainer_write_gradient(const struct trainer *t, const struct op *op, uint32_t slot);
void trainer_spoil_slot(const struct trainer *t, const struct op *op, uint32_t slot);
