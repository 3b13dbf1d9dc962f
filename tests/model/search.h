/*
 * search.h - a breadth-first search over all that can happen to a small world.
 *
 * A world is plain bytes: equal states have equal bytes, so that it can be copied, hashed and
 * compared as it is.  Of a state that was seen nothing is kept but a hash and how it was come to.
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
        size_t (*bytes)(const void *w); /* of this one; those behind are zero */
        void (*init)(void *w);
        /* Everything that can happen but faults; how many.  One that changes nothing does not
         * happen. */
        uint32_t (*ordinary)(const void *w, struct event *ret);
        /* Appends faults to n events. */
        void (*faults)(const void *w, struct event *ret, uint32_t *n);
        void (*happen)(void *w, struct event e);
        bool (*done)(const void *w); /* nothing ordinary can happen any more: is that well? */
        /* Where no fault comes any more: comes it to an end?  Of every so many states; or NULL. */
        void (*alone)(const void *w);
        uint32_t every;
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
 * Within the bounds of the cases that are named, one after the other; begin() sets them.  Without a
 * name, or with an unknown one, all are listed.  The exit status: 1 if anything is wrong, and then
 * the shortest way to it was printed.
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
