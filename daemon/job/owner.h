/*
 * owner.h - a node's part of a job: what its replicas do at the coordinator's word.  Pure: what the
 * node knows and one event go in, actions come out.
 *
 * The machine keeps nothing between two events.  The node's records and books are the state: the
 * driver fills struct owner from them for each event and carries the actions out in their order.
 * Drivers: the daemon (engine/job.c, reduce/complete.c, update/) and the explorers (tests/model).
 */
#pragma once

#include "daemon/job/placement.h"

/* Of one job on one node, in one placement. */
enum { OWNER_REPLICAS = PLACEMENT_COPIES * NODE_OWNERS_MAX };

/* enum attempt_phase of store/state.h */
enum owner_phase { OWNER_OPEN, OWNER_PREPARED, OWNER_DECIDED };

/* What the rules read of struct state_record. */
struct owner_record {
        uint64_t version, attempt; /* committed steps, before this attempt */
        enum owner_phase phase;
        uint64_t decided_attempt; /* of the last decision; 0: none yet */
        bool commit;              /* ... it updates; else the step is skipped */
};

struct owner_replica {
        uint32_t id; /* the driver's: actions name it */
        struct owner_record record;
        bool in_force; /* of the placement in force, not of an earlier one */
        bool updating; /* an update runs */
        /* For OWNER_SUMMED alone. */
        bool asked;   /* OWNER_ASK was given in this attempt, and no OWNER_VOTE yet, ... */
        bool closing; /* ... for a vote that ends the step; else for the norm alone */
        bool summed;  /* all sums of this attempt are complete */
};

struct owner {
        uint64_t version, attempt; /* where the node's part of the job stands */
        bool started;              /* an attempt has begun since the daemon started */
        uint32_t n;                /* replicas that have a state */
        struct owner_replica replicas[OWNER_REPLICAS];
};

/* START, PREPARE and DECISION are about all replicas in force, the others about replicas[0]. */
enum owner_event_kind {
        OWNER_START,    /* version, attempt: an attempt begins, each one before it is void */
        OWNER_PREPARE,  /* attempt: votes are asked for */
        OWNER_SUMMED,   /* something that the replica's vote waits for may have come */
        OWNER_DECISION, /* version, attempt, commit, or how else the attempt's call ends */
        OWNER_SETTLE,   /* attempt, commit: of the last decision on the replica's placement, which
                           is not in force; attempt 0: there was none */
        OWNER_UPDATED,  /* the replica has carried out the decision in its record */
        OWNER_GIVEN,    /* the replica has got its state, from a file or another node */
};

struct owner_event {
        enum owner_event_kind kind;
        uint64_t version, attempt; /* of a decision: the version after it */
        bool commit;
        bool refused, norm_only; /* DECISION: the call is refused; it was for the norm */
};

/* `record`: as the replica's record is afterwards. */
enum owner_action_kind {
        OWNER_CLASH,     /* the event does not fit a record here: nothing is done */
        OWNER_STAND,     /* version, attempt: the node's part of the job stands there */
        OWNER_ABORT,     /* replica, record: what it has of an attempt is void */
        OWNER_BEGIN,     /* decided: an attempt begins; what was asked, offered and summed is over,
                            waiting calls of ranks end */
        OWNER_REFUSE,    /* waiting calls are refused, votes came to nothing */
        OWNER_TELL_NORM, /* waiting calls get the norm */
        OWNER_ASK,       /* replica: it is asked to vote */
        OWNER_VOTE,      /* replica, record: unless it is for the norm, the vote is recorded with
                            all that it follows from; then it is sent */
        OWNER_DECIDE,    /* replica, record: the decision is recorded and its update begins */
        OWNER_UPDATE,    /* replica: the update of the recorded decision begins (again) */
        OWNER_FINISH,    /* replica, record: the attempt is over */
        OWNER_TELL_DONE, /* replica: the coordinator is told so */
};

struct owner_action {
        enum owner_action_kind kind;
        uint32_t replica; /* its id */
        uint64_t version, attempt;
        bool decided; /* BEGIN: the attempt before was; else it is void */
        struct owner_record record;
};

enum { OWNER_ACTIONS = OWNER_REPLICAS + 2 };

struct owner_actions {
        uint32_t n;
        struct owner_action items[OWNER_ACTIONS];
};

void owner_step(const struct owner *o, const struct owner_event *e, struct owner_actions *ret);

/* What a record says of its replica. */
struct owner_stand {
        uint64_t version, attempt; /* the decision included; the next attempt to begin or end */
        bool done;                 /* the last decision is carried out */
        uint64_t prepared_attempt; /* it has voted in it and knows no decision; 0: it has not */
};
struct owner_stand owner_stand(const struct owner_record *r);
/*
 * Whether a node's part of a job stands where `a` does rather than where `b` does.  Replicas in
 * force come before others.  Among them the one behind counts: the coordinator tells that one the
 * decision, and the one ahead knows it.
 */
bool owner_behind(const struct owner_replica *a, const struct owner_replica *b);

enum owner_offer {
        OWNER_OFFER_OVER,  /* its attempt is over */
        OWNER_OFFER_NOW,   /* its attempt runs */
        OWNER_OFFER_EARLY, /* the node has not heard of its attempt */
};
/* The gradient that a node offers for an attempt. */
enum owner_offer owner_offer(uint64_t attempt, bool started, uint64_t offered);
