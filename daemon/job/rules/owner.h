/*
 * owner.h - a node's part in a job: what its replicas do when the coordinator tells them to.  Pure:
 * what the node knows and one event go in, actions come out.
 *
 * The machine keeps nothing between two events.  Its state is the node's records and books: for
 * each event the driver fills struct owner from them, and carries the actions out in order.
 * Drivers: the daemon (engine/job.c, reduce/vote.c, update/) and the explorers (tests/model).
 */
#pragma once

#include "daemon/job/rules/placement.h"

/* The most replicas of one job on one node, in one placement. */
enum { OWNER_REPLICAS = PLACEMENT_COPIES * NODE_OWNERS_MAX };

/* As enum attempt_phase of store/state.h. */
enum owner_phase { OWNER_OPEN, OWNER_PREPARED, OWNER_DECIDED };

/* The fields of struct state_record that the rules read. */
struct owner_record {
        uint64_t version, attempt; /* committed steps, before this attempt */
        enum owner_phase phase;
        uint64_t decided_attempt; /* the attempt of the last decision; 0: none */
        bool commit;              /* the last decision updates; otherwise the step was skipped */
};

struct owner_replica {
        uint32_t id; /* chosen by the driver: actions name it */
        struct owner_record record;
        bool in_force; /* the placement is in force, not an earlier one */
        bool updating; /* an update runs, or old values are put back */
        bool ahead;    /* groups are, or are being, updated ahead of a decision */
        /* Only for OWNER_SUMMED. */
        bool asked;   /* OWNER_ASK, but not yet OWNER_VOTE, was given in this attempt */
        bool closing; /* the vote ends the step; otherwise it is only for the norm */
        bool summed;  /* all sums of this attempt are complete */
};

struct owner {
        uint64_t version, attempt; /* where the node's part of the job stands */
        bool started;              /* an attempt has begun since the daemon started */
        uint32_t n;                /* replicas that have a state */
        struct owner_replica replicas[OWNER_REPLICAS];
};

/* START, AHEAD, PREPARE and DECISION concern all replicas in force, the others replicas[0]. */
enum owner_event_kind {
        OWNER_START,    /* version, attempt: an attempt begins and voids all before it */
        OWNER_AHEAD,    /* attempt: the coordinator says how the step will end */
        OWNER_PREPARE,  /* attempt: the coordinator asks for votes */
        OWNER_SUMMED,   /* something that the replica's vote waits for may have come */
        OWNER_DECISION, /* version, attempt, commit; or, with refused or norm_only, another outcome
                           of the attempt's call */
        OWNER_SETTLE,  /* attempt, commit: of the last decision on the replica's placement, which is
                          not in force; attempt 0: none */
        OWNER_UPDATED, /* the replica has carried out the decision in its record */
        OWNER_GIVEN,   /* the replica has received its state, from a file or another node */
};

struct owner_event {
        enum owner_event_kind kind;
        uint64_t version, attempt; /* of a decision: the version after it */
        bool commit;
        bool refused, norm_only; /* DECISION: the call is refused; it asked for the norm */
};

/* `record`: what the replica's record is afterwards. */
enum owner_action_kind {
        OWNER_CLASH,     /* the event does not fit a record here: nothing happens */
        OWNER_STAND,     /* version, attempt: where the node's part of the job stands */
        OWNER_ABORT,     /* replica, record: its attempt is void */
        OWNER_UNDO,      /* replica: what was updated ahead goes back to the record's version */
        OWNER_BEGIN,     /* decided: an attempt begins, all of the last one is over; calls end */
        OWNER_REFUSE,    /* waiting calls are refused, votes have no effect */
        OWNER_TELL_NORM, /* waiting calls get the norm */
        OWNER_LEAD,      /* replica: update eager groups as their sums become complete */
        OWNER_ASK,       /* replica: ask it to vote */
        OWNER_VOTE,   /* replica, record: unless it is for the norm, record the vote with everything
                         that it depends on; then send it */
        OWNER_DECIDE, /* replica, record: record the decision and begin its update */
        OWNER_UPDATE, /* replica: begin the update of the recorded decision (again) */
        OWNER_FINISH, /* replica, record: the attempt is over */
        OWNER_TELL_DONE, /* replica: tell the coordinator that it is done */
};

struct owner_action {
        enum owner_action_kind kind;
        uint32_t replica; /* its id */
        uint64_t version, attempt;
        bool decided; /* BEGIN: the last attempt was decided; otherwise it is void */
        struct owner_record record;
};

enum { OWNER_ACTIONS = 2 * OWNER_REPLICAS + 2 };

struct owner_actions {
        uint32_t n;
        struct owner_action items[OWNER_ACTIONS];
};

void owner_step(const struct owner *o, const struct owner_event *e, struct owner_actions *ret);

/* Where a replica stands, by its record. */
struct owner_stand {
        uint64_t version, attempt; /* including the decision; the next attempt to begin or end */
        bool done;                 /* the last decision was carried out */
        uint64_t prepared_attempt; /* it has voted in it and knows no decision; 0: none */
};
struct owner_stand owner_stand(const struct owner_record *r);
/*
 * True if replica a rather than b says where a node's part of the job stands.  A replica in force
 * comes first.  Of two alike the one behind counts: the coordinator will tell it the decision,
 * which the one ahead knows.
 */
bool owner_behind(const struct owner_replica *a, const struct owner_replica *b);

enum owner_offer {
        OWNER_OFFER_OVER,  /* its attempt is over */
        OWNER_OFFER_NOW,   /* its attempt runs */
        OWNER_OFFER_EARLY, /* the node has not heard of its attempt */
};
/* A node offers a gradient for an attempt. */
enum owner_offer owner_offer(uint64_t attempt, bool started, uint64_t offered);
