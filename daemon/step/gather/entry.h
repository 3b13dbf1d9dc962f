/*
 * entry.h - shared by a job's windows, to which clients are admitted (admission.c), what they hold
 * there (holds.c), and gathering (gather.c).
 */
#pragma once

#include "daemon/floor/base/memory.h"
#include "daemon/step/gather/gather.h"
#include "daemon/step/gather/window.h"
#include "proto/cleanup.h"

enum entry_phase { ENTRY_EMPTY, ENTRY_STARVING, ENTRY_FILLING, ENTRY_READY };

struct entry {
        enum entry_phase phase;
        struct list waiting;  /* struct request.wait */
        struct list starving; /* gather.starving */
        uint64_t version;     /* asked for, being filled, or present */
        bool begun;   /* filling from the owners; false: another window may still be the source */
        bool again;   /* dirty, or a link went down, while filling: fill once more */
        bool stalled; /* an owner has lost its shard: wait until a node is up, or the job starts */
        int refused;  /* an owner refused a slice: the gather fails */
        uint32_t slab;
        uint32_t next_part, landed, in_flight; /* of the partition's slices, part by part */
        uint64_t has;      /* apart: 1 + the version that the slab had, as in a pull */
        bool pulled;       /* a part has come from another node */
        uint64_t begun_ns; /* when it began to be filled */
        node_set asked;    /* owners that have not said whether they have deltas from there */
        node_set forward;  /* owners whose slices go forward by deltas */
        bool by_deltas;    /* it has what came so, here or in the window that it was copied from */
};

/* A window and its contents. */
struct gather {
        struct list link; /* job.gathers */
        struct job *job;
        uint32_t place;
        bool apart;            /* it maps no served parameters: updates change nothing in it */
        bool dirty;            /* apart: a put has changed a group since gather_dirtied() */
        struct entry *entries; /* [group] */
        struct window window;
        bool has_window;
        bool planned;  /* no window yet: another thread allocates its memory */
        bool *skip;    /* [group]: needs no slab */
        uint8_t *form; /* apart, [group]: its dtype in the window; 0: it is left out */
        struct segment segment;
        struct memory_promise promise; /* apart: of the segment's memory */
        struct list starving;
        bool feeding;
        bool lacking;      /* a part had no memory, or apart: an owner had no shard: the next tick
                            * goes on */
        uint64_t admitted; /* the sum of the groups that its clients may hold */
        uint32_t busy;     /* slices and spreads in progress */
        uint64_t hits, misses, gathers, spread, elements_received; /* struct gather_info */
        uint64_t forwarded, delta_bytes_received;
};

static inline struct gather *gather_at(const struct job *job, struct list *item)
{
        return item == &job->gathers ? NULL : CONTAINER_OF(item, struct gather, link);
}
#define for_gathers(job, g)                                             \
        for (struct gather *g = gather_at(job, (job)->gathers.next); g; \
             g = gather_at(job, g->link.next))

/* admission.c */
void gather_drop_window(struct gather *g);
void gathers_free(struct job *job);
/* Whether clients map the group there; whether it needs no slab. */
bool gather_mapped(const struct gather *g, uint32_t group);
bool slabless(const struct gather *g, uint32_t group);
/* In which dtype the window has the group; 0: it never has it. */
static inline uint32_t gather_dtype(const struct gather *g, uint32_t group)
{
        return g->form ? g->form[group] : g->job->layout->groups[group].dtype;
}

/* gather.c */
/* r's subject: who will hold it. */
void gather_fetch(struct gather *g, uint32_t group, uint64_t version, struct request *r);
/* Frees the window if it has no clients and no uses. */
void gather_vacate(struct gather *g);
