/*
 * search.h - a breadth-first search over all that can happen to a small world.
 *
 * A world is plain bytes: equal states have equal bytes, so that it can be copied, hashed and
 * compared as it is.  The search keeps only a hash of each state, and how it reached the state.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef uint8_t u8;

struct event {
        u8 kind, a, b;
};

enum { SEARCH_EVENTS = 256 };

struct search {
        size_t size;                    /* of a world, at most */
        size_t (*bytes)(const void *w); /* of this world; the bytes behind are zero */
        void (*init)(void *w);
        /* Lists everything that can happen except faults; returns the number of events.  An event
         * that changes nothing does not count. */
        uint32_t (*ordinary)(const void *w, struct event *ret);
        /* Appends faults to n events. */
        void (*faults)(const void *w, struct event *ret, uint32_t *n);
        void (*happen)(void *w, struct event e);
        bool (*done)(const void *w); /* whether the world may end like this, when only faults can
                                        happen */
        /* Checks that a world without further faults comes to an end; NULL: no such check. */
        void (*alone)(const void *w);
        uint32_t every; /* alone() checks one state in so many */
        /* In words: an event, before it happens; a world. */
        void (*print_event)(const void *w, struct event e);
        void (*print)(const void *w);
};

struct bounds; /* of a world; each explorer has its own */

struct search_case {
        const char *name, *what;
        const struct bounds *bounds;
};

/*
 * Searches the cases that argv names, one after the other; begin() sets a case's bounds.  Lists all
 * cases if argv names none or an unknown one.  Returns the exit status: 1 if anything is wrong,
 * after printing the shortest way to it.
 */
int search_main(int argc, char **argv, const struct search *s, const struct search_case *cases,
                size_t n_cases, void (*begin)(const struct bounds *bounds));

/* The first fault found in the step just taken; empty: none. */
extern char violation[400];
void violate(const char *format, ...) __attribute__((format(printf, 1, 2)));
#define REQUIRE(condition, ...)               \
        do {                                  \
                if (!(condition))             \
                        violate(__VA_ARGS__); \
        } while (0)
