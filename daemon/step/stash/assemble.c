/*
 * Exchanges parts of entries between nodes.  A node that reads an entry asks the other nodes for
 * their ranks' parts, once, in pieces of at most engine.part_bytes.  A node that is asked for a
 * part before it is written sends it afterwards.
 *
 * Invariants: at most one assembly of an entry is under way.  A pull that waits belongs to the
 * job's attempt, or to a later one that this node has not heard of yet.
 */
#include "daemon/step/stash/entry.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

#include "proto/cleanup.h"

enum { PIECES_IN_FLIGHT = 8, PULLS_WAITING = 4096, EARLY_MOST = 4096, AHEAD_LOOKED_AT = 64 };

/* ---- what this node asks for -------------------------------------------------------- */

struct piece {
        struct list link; /* stash_entry.pieces */
        struct copy copy;
        struct ask ask;
        struct stash_entry *entry;
        void *dst;
        const void *src; /* the part on this node; NULL: another node sends it */
        size_t bytes;
        uint32_t member;
};

static void entry_bring(struct stash_entry *e);

int assembly_fault(const struct stash_entry *e, struct fault *fault)
{
        const struct stash *s = e->stash;
        uint32_t here = 0;

        while (!s->here[here])
                here++;
        return fault_set(fault, e->refused, "entry %llu of the stash: rank %u and rank %u %s",
                         (unsigned long long)e->key, s->ranks[here], s->ranks[e->refuser],
                         e->refused == ZERO_ECONFLICT ? "of one set have stashed different bytes"
                         : e->refused == ZERO_ERANK   ? "name different sets"
                         : e->refused == ZERO_ENOMEM
                                 ? "are on two nodes, and the second node is out of memory"
                                 : "are on two nodes, and the second node refuses its part");
}

/* Ends a failed assembly: all pieces must come again, or the parts do not fit together. */
static void assembly_failed(struct stash_entry *e)
{
        struct fault fault;

        e->failed = false;
        entry_drop_whole(e);
        if (e->refused == 0 || e->refused == ZERO_EABORTED)
                return; /* the link will come back, or the next attempt will begin */
        assembly_fault(e, &fault);
        requests_end_all(&e->waiting, e->refused, fault.text);
}

static void assembly_advance(struct stash_entry *e)
{
        struct stash *s = e->stash;

        if (!e->past && !e->failed && !e->refused)
                entry_bring(e);
        if (!list_empty(&e->pieces))
                return;
        if (e->past) {
                entry_settle(e);
                stash_vacate(s);
        } else if (e->failed || e->refused) {
                assembly_failed(e);
        } else if (e->member == s->n_ranks) {
                e->assembled = true;
                if (entry_unneeded(e))
                        entry_drop_whole(e);
                entries_advance(s); /* other entries may take its memory now */
        }
}

static void piece_end(struct piece *p, int status)
{
        struct stash_entry *e = p->entry;
        struct job *job = e->stash->job;

        list_remove(&p->link);
        e->n_pieces--;
        e->failed = e->failed || status;
        if (status && p->ask.status) {
                e->refused = p->ask.status;
                e->refuser = p->member;
        }
        if (!status && !p->src)
                job->stash->received += p->bytes;
        free(p);
        assembly_advance(e);
        job_unref(job);
}

static void piece_landed(struct ask *ask, int status)
{
        piece_end(CONTAINER_OF(ask, struct piece, ask), status);
}

static void piece_copied(struct offload_task *task)
{
        piece_end(CONTAINER_OF(task, struct piece, copy.task), 0);
}

static int piece_ask(struct piece *p, uint32_t member, uint64_t first)
{
        struct stash_entry *e = p->entry;
        struct stash *s = e->stash;
        Zero__Pull pull = ZERO__PULL__INIT;

        pull.kind = ZERO__PULL__KIND__STASH;
        pull.attempt = s->job->attempt;
        pull.rank = s->ranks[member];
        pull.key = e->key;
        pull.bytes = e->bytes;
        pull.hash = e->hash;
        pull.first = first;
        pull.count = p->bytes;
        pull.set = set_hash(s->ranks, s->n_ranks);
        p->ask.done = piece_landed;
        p->ask.status = 0;
        return ask_send(&p->ask, s->job, s->job->node_of_rank[s->ranks[member]], TRAFFIC_STASH,
                        &pull, p->dst, p->bytes);
}

/* Begins to bring a piece of that size; false: it cannot now. */
static bool piece_begin(struct stash_entry *e, uint64_t bytes)
{
        struct stash *s = e->stash;
        struct piece *p = calloc(1, sizeof *p);
        uint32_t m = e->member;

        if (!p)
                return false;
        p->entry = e;
        p->dst = (char *)e->whole_at + part_begin(e, m) + e->brought;
        p->bytes = bytes;
        p->member = m;
        if (s->here[m]) {
                p->src = (char *)e->own_at + part_own(e, m) + e->brought;
                job_copy(s->job, &p->copy, p->dst, p->src, p->bytes, piece_copied);
        } else if (piece_ask(p, m, e->brought)) {
                free(p);
                return false;
        }
        list_insert(&e->pieces, &p->link);
        e->n_pieces++;
        job_ref(s->job);
        return true;
}

static void entry_bring(struct stash_entry *e)
{
        const struct stash *s = e->stash;

        while (e->member < s->n_ranks && e->n_pieces < PIECES_IN_FLIGHT) {
                uint64_t left = part_bytes(e, e->member) - e->brought, most = s->job->x->part_bytes;
                uint64_t bytes = left < most ? left : most;

                if (left == 0) {
                        e->member++;
                        e->brought = 0;
                } else if (piece_begin(e, bytes)) {
                        e->brought += bytes;
                } else {
                        e->failed = true;
                        return;
                }
        }
}

void entry_assemble(struct stash_entry *e)
{
        if (!e->whole.n && !e->refused &&
            stash_take(e->stash, true, !list_empty(&e->waiting), e->bytes, &e->whole,
                       &e->whole_at) == 0)
                assembly_advance(e);
}

uint64_t whole_bytes(const struct stash *s, uint64_t bytes)
{
        return pages_round(s->wholes.n ? &s->wholes : &s->pages, bytes);
}

/*
 * Assembles an entry before a rank asks for it.  Such entries together take no more memory than the
 * largest entry, so that a rank that asks for another entry finds room.  False: entries that are
 * read later have to wait.
 */
static bool bring_ahead(struct stash_entry *e)
{
        const struct stash *s = e ? e->stash : NULL;
        uint64_t bytes = 0;

        if (!e || e->past || e->slides || e->refused || entry_awaits(e) < s->n_ranks)
                return false;
        if (e->whole.n || entry_unneeded(e))
                return true;
        list_for_each ((struct list *)&s->entries, item) {
                const struct stash_entry *other = CONTAINER_OF(item, struct stash_entry, link);

                if (other->whole.n && !other->answered && list_empty(&other->waiting))
                        bytes += whole_bytes(s, other->bytes);
        }
        if (bytes + whole_bytes(s, e->bytes) > whole_bytes(s, s->entry_bytes))
                return false;
        entry_assemble(e);
        return e->whole.n;
}

void stash_ahead(struct stash *s, struct stash_entry *e)
{
        const struct order *o = &s->order;
        bool more = node_set_any(s->others);

        for (uint32_t i = o->at; more && i < o->n && i < o->at + AHEAD_LOOKED_AT; i++)
                more = bring_ahead(entry_find(s, o->keys[i]));
        while (more && o->at == o->n && e && e->link.prev != &s->entries) {
                e = CONTAINER_OF(e->link.prev, struct stash_entry, link);
                more = bring_ahead(e);
        }
}

void entry_forget(struct stash_entry *e)
{
        list_for_each (&e->pieces, item) {
                struct piece *p = CONTAINER_OF(item, struct piece, link);

                if (!p->src)
                        ask_forget(&p->ask);
        }
}

/* ---- what other nodes ask for --------------------------------------------------------- */

/* Another node's request for a part. */
struct part_pull {
        struct list link; /* job_stash.pulls, until the part is written */
        struct job *job;
        struct stash_entry *entry; /* the entry whose part is being sent */
        uint32_t node, rank;
        uint64_t transfer, attempt, key, bytes, hash, set, first, count;
};

static void pull_end(struct part_pull *p, int status, const char *text)
{
        if (!list_empty(&p->link))
                p->job->stash->n_pulls--;
        list_remove(&p->link);
        if (status)
                ask_refuse(p->job, p->node, p->transfer, status, text);
        free(p);
}

static void pull_sent(void *arg, int status)
{
        struct part_pull *p = arg;
        struct stash_entry *e = p->entry;
        struct stash *s = e->stash;
        struct job *job = p->job;

        e->busy--;
        free(p);
        entry_settle(e);
        entries_advance(s);
        stash_vacate(s);
        job_unref(job);
}

/* Sends the part, which is written, unless the other node's entry is a different one. */
static void pull_serve(struct part_pull *p, struct stash_entry *e)
{
        struct stash *s = e->stash;
        uint32_t m = stash_member(s, p->rank);
        struct job *job = p->job;

        if (p->set != set_hash(s->ranks, s->n_ranks)) {
                pull_end(p, ZERO_ERANK, "the rank stashes with other ranks");
                return;
        }
        if (p->bytes != e->bytes || (p->hash && e->hash && p->hash != e->hash)) {
                pull_end(p, ZERO_ECONFLICT, "different bytes");
                return;
        }
        if (p->first > part_bytes(e, m) || p->count > part_bytes(e, m) - p->first) {
                pull_end(p, ZERO_EPROTO, "the part is smaller");
                return;
        }
        if (!list_empty(&p->link))
                job->stash->n_pulls--;
        list_remove(&p->link);
        p->entry = e;
        e->busy++;
        job_ref(job);
        if (staged_payload(job, p->node, p->transfer, TRAFFIC_STASH,
                           (char *)e->own_at + part_own(e, m) + p->first, p->count, true, pull_sent,
                           p))
                pull_sent(p, -EIO); /* the node is gone, and its request with it */
}

void pulls_serve(struct stash_entry *e, uint32_t member)
{
        struct job *job = e->stash->job;

        list_for_each (&job->stash->pulls, item) {
                struct part_pull *p = CONTAINER_OF(item, struct part_pull, link);

                if (p->rank == e->stash->ranks[member] && p->key == e->key &&
                    p->attempt == job->attempt)
                        pull_serve(p, e);
        }
}

void pulls_refuse(struct job *job, bool all, int status, const char *text)
{
        list_for_each (&job->stash->pulls, item) {
                struct part_pull *p = CONTAINER_OF(item, struct part_pull, link);

                if (all || p->attempt < job->attempt)
                        pull_end(p, status, text);
        }
}

void pulls_forget(struct job *job, uint32_t node)
{
        list_for_each (&job->stash->pulls, item) {
                struct part_pull *p = CONTAINER_OF(item, struct part_pull, link);

                if (p->node == node)
                        pull_end(p, 0, NULL);
        }
}

/* The set in which a rank of this node has a session, or NULL. */
static struct stash *set_of(const struct job *job, uint32_t rank)
{
        list_for_each (&job->stash->sets, item) {
                struct stash *s = CONTAINER_OF(item, struct stash, link);
                uint32_t m = stash_member(s, rank);

                if (m < s->n_ranks && s->admitted[m])
                        return s;
        }
        return NULL;
}

static int pull_check(const struct job *job, const struct stash *s, const Zero__Pull *m,
                      const char **ret_text)
{
        *ret_text = "the rank has no stash";
        if (m->rank >= job->world_size)
                return ZERO_EPROTO;
        if (m->attempt < job->attempt) {
                *ret_text = "the attempt is over";
                return ZERO_EABORTED;
        }
        if (m->attempt == job->attempt && !s && job->ranks[m->rank].session)
                return ZERO_ERANK;
        if (job->stash->n_pulls >= PULLS_WAITING) {
                *ret_text = "too many requests for parts wait here";
                return ZERO_EBUSY;
        }
        return 0;
}

void stash_pull_message(struct job *job, uint32_t node, const Zero__Pull *m)
{
        struct stash *s = m->rank < job->world_size ? set_of(job, m->rank) : NULL;
        const char *text;
        int r = pull_check(job, s, m, &text);
        struct part_pull *p = r ? NULL : calloc(1, sizeof *p);
        struct stash_entry *e;

        if (!p) {
                ask_refuse(job, node, m->transfer, r ? r : ZERO_ENOMEM, r ? text : "out of memory");
                return;
        }
        *p = (struct part_pull){ .job = job,
                                 .node = node,
                                 .rank = m->rank,
                                 .transfer = m->transfer,
                                 .attempt = m->attempt,
                                 .key = m->key,
                                 .bytes = m->bytes,
                                 .hash = m->hash,
                                 .set = m->set,
                                 .first = m->first,
                                 .count = m->count };
        list_insert(&job->stash->pulls, &p->link);
        job->stash->n_pulls++;
        e = s && p->attempt == job->attempt ? entry_find(s, p->key) : NULL;
        if (e && !e->slides && e->parts[stash_member(s, p->rank)] >= PART_WRITTEN)
                pull_serve(p, e);
}

/* ---- entries that are needed no more ----------------------------------------------------- */

void entry_tell_done(const struct stash_entry *e)
{
        const struct stash *s = e->stash;
        struct job *job = s->job;
        node_set told = NODE_SET_NONE;

        for (uint32_t m = 0; m < s->n_ranks; m++) {
                Zero__LinkMessage message = job_message(job->name);
                Zero__StashDone done = ZERO__STASH_DONE__INIT;
                uint32_t node = job->node_of_rank[s->ranks[m]];

                if (s->here[m] || node_set_has(told, node))
                        continue;
                node_set_add(&told, node);
                done.attempt = job->attempt;
                done.key = e->key;
                done.rank = s->ranks[m];
                message.body_case = ZERO__LINK_MESSAGE__BODY_STASH_DONE;
                message.stash_done = &done;
                fabric_send(job->x->fabric, node, &message);
        }
}

/* Nodes that no longer need an entry that no member here has begun to write. */
struct early {
        struct list link; /* stash.early */
        uint64_t key;
        node_set done;
};

static void early_free(struct stash *s, struct early *early)
{
        list_remove(&early->link);
        s->n_early--;
        free(early);
}

static struct early *early_find(struct stash *s, uint64_t key)
{
        list_for_each (&s->early, item) {
                struct early *early = CONTAINER_OF(item, struct early, link);

                if (early->key == key)
                        return early;
        }
        return NULL;
}

/* If memory lacks, the note is lost and the entry stays until the attempt ends. */
static void early_note(struct stash *s, uint64_t key, uint32_t node)
{
        struct early *early = early_find(s, key);

        if (!early && s->n_early < EARLY_MOST && (early = calloc(1, sizeof *early))) {
                early->key = key;
                list_insert(&s->early, &early->link);
                s->n_early++;
        }
        if (early)
                node_set_add(&early->done, node);
}

void entry_take_early(struct stash_entry *e)
{
        struct early *early = early_find(e->stash, e->key);

        if (!early)
                return;
        e->done = early->done;
        early_free(e->stash, early);
}

void early_forget(struct stash *s)
{
        list_for_each (&s->early, item) {
                early_free(s, CONTAINER_OF(item, struct early, link));
        }
}

void stash_done_message(struct job *job, uint32_t node, const Zero__StashDone *m)
{
        struct stash *s = m->attempt == job->attempt && m->rank < job->world_size
                                  ? set_of(job, m->rank)
                                  : NULL;
        struct stash_entry *e = s ? entry_find(s, m->key) : NULL;

        if (s && !e)
                early_note(s, m->key, node);
        if (!e)
                return;
        node_set_add(&e->done, node);
        if (entry_unneeded(e) && !node_set_any(s->others & ~e->done))
                entry_end(e, ZERO_OK, NULL);
}
