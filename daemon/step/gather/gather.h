/* gather.h - parameters for trainers: one gather per group and version, however many ranks ask. */
#pragma once

#include "daemon/job/shard/shard.h"

struct gather;

/* Over all windows of the job on this node. */
struct gather_info {
        uint64_t window_bytes, elements_received;
        uint64_t hits, misses;    /* fetches that found the group in the window, and others */
        uint64_t gathers, spread; /* groups brought to windows; those from another window */
        uint32_t slots;
        char places[400]; /* "GPU 0, GPU 1" */
};
/*
 * Admits a rank to a window in that place; the first rank there makes the window.  Away from
 * the host the window may lack its memory: then either gather_provide() takes the memory over
 * before the rank fetches, or the rank leaves.  Nobody else is admitted there before that.
 */
int gather_admit(struct job *job, uint32_t place, uint32_t hold_groups, uint32_t local_world_size,
                 struct gather **ret, struct fault *fault);
struct job *gather_job(const struct gather *g);
/* Bytes that the window lacks; 0: it has its memory. */
uint64_t gather_lacks(const struct gather *g);
void gather_provide(struct gather *g, struct segment *memory);
/* An admitted rank has left. */
void gather_leave(struct gather *g, uint32_t hold_groups);
const struct segment *gather_segment(const struct gather *g);
void gather_fetch(struct gather *g, uint32_t group, uint64_t version, struct request *r);
void gather_prefetch(struct gather *g, uint32_t group, uint64_t version);
void gather_release(struct gather *g, uint32_t group);
/* The job starts: gathers that waited for the start go on. */
void gather_up(struct job *job);
/* A put has changed the group. */
void gather_dirty(struct job *job, uint32_t group);
/*
 * The served parameters that trainers map (state_serve()), or NULL.  They map it only where this
 * node holds everything, since otherwise they would map more than their windows, and only where it
 * lies in their place.
 */
const struct segment *gather_serve(const struct gather *g);
/* Whether trainers map the group there. */
bool gather_mapped(const struct gather *g, uint32_t group);
void gather_info(const struct job *job, struct gather_info *ret);
/* Ends every waiting fetch. */
void gather_fail(struct job *job, int status, const char *text);

extern const struct module gather_module;
extern const struct shard_observer gather_observer;
