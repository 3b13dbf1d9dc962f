/* lifetime.h - the engine's clock, and its end; shared by its start and stop (engine.c) and the
 * drain before (drain.c). */
#pragma once

#include "daemon/engine/engine.h"

struct lifetime {
        struct engine *x;
        uv_timer_t tick;
        uint64_t progress_ms;       /* loop time of the last progress report */
        uint64_t resume_ms;         /* loop time: states that wait for memory are tried again */
        void (*drained)(void *arg); /* while steps in flight are waited for */
        void *drained_arg;
        uint64_t drain_until_ms; /* loop time */
        void (*closed)(void *arg);
        void *closed_arg;
};

/* drain.c */
void drain_check(struct engine *x);
/* resume.c: tries again what was left for lack of memory. */
void resume_tick(struct engine *x);
