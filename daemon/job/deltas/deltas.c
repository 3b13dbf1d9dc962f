/* Deltas of a job's slices: those that this node's owners coded, and those that it applied. */
#include "daemon/job/deltas/deltas.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "proto/cleanup.h"

enum { TRY_EACH = 64, TRIES = 6 }; /* versions */
enum { KEEP_MS = 60000 };          /* without a question */

/* Those of one owner's slice. */
struct slot {
        struct list link; /* deltas.of[group] */
        uint32_t owner;
        uint64_t expected;               /* 1 + the version that is being coded; 0: none */
        struct delta *kept[DELTAS_KEPT]; /* [version % DELTAS_KEPT] */
};

struct deltas {
        struct list all; /* oldest first */
        struct list *of; /* [group] */
        uint64_t bytes, taken;
        uint64_t until;      /* the last version that somebody may want */
        uint64_t asked_ms;   /* when somebody last asked for one, or one was kept */
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
        list_init(&d->age);
        return d;
}

void delta_unref(struct delta *d)
{
        if (d && --d->references == 0)
                free(d);
}

/* ---- those that are kept ---- */

static struct slot *slot_find(const struct job *job, uint32_t group, uint32_t owner)
{
        list_for_each (&job->deltas->of[group], item) {
                struct slot *s = CONTAINER_OF(item, struct slot, link);

                if (s->owner == owner)
                        return s;
        }
        return NULL;
}

/* NULL: out of memory. */
static struct slot *slot_make(struct job *job, uint32_t group, uint32_t owner)
{
        struct slot *s = slot_find(job, group, owner);

        if (s || !(s = calloc(1, sizeof *s)))
                return s;
        s->owner = owner;
        list_insert(&job->deltas->of[group], &s->link);
        return s;
}

static struct delta *slot_delta(const struct slot *s, uint64_t version)
{
        struct delta *d = s ? s->kept[version % DELTAS_KEPT] : NULL;

        return d && d->version == version ? d : NULL;
}

struct delta *deltas_find(const struct job *job, uint32_t group, uint32_t owner, uint64_t version)
{
        return slot_delta(slot_find(job, group, owner), version);
}

uint64_t deltas_reach(const struct job *job, uint32_t group, uint32_t owner, uint64_t from,
                      uint64_t to)
{
        const struct slot *s = slot_find(job, group, owner);

        while (from < to && slot_delta(s, from + 1))
                from++;
        return from;
}

static void delta_drop(struct job *job, struct delta *d)
{
        struct slot *s = slot_find(job, d->group, d->owner);

        s->kept[d->version % DELTAS_KEPT] = NULL;
        job->deltas->bytes -= d->bytes;
        list_remove(&d->age);
        delta_unref(d);
}

/* Of all jobs of a user: memory that deltas are coded of, and deltas.  *most: the job that keeps
 * most of these. */
static uint64_t users_bytes(const struct engine *x, uint32_t uid, uint64_t *deltas,
                            struct job **most)
{
        uint64_t taken = 0;

        *deltas = 0;
        *most = NULL;
        list_for_each ((struct list *)&x->jobs, item) {
                struct job *job = CONTAINER_OF(item, struct job, link);

                if (job->uid != uid)
                        continue;
                taken += job->deltas->taken;
                *deltas += job->deltas->bytes;
                if (!*most || job->deltas->bytes > (*most)->deltas->bytes)
                        *most = job;
        }
        return taken;
}

/* Drops old deltas until the user has as much room; false: there cannot be, and none is dropped. */
static bool room_make(const struct job *job, uint64_t bytes)
{
        uint64_t limit = job->x->conf->follow_deltas, deltas;
        struct job *most;
        uint64_t taken = users_bytes(job->x, job->uid, &deltas, &most);

        if (taken > limit || bytes > limit - taken)
                return false;
        while (deltas > limit - taken - bytes && most && !list_empty(&most->deltas->all)) {
                delta_drop(most, CONTAINER_OF(most->deltas->all.next, struct delta, age));
                users_bytes(job->x, job->uid, &deltas, &most);
        }
        return true;
}

void deltas_keep(struct job *job, struct delta *d)
{
        struct slot *s = job->dead ? NULL : slot_make(job, d->group, d->owner);
        struct delta *old = s ? s->kept[d->version % DELTAS_KEPT] : NULL;

        if (old && old->version < d->version) {
                delta_drop(job, old);
                old = NULL;
        }
        if (!s || old || !room_make(job, d->bytes)) {
                delta_unref(d);
                return;
        }
        s->kept[d->version % DELTAS_KEPT] = d;
        job->deltas->bytes += d->bytes;
        job->deltas->asked_ms = engine_now(job->x);
        list_insert(&job->deltas->all, &d->age);
}

int deltas_expect(struct job *job, uint32_t group, uint32_t owner, uint64_t version)
{
        struct slot *s = slot_make(job, group, owner);

        if (!s)
                return -ENOMEM;
        s->expected = 1 + version;
        return 0;
}

void deltas_settle(struct job *job, uint32_t group, uint32_t owner)
{
        slot_find(job, group, owner)->expected = 0;
}

bool deltas_expected(const struct job *job, uint32_t group, uint32_t owner, uint64_t from,
                     uint64_t to)
{
        const struct slot *s = slot_find(job, group, owner);

        return s && s->expected > 1 + from && s->expected <= 1 + to;
}

bool deltas_take(struct job *job, uint64_t bytes, uint64_t more)
{
        if (!room_make(job, bytes + more))
                return false;
        job->deltas->taken += bytes;
        return true;
}

void deltas_give(struct job *job, uint64_t bytes)
{
        job->deltas->taken -= bytes;
}

/* Now and then the slower way is tried again.  Deltas are there a few versions after a question. */
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
        job->deltas->asked_ms = engine_now(job->x);
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

static void deltas_drop(struct job *job)
{
        struct deltas *t = job->deltas;

        while (!list_empty(&t->all))
                delta_drop(job, CONTAINER_OF(t->all.next, struct delta, age));
}

static void deltas_tick(struct engine *x)
{
        list_for_each (&x->jobs, item) {
                struct job *job = CONTAINER_OF(item, struct job, link);

                if (engine_now(x) - job->deltas->asked_ms < KEEP_MS)
                        continue;
                job->deltas->until = 0;
                deltas_drop(job);
        }
}

static void deltas_job_free(struct job *job)
{
        struct deltas *t = job->deltas;

        if (!t || !t->of)
                return;
        deltas_drop(job);
        for (uint32_t g = 0; g < job->layout->n_groups; g++)
                list_for_each (&t->of[g], item)
                        free(CONTAINER_OF(item, struct slot, link));
        free(STEAL(t->of));
}

const struct module deltas_module = { .job_at = offsetof(struct job, deltas),
                                      .job_bytes = sizeof(struct deltas),
                                      .job_init = deltas_job_init,
                                      .tick = deltas_tick,
                                      .job_free = deltas_job_free };
