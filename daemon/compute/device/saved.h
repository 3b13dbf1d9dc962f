/* saved.h - old values that an update on the host saves.  Included by device.h. */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "daemon/compute/device/rules.h"

/*
 * Where update() saves the old values of what it changes, for a process that may be killed at any
 * instruction.  Before an element changes, its old values are in old[], and *kept covers it.
 */
struct update_undo {
        float *old[UPDATE_PLANES]; /* [plane of the rule]: elements of one call */
        uint64_t *kept;            /* undo_mark() */
        uint32_t before;           /* elements that earlier calls have saved */
};

/* The mark that n elements are saved; it reveals a flipped bit. */
static inline uint64_t undo_mark(uint32_t n)
{
        return (uint64_t)~n << 32 | n;
}

/* The number in a mark; UINT32_MAX: not a mark. */
static inline uint32_t undo_kept(uint64_t mark)
{
        return undo_mark((uint32_t)mark) == mark ? (uint32_t)mark : UINT32_MAX;
}

/* Marks the first n elements of a call as saved.  The compiler moves no store across this one, in
 * either direction, so a process that dies between two instructions has done all stores before
 * them. */
static inline void undo_raise(const struct update_undo *undo, size_t n)
{
        __atomic_signal_fence(__ATOMIC_SEQ_CST);
        __atomic_store_n(undo->kept, undo_mark(undo->before + (uint32_t)n), __ATOMIC_RELAXED);
        __atomic_signal_fence(__ATOMIC_SEQ_CST);
}

/* For a call that continues after the first n elements. */
static inline struct update_undo undo_behind(struct update_undo u, uint32_t n)
{
        for (int k = 0; k < UPDATE_PLANES; k++)
                u.old[k] += u.old[k] ? n : 0;
        u.before += n;
        return u;
}
