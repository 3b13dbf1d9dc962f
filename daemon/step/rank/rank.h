/* rank.h - ranks of this node attach, hold groups, push gradients and end steps. */
#pragma once

#include "daemon/job/core/progress.h"
#include "daemon/job/core/push_window.h"
#include "daemon/step/gather/gather.h"
#include "daemon/step/stash/stash.h"
#include "proto/text.h"

struct place_events;
struct rank_setup;
struct rank;

/* The sessions of a node's ranks, until they are in their job. */
struct ranks {
        struct list joining; /* ranks whose job has not yet started with them */
        struct list setups;  /* setups in progress (setup.c) */
        uint64_t last_session;
};

struct rank_needs {
        struct job_spec job; /* the layout: in struct rank */
        uint32_t pid, rank, local_world_size;
        uint32_t hold_groups, push_groups, timeout_ms, incarnation;
        uint64_t process_start; /* of the pid (base/process.h) */
        enum zero_dtype grad_dtype;
        bool fail_on_lost, resume, push_auto;
        bool keeps_slots;                                /* push_window.keeps_slots */
        uint32_t windows;                                /* the place of its windows */
        const uint8_t (*event_handles)[ZERO_GPU_HANDLE]; /* of the GPU that its windows are on */
        uint32_t n_events;
        char slurm_job[ORIGIN_MAX + 1], pod[ORIGIN_MAX + 1]; /* where it runs; "": not known */
        struct stash_needs stash; /* rank_attach() takes it over in any case */
};

/* Tells a session that it is no longer the rank's; ZERO_ECLOSED: its client may attach again. */
struct rank_events {
        void (*gone)(void *arg, int status, const char *text);
        void *arg;
};

struct rank {
        struct list link; /* ranks.joining */
        struct engine *x;
        struct job *job;              /* NULL until it has joined */
        struct shared_layout *layout; /* until it has joined */
        struct rank_needs needs;
        struct rank_events events;
        bool calling;                       /* a join is in progress */
        bool left;                          /* the session has ended meanwhile */
        struct rank_setup *setup;           /* in progress on its GPU; NULL: none */
        bool rejoin;                        /* the rank joins again after the setup */
        struct place_events *stream_events; /* NULL: it has none */
        bool no_events;   /* none can be opened: the rank waits for its GPU itself */
        bool admitted;    /* it has attached */
        uint64_t session; /* unique on this node */
        uint32_t rank, pid;
        struct holds holds; /* of groups, in its window: admitted before it enters the job */
        struct push_window *window;
        struct stash *stash;                 /* NULL: it declared none; set together with job */
        bool stash_reserved, stash_unpinned; /* its memory is taken; copies wait for the GPU */
        struct list ordered;                 /* messages that wait for the GPU (stream_order.c) */
        struct request *attaching;           /* waits in zero_attach() */
        struct request *closing; /* waits for other ranks, in the call that `waits` names */
        enum { WAITS_STEP, WAITS_NORM, WAITS_REDUCED, WAITS_NORMS } waits;
        uint64_t n_closing;    /* such calls so far */
        struct norms *norms;   /* of gradients, on their way; or NULL */
        uint32_t last_pushed;  /* group */
        uint64_t active_ms;    /* loop time when its last call began or ended */
        const char *last_call; /* name of that call */
        Zero__Finish finish;   /* how it leaves the job, once it has said so */
};

/*
 * Attaches a rank: sends its layout to the coordinator. r ends when the job has started. *ret_rank,
 * the session's handle, is set at once; rank_leave() gives it back.  Handles of events are copied.
 */
int rank_attach(struct engine *x, const Zero__Layout *layout, const struct rank_needs *needs,
                const struct rank_events *events, struct request *r, struct rank **ret_rank,
                struct fault *fault);
/* Whether the session waits in zero_attach(), and for what. */
bool rank_attaching(const struct rank *rank, struct wait_line *ret);
/* The rank has made a call of that name. */
void rank_called(struct rank *rank, const char *name);
/* The rank says how it will leave the job. */
void rank_finish(struct rank *rank, Zero__Finish finish);
void rank_leave(struct rank *rank, bool orderly); /* the session has ended */
/*
 * A call of an attached rank, m.  Not 0: it is refused, and the caller ends r.  rank_prefetch() and
 * rank_ahead() (the rank says how it will end the step) are answered at once.
 */
typedef int rank_call(struct rank *rank, const Zero__Request *m, struct request *r,
                      struct fault *fault);
rank_call rank_fetch, rank_prefetch, rank_release, rank_stash, rank_push, rank_reclaim, rank_norm,
        rank_norms, rank_step, rank_all_reduce, rank_ahead;
/* The same for a call that takes effect in the order in which it came, when the rank's GPU has
 * reached the event that it names (stream_order.c).  rank_release() and rank_stash() see to that
 * themselves. */
int ordered_run(struct rank *rank, rank_call *call, const Zero__Request *m, struct request *r,
                struct fault *fault);
void reduced_message(struct job *job, const Zero__Reduced *m); /* of all ranks' numbers */
/* Ends what the rank did in the last attempt; its holds end when it hears of that. */
void rank_begin_attempt(struct rank *rank, bool decided);
/* Micro-batches of the group accepted in this attempt from any session of the rank. */
uint32_t rank_accepted(const struct rank *rank, uint32_t group);
/* The owners do not carry zero_step() out: local calls fail, and the attempt goes on. */
void ranks_refuse_step(struct job *job, int status, const char *text);
/* Refuses the rank's messages that wait for its GPU, except releases (stream_order.c). */
void ordered_fail(struct rank *rank, int status, const char *text);
/* Whether a push or the end of the step waits for the GPU. */
bool ordered_any(const struct rank *rank);
/* ZERO_ELOSTRANK and a name if the attempt cannot end without a lost rank; otherwise OK. */
int job_lost(const struct job *job, struct fault *fault);
/* The rank has attached on another node: its session here, if any, is told and ends. */
void rank_fence(struct job *job, uint32_t rank, uint64_t session);
/* A start has come: sessions here end whose ranks the attempt has on other nodes. */
void ranks_displace(struct job *job);
/* Ranks that replace one that had stepped already may enter: the step is over. */
void ranks_admit(struct job *job);
/* Ends local calls that wait for the end of the step or for a GPU. */
void ranks_fail(struct job *job, int status, const char *text);
/* The daemon stops: ends calls that attach. */
void ranks_stop(struct engine *x);
/* What others wait for from this node's ranks and owners. */
uint32_t local_waits(struct job *job, struct wait_line *lines, uint32_t n, bool *ret_waiting);

/* Waits for the GPU work of trainers (event_wait.h); -errno. */
int event_waits_new(uv_loop_t *loop, struct event_waits **ret);
/*
 * All events must have been dropped, or have no waits.  Calls closed() on the loop thread, never
 * before this returns, and frees everything.
 */
void event_waits_close(struct event_waits *w, void (*closed)(void *arg), void *arg);

extern const struct module rank_module;
