/*
 * blocking.h - runs work that may block on a disk, a driver or the kernel on threads of its own, so
 * that neither the loop thread nor the compute threads wait for it.
 *
 * Each kind of work has a lane with threads of its own, so work that hangs holds up its lane alone.
 * The table in blocking.c bounds a lane's threads, and how many of them work for one user.  Further
 * work waits, oldest first.  A thread is made when work comes, and ends when none is left for it.
 *
 * Submit and look on the loop thread.  Work cannot be cancelled.  Its memory belongs to the lane
 * until done() is called.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include <uv.h>

#include "proto/list.h"

enum lane {
        LANE_VOTES,       /* files in membership_dir */
        LANE_DRIVERS,     /* memory and events of GPUs */
        LANE_LOOKS,       /* how much memory GPUs have free */
        LANE_MEMORY,      /* host memory is taken and freed */
        LANE_BASES,       /* bases are hashed */
        LANE_CHECKPOINTS, /* checkpoints are written and read */
        LANE_PLACES,      /* what clients name for checkpoints is looked at */
        LANE_FILES,       /* doctor, recordings */
        LANES,
};

/* What a stop does that waits for work of the lane when its time is over. */
enum lane_stop {
        LANE_AWAITED, /* goes on waiting: the kernel ends such work */
        LANE_LEFT,    /* saves states, and leaves the work: it is as if the daemon died now */
        LANE_FATAL,   /* gives up: states on a GPU whose driver hangs cannot be saved */
};

struct blocking_work {
        void (*run)(struct blocking_work *work);  /* on another thread */
        void (*done)(struct blocking_work *work); /* then on the loop thread */
        const char *what, *of; /* "to write the checkpoint of job", its name; of: NULL or a name */
        uint32_t uid;          /* the user for whom */
        /* private */
        struct list link;
        uint64_t began_ns; /* 0: waits for its turn */
};

/* What a lane does now. */
struct lane_load {
        const char *lane;
        enum lane_stop stop;
        uint32_t working, waiting;
        uint64_t oldest_ms; /* for how long the oldest is at work */
        char oldest[160];   /* "to write the checkpoint of job a of user 1000" */
};

enum { LANE_LATE_MS = 5000 }; /* longer, and a person should know */

struct blocking;

int blocking_new(uv_loop_t *loop, struct blocking **ret);
void blocking_submit(struct blocking *b, enum lane lane, struct blocking_work *work);
/* Whether such work of that name waits or runs; `what` is compared as a pointer. */
bool blocking_has(struct blocking *b, enum lane lane, const char *what, const char *of);
struct lane_load blocking_load(struct blocking *b, enum lane lane);
/* How much of the user's waits for a thread. */
uint32_t blocking_waits(struct blocking *b, enum lane lane, uint32_t uid);
/* closed() is called on the loop thread after the last done(); then all is freed. */
void blocking_close(struct blocking *b, void (*closed)(void *arg), void *arg);
