/* The jobs of this node. */
#include "daemon/face/status/status.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "daemon/job/deltas/deltas.h"
#include "daemon/step/follow/follow.h"
#include "proto/cleanup.h"

enum { STALLED_WAIT_S = 10, STALLED_STEPS = 10 };

static void report_ranks(struct arena *arena, const struct job *job, struct status_job *ret)
{
        for (uint32_t r = 0; r < job->world_size; r++) {
                struct status_rank *rank = LIST_ADD(arena, &ret->ranks);

                if (!rank)
                        return;
                rank->rank = r;
                if (job->node_of_rank[r] != RANK_ABSENT)
                        rank->node = node_name(job->x, job->node_of_rank[r]);
                rank->attached = job->ranks[r].here;
                ret->away += !rank->attached;
        }
}

static void report_wait(struct arena *arena, const struct job *job, const struct wait_line *line,
                        struct status_job *ret)
{
        struct status_wait *wait = LIST_ADD(arena, &ret->waiting);
        uint64_t now = engine_now(job->x);

        if (!wait)
                return;
        wait->who = arena_copy(arena, line->who);
        wait->what = arena_copy(arena, line->what);
        wait->since_s = now > line->since_ms ? (double)(now - line->since_ms) / 1000 : 0;
}

static bool same_text(const char *a, const char *b)
{
        return strcmp(a ? a : "", b ? b : "") == 0;
}

/* Others that cannot reach the node that is away, and ranks there, wait for that node. */
static bool is_cut_off(const struct job *job, const char *away, const struct wait_line *line)
{
        uint32_t r, node;

        if (strcmp(line->who, away) == 0 ||
            strncmp(line->what, WAIT_TO_REACH, sizeof WAIT_TO_REACH - 1) == 0)
                return true;
        if (sscanf(line->who, "rank %" SCNu32, &r) != 1 || r >= job->world_size ||
            job->ranks[r].here)
                return false;
        node = job->node_of_rank[r];
        return node == RANK_ABSENT || !node_set_has(job->x->up, node);
}

/* A line a cause.  Nodes that are away come first: the coordinator may be on one of them. */
static void report_waiting(struct arena *arena, const struct job *job, struct status_job *ret)
{
        const struct wait_lines *waits = &job->progress->waits;
        struct wait_line line;
        bool away = job_away(job, &line);

        if (away)
                report_wait(arena, job, &line, ret);
        for (uint32_t i = 0; i < waits->n; i++)
                if (!away || !is_cut_off(job, line.who, &waits->lines[i]))
                        report_wait(arena, job, &waits->lines[i], ret);
}

bool wait_is_for_rank(const struct status_wait *w)
{
        return w->who && strncmp(w->who, "rank", 4) == 0;
}

static void report_longest(struct status_job *ret)
{
        ret->longest_rank_wait_s = ret->longest_other_wait_s = NAN;
        for (uint32_t i = 0; i < ret->waiting.n; i++) {
                const struct status_wait *w = &ret->waiting.items[i];
                double *longest = wait_is_for_rank(w) ? &ret->longest_rank_wait_s
                                                      : &ret->longest_other_wait_s;

                *longest = fmax(*longest, w->since_s);
        }
}

static void report_times(struct arena *arena, const struct job *job, struct status_job *ret)
{
        for (size_t what = 0; what < WAIT_FORS; what++) {
                const struct wait_times *t = &job->progress->times[what];
                struct status_waited *waited = LIST_ADD(arena, &ret->waited);

                if (!waited)
                        return;
                waited->what = wait_names[what];
                waited->sum_s = (double)t->sum_ns / 1e9;
                for (size_t i = 0; i <= WAIT_BOUNDS; i++) {
                        waited->n += t->n[i];
                        counts_add(arena, &waited->at_most,
                                   i < WAIT_BOUNDS ? arena_text(arena, "%g", wait_bounds_s[i])
                                                   : "+Inf",
                                   t->n[i]);
                }
        }
}

static void report_gather(struct arena *arena, const struct job *job, struct status_gather *ret)
{
        struct gather_info info;

        gather_info(job, &info);
        *ret = (struct status_gather){
                .window_bytes = info.window_bytes,
                .place = info.places[0] ? arena_copy(arena, info.places) : "host",
                .slots = info.slots,
                .hits = info.hits,
                .misses = info.misses,
                .gathers = info.gathers,
                .spread = info.spread,
                .elements_received = info.elements_received,
                .forwarded = info.forwarded,
                .delta_bytes_received = info.delta_bytes_received,
        };
}

static void report_readers(struct arena *arena, const struct job *job, struct status_job *ret)
{
        struct follow_info info;

        follow_info(job, &info);
        if (info.readers || info.copies || deltas_bytes(job))
                ret->readers = arena_new(arena, sizeof *ret->readers);
        if (ret->readers)
                *ret->readers = (struct status_readers){
                        info.readers, info.copies,       info.held,
                        info.bytes,   deltas_bytes(job), info.whole ? info.version : RECORD_NULL
                };
}

static void report_stash(struct arena *arena, const struct job *job, struct status_job *ret)
{
        struct stash_info info;

        stash_info(job, &info);
        if (info.most || info.reserved)
                ret->stash = arena_new(arena, sizeof *ret->stash);
        if (ret->stash)
                *ret->stash = (struct status_stash){ info.places[0] ? arena_copy(arena, info.places)
                                                                    : "host",
                                                     info.reserved,
                                                     info.used,
                                                     info.assembled,
                                                     info.most,
                                                     info.received };
}

static void state_add(const struct state *state, struct plane plane, uint64_t *bytes,
                      uint64_t *on_gpu)
{
        uint64_t n = state ? plan_plane_bytes(state->plan, plane) : 0;

        *bytes += n;
        if (state && !place_is_host(state->id.place))
                *on_gpu += n;
}

/* Over all replicas here, those of earlier owner lists included. */
static uint64_t replicas_bytes(const struct job *job, struct plane plane, uint64_t *on_gpu)
{
        uint64_t bytes = 0;

        for_replicas (job, h)
                state_add(h->state, plane, &bytes, on_gpu);
        list_for_each ((struct list *)&job->old_replicas, item) {
                state_add(CONTAINER_OF(item, struct replica, link)->state, plane, &bytes, on_gpu);
        }
        return bytes;
}

/* Counts parameters, gradients, master weights and moments, as if nothing were frozen. */
static void report_formula(const struct job *job, struct status_job *ret)
{
        const layout *l = job->layout;
        uint64_t bytes = 0;

        for (uint32_t g = 0; g < l->n_groups; g++) {
                uint64_t n = l->groups[g].elements;
                struct range all = { 0, n };
                uint64_t frozen = n - partition_trainable(l, g, all);

                bytes +=
                        n * 2 * sizeof(uint16_t) + format_bytes(optimizer_master(&l->groups[g]), n);
                for (uint32_t i = 0; i < optimizer_group_moments(l, g); i++)
                        bytes += optimizer_moment_bytes(l, g, all, i) + frozen * sizeof(float);
        }
        ret->zero_formula.bytes_per_parameter = bytes / (l->elements ? l->elements : 1);
        ret->zero_formula.stage3_bytes = bytes / job->placement.n_owners;
}

static void report_plane(struct arena *arena, const struct job *job, struct plane plane,
                         struct status_job *ret)
{
        const char *name = optimizer_plane_name(job->layout, plane);

        if (name)
                counts_add(arena, &ret->planes, name,
                           replicas_bytes(job, plane, &ret->planes_on_gpu));
}

static void report_planes(struct arena *arena, const struct job *job, struct status_job *ret)
{
        for (uint32_t k = 0; k < UPDATE_PLANES; k++)
                report_plane(arena, job, plane_updated(k), ret);
        report_plane(arena, job, plane_grad, ret);
        report_plane(arena, job, plane_serve, ret);
        report_plane(arena, job, plane_old, ret);
}

static void report_origin(struct arena *arena, const struct rank *rank, struct status_job *ret)
{
        const char *slurm_job = rank->needs.slurm_job[0] ? rank->needs.slurm_job : NULL;
        const char *pod = rank->needs.pod[0] ? rank->needs.pod : NULL;
        struct status_origin *origin = NULL;

        if (!slurm_job && !pod)
                return;
        for (uint32_t i = 0; i < ret->origins.n && !origin; i++)
                if (same_text(ret->origins.items[i].slurm_job, slurm_job) &&
                    same_text(ret->origins.items[i].pod, pod))
                        origin = &ret->origins.items[i];
        if (!origin) {
                origin = LIST_ADD(arena, &ret->origins);
                if (!origin)
                        return;
                origin->slurm_job = arena_copy(arena, slurm_job);
                origin->pod = arena_copy(arena, pod);
        }
        origin->ranks++;
}

static void report_sessions(struct arena *arena, const struct job *job, struct status_job *ret)
{
        for (uint32_t r = 0; r < job->world_size; r++) {
                const struct rank *rank = job->ranks[r].session;
                struct status_session *s = rank ? LIST_ADD(arena, &ret->sessions) : NULL;

                if (!s)
                        continue;
                s->rank = r;
                s->pid = rank->pid;
                s->held = rank->holds.n;
                s->no_events = rank->no_events;
                s->stash_unpinned = rank->stash_unpinned;
                s->push_window = rank->window->segment.bytes + rank->window->apart.bytes;
                s->push_slots = rank->window->slots->n;
                ret->push_windows += s->push_window;
                report_origin(arena, rank, ret);
        }
}

/*
 * All ranks are attached, and no step ends.  A step takes as long as it takes: it counts as
 * standing after STALLED_STEPS usual ones, or where none is known, when an alert would name who is
 * waited for.
 */
static bool is_stalled(const struct job *job, const struct status_job *ret)
{
        double rate = job_steps_per_second(job);
        double least_s = ret->waiting.n ? STALLED_WAIT_S : STATUS_NO_STEP_S;
        struct wait_line line;

        if (job_away(job, &line) || ret->longest_other_wait_s > STATUS_NODE_WAIT_S)
                return true;
        if (rate <= 0)
                return ret->longest_rank_wait_s > STATUS_RANK_WAIT_S;
        return job_step_age(job) > fmax(least_s, STALLED_STEPS / rate);
}

static const char *state_name(const struct job *job, const struct status_job *ret)
{
        if (ret->move)
                return "moving";
        if (job->opening)
                return "opening";
        if (ret->away == job->world_size)
                return "idle";
        if (!job->started || ret->away)
                return "incomplete";
        return is_stalled(job, ret) ? "stalled" : "running";
}

void report_move(const struct move *m, struct status_move *ret)
{
        *ret = (struct status_move){ m->from, m->to, m->bytes, m->total };
}

void report_owners(struct arena *arena, const struct engine *x, const struct placement *placement,
                   struct record_texts *ret)
{
        for (uint32_t o = 0; o < placement->n_owners; o++)
                texts_add(arena, ret, node_name(x, placement->node[o]));
}

/* After the waits are reported. */
static void report_state(struct arena *arena, const struct job *job, struct status_job *ret)
{
        struct move move;

        if (job_moves(job, &move))
                ret->move = arena_new(arena, sizeof *ret->move);
        if (ret->move)
                report_move(&move, ret->move);
        ret->state = state_name(job, ret);
        if (strcmp(ret->state, "running") == 0)
                ret->steps_per_s = job_steps_per_second(job);
}

/* This process may not have seen the last step. */
static void report_last_step(const struct job *job, struct status_job *ret)
{
        time_t last = 0, now = time(NULL);

        for_replicas (job, h)
                if (h->state && (time_t)state_decided_s(h->state) > last)
                        last = state_decided_s(h->state);
        ret->last_step_unix_s = last ? (uint64_t)last : RECORD_NULL;
        ret->step_age_s = job_step_age(job);
        if (isnan(ret->step_age_s) && last)
                ret->step_age_s = now > last ? (double)(now - last) : 0;
}

/* In the order of the groups. */
static void report_formats(struct arena *arena, const layout *l, struct record_texts *ret)
{
        struct layout_formats formats[LAYOUT_FORMATS_MAX];
        uint32_t n = layout_formats(l, formats);

        for (uint32_t i = 0; i < n; i++)
                texts_add(arena, ret,
                          arena_text(arena, "%s,%s", formats[i].state, formats[i].master));
}

static void report_job(struct arena *arena, const struct job *job, struct status_job *ret)
{
        ret->job = arena_copy(arena, job->name);
        ret->uid = job->uid;
        ret->coordinator = node_name(job->x, job->coordinator);
        ret->world_size = job->world_size;
        report_ranks(arena, job, ret);
        ret->version = job->version;
        ret->attempt = job->attempt;
        ret->grad_norm = job->last.grad_norm;
        ret->loss_scale = job->last.loss_scale;
        ret->skipped = job->last.n_skipped;
        ret->skipped_in_a_row = job->progress->overflows;
        report_last_step(job, ret);
        ret->aborts = job->progress->aborts;
        ret->whole = replicas_whole(job);
        ret->parameters = job->layout->elements;
        ret->accumulate = job->accumulate == ZERO_ACCUMULATE_WIRE ? "wire" : "fp32";
        ret->groups = job->layout->n_groups;
        report_formats(arena, job->layout, &ret->formats);
        report_owners(arena, job->x, &job->placement, &ret->owners);
        ret->checkpoint = report_checkpoint(arena, job->x, job->name);
        ret->schedule = report_schedule(arena, job->x, job->name);
        if (ret->schedule)
                ret->schedule->periodic_directory = NULL;
        report_waiting(arena, job, ret);
        report_longest(ret);
        report_state(arena, job, ret);
        report_times(arena, job, ret);
        report_gather(arena, job, &ret->gather);
        report_readers(arena, job, ret);
        report_stash(arena, job, ret);
        ret->reduce.elements_sent = reduce_elements_sent(job->reduce);
        ret->reduce.deferred = reduce_deferred(job->reduce);
        report_planes(arena, job, ret);
        report_formula(job, ret);
        report_sessions(arena, job, ret);
}

void report_jobs(struct arena *arena, const struct engine *x, struct status_jobs *ret)
{
        *ret = (struct status_jobs){ .jobs = { 0 } };
        list_for_each ((struct list *)&x->jobs, item) {
                struct status_job *job = LIST_ADD(arena, &ret->jobs);

                if (job)
                        report_job(arena, CONTAINER_OF(item, struct job, link), job);
        }
}
