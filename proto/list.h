/* An intrusive doubly linked list with a sentinel. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

struct list {
        struct list *next, *prev;
};

static inline void list_init(struct list *l)
{
        l->next = l->prev = l;
}
static inline bool list_empty(const struct list *l)
{
        return l->next == l;
}
/* Puts item before `at`; at the end if `at` is the list's head. */
static inline void list_insert(struct list *at, struct list *item)
{
        item->next = at;
        item->prev = at->prev;
        at->prev->next = item;
        at->prev = item;
}
/* Leaves item linked to itself, so that removing twice is harmless. */
static inline void list_remove(struct list *item)
{
        item->prev->next = item->next;
        item->next->prev = item->prev;
        list_init(item);
}
#define list_for_each(head, item)                                                         \
        for (struct list *item = (head)->next, *item##_next = item->next; item != (head); \
             item = item##_next, item##_next = item->next)
