/*
 * exchange.h - what moves and computes a job's bytes on this node.
 *
 *   exchange.c     start and stop, the tick, messages to the parts below
 *   job.c          a job's life and steps on this node    create.c  making it
 *   drop.c         dropping it on all nodes
 *   resume.c       jobs that an earlier process left      drain.c   leaving between two steps
 *   holding.c      an owner's shards on this node         shard.c   as others read them
 *   call.h         payloads asked for; messages that want an answer
 *   rank/rank.h    ranks of this node                     disk.h    work that blocks
 *   request.h      clients' calls that wait: deadlines and names
 *
 * and in rooms of their own
 *
 *   rank/          ranks of this node come and go, hold, push and step; what is kept of them
 *   gather/        parameters to trainers: one gather a group and version, however many ask
 *   reduce/        contributions of local ranks to the owners' sums, mirrors, votes and updates
 *   planes/        clients read and write planes; a hash that does not depend on the partition
 *   gpu/           the GPU work of trainers that messages name
 *   coordinator/   a job's coordinator: who takes part, what is decided, who is late
 *   checkpoint/    checkpoints written and restored
 *   moving/        which nodes hold shards, and bringing shards to where they are to be
 *
 * Everything here runs on the loop thread, except what is handed to the offload pool.
 * An operation in flight holds a reference to its job; a dropped job is `dead` and goes when
 * the last of them ends.
 */
#pragma once

#include <uv.h>

#include "daemon/conf/conf.h"
#include "daemon/device/gpu.h"
#include "daemon/transfer/call.h"
#include "daemon/reshard/move.h"
#include "daemon/rank/rank.h"
#include "daemon/core/seat.h"
#include "daemon/core/module.h"
#include "daemon/core/request.h"
#include "daemon/fabric/fabric.h"
#include "daemon/job/placement.h"
#include "daemon/job/step.h"
#include "daemon/loop/offload.h"
#include "daemon/store/segment.h"
#include "daemon/store/state.h"
#include "daemon/store/undo.h"
#include "proto/dtype.h"
#include "proto/list.h"
#include "proto/slots.h"

struct gather;
struct reduce;
struct landing;
struct update;
struct call;
struct views;
struct gpu_waits;

enum { TICK_MS = 100, PROGRESS_MS = 300, CALL_MS = 60000, RESUME_MS = 3000 };
/* Of every state file, whatever the number of compute threads is now. */
enum { UNDO_SLOTS = 64 };
/* Of one job on one node. */
enum { HOLDINGS_MAX = PLACEMENT_COPIES * NODE_OWNERS_MAX, STATES_MAX = 4 * HOLDINGS_MAX };
/* The first attempt of a state whose parameters have their first values. */
enum { JOB_FILLED = 1 };
enum { MICRO_BATCHES_MAX = 4096 }; /* of one group in one attempt */

struct exchange {
        const struct module *const *modules; /* every folder's (module.h) */
        const struct shard_observer *const *observers;
        uint32_t n_modules, n_observers;
        uv_loop_t *loop;
        const struct conf *conf;
        const struct cluster *cluster;
        struct fabric *fabric;
        struct store *store;
        struct offload *offload;
        const struct device_ops *ops; /* of host memory; of a GPU's too, where there is one */
        uint32_t gpus;                /* that states are put on; 0: they are in host memory */
        struct gpu_waits *gpu_waits;  /* NULL: no GPU is used (gpus_count() is 0) */
        uint32_t part_bytes; /* payloads travel in parts of so many at most; up to GPU_BUFFER */

        struct placement view;        /* who holds shards: the list in force */
        struct views *views;          /* how that changes (view.h); NULL: it does not */
        struct taken_back taken_back; /* outlives a start anew */
        struct list jobs, dead_jobs;  /* dead: dropped, with operations still in flight */
        struct list coordinators, calls, asks, accesses, staged;
        uint64_t staging_bytes; /* of what is staged (planes/staging.h) */
        struct list works;      /* reads and writes that wait for the end of an update */
        struct list joining;    /* ranks whose job has not started for them yet */
        struct list makings;    /* what is made on GPUs for ranks (rank/making.c) */
        struct list operations, schedules, takings, loadings; /* checkpoint.h */
        struct list fills, fillings;                          /* filling.h */
        struct list drops, drop_waits;                        /* drop.c */
        struct list shut;   /* files of states that wait for memory (resume.c) */
        uint64_t resume_ms; /* loop time: then they are tried again */
        uint32_t releases;  /* states whose memory is being freed */
        uint64_t last_operation, last_fill;
        double disk_rate; /* bytes a second, as the last checkpoint was written; 0: not known */
        struct requests requests;
        uint64_t last_call, last_put, last_session;
        uint64_t linked;   /* nodes whose link stands, a bit each */
        uint64_t agreeing; /* nodes that have told that the same owner list is in force there */
        uint64_t up;       /* both */
        uint64_t cut[ZERO_NODE_MAX]; /* [node]: nodes that it cannot reach, as it last told */
        uv_timer_t tick;
        uint64_t progress_ms; /* loop time of the last progress report */
        /* Questions of other nodes about this one (rpc/query.c). */
        void (*query)(struct exchange *x, uint32_t node, const Zero__LinkMessage *m);
        void (*drained)(void *arg); /* while steps in flight are waited for */
        void *drained_arg;
        uint64_t drain_until_ms; /* loop time */
        bool leaving;            /* ranks that are cut off by the stop are not lost */
        /* Another owner list is chosen: it comes into force when the exchange starts anew. */
        void (*view_chosen)(void *arg);
        void *view_arg;
        void (*closed)(void *arg); /* set once it stops */
        void *closed_arg;
};

/* Starts the tick.  All but exchange->{loop..part_bytes} is set here. */
int exchange_start(struct exchange *x);
/* Ends all requests and jobs (state files stay); closed() comes when nothing is in flight. */
void exchange_stop(struct exchange *x, void (*closed)(void *arg), void *arg);
/* Calls drained() when no step is in flight, or after the timeout; perhaps at once. */
void exchange_drain(struct exchange *x, uint64_t timeout_ms, void (*drained)(void *arg), void *arg);
void drain_check(struct exchange *x);
/* The link to a node stands, or is lost. */
void exchange_up(struct exchange *x, uint32_t node);
void exchange_down(struct exchange *x, uint32_t node, const char *why);
void exchange_message(struct exchange *x, uint32_t node, const Zero__LinkMessage *m);
uint64_t exchange_now(const struct exchange *x);
const char *node_name(const struct exchange *x, uint32_t node);

/* What computes on memory of which some lies on a GPU, or none. */
static inline const struct device_ops *ops_for(const struct exchange *x, bool gpu)
{
        return gpu ? gpu_ops() : x->ops;
}

/* ---- jobs ---------------------------------------------------------------- */

enum { WAIT_LINES = 32 };

/* What a step came to, for ranks that ask again. */
struct step_result {
        uint64_t version; /* after it */
        uint64_t attempt; /* that ended with it; 0: none did yet */
        bool skipped;
        double grad_norm, loss_scale;
};

struct job {
        struct list link;
        struct exchange *x;
        uint32_t references;
        uint32_t holders; /* of them: sessions and others that need no state once it is dead */
        bool dead;
        uint64_t whole;  /* the placement of which that was told: former states are to go; or 0 */
        bool opening;    /* its state is being made, or ... */
        bool resuming;   /* ... an earlier process left it, and it is not taken up yet */
        bool drop_state; /* delete the state file with it */
        char name[ZERO_NAME_MAX + 1];
        uint32_t uid, world_size, coordinator; /* coordinator: node */
        enum zero_dtype reduce_dtype;
        enum zero_dtype grad_dtype; /* what local ranks push; set by the first of them */
        layout *layout;
        uint64_t layout_bytes; /* that the quota counts for it */
        struct placement place;
        struct partition *partition;
        struct list holdings; /* this node's; none where it holds no shards */
        struct list former;   /* of earlier placements: to be moved from, then deleted */

        /* The step, as this node last heard of it. */
        bool started;         /* all ranks are there (Start) */
        uint64_t finished_ms; /* loop time at which all ranks had completed the job; 0: they have
                                 not */
        uint64_t epoch, version, attempt;
        double loss_scale, grad_norm;
        uint32_t skipped;
        uint32_t overflows; /* in a row */
        struct step_result last;
        uint32_t *node_of_rank;     /* [rank]: as of the last start */
        bool *here;                 /* [rank]: its session lives, as the coordinator knows */
        struct seat *seats;         /* [rank]: of this node's ranks */
        uint32_t lost;              /* rank without which this attempt cannot end; RANK_ABSENT */
        uint64_t step_times_ms[16]; /* loop times of the last decisions, a ring */
        uint32_t n_step_times;
        bool reported; /* the last progress report said something */
        struct wait_line waits[WAIT_LINES];
        uint32_t n_waits;
        struct move move;      /* the same, of its shards (move.h) */
        uint64_t move_told_ms; /* loop time; 0: it does not move */

        struct rank **ranks; /* [rank]: sessions on this node */
        uint32_t n_local;    /* ranks that run on this node, by the coordinator's table */
        uint32_t n_attached; /* sessions in ranks */
        struct list gathers; /* windows of local ranks, in host memory and on GPUs */
        struct reduce *reduce;
};

/* One owner's shards on this node: of an owner that is this node's, or the mirror of another's. */
struct holding {
        struct list link; /* job.holdings */
        struct job *job;
        uint32_t owner, copy;
        uint64_t settling; /* call to be answered when its update is over; 0: none */
        struct state *state;
        uint64_t *shard_version; /* [group]: version of the bytes */
        uint32_t *idle;          /* [group]: committed steps since it last had a gradient, ... */
        uint32_t committed;      /* ... of so many since the state was taken up */
        uint32_t *pins;          /* [group]: payloads and copies that read the shard */
        struct list *pulls;      /* [group]: struct pull that wait for a version */
        struct landing *landing;
        struct update *update;
        struct taking *taking; /* of a checkpoint, this owner's part; or NULL */
        bool copying;          /* ... its planes are being copied: clients' puts wait */
        bool updating;         /* an update runs */
        bool *unread;          /* [group]: the update has yet to read the group's gradient */
};

#define for_holdings(job, h) \
        for (struct holding *h = holding_first(job); h; h = holding_next(job, h))

struct job *job_find(struct exchange *x, const char *name);
/* The same, once it is made; NULL: there is none. */
struct job *job_made(struct exchange *x, const char *name);
/* A job's user and root may read it. */
bool job_is_for(const struct job *job, uint32_t uid);
/* The job of that name, for a user; ZERO_EBUSY: its state waits for memory. */
int job_for_user(struct exchange *x, const char *name, uint32_t uid, struct job **ret,
                 struct fault *fault);
/* An empty job; takes the layout over in any case.  NULL: out of memory. */
struct job *job_new(struct exchange *x, const char *name, uint32_t uid, uint32_t world_size,
                    uint32_t reduce_dtype, layout *l);
/*
 * Takes up the states that an earlier process left: a decided step is finished, one that was not is
 * void.  Damaged or foreign files are reported and left alone.  Before the loop runs.
 */
void jobs_resume(struct exchange *x);
/* Tries again what was left for lack of memory. */
void resume_tick(struct exchange *x);
/* A file of a state that is whole, while memory is short: it waits to be taken up. */
void shut_add(struct exchange *x, const char *file);
bool shut_any(const struct exchange *x);
/* The node has such a state of the job. */
bool shut_has(const struct exchange *x, const char *job);
/* Those that opens() takes up wait no more. */
void shut_retry(struct exchange *x, bool (*opens)(struct exchange *x, const char *file));
/* Deletes such states of the job. */
void shut_drop(struct exchange *x, const char *job);
void shut_forget(struct exchange *x);
/*
 * Tells a node that coordinates jobs by the owner list in force of those that have states of an
 * earlier one here, or mirrors: it may have none, and has them moved, or gets back what it lost,
 * though no rank attaches.
 */
void jobs_claim(struct exchange *x, uint32_t node);
/* A user's jobs as they concern a new one: those that are finished, and that no session looks at or
 * rank waits to enter, may give it their place. */
struct finished_jobs {
        struct job *first; /* the one that finished first, or NULL */
        uint64_t bytes;    /* layout_state_bytes() of all that are finished */
        uint32_t n_jobs;   /* all jobs of the user */
};
void jobs_finished(struct exchange *x, uint32_t uid, struct finished_jobs *ret);
/* What all owners together hold of such a layout, but for tables. */
uint64_t layout_state_bytes(const layout *l);
/*
 * Memory for the books of a layout's tensors and groups, on a node that also coordinates the job;
 * 0: so little that the quota does not count it.
 */
uint64_t job_layout_bytes(const layout *l);
/* Whether a job of that name may be made. */
int job_admit(struct exchange *x, const char *name, uint32_t uid, struct fault *fault);
/* A holding that was just given its state, which stands between two steps. */
void holding_take_up(struct holding *h);
/* A job that has been given its states goes on where their records stand. */
void job_take_up(struct job *job);
void job_ref(struct job *job);
void job_unref(struct job *job);
/* References that need no state: a client that stays does not keep a dropped job's memory. */
void job_hold(struct job *job);
void job_let_go(struct job *job);
bool job_name_valid(const char *name);
/* Has the node an owner or a rank of the job? */
bool job_needs_node(const struct job *job, uint32_t node);
/* The version a group's bytes have when the job is at `version`: frozen groups stay at 0. */
uint64_t group_version(const struct job *job, uint32_t group, uint64_t version);
uint32_t coordinator_of(const struct exchange *x, const char *job);
void job_detach(struct job *job); /* out of the list, dead; freed with its last reference */
void job_open_message(struct exchange *x, uint32_t node, const Zero__LinkMessage *m);
/* This node's part of the job goes, and its state with it. */
void job_discard(struct exchange *x, const char *name);
/* Whatever a folder has by that name goes, or is about to be replaced; not the job itself. */
void job_name_dropped(struct exchange *x, const char *name);
/* node_of_rank, here, seats and ranks, for that many. */
bool job_ranks_alloc(struct job *job, uint32_t world_size);
void job_ranks_free(struct job *job);
/* The job's first late rank or node, as its coordinator last told. */
int job_describe(const struct job *job, struct wait_line *ret);
/* A node that the job needs and that is away. */
bool job_away(const struct job *job, struct wait_line *ret);
void job_start_message(struct job *job, const Zero__LinkMessage *m);
void job_part_message(struct job *job, const Zero__Part *part);
void job_decision_message(struct job *job, const Zero__Decision *d);
/* Over the last decisions; 0: not known yet. */
double job_steps_per_second(const struct job *job);
/* Whether a step was decided within the last minute. */
bool job_is_stepping(const struct job *job);

/* ---- dropping (drop.c) ------------------------------------------------------------ */

/*
 * Drops the job here and on all nodes; those that are away hear of it when they come up, if this
 * node keeps the drop.  told() is called when the job's memory here is free, and those that are up
 * have answered.
 */
typedef void drop_told(struct exchange *x, uint32_t node, uint64_t call, bool keeps,
                       uint64_t untold);
void drop_order(struct exchange *x, const char *job, uint32_t node, uint64_t call, drop_told *told);
/* Another node tells that the job is dropped. */
void drop_message(struct exchange *x, uint32_t node, const Zero__LinkMessage *m);
/* ZERO_EBUSY: a job of that name is being dropped. */
int drop_check(struct exchange *x, const char *job, struct fault *fault);
/* What an earlier process has not told to all; once its jobs are found, before they are taken up.
 */
void drops_resume(struct exchange *x);
void drops_free(struct exchange *x);
/*
 * Deletes the state's files at once, and frees its memory on another thread: the job, if it is not
 * NULL, is referred to until then.
 */
void state_drop_later(struct exchange *x, struct job *job, struct state *state);

/* ---- holdings ---------------------------------------------------------------- */

/* Empty, and the last of the job's.  -ENOMEM. */
int holding_new(struct job *job, uint32_t owner, uint32_t copy, struct holding **ret);
/* Of a state of an earlier placement.  -ENOMEM: the state is the caller's. */
int holding_new_former(struct job *job, struct state *state, struct holding **ret);
void holding_free(struct holding *h);
struct holding *holding_first(const struct job *job);
struct holding *holding_next(const struct job *job, const struct holding *h);
/* Of an owner, whichever copy; NULL: not on this node. */
struct holding *holding_find(const struct job *job, uint32_t owner);
struct holding *holding_of_copy(const struct job *job, uint32_t owner, uint32_t copy);
/* The same of any placement. */
struct holding *holding_of_epoch(const struct job *job, uint64_t epoch, uint32_t owner,
                                 uint32_t copy);
/* Of those of earlier placements; NULL: there is none. */
struct holding *holding_newest_former(const struct job *job);
/* All that the placement in force has on this node is here. */
bool holdings_whole(const struct job *job);
/* The holding of everything there is, if there is but one owner; else NULL. */
struct holding *holding_sole(const struct job *job);

/* ---- a group's bytes ------------------------------------------------------- */

/* Readers of this owner's shard: the update waits until there are none. */
void shard_pin(struct holding *h, uint32_t group);
void shard_unpin(struct holding *h, uint32_t group);
/* The shard has reached a version: waiting pulls and gathers go on. */
void shard_ready(struct holding *h, uint32_t group, uint64_t version);
void shard_pull_message(struct job *job, uint32_t node, const Zero__Pull *request);

/*
 * Who has to do with an owner's shards while they are made, read and updated.  engine/exchange.c
 * lists all observers; each event is told to all of them in that order.  A NULL hook does nothing.
 * All on the loop thread, except update_chunk().
 */
struct shard_observer {
        int (*made)(struct holding *h); /* -ENOMEM */
        void (*freed)(struct holding *h);
        /* A group of it is at a new version. */
        void (*ready)(struct holding *h, uint32_t group);
        /* A group's last reader is gone. */
        void (*unpinned)(struct holding *h);
        /*
         * An update begins to change a group, which is not pinned: from where on in the stream of
         * a checkpoint the observer saves what changes.  UINT64_MAX: nothing; else update_chunk()
         * comes with each chunk's old values, on an offload thread, and update_end() when the group
         * is through.  At most one observer saves.
         */
        uint64_t (*update_begin)(struct holding *h, uint32_t group);
        void (*update_chunk)(const struct holding *h, uint32_t chunk, struct undo_values old,
                             uint64_t from);
        void (*update_end)(struct holding *h);
        /* An update is over, and the next has not begun. */
        void (*updated)(struct holding *h);
        /* No update runs any more, or what was voted for is decided, or planes are copied. */
        void (*settled)(struct job *job);
};

#define for_observers(x, o)                                                          \
        for (const struct shard_observer *const *o##_at = (x)->observers, *o = NULL; \
             o##_at < (x)->observers + (x)->n_observers && (o = *o##_at); o##_at++)

/* What waits for such an end goes on. */
void shard_settled(struct job *job);

/* ---- gather ---------------------------------------------------------------- */

/* Of all windows of the job here. */
struct gather_info {
        uint64_t window_bytes, elements_received;
        uint64_t hits, misses;    /* fetches whose group was in the window, and the others */
        uint64_t gathers, spread; /* groups brought there; of these, from another window */
        uint32_t slots;
        char places[400]; /* "gpu 0, gpu 1" */
};
/*
 * Gives a rank room in a window in that place, which is made at the first rank there.  On a GPU it
 * may lack its memory then: gather_provide() takes that over before the rank fetches, or the rank
 * leaves; no other rank is admitted there before either.
 */
int gather_admit(struct job *job, const struct window_place *place, uint32_t hold_groups,
                 uint32_t local_world_size, struct gather **ret, struct fault *fault);
struct job *gather_job(const struct gather *g);
/* Bytes that its window lacks; 0: it is there. */
uint64_t gather_lacks(const struct gather *g);
void gather_provide(struct gather *g, struct segment *memory);
/* A rank that was admitted has left. */
void gather_leave(struct gather *g, uint32_t hold_groups);
const struct segment *gather_segment(const struct gather *g);
void gather_fetch(struct gather *g, uint32_t group, uint64_t version, struct request *r);
void gather_prefetch(struct gather *g, uint32_t group, uint64_t version);
void gather_release(struct gather *g, uint32_t group);
/* The job starts: what waited for that goes on. */
void gather_up(struct job *job);
/* The group's bytes were changed by a put. */
void gather_dirty(struct job *job, uint32_t group);
/*
 * The serve plane that trainers map: only where this node holds everything, else they would map
 * more than their windows, and only where it lies in their place; or NULL.
 */
const struct segment *gather_serve(const struct gather *g);
/* Whether the group is served by mapping it. */
bool gather_mapped(const struct gather *g, uint32_t group);
void gather_info(const struct job *job, struct gather_info *ret);
/* Ends every waiting fetch. */
void gather_fail(struct job *job, int status, const char *text);

/* ---- reduce (this node's contributions) -------------------------------------- */

int reduce_push(struct rank *rank, const Zero__Push *push, struct request *r, struct fault *fault);
/* The rank pushes nothing more in this attempt. */
void reduce_close(struct job *job, uint32_t rank);
/*
 * The attempt cannot end: nobody waits any longer for pushed memory.  What lies in it counts for
 * nothing, though it may still be read.
 */
void reduce_fail(struct job *job, int status, const char *text);
/* A new attempt begins; what is left of the old one is void. */
void reduce_reset(struct job *job, bool decided);
/* Another number of ranks, after reduce_reset().  -ENOMEM: nothing has changed. */
int reduce_resize(struct job *job, uint32_t world_size);
uint32_t reduce_pushed(const struct job *job, uint32_t group, uint32_t rank);
/* Does a push of a local rank wait for others, for longer than usual? */
bool reduce_push_waits(const struct job *job);
/* Has any local rank pushed in this attempt? */
bool reduce_any(const struct job *job);
/* The last local rank has left: memory that was kept for its gradients goes. */
void reduce_vacate(struct reduce *r);
/* A new session of the rank. */
void reduce_rejoin(struct job *job, uint32_t rank);
void reduce_pull_message(struct job *job, uint32_t node, const Zero__Pull *request);
/* An owner reads of its range of an offered parcel; of what was taken so many elements are not
 * read again. */
struct parcel;
void parcel_read_begin(struct parcel *p);
void parcel_read_end(struct parcel *p, uint32_t owner, uint64_t taken);
/*
 * All of it lies on that GPU, in memory that nothing else that is pushed in this attempt waits for;
 * and to read it twice is less than to write its sum and to read that.
 */
bool parcel_may_stay(const struct parcel *p, int gpu);
/* Its pushes are answered when the step has ended, which has a deadline of its own: they have none
 * until then. */
void parcel_keep(struct parcel *p);
/*
 * What is added of a tensor, from an element of the group on: their number, at most
 * parcel_sources_max(), their dtype.  Not for the CPU if it is on a GPU.
 */
size_t parcel_sources(const struct parcel *p, uint32_t tensor, uint64_t first,
                      const void **ret_src);
size_t parcel_sources_max(const struct parcel *p);
enum zero_dtype parcel_dtype(const struct parcel *p);
bool parcel_on_gpu(const struct parcel *p);
uint64_t reduce_elements_sent(const struct reduce *r);
/* Sums of groups that were left to the update here. */
uint64_t reduce_deferred(const struct reduce *r);

/* ---- landing (an owner's reduction) ------------------------------------------ */

/* The last local rank has left: memory that was kept for gradients goes. */
void landing_vacate(struct landing *l);
/* A mirror takes its owner's sum. */
void mirror_pull_message(struct job *job, uint32_t node, const Zero__Pull *request);
/* An offer of a node; parcel is NULL for other nodes'. */
int landing_offer(struct job *job, uint32_t node, const Zero__Offer *offer, struct parcel *parcel);
/* Nobody takes the offer: its payload, if it is announced, is forgotten. */
void offer_drop(struct exchange *x, uint32_t node, const Zero__Offer *offer);
/* Finish the reduction and vote; params NULL: for the norm. */
void landing_prepare(struct holding *h, const Zero__Prepare *m, const struct step_params *params);
void landing_reset(struct holding *h);
/* A rank of this node has left: what it pushed is not kept. */
void landing_left(struct holding *h);
/* The group's update is over: its gradient may be overwritten. */
void landing_group_free(struct holding *h, uint32_t group);
/* The whole update is over. */
void landing_updated(struct holding *h);
/* This owner has voted for a step, of which the coordinator will tell what becomes. */
bool landing_voted(const struct holding *h);
/* Nothing becomes of it: it was refused. */
void landing_refused(struct holding *h);
uint32_t landing_waits(struct holding *h, struct wait_line *lines, uint32_t n);

/* ---- update ------------------------------------------------------------------ */

void update_begin(struct holding *h, const Zero__Decision *d);
/* Carries out the decision in the state's record, from wherever a crash has left it. */
void update_start(struct holding *h);

/* ---- access ------------------------------------------------------------------ */

int access_start(struct job *job, struct push_window *window, const Zero__Access *access, bool put,
                 uint64_t timeout_ms, struct request *r, struct fault *fault);
void access_pull_message(struct job *job, uint32_t node, const Zero__Pull *request);
void access_put_message(struct job *job, uint32_t node, const Zero__LinkMessage *m);

/* An order-independent hash of a plane over this owner's part: sums of block hashes. */
/* master and moments, by plane - ZERO_PLANE_MASTER; then */
enum { CHECKSUM_STEP = UPDATE_PLANES, CHECKSUM_SET, CHECKSUM_PLANES };
struct checksum {
        uint64_t sum[CHECKSUM_PLANES][2];
        uint64_t version; /* of all of it */
};
/* Computes it on an offload thread once the job is at that version, or later, and no update runs.
 */
void checksum_start(struct holding *h, uint64_t version,
                    void (*done)(void *arg, const struct checksum *sum), void *arg);

/* ---- coordinator --------------------------------------------------------------- */

void coordinator_message(struct exchange *x, uint32_t node, const Zero__LinkMessage *m);
void coordinators_free(struct exchange *x);
/* A node tells which ones it cannot reach. */
void coordinators_cut(struct exchange *x, uint32_t node, uint64_t cut);
/* The coordinator's state of a job for reports; NULL if it is elsewhere or has none. */
const struct step *coordinated_step(const struct exchange *x, const char *job);

/* ---- links ----------------------------------------------------------------------- */

/* Tells all nodes which ones this one reaches. */
void links_tell(struct exchange *x);
void links_message(struct exchange *x, uint32_t node, const Zero__Links *m);
/* A link stands, or is lost. */
void links_up(struct exchange *x, uint32_t node);
void links_down(struct exchange *x, uint32_t node);

extern const struct module drop_module, transfer_module, shard_module, gather_module, reduce_module,
        tensors_module, checkpoint_module, rank_module, filling_module, former_module,
        membership_module, coordinator_module;
extern const struct shard_observer gather_observer, reduce_observer, update_observer,
        tensors_observer, checkpoint_observer, former_observer;
