/*
 * entry.h - shared by the sets (stash.c), their entries (entry.c), and what entries get from other
 * nodes (assemble.c).
 */
#pragma once

#include "daemon/floor/base/memory.h"
#include "daemon/job/transfer/transfer.h"
#include "daemon/step/stash/order.h"
#include "daemon/step/stash/stash.h"

/* What the job keeps on this node. */
struct job_stash {
        struct list sets;
        struct list pulls; /* of parts that are not written yet (assemble.c) */
        uint32_t n_pulls;
        uint64_t most; /* bytes used at once */
        uint64_t received;
};

/* A set, as this node holds it. */
struct stash {
        struct list link; /* job_stash.sets */
        struct job *job;
        uint32_t *ranks, n_ranks; /* a member is an index here */
        bool *here;               /* [member]: its rank is on this node */
        uint32_t *admitted;       /* [member]: its sessions, also those that still attach */
        uint32_t *n_reads;        /* [member]: in this attempt */
        struct order order;
        uint32_t n_here;
        node_set others;             /* nodes with members, but for this one */
        uint64_t bytes, entry_bytes; /* as declared */
        uint32_t place;
        struct segment segment;
        struct memory_promise promise; /* of the segment's pages */
        struct pages pages;
        struct pages wholes; /* slots for entries put together, in a place where a block is one
                              * extent; n 0: they lie in pages */
        struct list entries; /* in the order of writing */
        struct list writes;  /* struct request.wait; they wait for room */
        struct list early;   /* of other nodes that were faster than this one (assemble.c) */
        uint32_t n_early;
        bool slides; /* entries do now (slide.c) */
};

enum part { PART_NONE, PART_WRITING, PART_WRITTEN, PART_HELD, PART_DONE };

struct stash_entry {
        struct list link; /* stash.entries */
        struct stash *stash;
        uint64_t key, bytes, hash;
        uint32_t first_rank;
        struct block own; /* the parts of this node's members, which may be all */
        void *own_at;
        struct block
                whole; /* put together from all nodes; n 0: own is the whole, or it is not there */
        void *whole_at;
        bool assembled, answered; /* answered: a member has read the whole */
        struct list waiting;      /* struct request.wait; their group is the member */
        node_set done;            /* nodes that need this node's parts no more */
        uint32_t busy;            /* payloads and copies in progress */
        bool slides;
        bool past; /* of an attempt that is over; stays while busy, or while a rank that has not
                    * heard of the end may touch the memory */
        /* Bringing the parts together (assemble.c). */
        struct list pieces;        /* that are under way */
        uint32_t n_pieces, member; /* member: whose part comes next */
        uint64_t brought;          /* bytes of that part that are here or under way */
        bool failed;               /* a link went down: the pieces come again */
        int refused;               /* a node refused a part: that of `refuser` */
        uint32_t refuser;
        uint8_t parts[]; /* [member]: enum part */
};

/* ---- entry.c ---- */

uint64_t part_begin(const struct stash_entry *e, uint32_t member);
uint64_t part_bytes(const struct stash_entry *e, uint32_t member);
/* Where a member's part lies among the parts of this node. */
uint64_t part_own(const struct stash_entry *e, uint32_t member);
struct stash_entry *entry_find(const struct stash *s, uint64_t key);
/* All entries of the set, and writes that wait: memory is free, or a link is back. */
void entries_advance(struct stash *s);
/* Whether a member on this node writes or reads it. */
static inline bool entry_touched(const struct stash_entry *e)
{
        for (uint32_t m = 0; m < e->stash->n_ranks; m++)
                if (e->parts[m] == PART_WRITING || e->parts[m] == PART_HELD)
                        return true;
        return false;
}
/* Whether all members on this node have released the entry for the last time. */
bool entry_unneeded(const struct stash_entry *e);
/* The first member on this node that has not written its part; n_ranks: all have. */
uint32_t entry_awaits(const struct stash_entry *e);
/* Memory that only a reader needs goes. */
void entry_drop_whole(struct stash_entry *e);
/* At once; nobody touches it. */
void entry_free(struct stash_entry *e);
/* The entry is over: waiting requests end, memory goes as soon as nobody touches it. */
void entry_end(struct stash_entry *e, int status, const char *text);
/* Frees an entry of the past if nobody touches it any more; then it does not exist. */
void entry_settle(struct stash_entry *e);
/* Memory of a set, at one address, for what entries put together need (`whole`) or for the rest; as
 * pages_take().  drop: wholes that nobody reads or waits for make room. */
int stash_take(struct stash *s, bool whole, bool drop, uint64_t bytes, struct block *ret,
               void **ret_at);
uint32_t stash_member(const struct stash *s, uint32_t rank);
/* Differs between sets of different ranks. */
uint64_t set_hash(const uint32_t *ranks, uint32_t n);
/* What the parts of this node's members may take, beside wholes. */
uint64_t set_parts_bytes(const struct stash *s);
/* Frees the set if it has no ranks and no entries. */
void stash_vacate(struct stash *s);

/* ---- assemble.c ---- */

/* Brings all parts to one place, unless that is done or there is no room now. */
void entry_assemble(struct stash_entry *e);
/* Brings what is read next (stash.order), as much as memory is kept for.  e, or NULL: where the
 * order of reads is not known, the entries written before e come, in reverse order. */
void stash_ahead(struct stash *s, struct stash_entry *e);
/* Why another node has refused its part; returns e->refused. */
int assembly_fault(const struct stash_entry *e, struct fault *fault);
/* What is under way ends soon. */
void entry_forget(struct stash_entry *e);
/* The member's part is written: sends it to the nodes that have asked. */
void pulls_serve(struct stash_entry *e, uint32_t member);
/* Refuses all pulls that wait, of attempts before the job's, or of all. */
void pulls_refuse(struct job *job, bool all, int status, const char *text);
/* The node is away: nobody waits for what it has asked for. */
void pulls_forget(struct job *job, uint32_t node);
/* This node's members need the entry no more. */
void entry_tell_done(const struct stash_entry *e);
/* Other nodes may need the entry, which is new here, no more. */
void entry_take_early(struct stash_entry *e);
void early_forget(struct stash *s);

/* ---- slide.c ---- */

/* Whether a part that is one extent has to wait only for entries to slide together; has them begin,
 * if nobody is in the way.  Then they slide, and are busy, until done() ends that. */
bool stash_slide(struct stash *s, uint64_t bytes, void (*done)(struct stash *s));
/* Names whom a write that waits for that waits for. */
void slide_describe(const struct stash *s, struct wait_line *ret);
