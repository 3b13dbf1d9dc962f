/*
 * Entries of a set: each rank writes its part, and all ranks read the whole.
 *
 * If all ranks of the set are on this node, the entry is written once, in place, and all ranks map
 * it.  Otherwise each node keeps the parts of its own ranks, and assembles the whole while a rank
 * reads it.
 *
 * Invariants: a member writes each key once and reads only keys that it has written, so all members
 * know the same keys.  An entry's memory does not change while a member holds the entry.
 */
#include "daemon/step/stash/entry.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>

#include "daemon/job/core/progress.h"
#include "proto/cleanup.h"

enum { PART_ALIGN = 64 };

/* ---- parts ---------------------------------------------------------------------- */

uint64_t part_begin(const struct stash_entry *e, uint32_t member)
{
        uint64_t n = e->stash->n_ranks, each = (e->bytes + n - 1) / n;
        uint64_t begin = (each + PART_ALIGN - 1) / PART_ALIGN * PART_ALIGN * member;

        return begin < e->bytes ? begin : e->bytes;
}

uint64_t part_bytes(const struct stash_entry *e, uint32_t member)
{
        return part_begin(e, member + 1) - part_begin(e, member);
}

uint64_t part_own(const struct stash_entry *e, uint32_t member)
{
        uint64_t at = 0;

        for (uint32_t m = 0; m < member; m++)
                at += e->stash->here[m] ? part_bytes(e, m) : 0;
        return at;
}

uint32_t stash_member(const struct stash *s, uint32_t rank)
{
        uint32_t m = 0;

        while (m < s->n_ranks && s->ranks[m] != rank)
                m++;
        return m;
}

/* ---- an entry's life --------------------------------------------------------------- */

struct stash_entry *entry_find(const struct stash *s, uint64_t key)
{
        list_for_each ((struct list *)&s->entries, item) {
                struct stash_entry *e = CONTAINER_OF(item, struct stash_entry, link);

                if (e->key == key && !e->past)
                        return e;
        }
        return NULL;
}

bool entry_unneeded(const struct stash_entry *e)
{
        const struct stash *s = e->stash;

        for (uint32_t m = 0; m < s->n_ranks; m++)
                if (s->here[m] && e->parts[m] != PART_DONE)
                        return false;
        return true;
}

uint32_t entry_awaits(const struct stash_entry *e)
{
        const struct stash *s = e->stash;
        uint32_t m = 0;

        while (m < s->n_ranks && !(s->here[m] && e->parts[m] <= PART_WRITING))
                m++;
        return m;
}

static struct pages *pool_of(struct stash *s, bool whole)
{
        return whole && s->wholes.n ? &s->wholes : &s->pages;
}

static void stash_give(struct stash *s, bool whole, struct block *b, void **at)
{
        if (!b->n)
                return;
        extents_unmap(*at, b->extents, b->n);
        pages_give(pool_of(s, whole), b);
        *at = NULL;
}

void entry_drop_whole(struct stash_entry *e)
{
        if (!list_empty(&e->pieces))
                return; /* the last piece drops it */
        stash_give(e->stash, true, &e->whole, &e->whole_at);
        e->assembled = e->answered = false;
        e->member = 0;
        e->brought = 0;
}

void entry_free(struct stash_entry *e)
{
        struct stash *s = e->stash;

        entry_drop_whole(e);
        stash_give(s, false, &e->own, &e->own_at);
        list_remove(&e->link);
        free(e);
        entries_advance(s);
}

void entry_settle(struct stash_entry *e)
{
        if (!e->past || e->busy || !list_empty(&e->pieces) || entry_touched(e))
                return;
        entry_free(e);
}

void entry_end(struct stash_entry *e, int status, const char *text)
{
        e->past = true;
        entry_forget(e);
        requests_end_all(&e->waiting, status, text);
        for (uint32_t m = 0; m < e->stash->n_ranks; m++)
                if (!e->stash->admitted[m])
                        e->parts[m] = PART_NONE;
        entry_settle(e);
}

static void note_used(struct job *job)
{
        struct stash_info info;

        stash_info(job, &info);
        if (info.used > info.most)
                job->stash->most = info.used;
}

static void wholes_drop(struct stash *s)
{
        list_for_each (&s->entries, item) {
                struct stash_entry *e = CONTAINER_OF(item, struct stash_entry, link);

                if (!e->past && list_empty(&e->waiting) && !entry_touched(e))
                        entry_drop_whole(e);
        }
}

int stash_take(struct stash *s, bool whole, bool drop, uint64_t bytes, struct block *ret,
               void **ret_at)
{
        struct pages *pool = pool_of(s, whole);
        int r = pages_take(pool, bytes, ret);

        if (r == -ENOSPC && drop && pool == pool_of(s, true)) {
                wholes_drop(s);
                r = pages_take(pool, bytes, ret);
        }
        if (r)
                return r;
        r = extents_map(s->segment.fd, s->segment.data, ret->extents, ret->n,
                        PROT_READ | PROT_WRITE, ret_at);
        if (r)
                pages_give(pool, ret);
        else
                note_used(s->job);
        return r;
}

void stash_aware(struct stash *s, uint32_t rank)
{
        uint32_t member = stash_member(s, rank);

        list_for_each (&s->entries, item) {
                struct stash_entry *e = CONTAINER_OF(item, struct stash_entry, link);

                if (!e->past)
                        continue;
                e->parts[member] = PART_NONE;
                entry_settle(e);
        }
}

/* ---- writing ------------------------------------------------------------------------ */

static int no_room(const struct stash *s, uint64_t bytes, int r, struct fault *fault)
{
        uint64_t wanted = pages_round(&s->pages, bytes);

        if (r != -ENOSPC)
                return fault_set(fault, ZERO_ENOMEM, "out of memory");
        list_for_each ((struct list *)&s->entries, item) {
                wanted +=
                        pages_round(&s->pages, CONTAINER_OF(item, struct stash_entry, link)->bytes);
        }
        return fault_set(
                fault, ZERO_EWINDOW,
                "the stash of rank %u has no room for %llu bytes more: it was declared with %llu "
                "bytes, and the step needs %llu so far",
                s->ranks[0], (unsigned long long)bytes, (unsigned long long)s->bytes,
                (unsigned long long)wanted);
}

static void entries_slid(struct stash *s)
{
        list_for_each (&s->entries, item) {
                struct stash_entry *e = CONTAINER_OF(item, struct stash_entry, link);

                if (!e->slides)
                        continue;
                e->slides = false;
                e->busy--;
                for (uint32_t m = 0; m < s->n_ranks && !e->past; m++)
                        if (s->here[m] && e->parts[m] >= PART_WRITTEN)
                                pulls_serve(e, m);
                entry_settle(e);
        }
        s->slides = false;
        entries_advance(s);
        stash_ahead(s, NULL);
        stash_vacate(s);
}

/* True if memory will become free without this member.  Either another rank has still to release an
 * entry that this member has finished with, or an entry that is over is still in use. */
static bool others_release(const struct stash *s, uint32_t member)
{
        list_for_each ((struct list *)&s->entries, item) {
                const struct stash_entry *e = CONTAINER_OF(item, struct stash_entry, link);

                if (e->past || e->parts[member] == PART_DONE)
                        return true;
        }
        return false;
}

/*
 * True if a write would take memory that ranks behind this one need.  Where assembled entries share
 * the pages with parts, those ranks could then read nothing, so they would release nothing.
 */
static bool takes_theirs(const struct stash *s, uint64_t own)
{
        if (!node_set_any(s->others) || s->wholes.n)
                return false;
        own = pages_round(&s->pages, own);
        list_for_each ((struct list *)&s->entries, item) {
                own += pages_round(&s->pages, part_own(CONTAINER_OF(item, struct stash_entry, link),
                                                       s->n_ranks));
        }
        return own > set_parts_bytes(s);
}

/* *ret NULL: the write has to wait until entries have moved together, or other ranks have released
 * theirs.  Without `waits` that is ZERO_EWINDOW too. */
static int entry_new(struct stash *s, uint32_t rank, uint64_t key, uint64_t bytes, bool waits,
                     struct stash_entry **ret, struct fault *fault)
{
        CLEANUP(cleanup_free)
        struct stash_entry *e = calloc(1, sizeof *e + s->n_ranks * sizeof e->parts[0]);
        bool behind = others_release(s, stash_member(s, rank));
        uint64_t own = 0;
        int r = -ENOMEM;

        if (s->wholes.n && bytes > s->entry_bytes) /* it could never be assembled */
                return fault_set(fault, ZERO_EWINDOW,
                                 "entry %llu of the stash of rank %u has %llu bytes, and the "
                                 "largest was declared with %llu",
                                 (unsigned long long)key, s->ranks[0], (unsigned long long)bytes,
                                 (unsigned long long)s->entry_bytes);
        if (e) {
                e->stash = s;
                e->key = key;
                e->bytes = bytes;
                e->first_rank = rank;
                own = part_own(e, s->n_ranks);
                own = own ? own : 1; /* a node whose parts are all empty has a unit all the same */
                r = behind && takes_theirs(s, own)
                            ? -ENOSPC
                            : stash_take(s, false, true, own, &e->own, &e->own_at);
        }
        *ret = NULL;
        if (r == -ENOSPC && waits && (stash_slide(s, own, entries_slid) || behind))
                return 0;
        if (r)
                return no_room(s, bytes, r, fault);
        list_init(&e->waiting);
        list_init(&e->pieces);
        list_insert(&s->entries, &e->link);
        entry_take_early(e);
        *ret = STEAL(e);
        return 0;
}

static int write_check(const struct stash_entry *e, uint32_t rank, uint64_t bytes, uint64_t hash,
                       struct fault *fault)
{
        unsigned long long key = e->key;

        if (e->parts[stash_member(e->stash, rank)] != PART_NONE)
                return fault_set(fault, ZERO_EORDER,
                                 "rank %u has stashed entry %llu in this step already", rank, key);
        if (bytes != e->bytes)
                return fault_set(fault, ZERO_ECONFLICT,
                                 "ranks of one set stash the same bytes: rank %u has %llu of entry "
                                 "%llu, rank %u has %llu",
                                 e->first_rank, (unsigned long long)e->bytes, key, rank,
                                 (unsigned long long)bytes);
        if (hash && e->hash && hash != e->hash)
                return fault_set(fault, ZERO_ECONFLICT,
                                 "ranks of one set stash the same bytes: ranks %u and %u have "
                                 "different bytes of entry %llu",
                                 e->first_rank, rank, key);
        return 0;
}

/* Names a rank that has still to release an entry that the writer has finished with. */
static bool describe_release(const struct stash_entry *e, uint32_t writer, struct wait_line *ret)
{
        const struct stash *s = e->stash;
        uint32_t m = 0;

        if (e->past || e->parts[writer] != PART_DONE)
                return false;
        while (m < s->n_ranks && !(s->here[m] && e->parts[m] != PART_DONE))
                m++;
        if (m < s->n_ranks)
                snprintf(ret->who, sizeof ret->who, "rank %u", s->ranks[m]);
        else
                snprintf(ret->who, sizeof ret->who, "ranks of other nodes");
        snprintf(ret->what, sizeof ret->what,
                 "to release entry %llu of the stash, whose memory a write needs",
                 (unsigned long long)e->key);
        return true;
}

static int write_describe(const struct request *r, struct wait_line *ret)
{
        const struct stash *s = r->subject;
        int status = job_describe(s->job, ret);

        ret->until_ms = 0;
        list_for_each ((struct list *)&s->entries, item) {
                if (describe_release(CONTAINER_OF(item, struct stash_entry, link), r->group, ret))
                        return status;
        }
        slide_describe(s, ret);
        return status;
}

/* Lets a write wait.  The request keeps the write's arguments in the fields that will hold its
 * result. */
static void write_wait(struct stash *s, uint32_t member, uint64_t key, uint64_t bytes,
                       uint64_t hash, struct request *r)
{
        r->describe = write_describe;
        r->subject = s;
        r->group = member;
        r->result.stash.skip = key;
        r->result.stash.bytes = bytes;
        r->result.stash.first = hash;
        list_insert(&s->writes, &r->wait);
}

int stash_write(struct stash *s, uint32_t rank, uint64_t key, uint64_t bytes, uint64_t hash,
                bool waits, struct request *r, struct fault *fault)
{
        uint32_t member = stash_member(s, rank);
        struct stash_entry *e = NULL;
        int status = 0;

        if (bytes == 0 || bytes > STASH_BYTES_MAX)
                return fault_set(fault, ZERO_EINVAL,
                                 "entry %llu of a stash has 1 to 2^50 bytes, not %llu",
                                 (unsigned long long)key, (unsigned long long)bytes);
        if (!s->slides) {
                e = entry_find(s, key);
                status = e ? write_check(e, rank, bytes, hash, fault)
                           : entry_new(s, rank, key, bytes, waits, &e, fault);
        }
        if (status)
                return status;
        if (!e) {
                write_wait(s, member, key, bytes, hash, r);
                return 0;
        }
        e->hash = e->hash ? e->hash : hash;
        e->parts[member] = PART_WRITING;
        r->result.stash.extents = e->own.extents;
        r->result.stash.n = e->own.n;
        r->result.stash.skip = part_own(e, member);
        r->result.stash.first = part_begin(e, member);
        r->result.stash.bytes = part_bytes(e, member);
        request_end(r, ZERO_OK, NULL);
        return 0;
}

/* Carries writes out in order.  A write that has to wait again stays the first. */
static void writes_advance(struct stash *s)
{
        while (!s->slides && !list_empty(&s->writes)) {
                struct request *r = CONTAINER_OF(s->writes.next, struct request, wait);
                struct fault fault;
                int status;

                list_remove(&r->wait);
                status = stash_write(s, s->ranks[r->group], r->result.stash.skip,
                                     r->result.stash.bytes, r->result.stash.first, true, r, &fault);
                if (status) {
                        request_end(r, status, "%s", fault.text);
                } else if (s->writes.prev == &r->wait) {
                        list_remove(&r->wait);
                        list_insert(s->writes.next, &r->wait);
                        return;
                }
        }
}

static void entry_answer(struct stash_entry *e)
{
        const struct block *b = node_set_any(e->stash->others) ? &e->whole : &e->own;

        e->answered = true;
        while (!list_empty(&e->waiting)) {
                struct request *r = CONTAINER_OF(e->waiting.next, struct request, wait);

                e->parts[r->group] = PART_HELD;
                r->result.stash.extents = b->extents;
                r->result.stash.n = b->n;
                r->result.stash.skip = r->result.stash.first = 0;
                r->result.stash.bytes = e->bytes;
                request_end(r, ZERO_OK, NULL);
        }
}

/* Answers the reads that wait, or assembles the entry for them first. */
static void entry_advance(struct stash_entry *e)
{
        if (e->past || e->slides || list_empty(&e->waiting) || entry_awaits(e) < e->stash->n_ranks)
                return;
        if (node_set_any(e->stash->others) && !e->assembled)
                entry_assemble(e);
        else
                entry_answer(e);
}

void entries_advance(struct stash *s)
{
        list_for_each (&s->entries, item) {
                entry_advance(CONTAINER_OF(item, struct stash_entry, link));
        }
        writes_advance(s);
}

static int part_check(struct stash *s, uint32_t member, uint64_t key, struct stash_entry **ret,
                      struct fault *fault)
{
        *ret = entry_find(s, key);
        if (*ret && (*ret)->parts[member] != PART_NONE)
                return 0;
        return fault_set(fault, ZERO_EORDER, "rank %u has not stashed entry %llu in this step",
                         s->ranks[member], (unsigned long long)key);
}

int stash_written(struct stash *s, uint32_t rank, uint64_t key, struct fault *fault)
{
        uint32_t member = stash_member(s, rank);
        struct stash_entry *e;
        int status = part_check(s, member, key, &e, fault);

        if (status)
                return status;
        if (e->parts[member] != PART_WRITING)
                return fault_set(fault, ZERO_EORDER, "entry %llu is written already",
                                 (unsigned long long)key);
        e->parts[member] = PART_WRITTEN;
        pulls_serve(e, member);
        entries_advance(s);
        stash_ahead(s, NULL);
        return 0;
}

/* ---- reading ------------------------------------------------------------------------ */

static int read_describe(const struct request *r, struct wait_line *ret)
{
        const struct stash_entry *e = r->subject;
        const struct stash *s = e->stash;
        uint32_t m = entry_awaits(e);
        int status = job_describe(s->job, ret);

        ret->until_ms = 0;
        if (m < s->n_ranks)
                snprintf(ret->who, sizeof ret->who, "rank %u", s->ranks[m]);
        else
                snprintf(ret->who, sizeof ret->who, "the set of rank %u", s->ranks[0]);
        snprintf(ret->what, sizeof ret->what, "%s entry %llu of the stash%s",
                 m < s->n_ranks ? "to write its part of" : "to bring the parts of",
                 (unsigned long long)e->key,
                 m == s->n_ranks && !e->whole.n ? " (no memory is free to put it together)" : "");
        return status;
}

int stash_read(struct stash *s, uint32_t rank, uint64_t key, struct request *r, struct fault *fault)
{
        uint32_t member = stash_member(s, rank);
        struct stash_entry *e;
        int status = part_check(s, member, key, &e, fault);

        if (status)
                return status;
        if (e->parts[member] != PART_WRITTEN)
                return fault_set(fault, ZERO_EORDER, "entry %llu is %s", (unsigned long long)key,
                                 e->parts[member] == PART_HELD   ? "read, and not released yet"
                                 : e->parts[member] == PART_DONE ? "released for the last time"
                                                                 : "not written yet");
        if (e->refused && e->refused != ZERO_EABORTED)
                return assembly_fault(e, fault);
        r->describe = read_describe;
        r->subject = e;
        r->group = member;
        list_insert(&e->waiting, &r->wait);
        order_read(&s->order, &s->n_reads[member], key);
        entry_advance(e);
        stash_ahead(s, e);
        return 0;
}

int stash_release(struct stash *s, uint32_t rank, uint64_t key, bool last, struct fault *fault)
{
        uint32_t member = stash_member(s, rank);
        struct stash_entry *e;
        int status = part_check(s, member, key, &e, fault);

        if (status)
                return status;
        if (e->parts[member] != PART_HELD && !(last && e->parts[member] == PART_WRITTEN))
                return fault_set(fault, ZERO_ENOTHELD, "entry %llu is not held",
                                 (unsigned long long)key);
        e->parts[member] = last ? PART_DONE : PART_WRITTEN;
        if (entry_unneeded(e))
                entry_drop_whole(e);
        entries_advance(s);
        stash_ahead(s, e);
        if (!entry_unneeded(e))
                return 0;
        entry_tell_done(e);
        if (!node_set_any(s->others & ~e->done))
                entry_end(e, ZERO_OK, NULL);
        return 0;
}
