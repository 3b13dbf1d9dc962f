/* events.h - what can happen to a world, one event at a time, and the states that were seen. */
#pragma once

#include <stddef.h>

#include "world.h"

enum event_kind {
        EVENT_DELIVER,
        EVENT_UP,
        EVENT_DOWN,
        EVENT_START,
        EVENT_UPDATED,
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

struct event {
        u8 kind, a, b;
};

enum { EVENTS = 64 };

/* Everything that can happen but faults; how many. */
uint32_t events_ordinary(const struct world *w, struct event *ret);
/* Appends faults to n events. */
void events_faults(const struct world *w, struct event *ret, uint32_t *n);
void event_happen(struct world *w, struct event e);
/* In words, before it happens. */
void event_print(const struct world *w, struct event e);
void world_print(const struct world *w);

/* ---- seen.c ---- */

/* False if the state was seen before; else it has the number states_seen() - 1. */
bool seen_new(const struct world *w, uint32_t parent, struct event event);
uint32_t states_seen(void);
/* How a state was come to. */
uint32_t seen_parent(uint32_t state);
struct event seen_event(uint32_t state);
void seen_forget(void);
void *room(void *p, size_t n);
