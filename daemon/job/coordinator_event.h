/*
 * coordinator_event.h - what happens to the coordinator of a job, and what it wants done
 * (coordinator.h).
 */
#pragma once

#include "daemon/job/moving.h"
#include "daemon/job/step.h"
#include "proto/list.h"

/*
 * A rank, or with rank RANK_ABSENT a node that has states of the job, asks to join.  The driver
 * allocates it; the coordinator keeps it until COORDINATOR_JOIN_END.
 */
struct join {
        struct list link; /* coordinator.joins */
        uint32_t node, rank, world_size, incarnation, pid;
        uint64_t session;  /* of the node */
        uint64_t call;     /* the driver's own */
        uint64_t since_ms; /* set by the coordinator */
        bool resume, fail_on_lost;
        bool admitted;      /* set by the coordinator */
        struct fault fault; /* how it ended; with COORDINATOR_CLASH: how the layouts differ */
};

/* One state that a node tells of. */
struct told_state {
        struct state_place place;
        uint64_t attempt, puts;
        bool fresh; /* no rank has worked on it */
        const struct standing *standing;
};

/* Each is followed by the members of the event that it uses. */
enum coordinator_event_kind {
        COORDINATOR_TICK,      /* known: this node has the job */
        COORDINATOR_NODE_UP,   /* node */
        COORDINATOR_NODE_DOWN, /* node */
        COORDINATOR_LINKS,     /* node; cut: the nodes that it cannot reach */
        COORDINATOR_JOIN,      /* join */
        COORDINATOR_CLASH,     /* join: it brings another layout than ranks that came with it */
        COORDINATOR_LEAVE,     /* node, rank, session, orderly, finish */
        COORDINATOR_OPENED,    /* node, known, created, attempt, states; status, text: unreadable */
        COORDINATOR_OPEN_FAILED, /* node, status, text */
        COORDINATOR_DISPLACED,   /* node: room was made there, ask again */
        COORDINATOR_READY,       /* node, rank, attempt, params (NULL: the norm), call */
        COORDINATOR_VOTE,        /* node, owner, copy, attempt, vote, norm_only */
        COORDINATOR_DONE,        /* node, owner, copy, attempt */
        COORDINATOR_SETTLED,     /* node, epoch, status, text */
        COORDINATOR_FILLED,      /* holder, status, text, states: one */
        COORDINATOR_CLOSE        /* status, text: for the ranks that wait */
};

enum coordinator_finish { FINISH_NOT, FINISH_COMPLETE, FINISH_UNWANTED };

struct coordinator_event {
        enum coordinator_event_kind kind;
        uint64_t now_ms;     /* with every event: of any clock */
        uint64_t linked, up; /* with every event: nodes, a bit each; up: the same list in force */
        uint32_t node, rank, owner, copy, holder;
        uint64_t session, cut, attempt, epoch, call;
        bool known, created, orderly, norm_only;
        enum coordinator_finish finish;
        int status;
        const char *text;
        uint32_t n_states;
        const struct told_state *states;
        const struct step_params *params;
        const struct votes *vote;
        struct join *join;
};

enum coordinator_action_kind {
        COORDINATOR_ASK,           /* node, flag: to create what it lacks; OPENED answers */
        COORDINATOR_JOIN_END,      /* join: answer it with join->fault, and free it */
        COORDINATOR_TELL_BACK,     /* rank: all hear that it is in the running attempt again */
        COORDINATOR_TELL_LEFT,     /* rank, node, flag: orderly; all hear */
        COORDINATOR_TELL_FENCED,   /* node, rank, session */
        COORDINATOR_RESIZED,       /* rank: the world size before */
        COORDINATOR_START,         /* all hear: step.{epoch, version, attempt}, the last decision */
        COORDINATOR_ANSWER,        /* node, call: a Ready; coordinator.note */
        COORDINATOR_PREPARE,       /* the nodes of all holders are asked to vote */
        COORDINATOR_DECIDE,        /* all hear: step.{decision, decided_attempt} */
        COORDINATOR_NORM,          /* all hear: step.norm */
        COORDINATOR_REFUSE,        /* all hear: step.refusal */
        COORDINATOR_TELL_DECISION, /* node: the last one, which it ignores if it has heard it */
        COORDINATOR_STANDS,        /* it is known where the job stands */
        COORDINATOR_SETTLE,        /* node: carry out on old states; SETTLED answers */
        COORDINATOR_FILL,          /* holder, attempt; coordinator_sources(); FILLED answers */
        COORDINATOR_FILL_OVER,     /* holder: it has its state */
        COORDINATOR_FILL_AGAIN,    /* holder: tried again; coordinator.note says why */
        COORDINATOR_WHOLE,         /* all states are where the placement in force has them */
        COORDINATOR_PLACED,        /* node: it may delete states of earlier placements */
        COORDINATOR_TAKE_BACK,     /* the old placement comes back; flag: the first time */
        COORDINATOR_UNKNOWN,       /* node has not told, flag: it is waited for; a log line */
        COORDINATOR_HINDERED,      /* coordinator.fault */
        COORDINATOR_FINISHED,      /* all ranks have left and completed the job */
        COORDINATOR_UNWANTED,      /* ... and want it dropped */
        COORDINATOR_DISCARD,       /* node: it drops what this opening created there */
        COORDINATOR_CLOSED         /* the last one: free the coordinator */
};

struct coordinator_action {
        enum coordinator_action_kind kind;
        uint32_t node, rank, holder;
        bool flag;
        uint64_t epoch; /* the job's, when the action came up */
        uint64_t attempt, session, call;
        struct join *join;
};

/* Grows with what one event gives; the driver frees it. */
struct coordinator_actions {
        struct coordinator_action *items;
        uint32_t n, room;
};
