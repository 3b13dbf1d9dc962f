/* rank.h - ranks of this node: they attach, hold groups, push gradients and end steps. */
#pragma once

#include "daemon/core/job.h"
#include "daemon/core/push_window.h"
#include "daemon/gather/gather.h"

struct gpu_events;
struct gpu_setup;
struct rank;

struct rank_needs {
        uint32_t uid, pid, rank, world_size, local_world_size;
        uint32_t hold_groups, push_groups, timeout_ms, incarnation;
        uint64_t process_start; /* of the pid (base/process.h) */
        enum zero_dtype grad_dtype, reduce_dtype;
        bool fail_on_lost, resume;
        struct window_place windows;
        const uint8_t (*event_handles)[ZERO_GPU_HANDLE]; /* of the GPU of its windows */
        uint32_t n_events;
};

/* What a session is told without having asked: it is the rank's no more. */
struct rank_events {
        void (*gone)(void *arg, int status, const char *text);
        void *arg;
};

/*
 * A group of the window.  PAST: held in an attempt that was aborted.  The rank computes with it
 * until it hears of that: the slab is its own until it fetches, or steps, in a later attempt.
 */
enum hold { HOLD_NONE, HOLD_ASKED, HOLD_HELD, HOLD_PAST };

struct rank {
        struct list link; /* engine.joining */
        struct engine *x;
        char job_name[ZERO_NAME_MAX + 1];
        struct job *job;              /* NULL until it has joined */
        struct shared_layout *layout; /* until it has joined */
        struct rank_needs needs;
        struct rank_events events;
        bool calling, left;            /* a join is under way; the session has ended meanwhile */
        struct gpu_setup *gpu_setup;   /* something is made for it on its GPU (gpu_setup.c) */
        bool rejoin;                   /* ... and then it is to join again */
        struct gpu_events *gpu_events; /* NULL: it has none */
        bool no_events;                /* ... for they cannot be opened: it waits itself */
        bool admitted;                 /* attaching has succeeded */
        bool unaware;                  /* of an abort: some holds may be PAST */
        uint64_t session;              /* its number on this node */
        uint32_t rank, pid;
        uint32_t hold_groups, held; /* held: asked for, held or past */
        enum hold *holds;           /* [group] */
        struct push_window *window;
        struct gather *gather; /* the window that it maps; set with job */
        struct list ordered;   /* messages whose GPU work is not done (stream_order.c) */
        enum zero_dtype grad_dtype;
        struct request *attaching; /* waits for the job to start */
        struct request *closing;   /* waits in zero_norm() or zero_step() */
        bool wants_norm;           /* closing is a norm request */
        uint32_t last_pushed;      /* group */
        uint64_t active_ms;        /* loop time of its last call, or of that call's end */
        const char *last_call;     /* its name */
        Zero__Finish finish;       /* how it leaves the job, once it has said so */
};

/*
 * A rank attaches: its layout goes to the coordinator; r ends when the job has started.
 * *ret_rank is the session's handle at once; it is given back by rank_leave().  Handles of
 * events are copied.
 */
int rank_attach(struct engine *x, const char *job, const Zero__Layout *layout,
                const struct rank_needs *needs, const struct rank_events *events, struct request *r,
                struct rank **ret_rank, struct fault *fault);
/* Whether the session waits in zero_attach(), and for what. */
bool rank_attaching(const struct rank *rank, struct wait_line *ret);
/* It has made a call, of that name. */
void rank_called(struct rank *rank, const char *name);
/* How the rank will leave the job. */
void rank_finish(struct rank *rank, Zero__Finish finish);
/* The session has ended. */
void rank_leave(struct rank *rank, bool orderly);
int rank_fetch(struct rank *rank, const Zero__Fetch *fetch, struct request *r, struct fault *fault);
/* The fetch has ended: the rank holds the group from here on, or does not. */
void rank_fetched(struct rank *rank, uint32_t group, bool ok);
void rank_prefetch(struct rank *rank, uint32_t group, uint64_t version);
/*
 * These count, and are answered, when the rank's GPU has come to the event that they name, and all
 * of them that came before have counted.
 */
int rank_release(struct rank *rank, const Zero__Release *release, struct request *r,
                 struct fault *fault);
int rank_push(struct rank *rank, const Zero__Push *push, struct request *r, struct fault *fault);
int rank_norm(struct rank *rank, const Zero__Norm *norm, struct request *r, struct fault *fault);
int rank_step(struct rank *rank, const Zero__Step *step, struct request *r, struct fault *fault);
/* What it did in the attempt before is over; what it holds, when it hears of that. */
void rank_begin_attempt(struct rank *rank, bool decided);
/* Micro-batches of a group that were accepted from the rank, whichever its session, in this
 * attempt. */
uint32_t rank_accepted(const struct rank *rank, uint32_t group);
/* The owners do not carry zero_step() out: the calls of local ranks fail, the attempt goes on. */
void ranks_refuse_step(struct job *job, int status, const char *text);
/* The same for all calls of a rank that wait for its GPU (stream_order.c). */
void ordered_fail(struct rank *rank, int status, const char *text);
/* Whether a push or the end of the step waits for the GPU. */
bool ordered_any(const struct rank *rank);
/* Without a rank that was lost the attempt cannot end: ZERO_ELOSTRANK and its name, or OK. */
int job_lost(const struct job *job, struct fault *fault);
/* A rank has attached on another node: that session of it here, if it lives, is told and ends. */
void rank_fence(struct job *job, uint32_t rank, uint64_t session);
/* Ranks that took the place of one that had stepped already: the step is over. */
void ranks_admit(struct job *job);
/* Calls of local ranks that wait for the end of the step, or for a GPU, end. */
void ranks_fail(struct job *job, int status, const char *text);
/* The daemon stops: calls that attach end. */
void ranks_stop(struct engine *x);
/* What this node's ranks and owners keep others waiting for. */
uint32_t local_waits(struct job *job, struct wait_line *lines, uint32_t n, bool *ret_waiting);

extern const struct module rank_module;
