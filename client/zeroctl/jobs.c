/* zeroctl jobs: the jobs of the cluster; status and top show the same tables. */
#include "ctl.h"

#include <string.h>
#include <time.h>

#include "table.h"
#include "units.h"

static enum paint state_paint(const char *state)
{
        if (strcmp(state, "idle") == 0)
                return PAINT_NONE;
        return strcmp(state, "running") == 0 ? PAINT_GOOD : PAINT_WARN;
}

static unsigned attached_ranks(const json_t *job)
{
        unsigned n = 0;
        json_t *rank;
        size_t i;

        json_array_foreach(json_object_get(job, "ranks"), i, rank) n +=
                field_true(rank, "attached");
        return n;
}

static void add_job(struct table *t, const json_t *job)
{
        const char *state = field_text(job, "state");
        unsigned attached = attached_ranks(job);
        double world = field_number(job, "world_size"), skipped = field_number(job, "skipped");

        table_add(t, PAINT_NONE, "%s", field_text(job, "job"));
        table_add(t, state_paint(state), "%s", state);
        table_add(t, attached && attached < world ? PAINT_WARN : PAINT_NONE, "%u/%.0f", attached,
                  world);
        table_add(t, PAINT_NONE, "%.0f", field_number(job, "version"));
        table_add(t, PAINT_NONE, "%.2f", field_number(job, "steps_per_s"));
        table_add(t, PAINT_NONE, "%s", unit_number(field_number(job, "grad_norm")).text);
        table_add(t, skipped > 0 ? PAINT_WARN : PAINT_NONE, "%.0f", skipped);
        table_add(t, PAINT_NONE, "%s", unit_count(field_number(job, "parameters")).text);
}

/* As a warning once two in a row are missing. */
static void show_schedule(const struct ctl *ctl, FILE *out, const json_t *job)
{
        const json_t *schedule = json_object_get(job, "schedule");
        double every = field_number(schedule, "every");
        double last = field_number(schedule, "last_version");
        double age = difftime(time(NULL), (time_t)field_number(schedule, "last_unix_s"));
        bool late = field_number(job, "version") > last + 2 * every;

        if (!json_is_object(schedule))
                return;
        fprintf(out, "%s%s: a checkpoint every %.0f steps; none after version %.0f, %s ago%s\n",
                paint_begin(late ? PAINT_WARN : PAINT_NONE, ctl->colour), field_text(job, "job"),
                every, last, unit_seconds(age > 0 ? age : 0).text,
                paint_end(late ? PAINT_WARN : PAINT_NONE, ctl->colour));
}

void show_jobs(const struct ctl *ctl, FILE *out, const json_t *jobs)
{
        struct table t;
        json_t *job;
        size_t i;

        if (json_array_size(jobs) == 0) {
                fputs("no jobs\n", out);
                return;
        }
        table_init(&t, "JOB|STATE|>RANKS|>STEP|>STEPS/S|>GRAD NORM|>SKIPPED|>PARAMS");
        json_array_foreach(jobs, i, job) add_job(&t, job);
        table_print(&t, out, ctl->colour);
        table_deinit(&t);
        json_array_foreach(jobs, i, job) show_schedule(ctl, out, job);
}

static bool is_same_wait(const json_t *a, const json_t *b)
{
        return strcmp(field_text(a, "what"), field_text(b, "what")) == 0;
}

/* Those who have the same to do share a line. */
static void show_wait(const struct ctl *ctl, FILE *out, const char *job, const json_t *waiting,
                      size_t first)
{
        const json_t *wait = json_array_get(waiting, first);
        double since_s = 0;
        json_t *other;
        size_t i;

        for (i = 0; i < first; i++)
                if (is_same_wait(json_array_get(waiting, i), wait))
                        return;
        json_array_foreach(waiting, i, other)
        {
                if (is_same_wait(other, wait) && field_number(other, "since_s") > since_s)
                        since_s = field_number(other, "since_s");
        }
        fprintf(out, "%s%s: waiting %s for %s", paint_begin(PAINT_WARN, ctl->colour), job,
                unit_seconds(since_s).text, field_text(wait, "for"));
        for (i = first + 1; i < json_array_size(waiting); i++)
                if (is_same_wait(json_array_get(waiting, i), wait))
                        fprintf(out, ", %s", field_text(json_array_get(waiting, i), "for"));
        fprintf(out, ": %s%s\n", field_text(wait, "what"), paint_end(PAINT_WARN, ctl->colour));
}

void show_waiting(const struct ctl *ctl, FILE *out, const json_t *jobs)
{
        json_t *job;
        size_t i;

        json_array_foreach(jobs, i, job)
        {
                const json_t *waiting = json_object_get(job, "waiting");

                for (size_t k = 0; k < json_array_size(waiting); k++)
                        show_wait(ctl, out, field_text(job, "job"), waiting, k);
        }
}

static void show(const struct ctl *ctl, FILE *out, const json_t *answer)
{
        const json_t *jobs = json_object_get(answer, "jobs");

        show_jobs(ctl, out, jobs);
        show_waiting(ctl, out, jobs);
}

const struct command command_jobs = {
        .name = "jobs",
        .summary = "jobs and who they wait for",
        .description = "Prints a line for each job, and who it waits for, a line a cause. A job is "
                       "*running* if all of its ranks are attached, *stalled* if they are and no "
                       "step ends, *incomplete* if some are, and *idle* if "
                       "none is, as after its training. It is *opening* until its states are "
                       "found, and *moving* while they go to other nodes.",
        .show = show,
};
