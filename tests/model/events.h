/* events.h - what can happen to a world, one event at a time (search.h). */
#pragma once

#include <stddef.h>

#include "world.h"

enum event_kind {
        EVENT_DELIVER,
        EVENT_UP,
        EVENT_DOWN,
        EVENT_START,
        EVENT_UPDATED,
        EVENT_LEAD,
        EVENT_READ,
        EVENT_FILL,
        EVENT_ATTACH,
        EVENT_PUSH,
        EVENT_STEP,
        EVENT_TICK,
        /* faults */
        EVENT_CRASH,
        EVENT_TEAR,
        EVENT_WIPE,
        EVENT_CUT,
        EVENT_KILL,
        EVENT_MOVE
};

/* Lists everything that can happen except faults; returns the number of events. */
uint32_t events_ordinary(const void *world, struct event *ret);
/* Appends faults to n events. */
void events_faults(const void *world, struct event *ret, uint32_t *n);
void event_happen(void *world, struct event e);
/* Prints the event in words, before it happens. */
void event_print(const void *world, struct event e);
void world_print(const void *world);
