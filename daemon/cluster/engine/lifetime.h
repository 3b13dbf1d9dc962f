/* lifetime.h - the engine's clock and its end, shared by the files of this folder. */
#pragma once

#include "daemon/cluster/engine/engine.h"

struct lifetime {
        struct engine *x;
        uv_timer_t tick;
        uint64_t progress_ms; /* loop time of the last progress report */
        uint64_t resume_ms;   /* loop time at which states that wait for memory are tried again */
        /* links.c */
        node_set links_lost;        /* nodes whose link broke since all nodes were told */
        uint32_t links_hush_ticks;  /* until a change is told at once again */
        bool links_moving;          /* something has changed since the last tick */
        bool links_untold;          /* or since all nodes were told */
        void (*drained)(void *arg); /* set while the engine waits for steps in flight */
        void *drained_arg;
        uint64_t drain_until_ms; /* loop time */
        void (*closed)(void *arg);
        void *closed_arg;
};

/* drain.c */
void drain_check(struct engine *x);
/* links.c.  Tells all nodes what has changed and was not told at once. */
void links_tick(struct engine *x);
/* resume.c.  Tries states again that had no memory. */
void resume_tick(struct engine *x);
