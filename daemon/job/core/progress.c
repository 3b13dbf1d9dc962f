/* How jobs get on: whom they wait for, and how fast they step. */
#include "daemon/job/core/progress.h"

#include <math.h>
#include <stdio.h>

#include "proto/cleanup.h"

enum { STEPPING_MS = 60000 };

/* ---- how fast it steps ------------------------------------------------------- */

void job_stepped(struct job *job)
{
        struct progress *p = job->progress;

        p->step_times_ms[p->n_steps++ % STEP_TIMES] = engine_now(job->x);
}

double job_step_age(const struct job *job)
{
        const struct progress *p = job->progress;

        if (!p->n_steps)
                return NAN;
        return (double)(engine_now(job->x) - p->step_times_ms[(p->n_steps - 1) % STEP_TIMES]) /
               1000;
}

double job_steps_per_second(const struct job *job)
{
        const struct progress *p = job->progress;
        uint32_t n = p->n_steps < STEP_TIMES ? p->n_steps : STEP_TIMES;
        uint64_t newest, oldest;

        if (n < 2)
                return 0;
        newest = p->step_times_ms[(p->n_steps - 1) % STEP_TIMES];
        oldest = p->step_times_ms[(p->n_steps - n) % STEP_TIMES];
        return newest > oldest ? (n - 1) * 1000.0 / (double)(newest - oldest) : 0;
}

bool job_is_stepping(const struct job *job)
{
        const struct progress *p = job->progress;

        return p->n_steps &&
               engine_now(job->x) - p->step_times_ms[(p->n_steps - 1) % STEP_TIMES] < STEPPING_MS;
}

/* ---- how long it waits ----------------------------------------------------------- */

const double wait_bounds_s[WAIT_BOUNDS] = { 0.001, 0.003, 0.01, 0.03, 0.1, 0.5, 2, 10, 60, 300 };

#define WAIT_NAME(name) #name,
const char *const wait_names[WAIT_FORS] = { WAITS(WAIT_NAME) };

void job_waited(const struct job *job, enum wait_for what, uint32_t who, uint32_t group,
                uint64_t begun_ns)
{
        struct progress *p = job->progress;
        struct wait_times *t = &p->times[what];
        uint64_t took_ns = uv_hrtime() - begun_ns;
        unsigned i = 0;

        while (i < WAIT_BOUNDS && (double)took_ns > wait_bounds_s[i] * 1e9)
                i++;
        t->n[i]++;
        t->sum_ns += took_ns;
        p->trace[p->n_traced++ % TRACE_MAX] =
                (struct traced){ begun_ns, took_ns, job->version, who, group, what };
}

/* ---- whom it waits for --------------------------------------------------------- */

bool wait_for_node(const struct engine *x, uint32_t node, struct wait_line *ret)
{
        struct fabric_info info;

        fabric_info(x->fabric, node, &info);
        snprintf(ret->who, sizeof ret->who, "node %.60s", node_name(x, node));
        snprintf(ret->what, sizeof ret->what, "to come up (%.100s)",
                 info.link.why[0] ? info.link.why : "not connected");
        return !info.up;
}

bool job_away(const struct job *job, struct wait_line *ret)
{
        const struct engine *x = job->x;

        for (uint32_t n = 0; n < x->cluster->n_nodes; n++) {
                struct fabric_info info;

                if (node_set_has(x->up, n) || !(job_needs_node(job, n) || n == job->coordinator))
                        continue;
                fabric_info(x->fabric, n, &info);
                *ret = (struct wait_line){ .since_ms = info.link.since_ms };
                snprintf(ret->who, sizeof ret->who, "node %.60s", node_name(x, n));
                snprintf(ret->what, sizeof ret->what, "to come up again");
                return true;
        }
        return false;
}

/* Who waits for others itself is rather not the one to name. */
static bool named_before(const struct wait_line *a, const struct wait_line *b)
{
        return a->waits != b->waits ? b->waits : a->until_ms < b->until_ms;
}

int job_describe(const struct job *job, struct wait_line *ret)
{
        const struct wait_lines *waits = &job->progress->waits;
        const struct wait_line *first = &waits->lines[0];

        if (job_away(job, ret))
                return ZERO_EDEADLINE;
        for (uint32_t i = 1; i < waits->n; i++)
                if (named_before(&waits->lines[i], first))
                        first = &waits->lines[i];
        if (waits->n == 0)
                snprintf(ret->who, sizeof ret->who, "the other ranks");
        else
                *ret = *first;
        return ZERO_EDEADLINE;
}

/* ---- messages ------------------------------------------------------------------ */

void progress_write(const struct engine *x, struct wait_lines *lines, struct progress_message *ret)
{
        uint64_t now = engine_now(x);

        zero__progress__init(&ret->progress);
        for (uint32_t i = 0; i < lines->n; i++) {
                struct wait_line *line = &lines->lines[i];

                zero__wait__init(&ret->waits[i]);
                ret->waits[i].who = line->who;
                ret->waits[i].what = line->what;
                ret->waits[i].since_ms = line->since_ms ? now - line->since_ms : 0;
                ret->waits[i].alive = line->alive;
                ret->waits[i].waits = line->waits;
                ret->pointers[i] = &ret->waits[i];
        }
        ret->progress.n_waits = lines->n;
        ret->progress.waits = ret->pointers;
}

void progress_read(const struct engine *x, const Zero__Progress *p, struct wait_lines *ret)
{
        uint64_t now = engine_now(x);

        ret->n = 0;
        for (size_t i = 0; i < p->n_waits && ret->n < WAIT_LINES; i++) {
                const Zero__Wait *wait = p->waits[i];
                struct wait_line *line = &ret->lines[ret->n++];

                snprintf(line->who, sizeof line->who, "%s", wait->who);
                snprintf(line->what, sizeof line->what, "%s", wait->what);
                line->since_ms = now > wait->since_ms ? now - wait->since_ms : 1; /* 0: just now */
                line->alive = wait->alive;
                line->waits = wait->waits;
                line->until_ms = wait->alive ? line->since_ms + x->conf->rank_wait_ms : 0;
        }
}
