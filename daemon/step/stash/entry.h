/*
 * entry.h - what the sets (stash.c), their entries (entry.c, slide.c) and the exchange of parts
 * between nodes (assemble.c) share.
 */
#pragma once

#include "daemon/floor/base/memory.h"
#include "daemon/job/transfer/transfer.h"
#include "daemon/step/stash/order.h"
#include "daemon/step/stash/stash.h"

/* A job's sets on this node. */
struct job_stash {
        struct list sets;
        struct list pulls; /* other nodes wait for these parts, which are not written yet
                              (assemble.c) */
        uint32_t n_pulls;
        uint64_t most; /* the most bytes in use at the same time */
        uint64_t received;
};

/* A set on this node. */
struct stash {
        struct list link; /* job_stash.sets */
        struct job *job;
        uint32_t *ranks, n_ranks; /* member m is ranks[m] */
        bool *here;               /* [member]: its rank is on this node */
        uint32_t *admitted; /* [member]: how many sessions the rank has, including those that still
                               attach */
        uint32_t *n_reads;  /* [member]: reads in this attempt */
        struct order order;
        uint32_t n_here;
        node_set others;             /* other nodes with members */
        uint64_t bytes, entry_bytes; /* as declared */
        uint32_t place;
        struct segment segment;
        struct memory_promise promise; /* of the segment's pages */
        struct pages pages;
        struct pages wholes; /* slots for assembled entries, in a place where a block must be one
                                extent; n 0: assembled entries lie in pages */
        struct list entries; /* in the order of writing */
        struct list writes;  /* struct request.wait: writes that wait for room */
        struct list early;   /* entries that other nodes finished before this node began them
                                (assemble.c) */
        uint32_t n_early;
        bool slides; /* entries are moving together (slide.c) */
};

enum part { PART_NONE, PART_WRITING, PART_WRITTEN, PART_HELD, PART_DONE };

struct stash_entry {
        struct list link; /* stash.entries */
        struct stash *stash;
        uint64_t key, bytes, hash;
        uint32_t first_rank;
        struct block own; /* the parts of this node's members; the whole entry if no other node has
                             members */
        void *own_at;
        struct block whole; /* the assembled entry; n 0: own is the whole, or the entry is not
                               assembled */
        void *whole_at;
        bool assembled, answered; /* answered: a member has read the whole */
        struct list waiting;      /* struct request.wait: reads; request.group is the member */
        node_set done;            /* nodes that no longer need this node's parts */
        uint32_t busy;            /* payloads, copies and slides in progress */
        bool slides;
        bool past; /* the entry is over; it stays while it is busy, or while a rank that has not
                      heard of the attempt's end may touch its memory */
        /* Assembly (assemble.c). */
        struct list pieces;        /* pieces under way */
        uint32_t n_pieces, member; /* member: the one whose part comes next */
        uint64_t brought;          /* bytes of that part that have come or are under way */
        bool failed;               /* a link went down: all pieces must come again */
        int refused; /* why a node refused the part of member `refuser`; 0: none has */
        uint32_t refuser;
        uint8_t parts[]; /* [member]: enum part */
};

/* ---- entry.c ---- */

uint64_t part_begin(const struct stash_entry *e, uint32_t member);
uint64_t part_bytes(const struct stash_entry *e, uint32_t member);
/* Offset of a member's part in this node's own memory of the entry. */
uint64_t part_own(const struct stash_entry *e, uint32_t member);
struct stash_entry *entry_find(const struct stash *s, uint64_t key);
/* Lets reads and writes go on, after memory has become free or a link is back. */
void entries_advance(struct stash *s);
/* True if a member on this node is writing or reading the entry. */
static inline bool entry_touched(const struct stash_entry *e)
{
        for (uint32_t m = 0; m < e->stash->n_ranks; m++)
                if (e->parts[m] == PART_WRITING || e->parts[m] == PART_HELD)
                        return true;
        return false;
}
/* True if all members on this node have released the entry for the last time. */
bool entry_unneeded(const struct stash_entry *e);
/* The first member on this node that has not written its part; n_ranks: all have written. */
uint32_t entry_awaits(const struct stash_entry *e);
/* Frees the assembled copy. */
void entry_drop_whole(struct stash_entry *e);
/* Frees the entry at once.  No rank may touch it. */
void entry_free(struct stash_entry *e);
/* Ends the entry: its requests end with the status.  Memory becomes free when no rank and no
 * payload uses it. */
void entry_end(struct stash_entry *e, int status, const char *text);
/* Frees an entry that is over if nothing uses it any more.  The entry may be gone afterwards. */
void entry_settle(struct stash_entry *e);
/* Takes memory of the set and maps it at one address; returns as pages_take() does.  whole: for an
 * assembled entry, otherwise for parts.  drop: if there is no room, assembled entries that no rank
 * reads or waits for are freed first. */
int stash_take(struct stash *s, bool whole, bool drop, uint64_t bytes, struct block *ret,
               void **ret_at);
uint32_t stash_member(const struct stash *s, uint32_t rank);
/* A hash of the set's ranks. */
uint64_t set_hash(const uint32_t *ranks, uint32_t n);
/* The most bytes that this node's own memory of all entries may take. */
uint64_t set_parts_bytes(const struct stash *s);
/* Frees the set if it has neither sessions nor entries. */
void stash_vacate(struct stash *s);

/* ---- assemble.c ---- */

/* Memory that an assembled entry of that size takes. */
uint64_t whole_bytes(const struct stash *s, uint64_t bytes);
/* Assembles the entry, unless that is done or there is no room now. */
void entry_assemble(struct stash_entry *e);
/* Assembles the entries that will be read next (stash.order), as many as there is room for.  If the
 * order is unknown, it takes the entries written before e, in reverse order.  e may be NULL. */
void stash_ahead(struct stash *s, struct stash_entry *e);
/* Says why a node refused its part; returns e->refused. */
int assembly_fault(const struct stash_entry *e, struct fault *fault);
/* Stops waiting for pieces from other nodes: their requests end soon. */
void entry_forget(struct stash_entry *e);
/* Sends the member's part, which is written, to the nodes that asked for it. */
void pulls_serve(struct stash_entry *e, uint32_t member);
/* Refuses the pulls that wait: all of them, or those of earlier attempts. */
void pulls_refuse(struct job *job, bool all, int status, const char *text);
/* Forgets the pulls of a node that is away. */
void pulls_forget(struct job *job, uint32_t node);
/* Tells the other nodes that this node's members no longer need the entry. */
void entry_tell_done(const struct stash_entry *e);
/* Takes over what nodes said of the entry before this node made it: they no longer need it. */
void entry_take_early(struct stash_entry *e);
void early_forget(struct stash *s);

/* ---- slide.c ---- */

/* Makes room for a part by moving entries together, in a set whose blocks are one extent.  True:
 * enough memory is free in all, so the write has only to wait.  Entries that move are busy until
 * done() is called.  Nothing moves while ranks use entries that are in the way. */
bool stash_slide(struct stash *s, uint64_t bytes, void (*done)(struct stash *s));
/* Says whom a write waits for if it waits for entries to move together. */
void slide_describe(const struct stash *s, struct wait_line *ret);
