/* gather.h - parameters to trainers: one gather a group and version, however many ask. */
#pragma once

#include "daemon/shard/shard.h"

struct gather;

/* Where a rank's windows lie. */
struct window_place {
        bool on_gpu; /* else in host memory */
        uint32_t gpu;
};

/* Of all windows of the job here. */
struct gather_info {
        uint64_t window_bytes, elements_received;
        uint64_t hits, misses;    /* fetches whose group was in the window, and the others */
        uint64_t gathers, spread; /* groups brought there; of these, from another window */
        uint32_t slots;
        char places[400]; /* "gpu 0, gpu 1" */
};
/*
 * Gives a rank room in a window in that place, which is made at the first rank there.  On a GPU it
 * may lack its memory then: gather_provide() takes that over before the rank fetches, or the rank
 * leaves; no other rank is admitted there before either.
 */
int gather_admit(struct job *job, const struct window_place *place, uint32_t hold_groups,
                 uint32_t local_world_size, struct gather **ret, struct fault *fault);
struct job *gather_job(const struct gather *g);
/* Bytes that its window lacks; 0: it is there. */
uint64_t gather_lacks(const struct gather *g);
void gather_provide(struct gather *g, struct segment *memory);
/* A rank that was admitted has left. */
void gather_leave(struct gather *g, uint32_t hold_groups);
const struct segment *gather_segment(const struct gather *g);
void gather_fetch(struct gather *g, uint32_t group, uint64_t version, struct request *r);
void gather_prefetch(struct gather *g, uint32_t group, uint64_t version);
void gather_release(struct gather *g, uint32_t group);
/* The job starts: what waited for that goes on. */
void gather_up(struct job *job);
/* The group's bytes were changed by a put. */
void gather_dirty(struct job *job, uint32_t group);
/*
 * The serve plane that trainers map: only where this node holds everything, else they would map
 * more than their windows, and only where it lies in their place; or NULL.
 */
const struct segment *gather_serve(const struct gather *g);
/* Whether the group is served by mapping it. */
bool gather_mapped(const struct gather *g, uint32_t group);
void gather_info(const struct job *job, struct gather_info *ret);
/* Ends every waiting fetch. */
void gather_fail(struct job *job, int status, const char *text);

extern const struct module gather_module;
extern const struct shard_observer gather_observer;
