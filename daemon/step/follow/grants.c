/*
 * Whom a job's owner lets follow the job.
 *
 * The list is kept as periodic checkpoints are (checkpoint/schedule.c).  The job's coordinator
 * alone changes it, gives each change a higher stamp, and tells all nodes.  Each node that has the
 * job keeps the newest that it has heard, in a note beside its states.  Now and then the
 * coordinator tells all nodes again, and they tell the coordinator, so a new one learns of it.
 *
 * The drop of a job deletes its list.  Nobody makes a new job of that name before all nodes that
 * may have the old one have heard of the drop.  A restored job takes the list over.
 */
#include "daemon/step/follow/follow.h"

#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/floor/base/log.h"
#include "proto/cleanup.h"

enum { TELL_MS = 2000 };

struct grants {
        uint64_t stamp; /* the newer of two lists has the higher one; 0: there was none */
        uint64_t told_ms;
        uint32_t n, uids[GRANTS_MAX];
};

static uint32_t find(const struct grants *g, uint32_t uid)
{
        uint32_t i = 0;

        while (i < g->n && g->uids[i] != uid)
                i++;
        return i;
}

bool granted(const struct job *job, uint32_t uid)
{
        return find(job->grants, uid) < job->grants->n;
}

const uint32_t *grants_of(const struct job *job, uint32_t *ret_n)
{
        *ret_n = job->grants->n;
        return job->grants->uids;
}

/* ---- the note -------------------------------------------------------------------------- */

static void grants_write(const struct job *job)
{
        const struct grants *g = job->grants;
        struct fault fault;
        char text[NOTE_SIZE];
        size_t at = (size_t)snprintf(text, sizeof text, "%s\n%u %llu", job->name, job->uid,
                                     (unsigned long long)g->stamp);

        for (uint32_t i = 0; i < g->n; i++)
                at += (size_t)snprintf(text + at, sizeof text - at, " %u", g->uids[i]);
        if (node_keeps_notes(job->x) &&
            note_write(job->x->store, NOTE_GRANTS, job->name, text, &fault))
                log_error("job %s: cannot write down who may follow it: %s; a restart of this "
                          "daemon may bring an older list back, until another node tells it",
                          job->name, fault.text);
}

static void grants_read(struct job *job)
{
        struct grants read = { 0 };
        unsigned long long stamp;
        char text[NOTE_SIZE], *at;
        uint32_t uid;
        int n;

        if (!note_read(job->x->store, NOTE_GRANTS, job->name, text) || !(at = strchr(text, '\n')) ||
            sscanf(at, "%u %llu%n", &uid, &stamp, &n) != 2 || uid != job->uid ||
            stamp >> STAMP_BITS)
                return;
        read.stamp = stamp;
        for (at += n; read.n < GRANTS_MAX && sscanf(at, " %u%n", &read.uids[read.n], &n) == 1;
             at += n)
                read.n++;
        *job->grants = read;
}

/* ---- other nodes -------------------------------------------------------------------------- */

static void grants_tell(const struct job *job, uint32_t node)
{
        Zero__LinkMessage m = job_message(job->name);
        Zero__Grants of = ZERO__GRANTS__INIT;
        struct fabric_info info;

        fabric_info(job->x->fabric, node, &info);
        if (node == job->x->cluster->self || info.link.speaks < MESSAGES_GRANTS)
                return; /* a release before lets nobody follow */
        of.owner = job->uid;
        of.stamp = job->grants->stamp;
        of.n_uids = job->grants->n;
        of.uids = job->grants->uids;
        m.body_case = ZERO__LINK_MESSAGE__BODY_GRANTS;
        m.grants = &of;
        fabric_send(job->x->fabric, node, &m);
}

/* The coordinator tells all nodes, and any other node tells the coordinator. */
static void grants_tell_on(const struct job *job)
{
        bool coordinates = job->coordinator == job->x->cluster->self;

        job->grants->told_ms = engine_now(job->x);
        for (uint32_t n = 0; n < job->x->cluster->n_nodes; n++)
                if (coordinates || n == job->coordinator)
                        grants_tell(job, n);
}

/* Whoever is on the old list alone may still map copies, so those take no later versions. */
static void grants_change(struct job *job, const struct grants *to)
{
        const struct grants old = *job->grants;
        bool revoked = false;

        *job->grants = *to;
        for (uint32_t i = 0; i < old.n; i++)
                revoked = revoked || !granted(job, old.uids[i]);
        grants_write(job);
        if (job->coordinator == job->x->cluster->self)
                grants_tell_on(job);
        if (!revoked)
                return;
        job->x->regranted(job);
        follow_renew(job);
}

static void grants_told(struct job *job, uint32_t node, const Zero__Grants *of)
{
        const struct grants *g = job->grants;
        struct grants to = { .stamp = of->stamp, .told_ms = g->told_ms, .n = (uint32_t)of->n_uids };
        bool coordinates = job->coordinator == job->x->cluster->self;

        if (of->owner != job->uid || of->n_uids > GRANTS_MAX || of->stamp >> STAMP_BITS ||
            !(coordinates || node == job->coordinator))
                return;
        if (of->stamp <= g->stamp) {
                if (of->stamp < g->stamp && coordinates)
                        grants_tell(job, node);
                return;
        }
        for (uint32_t i = 0; i < to.n; i++)
                to.uids[i] = of->uids[i];
        grants_change(job, &to);
}

void grants_message(struct engine *x, uint32_t node, const Zero__LinkMessage *m)
{
        struct job *job = job_find(x, m->job);

        if (job && !job->opening)
                grants_told(job, node, m->grants);
}

int grant_order(struct job *job, uint32_t uid, bool grant, struct fault *fault)
{
        struct grants g = *job->grants;
        uint32_t at = find(&g, uid);

        if (grant && at < g.n)
                return 0;
        if (!grant && at == g.n)
                return fault_set(fault, ZERO_EINVAL, "user %u has no grant for job '%s'", uid,
                                 job->name);
        if (grant && g.n == GRANTS_MAX)
                return fault_set(fault, ZERO_EQUOTA,
                                 "%d users have a grant for job '%s', as many as may: revoke one",
                                 GRANTS_MAX, job->name);
        if (grant)
                g.uids[g.n++] = uid;
        else
                g.uids[at] = g.uids[--g.n];
        g.stamp = stamp_after(g.stamp);
        grants_change(job, &g);
        return 0;
}

/* ---- lifetime ---------------------------------------------------------------------------- */

/* A restored job is made beside the one that it replaces. */
static int grants_job_init(struct job *job)
{
        const struct job *old = job_find(job->x, job->name);

        if (old && old->uid == job->uid)
                *job->grants = *old->grants;
        else
                grants_read(job);
        return 0;
}

static void grants_progress(struct engine *x)
{
        list_for_each (&x->jobs, item) {
                struct job *job = CONTAINER_OF(item, struct job, link);
                const struct grants *g = job->grants;

                if (!job->opening && g->stamp && engine_now(x) - g->told_ms >= TELL_MS)
                        grants_tell_on(job);
        }
}

static void grants_dropped(struct engine *x, const char *job, bool replaced)
{
        if (!replaced)
                note_delete(x->store, NOTE_GRANTS, job);
}

static void forget(char *job, void *arg)
{
        const struct engine *x = arg;

        job[strcspn(job, "\n")] = 0;
        if (job_name_valid(job))
                note_delete(x->store, NOTE_GRANTS, job);
}

void grants_resume(struct engine *x)
{
        if (node_set_has(x->placement.dead, x->cluster->self))
                notes_each(x->store, NOTE_GRANTS, forget, x);
}

const struct module grants_module = { .job_at = offsetof(struct job, grants),
                                      .job_bytes = sizeof(struct grants),
                                      .job_init = grants_job_init,
                                      .progress = grants_progress,
                                      .name_dropped = grants_dropped };
