/*
 * coordinator.h - drives the coordinators of the jobs that this node coordinates.
 *
 * The rules are in daemon/job/rules/coordinator.h.  Here messages become events (coordinator.c,
 * joining.c, opening.c), and actions become messages and log lines (actions.c, placing.c).  What
 * the rules need not know is here, too: the ranks' blobs, who is late (lateness.c), and how far
 * shards have moved (moves.c).
 */
#pragma once

#include "daemon/cluster/drop/drop.h"
#include "daemon/cluster/membership/membership.h"
#include "daemon/cluster/reshard/reshard.h"
#include "daemon/job/core/layouts.h"
#include "daemon/job/core/progress.h"
#include "daemon/job/rules/coordinator.h"
#include "daemon/job/shard/shard.h"

/* Who is late on a node, as it last reported. */
struct report {
        bool waiting;
        struct wait_lines waits;
};

/* A job that this node coordinates. */
struct coordinated {
        struct list link; /* engine.coordinators */
        struct engine *x;
        uint32_t references;              /* of the list, and of calls in progress */
        JOB_SPEC;                         /* layout: of shared */
        const char *names[ZERO_NODE_MAX]; /* [node] */
        struct shared_layout *shared;
        struct coordinator state;
        struct coordinator_actions actions;
        uint32_t acted;                 /* actions carried out so far */
        struct fill *fills[HOLDER_MAX]; /* [holder]: in progress */
        uint64_t *shares;               /* [owner]: bytes of its shards; NULL: not computed yet */
        uint32_t n_handed;              /* length of the next three; at least the world size */
        struct blob *handed;            /* [rank]: blobs of the step that is being collected */
        Zero__RankBlob *kept, **kept_pointers; /* for messages */
        struct report *reports[ZERO_NODE_MAX]; /* [node]; NULL: nobody is late there */
        struct wait_lines said;                /* the last summary */
        bool told;                             /* it was not empty */
        uint64_t given; /* bytes of finished jobs that gave up their place for this one */
        char displaced[ZERO_NAME_MAX + 1]; /* the last of these jobs */
};

/* Takes no reference. */
struct coordinated *coordinated_find(const struct engine *x, const char *name);
void coordinated_ref(struct coordinated *c);
void coordinated_unref(struct coordinated *c);
/* spec and x must be set; false: out of memory. */
bool coordinated_init(struct coordinated *c, uint64_t return_until_ms);
/* Allocates `handed` and its messages for that many ranks.  -ENOMEM. */
int coordinated_reserve(struct coordinated *c, uint32_t world_size);
/* What the job waits for from nodes that have not said what they have. */
const char *coordinated_untold(const struct coordinated *c);
/* decision_fill() fills in the last decision; decision_last() returns NULL if there is none. */
void decision_fill(const struct coordinated *c, Zero__Decision *ret);
Zero__Decision *decision_last(const struct coordinated *c, Zero__Decision *ret);

/* actions.c.  Gives an event to the coordinator, with the time and the links, and carries out the
 * actions that follow. */
void coordinated_event(struct coordinated *c, struct coordinator_event e);

/* placing.c */
void placing_settle(struct coordinated *c, uint32_t node);
void placing_fill(struct coordinated *c, const struct coordinator_action *action);
void placing_placed(struct coordinated *c, uint32_t node);
void placing_whole(struct coordinated *c);
void placing_take_back(struct coordinated *c, bool first);

/* joining.c */
void joining_message(struct engine *x, uint32_t node, const Zero__LinkMessage *m);

/* opening.c */
/* Takes the spec's layout over in any case; NULL: out of memory. */
struct coordinated *coordinated_new(struct engine *x, const struct job_spec *spec,
                                    uint64_t return_until_ms);
void opening_ask(struct coordinated *c, uint32_t node, bool create);
/* Reads params and vote of the message; 0, or why they cannot be read. */
int standing_read(const Zero__Standing *m, struct told_state *ret, struct standing *standing,
                  struct fault *fault);

/* composing.c */
void composing_message(struct engine *x, uint32_t node, const Zero__LinkMessage *m);
/* The job is there: ranks that bring their parts get its layout. */
void composing_job(struct coordinated *job);
void composings_down(struct engine *x, uint32_t node);
/* Tells nodes who is late. */
void composings_tell(struct engine *x);
void composings_free(struct engine *x);

/* lateness.c */
void coordinated_report(struct coordinated *c, uint32_t node, const Zero__Progress *p);
void coordinated_tell(struct coordinated *c);

/* moves.c.  False: the shards are in place, or the job is not there yet. */
bool coordinated_moves(struct coordinated *c, struct move *ret);

/* ---- for others ---- */

/* bringing.c: ranks of this node bring parts of a layout (proto/layout.h) before they attach. */
struct compose_needs {
        uint32_t uid, rank, world_size, stage;
};

/* r ends with result.composed when all ranks have brought their parts, or the job is there. */
int compose_start(struct engine *x, const char *job, const struct compose_needs *needs,
                  const Zero__Layout *part, struct request *r, struct fault *fault);
/* The coordinator says who is late. */
void compose_waits_message(struct engine *x, uint32_t node, const Zero__LinkMessage *m);
void composes_stop(struct engine *x);

void coordinator_message(struct engine *x, uint32_t node, const Zero__LinkMessage *m);
void coordinators_free(struct engine *x);
/* A node says which nodes it cannot reach. */
void coordinators_cut(struct engine *x, uint32_t node, node_set cut);

/*
 * Calls each() for every moving job that this node coordinates. wait.who is "" if the move waits
 * for nobody; trouble: what a person has to repair, or "".
 */
typedef void move_each(void *arg, const char *job, const struct move *m,
                       const struct wait_line *wait, const char *trouble);
void moves_each(struct engine *x, move_each *each, void *arg);

extern const struct module coordinator_module, bringing_module;
