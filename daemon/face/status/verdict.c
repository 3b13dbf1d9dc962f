/*
 * What is wrong with this node, its peers and its jobs.
 *
 * A row is an alert of deploy/prometheus/zerod.rules.yml: its name, its severity (critical: error)
 * and its condition.  An alert lets some time pass before it calls a person; a verdict tells what
 * is now.  Alerts that need the past or all nodes' versions have no row.
 */
#include "daemon/face/status/status.h"

#include <math.h>
#include <string.h>
#include <time.h>

enum { CHECKPOINT_S = 4 * 3600, SKIPS = 5, LATE_CHECKPOINTS = 2 };

/* ---- the conditions: what is found; NULL: nothing ---- */

/* Without the name before it. */
static const char *why_down(const struct status_peer *p)
{
        size_t n = strlen(p->node);

        return p->why && strncmp(p->why, "node ", 5) == 0 && strncmp(p->why + 5, p->node, n) == 0 &&
                               strncmp(p->why + 5 + n, ": ", 2) == 0
                       ? p->why + 7 + n
                       : p->why;
}

static const char *node_down(struct arena *arena, const struct status_peer *p)
{
        return p->self || p->up || p->reached || p->goodbye
                       ? NULL
                       : arena_text(arena, "no node that is up reaches %s: %s", p->node,
                                    why_down(p));
}

static const char *node_stopped(struct arena *arena, const struct status_peer *p)
{
        return !p->self && !p->up && p->goodbye && strcmp(p->goodbye, "stopped") == 0
                       ? arena_text(arena, "node %s was stopped in order", p->node)
                       : NULL;
}

static const char *link_down(struct arena *arena, const struct status_peer *p)
{
        return p->self || p->up || !p->reached
                       ? NULL
                       : arena_text(arena, "others reach %s, this node does not: %s", p->node,
                                    why_down(p));
}

/* The longest wait for a rank, or for anybody else. */
static const char *waits_for(struct arena *arena, const struct status_job *j, bool rank,
                             double longer_s)
{
        const struct status_wait *longest = NULL;

        for (uint32_t i = 0; i < j->waiting.n; i++) {
                const struct status_wait *w = &j->waiting.items[i];

                if (wait_is_for_rank(w) == rank && w->since_s > longer_s &&
                    !(longest && longest->since_s >= w->since_s))
                        longest = w;
        }
        return longest ? arena_text(arena, "job %s waits for %s: %s", j->job, longest->who,
                                    longest->what)
                       : NULL;
}

static const char *waits_for_rank(struct arena *arena, const struct status_job *j)
{
        return waits_for(arena, j, true, STATUS_RANK_WAIT_S);
}

static const char *waits_for_node(struct arena *arena, const struct status_job *j)
{
        return waits_for(arena, j, false, STATUS_NODE_WAIT_S);
}

/* A job that waits for somebody longer has that finding. */
static const char *no_step(struct arena *arena, const struct status_job *j)
{
        return strcmp(j->state, "stalled") == 0 && j->step_age_s > STATUS_NO_STEP_S &&
                               !(j->longest_rank_wait_s > STATUS_RANK_WAIT_S) &&
                               !(j->longest_other_wait_s > STATUS_NODE_WAIT_S)
                       ? arena_text(arena, "job %s makes no step, though all ranks are attached",
                                    j->job)
                       : NULL;
}

static const char *steps_skipped(struct arena *arena, const struct status_job *j)
{
        return j->skipped_in_a_row >= SKIPS
                       ? arena_text(arena, "job %s skips its steps: gradients are not finite",
                                    j->job)
                       : NULL;
}

static const char *mirror_not_whole(struct arena *arena, const struct status_job *j)
{
        return j->whole ? NULL
                        : arena_text(arena, "this node lacks shards or mirrors of job %s%s", j->job,
                                     j->move ? ", which are on their way" : "");
}

static const char *checkpoint_too_old(struct arena *arena, const struct status_job *j)
{
        double age_s = j->checkpoint ? j->checkpoint->age_s : NAN;

        if (isnan(age_s) && j->schedule)
                age_s = difftime(time(NULL), (time_t)j->schedule->last_unix_s);
        return age_s > CHECKPOINT_S
                       ? arena_text(arena,
                                    "the newest checkpoint of job %s is more than %d hours old",
                                    j->job, CHECKPOINT_S / 3600)
                       : NULL;
}

static const char *checkpoints_stopped(struct arena *arena, const struct status_job *j)
{
        const struct status_schedule *s = j->schedule;

        return s && s->every && j->version > s->last_version &&
                               (j->version - s->last_version - 1) / s->every >= LATE_CHECKPOINTS
                       ? arena_text(arena, "job %s has missed its last two periodic checkpoints",
                                    j->job)
                       : NULL;
}

static const char *checkpoint_failed(struct arena *arena, const struct status_job *j)
{
        return j->checkpoint && j->checkpoint->failed
                       ? arena_text(arena, "the newest checkpoint of job %s failed: %s", j->job,
                                    j->checkpoint->error ? j->checkpoint->error : "")
                       : NULL;
}

static const char *file_system_full(struct arena *arena, const struct status_node *n)
{
        const struct status_memory *m = &n->memory;

        return m->file_system != RECORD_NULL &&
                               (double)m->file_system_free < 0.1 * (double)m->file_system
                       ? arena_text(arena, "less than a tenth of %s is free", n->state_dir)
                       : NULL;
}

static const char *quota_full(struct arena *arena, const struct status_node *n)
{
        const struct status_memory *m = &n->memory;

        return m->state_quota && (double)m->state_used > 0.9 * (double)m->state_quota
                       ? arena_text(arena, "states take more than nine tenths of memory_limit")
                       : NULL;
}

/* ---- the table ---- */

static const struct alert {
        const char *name, *state;
        const char *(*of_node)(struct arena *arena, const struct status_node *n);
        const char *(*of_peer)(struct arena *arena, const struct status_peer *p);
        const char *(*of_job)(struct arena *arena, const struct status_job *j);
        const char *advice;
} alerts[] = {
        { "ZerodNodeDown", "error", .of_peer = node_down,
          .advice = "start zerod there; if the machine is lost: zeroctl remove-node, or takeover" },
        { "ZerodNodeStopped", "warning", .of_peer = node_stopped,
          .advice = "start zerod there; before it stays off: zeroctl drain" },
        { "ZerodLinkDown", "warning", .of_peer = link_down,
          .advice = "look at firewalls, and at the key files of both nodes" },
        { "ZerodJobWaitsForRank", "warning", .of_job = waits_for_rank,
          .advice = "look at that process and its log" },
        { "ZerodJobWaitsForNode", "error", .of_job = waits_for_node,
          .advice = "the line says what that node, disk or person has to do" },
        { "ZerodNoStep", "warning", .of_job = no_step,
          .advice = "zeroctl top shows what takes the time; look at the ranks' own logs" },
        { "ZerodStepsSkipped", "warning", .of_job = steps_skipped,
          .advice = "look at data and learning rate; restore a checkpoint from before" },
        { "ZerodMirrorNotWhole", "warning", .of_job = mirror_not_whole,
          .advice = "zeroctl members shows moves; this node's log says what is missing" },
        { "ZerodCheckpointTooOld", "warning", .of_job = checkpoint_too_old,
          .advice = "zeroctl checkpoint JOB DIR --every N" },
        { "ZerodCheckpointsStopped", "warning", .of_job = checkpoints_stopped,
          .advice = "the coordinator's log says why; order them again with another DIR" },
        { "ZerodCheckpointFailed", "warning", .of_job = checkpoint_failed,
          .advice = "the one before is whole; mend the cause, and order another one" },
        { "ZerodStateFileSystemNearFull", "warning", .of_node = file_system_full,
          .advice = "zeroctl drop of jobs that are over, or more room there" },
        { "ZerodQuotaNearFull", "warning", .of_node = quota_full,
          .advice = "zeroctl drop of jobs that are over, or a higher memory_limit" },
};

static void find(struct arena *arena, const struct alert *a, const char *found,
                 struct status_node *ret)
{
        struct status_finding *f = found ? LIST_ADD(arena, &ret->findings) : NULL;

        if (!f)
                return;
        *f = (struct status_finding){ a->name, a->state, found, a->advice };
        if (strcmp(ret->verdict, "error") != 0)
                ret->verdict = strcmp(a->state, "error") == 0 ? "error" : "warn";
}

void report_verdict(struct arena *arena, struct status_node *ret)
{
        ret->verdict = "ok";
        for (size_t i = 0; i < sizeof alerts / sizeof alerts[0]; i++) {
                const struct alert *a = &alerts[i];

                if (a->of_node)
                        find(arena, a, a->of_node(arena, ret), ret);
                for (uint32_t p = 0; a->of_peer && p < ret->peers.n; p++)
                        find(arena, a, a->of_peer(arena, &ret->peers.items[p]), ret);
                for (uint32_t j = 0; a->of_job && j < ret->jobs.n; j++)
                        find(arena, a, a->of_job(arena, &ret->jobs.items[j]), ret);
        }
}
