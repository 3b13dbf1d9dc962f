/*
 * Moves entries together where a block must be one extent (on a GPU) and every gap is too small.
 * The write that needs the memory waits for the move, and for ranks that use entries in the way.
 *
 * Invariants: no rank reads or writes an entry that moves.  A moving entry is busy, and no write
 * takes memory until the move is over, so nothing else uses its old or its new memory.
 */
#include "daemon/step/stash/entry.h"

#include <stdio.h>
#include <stdlib.h>

#include "proto/cleanup.h"

struct slide {
        struct offload_task task;
        struct stash *stash;
        void (*done)(struct stash *s);
        uint32_t n;
        struct move {
                struct stash_entry *entry;
                const char *from;
                uint64_t to; /* offset */
        } moves[];
};

static const struct extent *extent_of(const struct move *m)
{
        return &m->entry->own.extents[0];
}

static int by_offset(const void *a, const void *b)
{
        uint64_t x = extent_of(a)->offset, y = extent_of(b)->offset;

        return (x > y) - (x < y);
}

static bool movable(const struct stash_entry *e)
{
        return !e->past && !e->busy && list_empty(&e->pieces) && !entry_touched(e);
}

static void slide_run(struct offload_task *task, uint32_t worker)
{
        struct slide *slide = CONTAINER_OF(task, struct slide, task);

        for (uint32_t i = 0; i < slide->n; i++) {
                const struct move *m = &slide->moves[i];
                uint64_t bytes = extent_of(m)->bytes;
                char *to = m->entry->own_at;
                uint64_t step = (uint64_t)(m->from - to); /* the two may overlap */

                for (uint64_t at = 0; at < bytes; at += step)
                        slide->stash->job->x->ops->copy(to + at, m->from + at,
                                                        bytes - at < step ? bytes - at : step);
        }
}

static void slide_done(struct offload_task *task)
{
        struct slide *slide = CONTAINER_OF(task, struct slide, task);
        struct job *job = slide->stash->job;

        slide->done(slide->stash);
        free(slide);
        job_unref(job);
}

/* Finds a run of movable entries whose gaps are large enough together, and keeps the moves that
 * collect those gaps behind the run.  A run ends at an entry that cannot move, or at an end of the
 * region. */
static bool slide_plan(struct slide *slide, uint64_t wanted)
{
        const struct pages *p = &slide->stash->pages;
        uint64_t begin = 0, used = 0;
        uint32_t first = 0, end, n = slide->n;

        for (end = 0;; end++) {
                const struct extent *e = end < n ? extent_of(&slide->moves[end]) : NULL;

                if (e && movable(slide->moves[end].entry)) {
                        used += e->bytes;
                        continue;
                }
                if ((e ? e->offset : p->n * p->unit) - begin - used >= wanted)
                        break;
                if (!e)
                        return false;
                first = end + 1;
                begin = e->offset + e->bytes;
                used = 0;
        }
        slide->n = 0;
        for (uint32_t i = first; i < end; begin += extent_of(&slide->moves[i++])->bytes)
                if (extent_of(&slide->moves[i])->offset != begin) {
                        slide->moves[i].to = begin;
                        slide->moves[slide->n++] = slide->moves[i];
                }
        return slide->n > 0;
}

/* Begins the moves that slide_plan() has kept. */
static void slide_begin(struct slide *slide)
{
        struct stash *s = slide->stash;

        for (uint32_t i = 0; i < slide->n; i++) {
                struct move *m = &slide->moves[i];
                struct stash_entry *e = m->entry;

                m->from = e->own_at;
                e->own_at = (char *)e->own_at - (extent_of(m)->offset - m->to);
                pages_move(&s->pages, &e->own.extents[0], m->to);
                e->busy++;
                e->slides = true;
        }
        s->slides = true;
        job_ref(s->job);
        slide->task.run = slide_run;
        slide->task.done = slide_done;
        job_compute(s->job, OFFLOAD_STEP, &slide->task);
}

bool stash_slide(struct stash *s, uint64_t bytes, void (*done)(struct stash *s))
{
        struct pages *p = &s->pages;
        uint64_t wanted = pages_round(p, bytes);
        struct slide *slide;
        uint32_t n = 0;

        if (!p->contiguous || (p->n - p->used) * p->unit < wanted)
                return false;
        list_for_each (&s->entries, item) {
                n++;
        }
        slide = calloc(1, sizeof *slide + n * sizeof slide->moves[0]);
        if (!slide)
                return false;
        slide->stash = s;
        slide->done = done;
        list_for_each (&s->entries, item) {
                slide->moves[slide->n++].entry = CONTAINER_OF(item, struct stash_entry, link);
        }
        qsort(slide->moves, n, sizeof slide->moves[0], by_offset);
        if (slide_plan(slide, wanted))
                slide_begin(slide);
        else
                free(slide);
        return true;
}

void slide_describe(const struct stash *s, struct wait_line *ret)
{
        snprintf(ret->who, sizeof ret->who, "the set of rank %u", s->ranks[0]);
        snprintf(ret->what, sizeof ret->what, "to move entries of the stash together");
        list_for_each ((struct list *)&s->entries, item) {
                const struct stash_entry *e = CONTAINER_OF(item, struct stash_entry, link);

                for (uint32_t m = 0; m < s->n_ranks; m++) {
                        if (e->parts[m] != PART_WRITING && e->parts[m] != PART_HELD)
                                continue;
                        snprintf(ret->who, sizeof ret->who, "rank %u", s->ranks[m]);
                        snprintf(ret->what, sizeof ret->what,
                                 "to %s entry %llu of the stash, which keeps free memory apart",
                                 e->parts[m] == PART_HELD ? "release" : "write",
                                 (unsigned long long)e->key);
                        return;
                }
        }
}
