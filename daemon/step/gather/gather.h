/* gather.h - parameters for clients, such as ranks: one gather per group and version for all. */
#pragma once

#include "daemon/job/shard/shard.h"

struct gather;

/*
 * The state of a group in the window.  PAST: held in an attempt that was aborted.  The client
 * computes with the slab until it hears of that, so the slab stays its own until the client
 * fetches, ends a step or leaves.
 */
enum hold { HOLD_NONE, HOLD_ASKED, HOLD_HELD, HOLD_PAST };

/* What a client holds of a job's groups, and its place in a window. */
struct holds {
        struct job *job;       /* NULL: it is in no window */
        struct gather *gather; /* the window that it maps */
        uint32_t limit, n;     /* holds other than NONE: at most `limit` */
        bool unaware;          /* it has not heard of an abort: some holds may be PAST */
        enum hold *of;         /* [group] */
};

/* Over all windows of the job on this node; windows apart only bring groups. */
struct gather_info {
        uint64_t window_bytes, elements_received;
        uint64_t hits, misses;    /* fetches that found the group in the window, and others */
        uint64_t gathers, spread; /* groups brought to windows; those from another window */
        uint64_t forwarded;       /* slices that came by deltas */
        uint64_t delta_bytes_received;
        uint32_t slots;
        char places[400]; /* "GPU 0, GPU 1" */
};
/*
 * Admits a client to a window in that place; the first client there makes the window.  n_local: how
 * many clients like it this node expects.  Away from the host the window may lack its memory: then
 * either gather_provide() takes the memory over before the client fetches, or the client leaves.
 * Nobody else is admitted there before that.
 */
int holds_admit(struct holds *h, struct job *job, uint32_t place, uint32_t limit, uint32_t n_local,
                struct fault *fault);
/*
 * Admits a client to a window of its own in host memory, which has room for all groups of its form
 * (slots_new_form()) and maps no served parameters: what the client holds stays as it is.  Also
 * ZERO_EQUOTA, ZERO_ESHM.
 */
int holds_admit_apart(struct holds *h, struct job *job, const uint8_t *form, struct fault *fault);
/* The form of a window apart. */
const uint8_t *gather_form(const struct gather *g);
/*
 * The client leaves, if it was admitted, and its holds end.  No fetch is on its way, and leases
 * that outlived their holds have been returned.
 */
void holds_leave(struct holds *h);
/* The client, which has heard of aborts, holds the group once r has ended well.  ZERO_EBUSY,
 * ZERO_EHELD. */
int holds_fetch(struct holds *h, uint32_t group, uint64_t version, struct request *r,
                struct fault *fault);
void holds_prefetch(const struct holds *h, uint32_t group, uint64_t version);
/* ZERO_ENOTHELD */
int holds_check(const struct holds *h, uint32_t group, struct fault *fault);
/* Ends a hold that holds_check() has found.  Its lease lasts until holds_return(). */
void holds_release(struct holds *h, uint32_t group);
void holds_return(const struct holds *h, uint32_t group);
/* Ends holds and their leases.  least: HOLD_HELD: all, except fetches on their way; HOLD_PAST. */
void holds_end(struct holds *h, enum hold least);
/* ZERO_EORDER: a fetch is on its way. */
int holds_settled(const struct holds *h, struct fault *fault);
/* The attempt was aborted: what is held becomes PAST. */
void holds_abort(struct holds *h);
/* Bytes that the window lacks; 0: it has its memory. */
uint64_t gather_lacks(const struct gather *g);
void gather_provide(struct gather *g, struct segment *memory);
const struct segment *gather_segment(const struct gather *g);
/* The job starts: gathers that waited for the start go on. */
void gather_up(struct job *job);
/* A put has changed the group. */
void gather_dirty(struct job *job, uint32_t group);
/* Whether a put has changed a group since the last call.  Only for a window apart. */
bool gather_dirtied(struct gather *g);
/*
 * The served parameters that clients map (state_serve()), or NULL.  They map it only where this
 * node holds everything, since otherwise they would map more than their windows, and only where it
 * lies in their place.
 */
const struct segment *gather_serve(const struct gather *g);
void gather_info(const struct job *job, struct gather_info *ret);
/* Ends every waiting fetch. */
void gather_fail(struct job *job, int status, const char *text);

extern const struct module gather_module;
extern const struct shard_observer gather_observer;
