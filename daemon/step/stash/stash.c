/* The sets of a job's ranks, each with its memory on this node.  Ranks of a set stash the same
 * bytes. */
#include "daemon/step/stash/entry.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "proto/cleanup.h"

/* ---- what a rank declares ---------------------------------------------------------- */

int stash_needs_new(uint32_t rank, uint32_t world_size, const uint32_t *ranks, size_t n,
                    uint64_t bytes, uint64_t entry_bytes, uint32_t place, struct stash_needs *ret,
                    struct fault *fault)
{
        bool member = n == 0;

        if (bytes == 0 || bytes > STASH_BYTES_MAX || entry_bytes > bytes)
                return fault_set(fault, ZERO_EINVAL,
                                 "a stash has 1 to 2^50 bytes, and no entry has more: not %" PRIu64
                                 " bytes with entries of %" PRIu64,
                                 bytes, entry_bytes);
        for (size_t i = 0; i < n; i++) {
                member = member || ranks[i] == rank;
                if (ranks[i] >= world_size || (i && ranks[i] <= ranks[i - 1]))
                        return fault_set(
                                fault, ZERO_ERANK,
                                "the set of a stash names its ranks in ascending order, below the "
                                "world size %u",
                                world_size);
        }
        if (!member)
                return fault_set(fault, ZERO_ERANK, "rank %u is not in the set of its own stash",
                                 rank);
        ret->n_ranks = n ? (uint32_t)n : 1;
        ret->ranks = calloc(ret->n_ranks, sizeof *ret->ranks);
        if (!ret->ranks)
                return fault_set(fault, ZERO_ENOMEM, "out of memory");
        memcpy(ret->ranks, n ? ranks : &rank, ret->n_ranks * sizeof *ret->ranks);
        ret->bytes = bytes;
        ret->entry_bytes = entry_bytes ? entry_bytes : bytes;
        ret->place = place;
        return 0;
}

uint64_t set_hash(const uint32_t *ranks, uint32_t n)
{
        uint64_t hash = n;

        for (uint32_t i = 0; i < n; i++)
                hash = (hash ^ ranks[i]) * 0x9e3779b97f4a7c15;
        return hash;
}

static bool same_set(const struct stash *s, const struct stash_needs *needs)
{
        return s->n_ranks == needs->n_ranks &&
               memcmp(s->ranks, needs->ranks, s->n_ranks * sizeof *s->ranks) == 0;
}

/* A rank that both sets have; UINT32_MAX: none. */
static uint32_t common_rank(const struct stash *s, const struct stash_needs *needs)
{
        for (uint32_t i = 0; i < needs->n_ranks; i++)
                if (stash_member(s, needs->ranks[i]) < s->n_ranks)
                        return needs->ranks[i];
        return UINT32_MAX;
}

static uint32_t first_admitted(const struct stash *s)
{
        uint32_t m = 0;

        while (m + 1 < s->n_ranks && !s->admitted[m])
                m++;
        return s->ranks[m];
}

/* Finds the rank's set if another of its ranks has made it.  The sets of a job share no rank. */
static int set_find(const struct job *job, uint32_t rank, const struct stash_needs *needs,
                    struct stash **ret, struct fault *fault)
{
        list_for_each (&job->stash->sets, item) {
                struct stash *s = CONTAINER_OF(item, struct stash, link);
                uint32_t common = common_rank(s, needs);

                if (common == UINT32_MAX)
                        continue;
                if (!same_set(s, needs))
                        return fault_set(
                                fault, ZERO_ECONFLICT,
                                "rank %u is in two sets that stash: the set of rank %u has %u "
                                "ranks, the set of another rank has %u",
                                common, rank, needs->n_ranks, s->n_ranks);
                if (s->bytes != needs->bytes || s->entry_bytes != needs->entry_bytes)
                        return fault_set(
                                fault, ZERO_ECONFLICT,
                                "ranks of one set declare the same stash: rank %u has %" PRIu64
                                " bytes in entries of %" PRIu64 ", and rank %u has %" PRIu64
                                " bytes in entries of %" PRIu64,
                                rank, needs->bytes, needs->entry_bytes, first_admitted(s), s->bytes,
                                s->entry_bytes);
                if (s->place != needs->place)
                        return fault_set(
                                fault, ZERO_ECONFLICT,
                                "ranks of one set on one node keep their stash in one place: rank "
                                "%u names %s, and rank %u names %s; ranks on several GPUs may name "
                                "the host",
                                rank, place_name(needs->place).text, first_admitted(s),
                                place_name(s->place).text);
                *ret = s;
        }
        return 0;
}

/* ---- the memory of a set ------------------------------------------------------------- */

static void set_free(struct stash *s)
{
        list_remove(&s->link);
        list_for_each (&s->entries, item) {
                entry_free(CONTAINER_OF(item, struct stash_entry, link));
        }
        early_forget(s);
        memory_kept(&s->promise);
        segment_free(&s->segment);
        pages_deinit(&s->pages);
        pages_deinit(&s->wholes);
        free(s->ranks);
        free(s->here);
        free(s->admitted);
        free(s->n_reads);
        free(s);
}

/* Finds the members on this node, and the other nodes with members. */
static void set_locate(struct stash *s)
{
        uint32_t self = s->job->x->cluster->self;

        s->n_here = 0;
        s->others = NODE_SET_NONE;
        for (uint32_t m = 0; m < s->n_ranks; m++) {
                bool known = s->ranks[m] < s->job->world_size; /* the world may have shrunk */
                uint32_t node = known ? s->job->node_of_rank[s->ranks[m]] : self;

                s->here[m] = known && node == self;
                s->n_here += s->here[m];
                if (node != self)
                        node_set_add(&s->others, node);
        }
}

enum { WHOLES = 2, SLOT_ALIGN = 4096 };

/*
 * If all ranks of the set are on this node, its memory holds whole entries.  Otherwise it holds
 * this node's parts, and set_bytes() adds room for two assembled entries: one that is read, and the
 * next.
 */
uint64_t set_parts_bytes(const struct stash *s)
{
        uint64_t unit = pages_unit(s->bytes), entries = s->bytes / s->entry_bytes + 1;

        entries = entries < PAGES_UNITS ? entries : PAGES_UNITS; /* each takes at least a unit */
        return node_set_any(s->others) ? (s->bytes / s->n_ranks + 1) * s->n_here + entries * unit
                                       : s->bytes;
}

static uint64_t set_bytes(const struct stash *s)
{
        return set_parts_bytes(s) +
               (node_set_any(s->others) ? WHOLES * (s->entry_bytes + pages_unit(s->bytes)) : 0);
}

static uint64_t user_bytes(const struct engine *x, uint32_t uid)
{
        uint64_t bytes = 0;

        list_for_each ((struct list *)&x->jobs, item) {
                const struct job *job = CONTAINER_OF(item, struct job, link);

                if (job->uid != uid)
                        continue;
                list_for_each (&job->stash->sets, set) {
                        const struct stash *s = CONTAINER_OF(set, struct stash, link);

                        bytes += place_is_host(s->place) ? s->segment.bytes : 0;
                }
        }
        return bytes;
}

/* Checks the limits and makes a sparse segment.  Another thread takes its memory later
 * (rank/setup.c), because that may take seconds. */
static int set_memory(struct stash *s, struct fault *fault)
{
        uint64_t bytes = set_bytes(s), used = user_bytes(s->job->x, s->job->uid);
        uint64_t most = s->job->x->conf->stash_limit, available = memory_available();
        int r;

        if (most && (used > most || bytes > most - used))
                return fault_set(
                        fault, ZERO_EQUOTA,
                        "no memory for the stash of rank %u of job '%s': %.1f MiB are needed; user "
                        "%u's stashes have %.1f on this node, and stash_limit allows %.1f",
                        s->ranks[0], s->job->name, (double)bytes / 0x1p20, s->job->uid,
                        (double)used / 0x1p20, (double)most / 0x1p20);
        if (bytes > available)
                return fault_set(
                        fault, ZERO_ESHM,
                        "the stash of rank %u of job '%s' needs %.1f MiB of shared memory: this "
                        "node can spare %.1f",
                        s->ranks[0], s->job->name, (double)bytes / 0x1p20,
                        (double)available / 0x1p20);
        if (pages_init(&s->pages, bytes))
                return fault_set(fault, ZERO_ENOMEM, "out of memory");
        r = segment_new("zerod-stash", s->pages.n * s->pages.unit, SEGMENT_SHARED | SEGMENT_SPARSE,
                        &s->segment, fault);
        if (r == 0)
                memory_promise(&s->promise, s->segment.bytes, s->segment.fd, false);
        return r;
}

/*
 * The caller makes the memory and provides it (stash_provide()).  There nothing can map several
 * extents to one address, so a block is one extent.  Assembled entries have slots behind the parts,
 * so that parts leave no gaps in their memory.
 */
static int set_memory_away(struct stash *s, struct fault *fault)
{
        uint64_t slot = (s->entry_bytes + SLOT_ALIGN - 1) / SLOT_ALIGN * SLOT_ALIGN;
        int r = pages_init(&s->pages, set_parts_bytes(s));

        s->pages.contiguous = true;
        if (r == 0 && node_set_any(s->others))
                r = pages_init_slots(&s->wholes, s->pages.n * s->pages.unit, slot, WHOLES);
        return r ? fault_set(fault, ZERO_ENOMEM, "out of memory") : 0;
}

static int set_new(struct job *job, const struct stash_needs *needs, struct stash **ret,
                   struct fault *fault)
{
        struct stash *s = calloc(1, sizeof *s);
        int r;

        if (!s)
                return fault_set(fault, ZERO_ENOMEM, "out of memory");
        list_insert(&job->stash->sets, &s->link);
        list_init(&s->entries);
        list_init(&s->writes);
        list_init(&s->early);
        s->segment.fd = -1;
        s->job = job;
        s->n_ranks = needs->n_ranks;
        s->bytes = needs->bytes;
        s->entry_bytes = needs->entry_bytes;
        s->place = needs->place;
        s->ranks = calloc(s->n_ranks, sizeof *s->ranks);
        s->here = calloc(s->n_ranks, sizeof *s->here);
        s->admitted = calloc(s->n_ranks, sizeof *s->admitted);
        s->n_reads = calloc(s->n_ranks, sizeof *s->n_reads);
        if (!s->ranks || !s->here || !s->admitted || !s->n_reads) {
                r = fault_set(fault, ZERO_ENOMEM, "out of memory");
        } else {
                memcpy(s->ranks, needs->ranks, s->n_ranks * sizeof *s->ranks);
                set_locate(s);
                r = place_is_host(s->place) ? set_memory(s, fault) : set_memory_away(s, fault);
        }
        if (r)
                set_free(s);
        else
                *ret = s;
        return r;
}

int stash_admit(struct job *job, uint32_t rank, const struct stash_needs *needs, struct stash **ret,
                struct fault *fault)
{
        struct stash *s = NULL;
        int r = set_find(job, rank, needs, &s, fault);

        if (!r && !s)
                r = set_new(job, needs, &s, fault);
        if (r)
                return r;
        s->admitted[stash_member(s, rank)]++;
        *ret = s;
        return 0;
}

/* All entries of a set end. */
static void set_end(struct stash *s, int status, const char *text)
{
        early_forget(s);
        requests_end_all(&s->writes, status, text);
        list_for_each (&s->entries, item) {
                /* so no entry takes the memory of one that ends before it */
                CONTAINER_OF(item, struct stash_entry, link)->past = true;
        }
        list_for_each (&s->entries, item) {
                entry_end(CONTAINER_OF(item, struct stash_entry, link), status, text);
        }
}

void stash_vacate(struct stash *s)
{
        bool any = false;

        for (uint32_t m = 0; m < s->n_ranks; m++)
                any = any || s->admitted[m];
        if (!any && list_empty(&s->entries))
                set_free(s);
}

/* The rank no longer touches any entry: parts that it was writing count as not written. */
static void member_leaves(struct stash *s, uint32_t member)
{
        s->n_reads[member] = 0;
        list_for_each (&s->entries, item) {
                struct stash_entry *e = CONTAINER_OF(item, struct stash_entry, link);

                if (e->parts[member] == PART_WRITING)
                        e->parts[member] = PART_NONE;
                else if (e->parts[member] == PART_HELD)
                        e->parts[member] = PART_WRITTEN;
        }
        list_for_each (&s->entries, item) {
                entry_settle(CONTAINER_OF(item, struct stash_entry, link));
        }
}

void stash_leave(struct stash *s, uint32_t rank, bool entered)
{
        uint32_t member, n_left = 0;

        if (!s)
                return;
        member = stash_member(s, rank);
        s->admitted[member]--;
        if (entered)
                member_leaves(s, member);
        for (uint32_t m = 0; m < s->n_ranks; m++)
                n_left += entered && m == member ? 0 : s->admitted[m];
        if (n_left == 0)
                set_end(s, ZERO_EABORTED, "the ranks that stash have left");
        stash_vacate(s);
}

const struct segment *stash_segment(const struct stash *s)
{
        return s ? &s->segment : NULL;
}

uint64_t stash_lacks(const struct stash *s)
{
        if (!s || s->segment.bytes)
                return 0;
        return s->pages.n * s->pages.unit + s->wholes.n * s->wholes.unit;
}

void stash_provide(struct stash *s, struct segment *segment)
{
        s->segment = *segment;
        *segment = (struct segment){ .fd = -1 };
}

/* ---- what the job and the node go through ----------------------------------------------- */

/* decided: all ranks have ended the step, so none touches an entry any more. */
void stash_begin_attempt(struct job *job, bool decided)
{
        list_for_each (&job->stash->sets, item) {
                struct stash *s = CONTAINER_OF(item, struct stash, link);

                list_for_each (&s->entries, entry) {
                        struct stash_entry *e = CONTAINER_OF(entry, struct stash_entry, link);

                        for (uint32_t m = 0; decided && m < s->n_ranks; m++)
                                e->parts[m] = PART_NONE;
                }
                s->order.at = 0;
                memset(s->n_reads, 0, s->n_ranks * sizeof *s->n_reads);
                set_end(s, ZERO_EABORTED, "the step begins again: replay it");
                set_locate(s);
                stash_vacate(s);
        }
        pulls_refuse(job, false, ZERO_EABORTED, "the attempt is over");
}

void stash_fail(struct job *job, int status, const char *text)
{
        list_for_each (&job->stash->sets, item) {
                struct stash *s = CONTAINER_OF(item, struct stash, link);

                requests_end_all(&s->writes, status, text);
                list_for_each (&s->entries, entry) {
                        requests_end_all(&CONTAINER_OF(entry, struct stash_entry, link)->waiting,
                                         status, text);
                }
        }
}

static void stash_dropped(struct job *job, int status, const char *text)
{
        pulls_refuse(job, true, ZERO_ENOJOB, "the job was dropped");
        list_for_each (&job->stash->sets, item) {
                struct stash *s = CONTAINER_OF(item, struct stash, link);

                set_end(s, status, text);
                stash_vacate(s);
        }
}

static void stash_node_down(struct engine *x, uint32_t node, const char *why)
{
        list_for_each (&x->jobs, item) {
                pulls_forget(CONTAINER_OF(item, struct job, link), node);
        }
}

/* Asks again for parts that a lost link did not deliver. */
static void stash_progress(struct engine *x)
{
        list_for_each (&x->jobs, item) {
                list_for_each (&CONTAINER_OF(item, struct job, link)->stash->sets, set) {
                        entries_advance(CONTAINER_OF(set, struct stash, link));
                }
        }
}

static int stash_init(struct job *job)
{
        list_init(&job->stash->sets);
        list_init(&job->stash->pulls);
        return 0;
}

static void stash_free(struct job *job)
{
        if (!job->stash)
                return;
        list_for_each (&job->stash->sets, item) {
                set_free(CONTAINER_OF(item, struct stash, link));
        }
}

void stash_info(const struct job *job, struct stash_info *ret)
{
        uint64_t seen = 0;
        size_t n;

        *ret = (struct stash_info){ .most = job->stash->most, .received = job->stash->received };
        list_for_each (&job->stash->sets, item) {
                const struct stash *s = CONTAINER_OF(item, struct stash, link);

                ret->reserved += s->segment.bytes;
                ret->used += s->pages.used * s->pages.unit + s->wholes.used * s->wholes.unit;
                list_for_each ((struct list *)&s->entries, entry) {
                        const struct stash_entry *e = CONTAINER_OF(entry, struct stash_entry, link);

                        ret->assembled += e->whole.n ? whole_bytes(s, e->bytes) : 0;
                }
                if (seen >> s->place & 1)
                        continue;
                n = strlen(ret->places);
                snprintf(ret->places + n, sizeof ret->places - n, "%s%s", n ? ", " : "",
                         place_name(s->place).text);
                seen |= UINT64_C(1) << s->place;
        }
}

const struct module stash_module = { .job_at = offsetof(struct job, stash),
                                     .job_bytes = sizeof(struct job_stash),
                                     .job_init = stash_init,
                                     .progress = stash_progress,
                                     .node_down = stash_node_down,
                                     .job_dropped = stash_dropped,
                                     .job_free = stash_free };
