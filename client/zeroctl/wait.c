/*
 * zeroctl wait: returns when a job has reached the state that a script waits for.  If the daemon
 * restarts meanwhile, asks again until the timeout.
 */
#include "ctl.h"

#include <string.h>

#include "progress.h"

enum { POLL_MS = 100 };

static const char *state;
static long step = -1; /* -1: not given */

static const struct command_option options[] = {
        { "for", "STATE",
          "running: all ranks are attached (default, without --step), or idle: none is",
          .text = &state },
        { "step", "N", "wait until the job has committed N steps", .count = &step },
        { 0 },
};

static int check(const struct ctl *ctl)
{
        if (!state) {
                state = step < 0 ? "running" : "";
                return CTL_OK;
        }
        if (strcmp(state, "running") == 0 || strcmp(state, "idle") == 0)
                return CTL_OK;
        ctl_error("--for is running or idle, not '%s'", state);
        return CTL_USAGE;
}

/* All ranks of a job that is stalled are attached, too. */
static bool is_there(const json_t *job)
{
        const char *now = field_text(job, "state");

        return job &&
               (!*state || strcmp(strcmp(now, "stalled") == 0 ? "running" : now, state) == 0) &&
               field_number(job, "version") >= (double)step;
}

static void show(const struct ctl *ctl, FILE *out, const json_t *answer)
{
        show_jobs(ctl, out, json_object_get(answer, "jobs"));
}

/* Prints the state that the job is in instead, and the first thing that it waits for. */
static int give_up(struct ctl *ctl, const json_t *job, const char *error)
{
        const json_t *wait = json_array_get(json_object_get(job, "waiting"), 0);

        if (*error)
                ctl_error("wait: zerod says nothing about job '%s': %s", ctl->argument, error);
        else if (!job)
                ctl_error("wait: for %.0f s there was no job '%s'", ctl_patience(ctl),
                          ctl->argument);
        else
                ctl_error("wait: after %.0f s job '%s' is %s at step %.0f%s%s%s%s",
                          ctl_patience(ctl), ctl->argument, field_text(job, "state"),
                          field_number(job, "version"), wait ? ", and waits for " : "",
                          field_text(wait, "for"), wait ? ": " : "", field_text(wait, "what"));
        return CTL_FAILED;
}

static int run(struct ctl *ctl)
{
        double until = progress_now() + ctl_patience(ctl);

        for (;; progress_nap(POLL_MS)) {
                json_t *answer = NULL, *job;
                int r = ctl_query(ctl, "jobs", NULL, &answer);
                char error[512] = ""; /* a copy: a new connection frees the old client */

                if (r == ZERO_EPROTO)
                        snprintf(error, sizeof(error), "its answer is not JSON");
                else if (r)
                        snprintf(error, sizeof(error), "%s", zero_error(ctl->client));
                if (r == ZERO_ECLOSED && ctl_connect_again(ctl))
                        snprintf(error, sizeof(error), "%s", zero_error(NULL));
                job = find_named(json_object_get(answer, "jobs"), "job", ctl->argument);
                if (r == ZERO_OK && is_there(job)) {
                        json_t *found = json_pack("{s:[O]}", "jobs", job);

                        json_decref(answer);
                        return ctl_show(ctl, found, show);
                }
                if (progress_now() >= until || (r && r != ZERO_ECLOSED)) {
                        r = give_up(ctl, job, error);
                        json_decref(answer);
                        return r;
                }
                json_decref(answer);
        }
}

const struct command command_wait = {
        .name = "wait",
        .arguments = "JOB",
        .summary = "return when a job runs, is idle, or has made steps",
        .description =
                "Returns when <JOB> is *running* (all of its ranks are attached), or as the "
                "options say. If that takes longer than *--timeout*, the command exits with 1 and "
                "names the state that the job is in and what the job waits for. It also waits "
                "for a job that does not exist yet, and for a daemon that restarts "
                "meanwhile.",
        .options = options,
        .check = check,
        .run = run,
};
