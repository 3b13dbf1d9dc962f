/* filling_core.h - shared by the parts of a holder's filling. */
#pragma once

#include "daemon/job/pieces.h"
#include "daemon/reshard/reshard.h"

/* Elements of a piece: at most 8 MiB of each plane.  Pieces under way at once. */
enum { FILLING_PIECE = 2 << 20, FILLING_FLIGHT = 16 };

enum filling_phase {
        FILLING_DRAFTING, /* memory is made ready */
        FILLING_PULLING,  /* planes come */
        FILLING_ASKING,   /* steps, sets, what ranks kept */
        FILLING_SERVING,  /* what is served is written */
        FILLING_SETTLING, /* until nobody reads the state that it replaces */
        FILLING_ENDED,    /* goes when nothing of it is in flight */
};

/* One plane of a piece. */
struct filling_transfer {
        struct ask ask;
        struct offload_task task;
        struct filling *f;
        bool busy, remote;
        struct holding *source; /* here, pinned; NULL if remote */
        uint32_t group;
        const void *from;
        void *to;
        void *received; /* of a remote one, if the draft is on a GPU; NULL: it lands in `to` */
        uint64_t bytes;
};

struct filling {
        struct list link; /* engine.fillings */
        struct engine *x;
        struct job *job;
        uint64_t id, call;
        uint32_t node; /* that asked */
        enum filling_phase phase;
        bool made_job; /* ... or joined another one that did */
        /* what is asked for */
        struct placement from, to;
        uint32_t owner, copy;
        uint64_t puts;
        struct state_record record;
        bool readable[HOLDER_MAX];
        uint64_t source_puts[HOLDER_MAX];
        /* the work */
        struct offload_task task;
        struct fault fault; /* of the task */
        bool crowded;       /* memory of deleted states was being freed when the draft was asked for */
        uint32_t busy;      /* tasks, transfers and calls under way */
        struct state *state;
        struct pieces *pieces;
        uint32_t next_piece, next_plane, pulling, asking;
        struct filling_transfer transfers[FILLING_FLIGHT];
        uint64_t bytes, total, moved, told;
        uint64_t begun_ms, settle_until_ms; /* loop times */
};

/* filling_order.c: all but what only the job can tell.  *ret_layout: the caller's. */
int filling_read_order(struct filling *f, const Zero__Fill *m, layout **ret_layout,
                       struct fault *fault);
/* A filling of the job is under way. */
bool filling_of_job(const struct job *job);
/* The job, as it is here or made; takes the layout over. */
int filling_join_job(struct filling *f, const char *name, const Zero__Fill *m, layout *l,
                     struct fault *fault);

/* filling_pull.c */
void filling_pull(struct filling *f);
void filling_ask(struct filling *f);
/* Forgets what was asked of other nodes. */
void filling_forget_pulls(struct filling *f);

/* filling.c */
uint32_t filling_holder(const struct filling *f);
/* A task, a transfer or a call has ended. */
void filling_part_ended(struct filling *f);
void filling_fail(struct filling *f, int status, const char *text);
void filling_pulled(struct filling *f);
void filling_asked(struct filling *f);
