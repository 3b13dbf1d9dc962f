/*
 * coordinator.h - shared by the parts of a job's coordinator: opening the job on all nodes
 * (opening.c), bringing shards to where the owner list has them (placing.c), ranks that join
 * (joining.c), attempts (starting.c) and decisions (deciding.c), who is late (lateness.c), how far
 * shards are on their way (moves.c), which nodes reach each other (links.c).
 *
 * Opening.  Every node that comes up is asked what it knows of the job (NODE_ASKED -> NODE_KNOWN).
 * When all owners have answered, their records say where the job stands (job/recover.h), or that
 * it is to be made; owners that missed the last decision hear it.  From then on a node that
 * comes up is compared with that.  A node is open (NODE_OPEN) when nothing is to be made there;
 * states that it lacks are filled from those of others (placing.c).
 */
#pragma once

#include "daemon/engine/engine.h"
#include "daemon/reshard/filling.h"
#include "daemon/job/moving.h"

enum { OTHERS_MS = 30000, AWAY_MS = 2000 };
enum { RETURN_MS = 5000 }; /* a client that lost its daemon tries twice a second */

enum node_state { NODE_UNASKED, NODE_ASKED, NODE_KNOWN, NODE_OPEN };

/* What a node last reported to be late on it. */
struct report {
        bool waiting;
        uint32_t n;
        struct wait_line lines[WAIT_LINES];
};

/* Who has a rank's seat, or had it last. */
struct sitter {
        uint32_t incarnation, pid;
        uint64_t session;    /* of its node */
        uint64_t cut_off_ms; /* loop time: the link to its node was lost; 0: it was not */
};

struct coordinator {
        struct list link; /* exchange.coordinators */
        struct exchange *x;
        uint32_t references; /* itself, and calls under way */
        bool dead;
        char name[ZERO_NAME_MAX + 1];
        uint32_t uid, reduce_dtype;
        Zero__Layout *message;
        layout *layout;
        struct step step;
        bool may_create; /* a rank has asked for the job that was not in it before */
        bool claimed;    /* a node has told that it has states of it */
        bool settled;    /* it is known where the job stands: step.{version, decision, ...} */
        bool whole;      /* ... and every owner's shards are there, in one copy at least */
        enum node_state nodes[ZERO_NODE_MAX];
        bool created[ZERO_NODE_MAX]; /* made there by this opening: nothing is lost if it is dropped
                                      */
        bool lacks[ZERO_NODE_MAX];   /* it knew nothing of the job when it was asked */
        bool fresh[ZERO_NODE_MAX];   /* no rank has worked on what it has */
        struct standing **standings; /* [holder]; NULL: not known */
        uint64_t puts[HOLDER_MAX];   /* [holder]: which puts of clients its state has, ... */
        uint64_t rounds[ZERO_NODE_MAX]; /* [node]: ... as it told, asked in that round */
        uint64_t round; /* counts what may have kept a put from one of two copies: nodes that were
                           lost, and fills */
        struct fill *fills[HOLDER_MAX]; /* [holder]: under way */
        uint64_t *shares;               /* [owner]: bytes of its shards; NULL: not counted yet */
        struct former formers[FORMER_MAX];
        struct former *former;  /* the one that is moved from, once that is known */
        uint64_t stale;         /* nodes with states of a placement before, a bit each */
        struct fault refused;   /* why a node does not take its part: the list before is to come
                                   back; or OK */
        struct fault clash;     /* ranks that attach have brought different layouts; or OK */
        struct fault fault;     /* why the job cannot go on until a node comes anew, or OK */
        uint32_t hinders;       /* that node */
        struct sitter *sitters; /* [rank] */
        struct kept *handed;    /* [rank]: with the step that is being collected */
        struct list joins;
        struct report reports[ZERO_NODE_MAX];
        uint64_t untold;   /* nodes that may have what is newest of it, and nobody else has: it is
                              not known where it stands before they tell; a bit each */
        bool may_be_there; /* ... for none of it is known anywhere else */
        uint64_t missed;   /* nodes of which it was said that they did not tell */
        uint64_t others_until_ms; /* loop time: so long nodes that are linked may tell what they
                                     have; 0: that is not waited for */
        uint64_t return_until_ms; /* loop time: so long ranks of a node that was away may return */
        bool told;                /* the last summary was not empty */
        uint32_t complete, unwanted; /* ranks that have left and completed the job, and of them
                                        those that want it dropped; since a rank last joined */
        uint64_t given;              /* bytes of finished jobs that gave their place to this one */
        char displaced[ZERO_NAME_MAX +
                       1]; /* the last of them: the finished job that gives its place to this one */
};

/* A join that waits for its answer. */
struct join {
        struct list link;
        uint32_t node, rank, world_size, incarnation, pid;
        uint64_t session; /* of the node */
        uint64_t call;
        uint64_t since_ms; /* loop time */
        bool resume, fail_on_lost, admitted;
};

/* Finding, holding, and a message that bears the job's name and epoch. */
struct coordinator *coordinator_find(const struct exchange *x, const char *name);
void coordinator_unref(struct coordinator *c);
Zero__LinkMessage coordinator_to(const struct coordinator *c);
/* Who holds a copy of an owner's shards on the node; NO_HOLDER: nobody there. */
uint32_t coordinator_holder(const struct coordinator *c, uint32_t node, uint32_t owner,
                            uint32_t copy);
/* Takes the layout over in any case; NULL: out of memory. */
struct coordinator *coordinator_new(struct exchange *x, const char *name, uint32_t uid,
                                    uint32_t world_size, uint32_t reduce_dtype, layout *l);
/* Out of the list; waiting joins end. */
void coordinator_close(struct coordinator *c, int status, const char *text);
/* Another number of ranks, while none has a session. */
int coordinator_resize(struct coordinator *c, uint32_t world_size);

/* deciding.c */
void coordinator_ready(struct coordinator *c, uint32_t node, const Zero__LinkMessage *m);
void coordinator_vote(struct coordinator *c, uint32_t node, const Zero__Prepared *p);
/* Tells a node the last decision; one that has heard it ignores it. */
void decision_send(struct coordinator *c, uint32_t node);
void decision_fill(const struct coordinator *c, Zero__Decision *ret);

/* starting.c: starts a new attempt if everything is there. */
void coordinator_advance(struct coordinator *c);

/* opening.c */
void open_ask(struct coordinator *c, uint32_t node);
/* After a node has answered, or a rank that may create the job has come. */
void open_settle(struct coordinator *c);
/* While it is not known where the job stands. */
void open_tick(struct coordinator *c);
void open_forget(struct coordinator *c, uint32_t node);
/* A holder has carried a decision out. */
void open_done(struct coordinator *c, uint32_t holder, uint64_t attempt);

/* The job stays as it is until a node comes anew, or it is dropped. */
void open_hinder(struct coordinator *c, int status, uint32_t node, const char *why);
/* A node has told where a state of the placement in force stands. */
int standing_known(struct coordinator *c, uint32_t node, const Zero__Standing *m,
                   struct fault *fault);

/* placing.c */
/* A node has told where a state of an earlier placement stands. */
int former_known(struct coordinator *c, uint32_t node, const Zero__Standing *m,
                 const struct standing *standing, struct fault *fault);
void former_forget_node(struct coordinator *c, uint32_t node);
/* Does what is left to do until every holder has its state. */
void placing_advance(struct coordinator *c);
bool placing_is_lacking(const struct coordinator *c, uint32_t holder);
/* A holder on the node lacks its state. */
bool placing_lacks(const struct coordinator *c, uint32_t node);
/* The node may delete what it has of an earlier placement. */
void placed_tell(struct coordinator *c, uint32_t node);

/*
 * Ends the ranks that attach after a clash of layouts.  A job that was made for them alone ends
 * too, once all nodes have said what they made of it: the ranks may come again with one layout. The
 * coordinator may be closed.
 */
void open_clash(struct coordinator *c);

/* joining.c */
void joins_end(struct coordinator *c, int status, const char *text);
void joins_clash(struct coordinator *c);
/* Those that have their place are answered: the job has started. */
void joins_started(struct coordinator *c);
/* Gives every waiting rank its place, once it is known where the job stands. */
void joins_admit(struct coordinator *c);
void coordinator_join(struct exchange *x, uint32_t node, const Zero__LinkMessage *m);
/* A session that ended while it attached wants no answer any more. */
void join_forget(struct coordinator *c, uint32_t node, uint64_t session);
void joins_forget_node(struct coordinator *c, uint32_t node);
/* The first that waits with another world size than the job's; NULL: none. */
struct join *join_of_other_world(const struct coordinator *c);

/* moves.c */
/* False: the shards are in their place, or the job is not there yet. */
bool coordinator_moves(struct coordinator *c, struct move *ret);

/* lateness.c */
void coordinator_report(struct coordinator *c, uint32_t node, const Zero__Progress *p);
void coordinator_tell(struct coordinator *c);
/* For what those that are untold are waited. */
const char *coordinator_untold(const struct coordinator *c);
