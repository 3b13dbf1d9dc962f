/* Deltas of a job's slices: those that this node's owners coded, and those that it was sent. */
#include "daemon/job/deltas/deltas.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "proto/cleanup.h"

enum { TRY_EACH = 64, TRIES = 3 }; /* versions */

struct deltas {
        struct list all; /* oldest first */
        struct list *of; /* [group] */
        uint64_t bytes, taken;
        uint64_t until;      /* the last version that somebody may want */
        double ns_a_byte[2]; /* that readers waited lately: for whole slices, for deltas */
};

/* ---- one delta ---- */

struct delta *delta_new(uint32_t group, uint32_t owner, uint64_t version, uint64_t bytes)
{
        struct delta *d = bytes < SIZE_MAX - sizeof *d ? malloc(sizeof *d + bytes) : NULL;

        if (!d)
                return NULL;
        *d = (struct delta){
                .group = group, .owner = owner, .version = version, .references = 1, .bytes = bytes
        };
        list_init(&d->link);
        list_init(&d->age);
        return d;
}

void delta_unref(struct delta *d)
{
        if (d && --d->references == 0)
                free(d);
}

/* ---- those that are kept ---- */

static void delta_drop(struct deltas *t, struct delta *d)
{
        t->bytes -= d->bytes;
        list_remove(&d->link);
        list_remove(&d->age);
        delta_unref(d);
}

static struct delta *find(const struct job *job, uint32_t group, uint32_t owner, uint64_t version,
                          bool expected)
{
        list_for_each (&job->deltas->of[group], item) {
                struct delta *d = CONTAINER_OF(item, struct delta, link);

                if (d->owner == owner && d->version == version && d->expected == expected)
                        return d;
        }
        return NULL;
}

struct delta *deltas_find(const struct job *job, uint32_t group, uint32_t owner, uint64_t version)
{
        return find(job, group, owner, version, false);
}

uint64_t deltas_reach(const struct job *job, uint32_t group, uint32_t owner, uint64_t from,
                      uint64_t to)
{
        while (from < to && deltas_find(job, group, owner, from + 1))
                from++;
        return from;
}

/* Of all jobs of a user. */
static uint64_t users_bytes(const struct engine *x, uint32_t uid)
{
        uint64_t bytes = 0;

        list_for_each ((struct list *)&x->jobs, item) {
                const struct job *job = CONTAINER_OF(item, struct job, link);

                bytes += job->uid == uid ? job->deltas->bytes + job->deltas->taken : 0;
        }
        return bytes;
}

void deltas_keep(struct job *job, struct delta *d)
{
        struct deltas *t = job->deltas;
        uint64_t limit = job->x->conf->follow_deltas;

        if (job->dead || deltas_find(job, d->group, d->owner, d->version)) {
                delta_unref(d);
                return;
        }
        t->bytes += d->bytes;
        list_insert(&t->of[d->group], &d->link);
        list_insert(&t->all, &d->age);
        list_for_each (&t->of[d->group], item) {
                struct delta *old = CONTAINER_OF(item, struct delta, link);

                if (!old->expected && old->owner == d->owner &&
                    old->version + DELTAS_KEPT <= d->version)
                        delta_drop(t, old);
        }
        while (!list_empty(&t->all) && users_bytes(job->x, job->uid) > limit)
                delta_drop(t, CONTAINER_OF(t->all.next, struct delta, age));
}

struct delta *deltas_expect(struct job *job, uint32_t group, uint32_t owner, uint64_t version)
{
        struct delta *d = delta_new(group, owner, version, 0);

        if (!d)
                return NULL;
        d->expected = true;
        list_insert(&job->deltas->of[group], &d->link);
        return d;
}

void deltas_settle(struct job *job, struct delta *expected, struct delta *d)
{
        list_remove(&expected->link);
        delta_unref(expected);
        if (d)
                deltas_keep(job, d);
}

bool deltas_expected(const struct job *job, uint32_t group, uint32_t owner, uint64_t from,
                     uint64_t to)
{
        for (uint64_t v = from; v < to; v++)
                if (find(job, group, owner, v + 1, true))
                        return true;
        return false;
}

bool deltas_take(struct job *job, uint64_t bytes)
{
        uint64_t limit = job->x->conf->follow_deltas, used = users_bytes(job->x, job->uid);

        if (used > limit || bytes > limit - used)
                return false;
        job->deltas->taken += bytes;
        return true;
}

void deltas_give(struct job *job, uint64_t bytes)
{
        job->deltas->taken -= bytes;
}

/* Now and then the slower way is tried again: a delta is there from the second version on. */
bool deltas_pay(const struct job *job, uint64_t version)
{
        const double *ns = job->deltas->ns_a_byte;
        const char *by = job->x->conf->follow_by;

        if (strcmp(by, "auto") != 0)
                return strcmp(by, "deltas") == 0;
        return ns[0] == 0 || ns[1] == 0 || ns[1] < 2 * ns[0] || version % TRY_EACH < TRIES;
}

void deltas_took(struct job *job, bool by_deltas, uint64_t bytes, uint64_t ns)
{
        double *mean = &job->deltas->ns_a_byte[by_deltas], now = (double)ns / (double)bytes;

        *mean = *mean == 0 ? now : *mean + (now - *mean) / 8;
}

void deltas_want(struct job *job, uint64_t version)
{
        if (version < UINT64_MAX - DELTAS_KEPT && version + DELTAS_KEPT > job->deltas->until)
                job->deltas->until = version + DELTAS_KEPT;
}

bool deltas_wanted(const struct job *job, uint64_t version)
{
        return version <= job->deltas->until && job->x->conf->follow_deltas > 0;
}

uint64_t deltas_bytes(const struct job *job)
{
        return job->deltas->bytes;
}

/* ---- for other nodes ---- */

struct delta_sent {
        struct job *job;
        struct delta *delta;
};

static void delta_sent(void *arg, int status)
{
        struct delta_sent *s = arg;
        struct job *job = s->job;

        delta_unref(s->delta);
        free(s);
        job_unref(job);
}

void deltas_pull_message(struct job *job, uint32_t node, const Zero__Pull *pull)
{
        struct delta *d = pull->group < job->layout->n_groups
                                  ? deltas_find(job, pull->group, pull->owner, pull->version)
                                  : NULL;
        struct delta_sent *s;

        if (!d || pull->first > d->bytes || pull->count > d->bytes - pull->first ||
            pull->count > job->x->part_bytes) {
                ask_refuse(job, node, pull->transfer, ZERO_EABORTED, "that delta is not kept");
                return;
        }
        s = malloc(sizeof *s);
        if (!s) {
                ask_refuse(job, node, pull->transfer, ZERO_ENOMEM, "out of memory");
                return;
        }
        *s = (struct delta_sent){ job, d };
        d->references++;
        job_ref(job);
        if (staged_payload(job, node, pull->transfer, TRAFFIC_GATHER, d->data + pull->first,
                           pull->count, false, delta_sent, s))
                delta_sent(s, -ENOTCONN);
}

/* ---- what the node goes through ---- */

static int deltas_job_init(struct job *job)
{
        struct deltas *t = job->deltas;

        list_init(&t->all);
        t->of = calloc(job->layout->n_groups + 1, sizeof *t->of);
        for (uint32_t g = 0; t->of && g < job->layout->n_groups; g++)
                list_init(&t->of[g]);
        return t->of ? 0 : -ENOMEM;
}

static void deltas_job_free(struct job *job)
{
        struct deltas *t = job->deltas;

        if (!t)
                return;
        while (t->of && !list_empty(&t->all))
                delta_drop(t, CONTAINER_OF(t->all.next, struct delta, age));
        free(STEAL(t->of));
}

const struct module deltas_module = { .job_at = offsetof(struct job, deltas),
                                      .job_bytes = sizeof(struct deltas),
                                      .job_init = deltas_job_init,
                                      .job_free = deltas_job_free };
