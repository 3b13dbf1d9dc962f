/*
 * Copies of whole versions, and who holds them.
 *
 * Each copy is a client of the gather, in a window of its own, that holds all groups of its form at
 * a version.  The copies of a job are a fixed number of buffers.  A buffer that nobody holds takes
 * the next version, and is made anew for another form.  The newest whole version of a form goes
 * last, so that a late reader finds it.
 *
 * Invariants: a copy that is held is whole, and nobody writes to its window.  At most one copy is
 * coming.  A copy is whole only if all groups of its form came at one version, and no put has
 * changed a group meanwhile.
 *
 * A version may be over before it has come: an owner then refuses a group, and the next version is
 * brought in its place.  Two groups travel at a time, so an update waits for few pins.
 */
#include "daemon/step/follow/follow.h"

#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/job/core/progress.h"
#include "proto/cleanup.h"

/* Readers that come and go find the same memory: a process that has left may still map it. */
enum { BRINGS = 2, KEEP_MS = 10000 };

struct copy_of_version;

/* A group on its way. */
struct bring {
        struct request request;
        struct copy_of_version *copy;
        bool busy;
};

struct copy_of_version {
        struct follow *follow;
        uint32_t number;    /* follow.copies[number] */
        struct holds holds; /* of all groups of its form */
        enum { COPY_EMPTY, COPY_COMING, COPY_WHOLE } phase;
        uint64_t version;
        uint64_t serial;   /* of the window, on this node */
        uint32_t holders;  /* readers, as often as they hold it */
        uint32_t next;     /* the group to bring next */
        uint32_t n_coming; /* groups */
        bool failed;       /* the version is over, or the job is dropped */
        bool stale;        /* a put has changed a group since it came */
        bool retired;      /* takes no other version: its memory goes with its last hold */
        struct bring brings[BRINGS];
};

/* Of a job on this node. */
struct follow {
        struct job *job;
        struct list readers, waiting;
        /* NULL: it has no memory */
        struct copy_of_version *copies[FOLLOW_COPIES_MAX];
        bool going;        /* follow_run() runs */
        bool news;         /* for readers, or for who may wait for a copy */
        bool moved;        /* a group of the copy that is coming has come */
        bool over;         /* that version was refused: waits for the next version, or a tick */
        uint64_t version;  /* that the job stands at */
        uint64_t empty_ms; /* loop time at which the last reader left */
        uint64_t serial;
};

static void follow_run(struct follow *f);

static struct copy_of_version *copy_from(const struct follow *f, uint32_t i)
{
        while (i < FOLLOW_COPIES_MAX && !f->copies[i])
                i++;
        return i < FOLLOW_COPIES_MAX ? f->copies[i] : NULL;
}
/* Those that have memory. */
#define for_copies(f, c) \
        for (struct copy_of_version *c = copy_from(f, 0); c; c = copy_from(f, c->number + 1))

static const uint8_t *form_of(const struct copy_of_version *c)
{
        return gather_form(c->holds.gather);
}

static bool same_form(const struct follow *f, const uint8_t *a, const uint8_t *b)
{
        return memcmp(a, b, f->job->layout->n_groups) == 0;
}

/* ---- bringing ---- */

static void bring_finished(struct request *r, int status, const char *text)
{
        struct bring *b = CONTAINER_OF(r, struct bring, request);

        b->busy = false;
        b->copy->n_coming--;
        b->copy->failed = b->copy->failed || status;
        b->copy->follow->moved = true;
        follow_run(b->copy->follow);
}

static void bring(struct bring *b, uint32_t group)
{
        struct copy_of_version *c = b->copy;
        uint64_t version = group_version(c->follow->job, group, c->version);
        struct fault fault;

        b->request = (struct request){ .finish = bring_finished };
        list_init(&b->request.wait);
        list_init(&b->request.deadline);
        b->busy = true;
        c->n_coming++;
        if (holds_fetch(&c->holds, group, version, &b->request, &fault))
                request_end(&b->request, fault.status, "%s", fault.text);
}

static void copy_begin(struct copy_of_version *c)
{
        holds_end(&c->holds, HOLD_HELD);
        gather_dirtied(c->holds.gather); /* all is asked for anew, or has not changed */
        c->phase = COPY_COMING;
        c->version = c->follow->job->version;
        c->next = 0;
        c->failed = c->stale = false;
        c->follow->over = false;
}

/* Asks for more groups; the copy's end is either of WHOLE and EMPTY. */
static void copy_go_on(struct copy_of_version *c)
{
        const struct job *job = c->follow->job;

        for (uint32_t i = 0; i < BRINGS; i++)
                while (!c->brings[i].busy && !c->failed && c->next < job->layout->n_groups)
                        if (form_of(c)[c->next++])
                                bring(&c->brings[i], c->next - 1);
        if (c->n_coming)
                return;
        if (c->failed) {
                c->phase = COPY_EMPTY;
                c->follow->over = !c->retired && c->version == job->version;
        } else if (gather_dirtied(c->holds.gather)) {
                copy_begin(c);
        } else {
                c->phase = COPY_WHOLE;
        }
        c->follow->news = true;
}

/* ---- memory ---- */

static void copy_free(struct copy_of_version *c)
{
        for (uint32_t i = 0; i < BRINGS; i++)
                if (c->brings[i].busy)
                        request_cancel(&c->brings[i].request);
        holds_leave(&c->holds);
        free(c);
}

static int copy_new(struct follow *f, uint32_t number, const uint8_t *form, struct fault *fault)
{
        struct copy_of_version *c = calloc(1, sizeof *c);
        int r = c ? holds_admit_apart(&c->holds, f->job, form, fault)
                  : fault_set(fault, ZERO_ENOMEM, "out of memory");

        if (r) {
                free(c);
                return r;
        }
        c->follow = f;
        c->number = number;
        c->serial = ++f->serial;
        for (uint32_t i = 0; i < BRINGS; i++)
                c->brings[i].copy = c;
        f->copies[number] = c;
        return 0;
}

static void retired_free(struct follow *f)
{
        for (uint32_t i = 0; i < FOLLOW_COPIES_MAX; i++) {
                const struct copy_of_version *c = f->copies[i];

                if (c && c->retired && !c->holders && !c->n_coming)
                        copy_free(STEAL(f->copies[i]));
        }
}

static void copies_free(struct follow *f)
{
        f->going = true; /* what ends here begins nothing */
        for (uint32_t i = 0; i < FOLLOW_COPIES_MAX; i++)
                if (f->copies[i])
                        copy_free(STEAL(f->copies[i]));
        f->going = false;
}

static bool form_read(const struct follow *f, const uint8_t *form)
{
        list_for_each ((struct list *)&f->readers, item) {
                if (same_form(f, CONTAINER_OF(item, struct reader, link)->form, form))
                        return true;
        }
        return false;
}

/* Copies without a version are older than all others, and copies in others' forms newer. */
static uint64_t age(const struct copy_of_version *c, const uint8_t *form)
{
        if (!same_form(c->follow, form_of(c), form) && form_read(c->follow, form_of(c)))
                return UINT64_MAX;
        return c->phase == COPY_EMPTY ? 0 : 1 + c->version;
}

static struct copy_of_version *copy_remake(struct copy_of_version *c, const uint8_t *form,
                                           struct fault *fault)
{
        struct follow *f = c->follow;
        uint32_t number = c->number;

        if (same_form(f, form_of(c), form))
                return c;
        copy_free(STEAL(f->copies[number]));
        copy_new(f, number, form, fault);
        return f->copies[number];
}

/* Finds the copy to fill.  NULL: all are held, or fault says why there is no memory. */
static struct copy_of_version *copy_take(struct follow *f, const uint8_t *form, struct fault *fault)
{
        struct copy_of_version *oldest = NULL;
        uint32_t n = 0, none = 0;
        uint64_t newest = 1;

        for_copies (f, c) {
                n++;
                none += none == c->number;
                if (same_form(f, form_of(c), form) && age(c, form) > newest)
                        newest = age(c, form);
                if (!c->holders && (!oldest || age(c, form) < age(oldest, form)))
                        oldest = c;
        }
        /* the newest one is left for late readers while there may be another */
        if (n < f->job->x->conf->follow_copies && (!oldest || age(oldest, form) >= newest) &&
            (copy_new(f, none, form, fault) == 0 || !oldest))
                return f->copies[none];
        fault->status = 0;
        return oldest ? copy_remake(oldest, form, fault) : NULL;
}

/* ---- readers ---- */

static struct copy_of_version *copy_for(struct follow *f, const struct reader *reader)
{
        struct copy_of_version *best = NULL;

        for_copies (f, c) {
                bool now = c->phase == COPY_WHOLE && c->version == f->job->version;

                c->stale = c->stale || (now && gather_dirtied(c->holds.gather));
                if (c->phase == COPY_WHOLE && !c->stale && c->version >= reader->least &&
                    c->version <= reader->most && (!best || c->version > best->version) &&
                    same_form(f, form_of(c), reader->form))
                        best = c;
        }
        return best;
}

static void reader_give(struct reader *reader, struct copy_of_version *c)
{
        const struct segment *s = gather_segment(c->holds.gather);
        struct request *r = reader->waiting;

        reader->held[c->number]++;
        c->holders++;
        zero__follow_reply__init(&r->result.follow);
        r->result.follow.version = c->version;
        r->result.follow.copy = c->number;
        r->result.follow.serial = c->serial;
        r->result.follow.bytes = s ? s->bytes : 0;
        r->passes = s && reader->passed[c->number] != c->serial;
        reader->passed[c->number] = c->serial;
        r->fd = s ? s->fd : -1;
        request_end(r, ZERO_OK, NULL);
}

/* Answers whoever can be answered.  NULL: nobody waits for the version that the job stands at. */
static struct reader *readers_answer(struct follow *f)
{
        uint64_t version = f->job->version;
        struct reader *first = NULL;

        list_for_each (&f->waiting, item) {
                struct request *r = CONTAINER_OF(item, struct request, wait);
                struct reader *reader = r->subject;
                struct copy_of_version *c = copy_for(f, reader);

                if (c)
                        reader_give(reader, c);
                else if (version > reader->most)
                        request_end(
                                r, ZERO_EGONE,
                                "version %llu of job '%s' is gone: the job stands at version %llu",
                                (unsigned long long)reader->most, f->job->name,
                                (unsigned long long)version);
                else if (!first && version >= reader->least)
                        first = reader;
        }
        return first;
}

/* There is no memory for the version that the job stands at, in that form. */
static void readers_refuse(struct follow *f, const uint8_t *form, const struct fault *why)
{
        list_for_each (&f->waiting, item) {
                struct request *r = CONTAINER_OF(item, struct request, wait);
                const struct reader *reader = r->subject;

                if (f->job->version >= reader->least && same_form(f, reader->form, form))
                        request_end(r, why->status, "%s", why->text);
        }
}

static struct copy_of_version *copy_coming(const struct follow *f)
{
        struct copy_of_version *coming = NULL;

        for_copies (f, c)
                coming = c->phase == COPY_COMING ? c : coming;
        return coming;
}

static void copy_want(struct follow *f, struct reader *reader)
{
        struct fault fault = { 0 };
        struct copy_of_version *c = copy_take(f, reader->form, &fault);

        if (c)
                copy_begin(c);
        else if (fault.status)
                readers_refuse(f, reader->form, &fault);
        if (reader->waiting) { /* if this version is over too soon, another form has its turn */
                list_remove(&reader->waiting->wait);
                list_insert(&f->waiting, &reader->waiting->wait);
        }
}

/* Brings copies and answers readers as far as possible.  One group more concerns no reader. */
static void follow_run(struct follow *f)
{
        if (f->going)
                return;
        f->going = true;
        while ((f->news || f->moved) && !f->job->dead) {
                struct copy_of_version *coming;
                bool news = f->news;

                f->news = f->moved = false;
                if (news) {
                        struct reader *first = NULL;

                        retired_free(f);
                        first = readers_answer(f);
                        if (first && !copy_coming(f) && !f->over)
                                copy_want(f, first);
                }
                coming = copy_coming(f);
                if (coming)
                        copy_go_on(coming);
        }
        f->going = false;
}

static void follow_go_on(struct follow *f)
{
        f->news = true;
        follow_run(f);
}

/* Puts may have changed the version that the job has left. */
static void follow_leave_version(struct follow *f)
{
        for_copies (f, c)
                if (c->phase == COPY_WHOLE && c->version == f->version)
                        c->stale = gather_dirtied(c->holds.gather) || c->stale;
        f->version = f->job->version;
}

void follow_advance(struct job *job)
{
        struct follow *f = job->follow;

        if (f->version != job->version)
                follow_leave_version(f);
        f->over = false;
        follow_go_on(f);
}

void follow_renew(struct job *job)
{
        for_copies (job->follow, c) {
                c->retired = true;
                c->failed = c->phase == COPY_COMING;
        }
        follow_go_on(job->follow);
}

static bool all_held(const struct follow *f)
{
        uint64_t n = 0;

        for_copies (f, c)
                n += c->holders > 0;
        return n >= f->job->x->conf->follow_copies;
}

static void holders_describe(const struct follow *f, struct wait_line *ret)
{
        size_t at = 0;

        snprintf(ret->who, sizeof ret->who, "readers of job '%.60s'", f->job->name);
        at = (size_t)snprintf(ret->what, sizeof ret->what,
                              "to release one of the %llu versions that follow_copies allows: pids",
                              (unsigned long long)f->job->x->conf->follow_copies);
        list_for_each ((struct list *)&f->readers, item) {
                const struct reader *reader = CONTAINER_OF(item, struct reader, link);
                bool holds = false;

                for (uint32_t i = 0; i < FOLLOW_COPIES_MAX; i++)
                        holds = holds || reader->held[i];
                if (!holds || at >= sizeof ret->what)
                        continue;
                if (reader->address)
                        at += (size_t)snprintf(ret->what + at, sizeof ret->what - at,
                                               " (HTTP from %s)", reader->address);
                else
                        at += (size_t)snprintf(ret->what + at, sizeof ret->what - at, " %u",
                                               reader->pid);
        }
}

static int reader_describe(const struct request *r, struct wait_line *ret)
{
        const struct reader *reader = r->subject;
        const struct follow *f = reader->job->follow;
        unsigned long long version = f->job->version;

        job_describe(f->job, ret);
        ret->until_ms = 0; /* however late a rank is, the reader may ask again */
        if (f->job->version < reader->least) {
                snprintf(ret->what, sizeof ret->what,
                         "version %llu: the job stands at version %llu",
                         (unsigned long long)reader->least, version);
                return ZERO_EDEADLINE;
        }
        if (all_held(f)) {
                holders_describe(f, ret);
                return ZERO_EDEADLINE;
        }
        snprintf(ret->what, sizeof ret->what, "all groups at version %llu", version);
        for_copies (f, c)
                if (c->phase == COPY_COMING)
                        snprintf(ret->what, sizeof ret->what, "group %u of %u at version %llu",
                                 c->next, f->job->layout->n_groups, (unsigned long long)c->version);
        return ZERO_EDEADLINE;
}

static void reader_ended(struct request *r, bool ok)
{
        struct reader *reader = r->subject;

        reader->waiting = NULL;
}

/* Whether the form is one of the job's. */
static int form_check(const struct job *job, const uint8_t *form, struct fault *fault)
{
        const layout *l = job->layout;
        bool any = false;

        for (uint32_t i = 0; i < l->n_groups; i++) {
                any = any || form[i];
                if (form[i] && !dtype_converts(l->groups[i].dtype, form[i]))
                        return fault_set(fault, ZERO_EINVAL,
                                         "group '%s' of job '%s' is in %s, and nobody gets %s of "
                                         "that",
                                         l->groups[i].name, job->name,
                                         dtype_name(l->groups[i].dtype), dtype_name(form[i]));
        }
        return any ? 0
                   : fault_set(fault, ZERO_EINVAL, "the form has no group of job '%s'", job->name);
}

static int reader_form(struct reader *reader, const struct job *job, const Zero__Follow *m,
                       struct fault *fault)
{
        uint32_t n = job->layout->n_groups;

        if (m->form.len != 0 && m->form.len != n)
                return fault_set(fault, ZERO_EINVAL, "the form has %zu groups, and job '%s' has %u",
                                 m->form.len, job->name, n);
        if (m->form.len && form_check(job, m->form.data, fault))
                return fault->status;
        if (!reader->form && !(reader->form = calloc(n, sizeof *reader->form)))
                return fault_set(fault, ZERO_ENOMEM, "out of memory");
        for (uint32_t i = 0; i < n; i++)
                reader->form[i] =
                        m->form.len ? m->form.data[i] : (uint8_t)job->layout->groups[i].dtype;
        return 0;
}

int follow_wait(struct reader *reader, struct job *job, const Zero__Follow *m, struct request *r,
                struct fault *fault)
{
        struct follow *f = job->follow;

        if (m->least > m->most)
                return fault_set(fault, ZERO_EINVAL, "no version is from %llu to %llu",
                                 (unsigned long long)m->least, (unsigned long long)m->most);
        if (job->x->conf->follow_copies == 0)
                return fault_set(
                        fault, ZERO_EPERM,
                        "this node lets nobody follow a job: its option follow_copies is 0");
        if (reader->waiting)
                return fault_set(fault, ZERO_EBUSY, "the client waits for a version already");
        if (reader_form(reader, job, m, fault))
                return fault->status;
        if (!reader->job) {
                reader->job = job;
                list_insert(&f->readers, &reader->link);
        }
        f->version = job->version;
        reader->waiting = r;
        /* an older version that somebody holds is not the newest */
        reader->least =
                job->version > m->least && job->version <= m->most ? job->version : m->least;
        reader->most = m->most;
        r->subject = reader;
        r->describe = reader_describe;
        r->ended = reader_ended;
        list_insert(&f->waiting, &r->wait);
        follow_go_on(f);
        return 0;
}

int follow_release(struct reader *reader, uint32_t copy, struct fault *fault)
{
        if (!reader->job || copy >= FOLLOW_COPIES_MAX || !reader->held[copy])
                return fault_set(fault, ZERO_ENOTHELD, "the client holds no version by that name");
        reader->held[copy]--;
        reader->job->follow->copies[copy]->holders--;
        follow_go_on(reader->job->follow);
        return 0;
}

void follow_leave(struct reader *reader)
{
        struct follow *f = reader->job ? reader->job->follow : NULL;

        if (!f)
                return;
        list_remove(&reader->link);
        for (uint32_t i = 0; i < FOLLOW_COPIES_MAX; i++)
                if (f->copies[i]) /* a dropped job has none */
                        f->copies[i]->holders -= reader->held[i];
        free(reader->form);
        *reader = (struct reader){ .uid = reader->uid, .pid = reader->pid };
        f->empty_ms = engine_now(f->job->x);
        follow_go_on(f);
}

void follow_info(const struct job *job, struct follow_info *ret)
{
        const struct follow *f = job->follow;

        *ret = (struct follow_info){ .readers = 0 };
        list_for_each ((struct list *)&f->readers, item) {
                ret->readers++;
        }
        for_copies (f, c) {
                const struct segment *s = gather_segment(c->holds.gather);

                ret->copies++;
                ret->held += c->holders > 0;
                ret->bytes += s ? s->bytes : 0;
                if (c->phase == COPY_WHOLE && (!ret->whole || c->version > ret->version)) {
                        ret->whole = true;
                        ret->version = c->version;
                }
        }
}

const struct reader *follow_reader(const struct job *job, const struct reader *before)
{
        const struct list *readers = &job->follow->readers;
        const struct list *next = before ? before->link.next : readers->next;

        return next == readers ? NULL : CONTAINER_OF(next, struct reader, link);
}

bool follow_copy(const struct job *job, uint32_t number, struct follow_copy *ret)
{
        const struct copy_of_version *c = job->follow->copies[number];
        const struct segment *s = c ? gather_segment(c->holds.gather) : NULL;

        if (!c)
                return false;
        *ret = (struct follow_copy){ c->phase == COPY_WHOLE, c->version, s ? s->bytes : 0, 0,
                                     form_of(c) };
        list_for_each ((struct list *)&job->follow->readers, item) {
                ret->readers += CONTAINER_OF(item, struct reader, link)->held[number] > 0;
        }
        return true;
}

/* ---- what the node goes through ---- */

static int follow_job_init(struct job *job)
{
        struct follow *f = job->follow;

        f->job = job;
        list_init(&f->readers);
        list_init(&f->waiting);
        return 0;
}

static void follow_tick(struct engine *x)
{
        list_for_each (&x->jobs, item) {
                struct job *job = CONTAINER_OF(item, struct job, link);
                struct follow *f = job->follow;

                if (!list_empty(&f->waiting))
                        follow_advance(job);
                else if (list_empty(&f->readers) && engine_now(x) - f->empty_ms > KEEP_MS)
                        copies_free(f);
        }
}

static void follow_job_dropped(struct job *job, int status, const char *text)
{
        requests_end_all(&job->follow->waiting, status, text);
}

static void follow_job_released(struct job *job)
{
        if (job->follow)
                copies_free(job->follow);
}

const struct module follow_module = { .job_at = offsetof(struct job, follow),
                                      .job_bytes = sizeof(struct follow),
                                      .job_init = follow_job_init,
                                      .tick = follow_tick,
                                      .job_dropped = follow_job_dropped,
                                      .job_released = follow_job_released,
                                      .job_free = follow_job_released };
