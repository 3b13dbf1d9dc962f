/*
 * coordinator_event.h - events of a job's coordinator and the actions that it wants
 * (coordinator.h).
 */
#pragma once

#include "daemon/job/rules/moving.h"
#include "daemon/job/rules/step.h"
#include "proto/list.h"

/*
 * A rank asks to join.  With rank RANK_ABSENT a node says that it has states of the job.  The
 * driver allocates the join; the coordinator keeps it until COORDINATOR_JOIN_END.
 */
struct join {
        struct list link; /* coordinator.joins */
        uint32_t node, rank, world_size, incarnation, pid;
        uint64_t session;  /* of the node */
        uint64_t call;     /* for the driver */
        uint64_t since_ms; /* set by the coordinator */
        bool resume, fail_on_lost;
        bool admitted;      /* set by the coordinator */
        struct fault fault; /* its outcome; with COORDINATOR_CLASH how the layouts differ */
};

/* One state that a node has. */
struct told_state {
        struct state_place place;
        uint64_t attempt, puts;
        const struct standing *standing;
};

/* Each event is followed by the members that it uses. */
enum coordinator_event_kind {
        COORDINATOR_TICK,      /* known: this node has the job */
        COORDINATOR_NODE_UP,   /* node */
        COORDINATOR_NODE_DOWN, /* node */
        COORDINATOR_LINKS,     /* node; cut: the nodes that it cannot reach */
        COORDINATOR_JOIN,      /* join */
        COORDINATOR_CLASH,     /* join: its layout differs from that of ranks that came with it */
        COORDINATOR_LEAVE,     /* node, rank, session, orderly, gave_up, finish */
        COORDINATOR_OPENED,    /* node, known, created, attempt, states; status, text: unreadable */
        COORDINATOR_OPEN_FAILED, /* node, status, text */
        COORDINATOR_ASK_AGAIN,   /* node: it cannot answer yet, but soon */
        COORDINATOR_READY,       /* node, rank, attempt, params (NULL: the norm), call */
        COORDINATOR_AHEAD,       /* the same, before ranks end the step */
        COORDINATOR_REDUCE,      /* node, rank, attempt, numbers, call */
        COORDINATOR_VOTE,        /* node, owner, copy, attempt, vote, norm_only */
        COORDINATOR_DONE,        /* node, owner, copy, attempt */
        COORDINATOR_SETTLED,     /* node, epoch, status, text */
        COORDINATOR_FILLED,      /* holder, status, text, states: one */
        COORDINATOR_CLOSE        /* status, text: for waiting ranks */
};

enum coordinator_finish { FINISH_NOT, FINISH_COMPLETE, FINISH_UNWANTED };

struct coordinator_event {
        enum coordinator_event_kind kind;
        uint64_t now_ms;     /* with every event: on any clock */
        node_set linked, up; /* with every event; up: nodes with the same owner list in force */
        uint32_t node, rank, owner, copy, holder;
        uint64_t session, attempt, epoch, call;
        node_set cut;
        bool known, created, orderly, gave_up, norm_only;
        enum coordinator_finish finish;
        int status;
        const char *text;
        uint32_t n_states;
        const struct told_state *states;
        const struct step_params *params;
        const struct votes *vote;
        const struct numbers *numbers;
        struct join *join;
};

enum coordinator_action_kind {
        COORDINATOR_ASK,           /* node, flag: create what it lacks; OPENED answers */
        COORDINATOR_JOIN_END,      /* join: answer it with join->fault, and free it */
        COORDINATOR_TELL_BACK,     /* rank: tells all that it is in the running attempt again */
        COORDINATOR_TELL_LEFT,     /* rank, node, flag: orderly, fails; tells all */
        COORDINATOR_TELL_FENCED,   /* node, rank, session */
        COORDINATOR_RESIZED,       /* rank: the world size before */
        COORDINATOR_START,         /* tells all: step.{version, attempt}, the last decision */
        COORDINATOR_ANSWER,        /* node, call: a Ready or Numbers; coordinator.note */
        COORDINATOR_PREPARE,       /* asks holders' nodes to vote; flag: tells them step.ahead */
        COORDINATOR_DECIDE,        /* tells all: step.{decision, decided_attempt} */
        COORDINATOR_NORM,          /* tells all: step.norm */
        COORDINATOR_REDUCED,       /* tells all: the result of step.round */
        COORDINATOR_REFUSE,        /* tells all: step.refusal */
        COORDINATOR_TELL_DECISION, /* node: the last decision, in case it missed it */
        COORDINATOR_STANDS,        /* where the job stands is known */
        COORDINATOR_SETTLE,     /* node: it carries out decisions on old states; SETTLED answers */
        COORDINATOR_FILL,       /* holder, attempt; coordinator_sources(); FILLED answers */
        COORDINATOR_FILL_OVER,  /* holder: it has its state */
        COORDINATOR_FILL_AGAIN, /* holder: will be tried again; coordinator.note says why */
        COORDINATOR_WHOLE,      /* all states are where the placement in force wants them */
        COORDINATOR_PLACED,     /* node: it may delete states of earlier placements */
        COORDINATOR_TAKE_BACK,  /* return to the old placement; flag: the first time */
        COORDINATOR_UNKNOWN,    /* node has not said what it has; flag: the job waits; a log line */
        COORDINATOR_HINDERED,   /* coordinator.fault */
        COORDINATOR_FINISHED,   /* all ranks have left and completed the job */
        COORDINATOR_UNWANTED,   /* all ranks have left and want the job dropped */
        COORDINATOR_DISCARD,    /* node: it drops what this opening created there */
        COORDINATOR_CLOSED      /* the last one: free the coordinator */
};

struct coordinator_action {
        enum coordinator_action_kind kind;
        uint32_t node, rank, holder;
        bool flag, fails; /* fails: the attempt cannot end, because nobody waits for a successor */
        uint64_t attempt, session, call;
        struct join *join;
};

/* Grows during an event; the driver frees it. */
struct coordinator_actions {
        struct coordinator_action *items;
        uint32_t n, capacity;
};
