/*
 * membership.h - which nodes hold shards, and how that is changed: drives job/paxos.h over the
 * links, with the record in store/ballots.h.
 *
 * One event after the other: what an event changes is written by a disk thread, and until it is
 * on the disk nothing is said of it and no other event is looked at (the last message of each
 * node waits; those before it are lost, and asked for again).
 *
 * A change that was begun and not finished, since its proposer died, is completed by any node that
 * has accepted it, when enough nodes are there.
 *
 * A view that was chosen comes into force by the node starting anew (engine.view_chosen); where
 * jobs then find states of an earlier one, job/coordinator_place.c moves them.
 */
#pragma once

#include "daemon/core/blocking.h"
#include "daemon/job/paxos.h"
#include "daemon/membership/ballots.h"
#include "daemon/transfer/transfer.h"

enum {
        VIEW_RETRY_MS = 1500,
        VIEW_PAUSE_MS = 50,
        VIEW_PAUSE_MORE_MS = 400,
        VIEW_COMPLETE_MS = 3000
};

/* A person's wish. */
struct view_change {
        struct placement wanted;
        uint64_t dead;
        void (*done)(struct view_change *c, int status, const char *text);
};

/* The list before the one in force is to come back. */
struct view_back {
        struct view_change change;
        struct engine *x;
        struct taken_back note;
        bool wished;
};

struct views {
        struct engine *x;
        struct paxos r;
        struct paxos_record durable; /* what the disk has */
        struct ballots *ballots;     /* NULL: a node alone */
        struct view_change *change;  /* what is under way for a client; its own, or back's */
        struct view_back back;
        uint64_t retry_ms, complete_ms; /* loop times */

        bool writing;
        struct blocking_work disk;
        struct ballots_record record;
        int written;      /* -errno or 0 */
        uint32_t actions; /* to be carried out when it is written */
        uint32_t from;    /* the node whose event it was */
        bool split_told[ZERO_NODE_MAX];
        struct view_waiting {
                bool there;
                struct paxos_message m;
        } waiting[ZERO_NODE_MAX];
};

/* Reads the record: the durable view replaces the configuration's.  After engine_start(). */
int views_start(struct engine *x, struct fault *fault);
/* Frees what is left; nothing may be on its way to the disk. */
void views_free(struct engine *x);
void views_up(struct engine *x, uint32_t node);
void views_message(struct engine *x, uint32_t node, const Zero__LinkMessage *m);

enum view_kind { VIEW_ADD, VIEW_REMOVE, VIEW_TAKEOVER };
/* What a change comes to; names: a node, or with VIEW_TAKEOVER several with commas between. */
int view_plan(const struct engine *x, enum view_kind kind, const char *names,
              struct view_change *ret, struct fault *fault);
/* done() comes later, once, unless it is forgotten: then the view may yet be chosen. */
int view_change(struct engine *x, struct view_change *change, struct fault *fault);
void view_forget(struct engine *x, const struct view_change *change);
/* Whose votes a change waits for. */
void view_describe(const struct engine *x, uint64_t dead, struct wait_line *ret);
/* The owner list that was chosen last; it comes into force when the node starts anew. */
const struct placement *view_chosen(const struct engine *x);
/* The list of a change that was begun, and that may yet be chosen; NULL: there is none. */
const struct placement *view_undecided(const struct engine *x);
/* This node has a vote. */
bool view_votes(const struct engine *x);
/* A change is under way: no job may be made before it is decided. */
bool view_changing(const struct engine *x);
/* Why the view cannot change now, or OK: jobs that are being restored; others move. */
int view_hindered(const struct engine *x, struct fault *fault);

/* view_back.c */
/*
 * A job cannot be moved: owners as they were before, in a new epoch.  Goes on by itself until
 * another list is chosen.
 */
void view_take_back(struct engine *x, const struct placement *before, const char *why);
void view_back_tick(struct engine *x);
/* The daemon stops. */
void view_back_forget(struct engine *x);

/* view_message.c */
void view_send(struct engine *x, uint32_t node, const struct paxos_message *m,
               const struct fault *refusal);
int view_receive(const struct engine *x, uint32_t node, const Zero__Paxos *from,
                 struct paxos_message *ret);
void record_to_ballots(const struct paxos_record *r, struct ballots_record *ret);
/* False: it makes no sense in this cluster. */
bool record_from_ballots(const struct engine *x, const struct ballots_record *b,
                         struct paxos_record *ret);

extern const struct module membership_module;
