/* gather.h - shared by gathering (gather.c) and the making of its window (admission.c). */
#pragma once

#include "daemon/exchange/exchange.h"
#include "daemon/exchange/gather/window.h"

enum entry_phase { ENTRY_EMPTY, ENTRY_STARVING, ENTRY_FILLING, ENTRY_READY };

struct entry {
        enum entry_phase phase;
        struct list waiting;  /* struct request.wait */
        struct list starving; /* gather.starving */
        uint64_t version;     /* asked for, being filled, or there */
        bool again;           /* made dirty or a link ended while filling: fill once more */
        bool stalled; /* an owner has lost its shard: until a node is up, or the job starts */
        int refused;  /* an owner refused a slice: the gather fails */
        uint32_t slab;
        uint32_t next_slice, landed, in_flight; /* of the partition's slices */
};

struct gather {
        struct job *job;
        struct entry *entries; /* [group] */
        struct window window;
        bool has_window;
        bool *skip; /* [group]: mapped, needs no slab */
        struct segment segment;
        struct list starving;
        bool feeding;
        uint64_t admitted; /* groups that the local ranks may hold, summed */
        uint64_t hits, misses, elements_received;
};

/* Groups that need no slab. */
bool slabless(const struct job *job, uint32_t group);
