/*
 * coordinator.h - the coordinator of one job.  Pure: events go in, actions come out.
 *
 * The driver (daemon/cluster/coordinator) turns messages into events and actions into messages.
 * The explorers (tests/model) and the scripts (tests/unit/job/coordinator) drive the same code.
 * Time, links and what nodes say arrive with events; nothing is sent, logged or waited for here.
 *
 * OPENING   Every node that comes up is asked what it knows of the job (NODE_ASKED, then
 *           NODE_KNOWN).  When all owners have answered, their records say where the job stands
 *           (recover.h, moving.h), or the job is created.  From then on each node that comes up is
 *           compared with that.  A node is open (NODE_OPEN) when its states are complete.  If one
 *           node refuses to create the job, all nodes forget it.  An opening that was killed may
 *           leave parts of a job: they go when all owners have told and no rank comes.
 * PLACING   The holders of the placement in force are filled from the states that tell where the
 *           job stands: those of an earlier placement, or the other copy of the same shards.
 * JOINING   Ranks wait until it is known where the job stands and take their slots.  Their calls
 *           are answered when the job starts, or at once if a running attempt waits for them.
 * STEPPING  step.h: attempts start, nodes get ready, holders vote, the step is decided.
 */
#pragma once

#include "daemon/job/rules/coordinator_event.h"

/* How long the job waits for nodes that may know more of it: linked nodes, and others. */
enum { OTHERS_MS = 30000, AWAY_MS = 2000 };
/* How long ranks of a node that was away have to return: their clients try twice a second. */
enum { RETURN_MS = 5000 };

/* NODE_AGAIN: the node cannot yet say what it has, or create the job; it is asked again at the next
 * tick. */
enum node_state { NODE_UNASKED, NODE_ASKED, NODE_AGAIN, NODE_KNOWN, NODE_OPEN };

/* The session that has a rank's slot, or had it last. */
struct sitter {
        uint32_t incarnation, pid;
        uint64_t session;    /* of its node */
        uint64_t cut_off_ms; /* when the link to its node was lost; 0: never */
};

/* Constant while the coordinator lives; strings outlive it. */
struct coordinator_job {
        const char *name;
        const char *const *nodes; /* [node]: names, for texts */
        uint32_t n_nodes, world_size;
        double loss_scale; /* of the first attempt */
        /* The highest rank that a group names, and that group; NULL: none. */
        uint32_t named_rank;
        const char *named_group;
        uint64_t return_until_ms; /* until when ranks of an earlier process may return; 0: none */
};

struct coordinator {
        struct coordinator_job job;
        struct coordinator_actions *actions; /* of the current event, as are the next three */
        uint64_t now_ms;
        node_set linked, up;
        struct step step;
        bool dead;       /* COORDINATOR_CLOSED was given */
        bool may_create; /* a rank has asked for the job and was not in it before */
        bool claimed;    /* a node has said that it has states of the job */
        bool settled;    /* where the job stands is known: step.{version, decision, ...} */
        bool whole; /* the states in force say it: at least one copy of each owner's is there */
        enum node_state nodes[NODE_SET_MAX];
        bool created[NODE_SET_MAX];  /* this opening made the job: dropping it loses nothing */
        bool lacks[NODE_SET_MAX];    /* the node knew nothing of the job when asked */
        bool fresh[NODE_SET_MAX];    /* all states that the node has told of are fresh */
        struct standing **standings; /* [holder]; NULL: unknown */
        struct standing *standing_storage; /* [holder] */
        uint64_t puts[HOLDER_MAX];         /* [holder]: which client puts its state has */
        uint64_t rounds[NODE_SET_MAX];     /* [node]: the round in which it was last asked */
        uint64_t round;                    /* advances when one of two copies may miss a put */
        bool filling[HOLDER_MAX];          /* [holder]: COORDINATOR_FILLED has not come yet */
        struct old_placement old_placements[OLD_PLACEMENT_MAX];
        struct old_placement *old_placement; /* the source of the move, once known */
        node_set stale;                      /* nodes with states of earlier placements */
        struct fault refused;                /* why the placement in force is given up; or OK */
        struct fault clash;       /* attaching ranks have brought different layouts; or OK */
        struct fault fault;       /* why the job cannot go on until a node returns; or OK */
        struct fault unusable;    /* why a node does not use a state file of the job; or OK */
        struct fault note;        /* COORDINATOR_ANSWER, COORDINATOR_FILL_AGAIN */
        uint32_t hinders;         /* the node of `fault` */
        uint32_t unusable_on;     /* the node of `unusable` */
        struct sitter *sitters;   /* [rank] */
        struct list joins;        /* struct join, oldest first */
        node_set untold;          /* nodes that alone may have the newest state */
        bool may_be_there;        /* they are untold because no other node has the job */
        node_set missed;          /* nodes without which the job goes on, as the log said */
        uint64_t others_until_ms; /* until when linked nodes may tell; 0: the job waits for none */
        uint64_t return_until_ms; /* until when ranks of a node that was away may return */
        uint32_t complete, unwanted; /* ranks that have completed the job; that want it dropped */
};

/* 0 or -ENOMEM.  Announce each node by COORDINATOR_NODE_UP. */
int coordinator_init(struct coordinator *c, const struct coordinator_job *job,
                     const struct placement *placement);
/* Joins that still wait belong to the driver. */
void coordinator_deinit(struct coordinator *c);
/* Handles an event and appends its actions to *ret.  A closed coordinator ignores events. */
void coordinator_step(struct coordinator *c, const struct coordinator_event *e,
                      struct coordinator_actions *ret);

/* The sources of a fill, and their puts (COORDINATOR_FILL). */
struct coordinator_sources {
        const struct placement *from;
        bool readable[HOLDER_MAX]; /* [holder of `from`] */
        const uint64_t *puts;      /* [holder of `from`] */
        uint64_t puts_then;        /* of the new state, when it is filled */
};
void coordinator_sources(const struct coordinator *c, uint32_t holder,
                         struct coordinator_sources *ret);
/* The holder of an owner's copy, if it is on the node; else NO_HOLDER. */
uint32_t coordinator_holder(const struct coordinator *c, uint32_t node, uint32_t owner,
                            uint32_t copy);
bool coordinator_holder_lacks(const struct coordinator *c, uint32_t holder);
/* The first join that waits with another world size than the job's; NULL: none. */
struct join *coordinator_other_world(const struct coordinator *c);
