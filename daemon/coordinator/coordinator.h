/*
 * coordinator.h - drives the coordinators of the jobs that this node coordinates.
 *
 * The rules are in daemon/job/coordinator.h.  Here messages become events (coordinator.c,
 * joining.c, opening.c) and actions become messages and log lines (actions.c, placing.c).  Beside
 * the rules stand what they need not know: what ranks hand in to keep, who is late (lateness.c),
 * how far shards have moved (moves.c).
 */
#pragma once

#include "daemon/core/layouts.h"
#include "daemon/drop/drop.h"
#include "daemon/job/coordinator.h"
#include "daemon/membership/membership.h"
#include "daemon/reshard/reshard.h"
#include "daemon/shard/shard.h"

/* What a node last reported to be late on it. */
struct report {
        bool waiting;
        uint32_t n;
        struct wait_line lines[WAIT_LINES];
};

/* A job that this node coordinates. */
struct coordinated {
        struct list link; /* engine.coordinators */
        struct engine *x;
        uint32_t references; /* itself, and calls under way */
        char name[ZERO_NAME_MAX + 1];
        const char *names[ZERO_NODE_MAX]; /* [node] */
        uint32_t uid, reduce_dtype;
        struct shared_layout *shared;
        const layout *layout; /* of shared */
        struct coordinator state;
        struct coordinator_actions actions;
        uint32_t acted;                    /* of these */
        struct fill *fills[HOLDER_MAX];    /* [holder]: under way */
        uint64_t *shares;                  /* [owner]: bytes of its shards; NULL: not counted yet */
        uint32_t n_handed;                 /* at least the world size; as are the other two */
        struct blob *handed;               /* [rank]: with the step that is being collected */
        Zero__RankBlob *kept, **kept_pointers; /* to send */
        struct report *reports[ZERO_NODE_MAX]; /* [node]; NULL: nothing is late there */
        bool told;      /* the last summary was not empty */
        uint64_t given; /* bytes of finished jobs that gave their place to this one */
        char displaced[ZERO_NAME_MAX +
                       1]; /* the last of them: the finished job that gives its place to this one */
};

/* Finding, holding, and a message that bears the job's name and epoch. */
struct coordinated *coordinated_find(const struct engine *x, const char *name);
void coordinated_ref(struct coordinated *c);
void coordinated_unref(struct coordinated *c);
Zero__LinkMessage coordinated_message(const struct coordinated *c);
/* name, x and layout are there; false: out of memory. */
bool coordinated_init(struct coordinated *c, uint32_t world_size, uint64_t return_until_ms);
/* Room for what so many ranks hand in.  -ENOMEM. */
int coordinated_reserve(struct coordinated *c, uint32_t world_size);
/* The last decision; NULL: there was none. */
void decision_fill(const struct coordinated *c, Zero__Decision *ret);
Zero__Decision *decision_last(const struct coordinated *c, Zero__Decision *ret);

/* actions.c: the event happens, and all that follows from it; time and links are filled in. */
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
/* Takes the layout over in any case; NULL: out of memory. */
struct coordinated *coordinated_new(struct engine *x, const char *name, uint32_t uid,
                                    uint32_t world_size, uint32_t reduce_dtype, layout *l,
                                    uint64_t return_until_ms);
void opening_ask(struct coordinated *c, uint32_t node, bool create);
/* params and vote of the message; 0 or why it cannot be read. */
int standing_read(const Zero__Standing *m, struct told_state *ret, struct standing *standing,
                  struct fault *fault);

/* lateness.c */
void coordinated_report(struct coordinated *c, uint32_t node, const Zero__Progress *p);
void coordinated_tell(struct coordinated *c);
/* For what the nodes are waited for that have not told what they have. */
const char *coordinated_untold(const struct coordinated *c);

/* moves.c: false: the shards are in their place, or the job is not there yet. */
bool coordinated_moves(struct coordinated *c, struct move *ret);

/* ---- for others ---- */

void coordinator_message(struct engine *x, uint32_t node, const Zero__LinkMessage *m);
void coordinators_free(struct engine *x);
/* A node tells which ones it cannot reach. */
void coordinators_cut(struct engine *x, uint32_t node, uint64_t cut);

/*
 * Every job that this node coordinates and that moves.  wait.who is "" if nothing is waited for;
 * trouble: what a person has to mend, or "".
 */
typedef void move_each(void *arg, const char *job, const struct move *m,
                       const struct wait_line *wait, const char *trouble);
void moves_each(struct engine *x, move_each *each, void *arg);

extern const struct module coordinator_module;
