/* The verdict on a node: which findings, and how bad. */
#include <criterion/criterion.h>
#include <math.h>
#include <string.h>
#include <time.h>

#include "daemon/face/status/status.h"

static struct status_peer peers[] = {
        { .node = "a", .self = true, .up = true, .why = "" },
        { .node = "b", .up = true, .why = "" },
};
static struct status_wait waits[] = {
        { "rank 1 on b", "push of group 3", 0 },
        { "node b", "to come up", 0 },
};
static struct status_checkpoint saved;
static struct status_schedule schedule;
static struct status_job job;
static struct status_node node;
static struct arena arena;

static void all_is_well(void)
{
        saved = (struct status_checkpoint){ .age_s = 60 };
        schedule = (struct status_schedule){ .every = 10,
                                             .last_version = 30,
                                             .last_unix_s = (uint64_t)time(NULL) };
        waits[0].since_s = waits[1].since_s = 0;
        job = (struct status_job){ .job = "gpt",
                                   .state = "running",
                                   .version = 50,
                                   .whole = true,
                                   .step_age_s = 1,
                                   .longest_rank_wait_s = NAN,
                                   .longest_other_wait_s = NAN,
                                   .checkpoint = &saved,
                                   .schedule = &schedule };
        job.waiting.n = 2;
        job.waiting.items = waits;
        node = (struct status_node){ .node = "a", .state_dir = "/s" };
        node.memory = (struct status_memory){
                .state_used = 9, .state_quota = 10, .file_system = 100, .file_system_free = 10
        };
        peers[1] = (struct status_peer){ .node = "b", .up = true, .reached = true, .why = "" };
        node.peers.n = 2;
        node.peers.items = peers;
        node.jobs.n = 1;
        node.jobs.items = &job;
}

/* "ok", or the verdict, and each finding's name and what was found. */
static void verdict_is(const char *expected)
{
        char text[1024];
        int n;

        report_verdict(&arena, &node);
        n = snprintf(text, sizeof text, "%s", node.verdict);
        for (uint32_t i = 0; i < node.findings.n; i++) {
                const struct status_finding *f = &node.findings.items[i];

                cr_assert(f->advice[0]);
                n += snprintf(text + n, sizeof text - (size_t)n, "; %s %s: %s", f->state, f->check,
                              f->found);
        }
        cr_assert_str_eq(text, expected);
        arena_deinit(&arena);
        arena = (struct arena){ NULL };
}

TestSuite(verdict, .init = all_is_well);

Test(verdict, ok_up_to_every_limit)
{
        waits[0].since_s = job.longest_rank_wait_s = 120;
        waits[1].since_s = job.longest_other_wait_s = 60;
        job.skipped_in_a_row = 4;
        saved.age_s = 4 * 3600;
        verdict_is("ok");
}

Test(verdict, node_that_nobody_reaches_is_an_error)
{
        peers[1] = (struct status_peer){ .node = "b", .why = "node b: h:1: connection refused" };
        verdict_is("error; error ZerodNodeDown: no node that is up reaches b: h:1: connection "
                   "refused");
}

Test(verdict, node_that_others_reach_lacks_a_link)
{
        peers[1] = (struct status_peer){ .node = "b", .reached = true, .why = "another key" };
        verdict_is("warn; warning ZerodLinkDown: others reach b, this node does not: another key");
}

Test(verdict, node_that_was_stopped_is_a_warning_and_one_that_was_drained_nothing)
{
        peers[1] = (struct status_peer){ .node = "b", .goodbye = "stopped", .why = "" };
        verdict_is("warn; warning ZerodNodeStopped: node b was stopped in order");
        all_is_well();
        peers[1] = (struct status_peer){ .node = "b", .goodbye = "drained", .why = "" };
        verdict_is("ok");
}

Test(verdict, waits_name_who_and_what)
{
        waits[0].since_s = job.longest_rank_wait_s = 121;
        verdict_is("warn; warning ZerodJobWaitsForRank: job gpt waits for rank 1 on b: push of "
                   "group 3");
        all_is_well();
        waits[1].since_s = job.longest_other_wait_s = 61;
        verdict_is("error; error ZerodJobWaitsForNode: job gpt waits for node b: to come up");
}

Test(verdict, job_without_steps_has_one_finding)
{
        job.state = "stalled";
        job.step_age_s = 200;
        verdict_is("warn; warning ZerodNoStep: job gpt makes no step, though all ranks are "
                   "attached");
        all_is_well();
        job.state = "stalled";
        job.step_age_s = 200;
        waits[0].since_s = job.longest_rank_wait_s = 121;
        verdict_is("warn; warning ZerodJobWaitsForRank: job gpt waits for rank 1 on b: push of "
                   "group 3");
}

Test(verdict, gradients_mirrors_and_checkpoints)
{
        job.skipped_in_a_row = 5;
        verdict_is("warn; warning ZerodStepsSkipped: job gpt skips its steps: gradients are not "
                   "finite");
        all_is_well();
        job.whole = false;
        verdict_is("warn; warning ZerodMirrorNotWhole: this node lacks shards or mirrors of job "
                   "gpt");
        all_is_well();
        saved.age_s = 4 * 3600 + 1;
        verdict_is("warn; warning ZerodCheckpointTooOld: the newest checkpoint of job gpt is more "
                   "than 4 hours old");
        all_is_well();
        job.version = 51;
        verdict_is("warn; warning ZerodCheckpointsStopped: job gpt has missed its last two "
                   "periodic checkpoints");
        all_is_well();
        saved = (struct status_checkpoint){ .age_s = NAN, .failed = true, .error = "disk full" };
        verdict_is("warn; warning ZerodCheckpointFailed: the newest checkpoint of job gpt failed: "
                   "disk full");
}

Test(verdict, memory)
{
        node.memory.file_system_free = 9;
        verdict_is("warn; warning ZerodStateFileSystemNearFull: less than a tenth of /s is free");
        all_is_well();
        node.memory.state_used = 10;
        verdict_is("warn; warning ZerodQuotaNearFull: states take more than nine tenths of "
                   "memory_limit");
}

Test(verdict, is_the_worst_of_all_findings)
{
        peers[1] = (struct status_peer){ .node = "b", .why = "x" };
        job.skipped_in_a_row = 5;
        report_verdict(&arena, &node);
        cr_assert_str_eq(node.verdict, "error");
        cr_assert_eq(node.findings.n, 2);
        arena_deinit(&arena);
}
