/*
 * entry.h - shared by the windows of a job (entry.c), gathering (gather.c), what goes into a slab
 * (slices.c, spread.c), and who is admitted to a window (admission.c).
 */
#pragma once

#include "daemon/gather/gather.h"
#include "daemon/gather/window.h"

enum entry_phase { ENTRY_EMPTY, ENTRY_STARVING, ENTRY_FILLING, ENTRY_READY };

struct entry {
        enum entry_phase phase;
        struct list waiting;  /* struct request.wait */
        struct list starving; /* gather.starving */
        uint64_t version;     /* asked for, being filled, or there */
        bool begun;           /* filling: it is settled whence; else another window may have it */
        bool again;           /* made dirty or a link ended while filling: fill once more */
        bool stalled; /* an owner has lost its shard: until a node is up, or the job starts */
        int refused;  /* an owner refused a slice: the gather fails */
        uint32_t slab;
        uint32_t next_part, landed, in_flight; /* of the partition's slices, part by part */
};

/* A window, and what is in it or on its way there. */
struct gather {
        struct list link; /* job.gathers */
        struct job *job;
        struct window_place place;
        struct entry *entries; /* [group] */
        struct window window;
        bool has_window;
        bool planned; /* no window yet: its memory is being made on a GPU */
        bool *skip;   /* [group]: mapped, needs no slab */
        struct segment segment;
        struct list starving;
        bool feeding;
        uint64_t admitted; /* groups that its ranks may hold, summed */
        uint32_t busy;     /* slices and spreads that use the window */
        uint64_t hits, misses, gathers, spread, elements_received; /* struct gather_info */
};

#define for_gathers(job, g) for (struct gather *g = gather_first(job); g; g = gather_next(job, g))

/* entry.c */
/* -ENOMEM. */
int gather_new(struct job *job, const struct window_place *place);
void gather_drop_window(struct gather *g);
void gathers_free(struct job *job);
struct gather *gather_first(const struct job *job);
struct gather *gather_next(const struct job *job, const struct gather *g);
/* Groups that need no slab. */
bool slabless(const struct gather *g, uint32_t group);

/* gather.c */
/* Moves an entry on as far as it goes now. */
void gather_advance(struct gather *g, uint32_t group);
/* Slabs have become free: those who wait for one go on, in order. */
void gather_feed(struct gather *g);
/* The window goes, if it has no ranks and no uses. */
void gather_vacate(struct gather *g);
/* Uses of the window begin and end; if it has no ranks any more, it goes with the last. */
void gather_use(struct gather *g);
void gather_unuse(struct gather *g);
static inline void *gather_slab(const struct gather *g, uint32_t group)
{
        return (char *)g->segment.data + window_offset(&g->window, g->entries[group].slab);
}

/* slices.c */
/* In how many parts a group is brought, of all its slices; it has elements. */
uint32_t gather_parts(const struct job *job, uint32_t group);
/* Starts the k-th; false if it cannot start now (shard not ready, node not up). */
bool gather_part(struct gather *g, uint32_t group, uint32_t k);

/* spread.c */
/* Whether another window has the group, or will: the entry gets it from there, and waits. */
bool spread_to(struct gather *g, uint32_t group);
