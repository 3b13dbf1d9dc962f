/*
 * Updates this owner's chunks after a decision.
 *
 * Groups are updated in the order in which ranks used them in the step before, so that the next
 * forward pass waits for its first group alone.  A group whose old bytes somebody still reads
 * (pins) is passed over until the last reader has gone.  Each worker commits unit by unit
 * (store/undo.h).  A shard on a GPU is one unit, and is updated by launches (launch.h), also from
 * contributions whose sum was deferred.  Before a group with matrices in host memory, their
 * directions are computed (directions.h).  A group is at the new version as soon as its last unit
 * is; the record is finished after the last group.
 *
 * Eager groups are updated ahead of the decision, each as soon as its sum is complete, if ranks
 * have said how the step will end.  Their old values are kept, and they are served as before.  When
 * the step is committed they only have to be served.  When it is skipped or void, or somebody wants
 * to read the planes meanwhile, the old values are put back.  That is safe at any time: an update
 * that finds the old values starts from the recorded gradient.
 */
#include "daemon/step/update/coding.h"
#include "daemon/step/update/directions.h"
#include "daemon/step/update/launch.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "daemon/floor/base/crash.h"
#include "daemon/job/core/progress.h"
#include "daemon/floor/base/log.h"
#include "proto/cleanup.h"
#include "proto/sure.h"

enum { TASK_CHUNKS = 512 };
enum { IDLE_STEPS = 8 }; /* steps without a gradient of a group before the warning */
enum { LOOK = 64 };      /* groups that wait for room for directions, before others wait for them */
enum group_phase { GROUP_FINISHED, GROUP_PENDING, GROUP_RUNNING };
/* What is done with chunks.  LEAD: updates before the decision, of the groups that are complete. */
enum update_aim { AIM_NONE, AIM_LEAD, AIM_CARRY_OUT, AIM_UNDO };

struct update_group {
        enum group_phase phase;
        bool ahead;                     /* chunks are, or may be, ahead of the record */
        bool again;                     /* the aim has changed: begins anew after its tasks */
        bool saved;                     /* shard_observer.update_begin without its end */
        bool starved;                   /* found no memory: begins again at a tick */
        uint32_t next_chunk, in_flight; /* tasks */
        uint64_t save_from;             /* shard_observer.update_begin */
        struct offer *deferred;         /* NULL: the sum is in the state */
        bool lost;                      /* what a chunk served is not known */
        struct coding *coding;          /* of the last update; NULL: none runs */
        struct launch_room *room;       /* NULL: has no directions, or not yet */
        struct directions *directions;  /* NULL: not begun, or not needed */
};

struct update {
        enum update_aim aim;
        uint64_t version, attempt;  /* to reach; the attempt that was decided */
        struct step_params *params; /* how ranks will end lead_attempt; NULL: not told */
        uint64_t lead_attempt;
        uint8_t *present;               /* [tensor]: has a gradient; of groups that are ahead */
        struct update_scalars *scalars; /* [tensor] */
        struct update_group *groups;    /* [group] */
        uint32_t unfinished, in_flight; /* groups; tasks */
        bool told;                      /* the log knows that memory is lacking */
        struct launch_room rooms[PLAN_DIRECTED]; /* of groups that have directions */
        uint64_t begun_ns;                       /* when the decision began to be carried out */
        struct was *was;                         /* NULL: no deltas are coded */
        uint64_t puts; /* state->puts when the last decision was carried out */
        bool begun;    /* by a decision of now; else it is taken up */
};

struct update_task {
        struct offload_task task;
        struct replica *replica;
        enum update_aim aim;
        uint32_t group, first, end; /* chunks */
        struct unit_update update;
        uint64_t save_from;
        struct was *was; /* NULL: the group's delta is not coded */
        bool lost, starved;
};

static int update_new(struct replica *h)
{
        struct update *u = calloc(1, sizeof *u);

        if (!u)
                return -ENOMEM;
        h->update = u;
        u->scalars = calloc(h->job->layout->n_tensors + 1, sizeof *u->scalars);
        u->present = calloc(h->job->layout->n_tensors + 1, 1);
        u->groups = calloc(h->job->layout->n_groups, sizeof *u->groups);
        return u->scalars && u->present && u->groups ? 0 : -ENOMEM;
}

static void update_free(struct replica *h)
{
        struct update *u = h->update;

        if (!u)
                return;
        was_free(&u->was);
        for (uint32_t i = 0; i < PLAN_DIRECTED; i++)
                place_free(u->rooms[i].memory);
        for (uint32_t g = 0; u->groups && g < h->job->layout->n_groups; g++)
                directions_free(u->groups[g].directions);
        free(u->scalars);
        free(u->present);
        free(u->params);
        free(u->groups);
        free(u);
}

/* ---- who saves what changes -------------------------------------------------------- */

static uint64_t save_begin(struct replica *h, uint32_t group)
{
        uint64_t from = UINT64_MAX;

        for_observers (h->job->x, o)
                if (o->update_begin && from == UINT64_MAX)
                        from = o->update_begin(h, group);
        return from;
}

static void save_chunk(const struct replica *h, uint32_t chunk, struct undo_values old,
                       uint64_t from)
{
        for_observers (h->job->x, o)
                if (o->update_chunk)
                        o->update_chunk(h, chunk, old, from);
}

static void save_end(struct replica *h)
{
        for_observers (h->job->x, o)
                if (o->update_end)
                        o->update_end(h);
}

/* ---- units, on an offload thread --------------------------------------------------- */

static bool unit_present(const struct plan *plan, uint32_t unit, const uint8_t *present)
{
        const struct plan_chunk c = plan_chunk(plan, unit);
        const struct plan_shard *shard = &plan->shards[c.group];
        uint64_t end = shard->unit == UNIT_SHARD ? UINT64_MAX : c.in_group + c.n;

        for (uint32_t i = c.first_segment;
             i < shard->first_segment + shard->n_segments && plan->segments[i].in_group < end; i++)
                if (present[plan->segments[i].tensor])
                        return true;
        return false;
}

/* Returns the old values, of a chunk. */
static struct undo_values unit_update(struct update_task *t, uint32_t unit, uint32_t worker)
{
        const struct replica *h = t->replica;
        const struct update_group *g = &h->update->groups[t->group];

        if (plan_unit(h->state->plan, unit) == UNIT_CHUNK)
                return undo_update(h->state, worker, unit, &t->update, h->job->x->ops);
        t->starved = launch_shard(h, &t->update,
                                  g->deferred ? deferred_node_gradient(g->deferred) : NULL,
                                  t->group, g->room) != 0;
        return (struct undo_values){ .planes = { NULL } };
}

/*
 * Copies what a chunk serves, before that changes.  A chunk that had reached the version before was
 * updated ahead; or a crash came in between, and nobody knows what it serves.
 */
static void unit_was(struct update_task *t, uint32_t unit, bool present, bool reached,
                     struct undo_values old)
{
        bool eager = t->replica->state->plan->shards[t->group].old != UINT64_MAX;

        t->lost = t->lost || (reached && !eager);
        was_copy(t->was, t->replica, unit, reached || !present ? NULL : &old);
}

/*
 * Brings a unit to the task's version.  A unit without a gradient stays as it is.  A checkpoint
 * that saves the group gets all of it once: what goes back was saved when it went ahead.
 */
static void unit_run(struct update_task *t, uint32_t unit, uint32_t worker)
{
        const struct replica *h = t->replica;
        struct state *state = h->state;
        bool carries = t->aim == AIM_CARRY_OUT, saves = t->save_from != UINT64_MAX;
        bool reached = undo_reached(state, unit, t->update.version);
        bool present = unit_present(state->plan, unit, t->update.present);
        struct undo_values old = { .planes = { NULL } };

        if (t->aim == AIM_UNDO && !reached) {
                undo_back(state, worker, unit, t->update.version);
                return;
        }
        if (!carries || !reached) {
                if (present && t->aim != AIM_UNDO)
                        old = unit_update(t, unit, worker);
                else if (saves)
                        old = undo_values(state, worker, unit);
                if (t->starved)
                        return;
                if (carries && !present)
                        undo_done(state, unit, t->update.version);
                if (carries)
                        crash_point(CRASH_UPDATE_CHUNK);
                if (saves)
                        save_chunk(h, unit, old, t->save_from);
        }
        if (t->was)
                unit_was(t, unit, present, reached, old);
        /* a launch serves what it updates */
        if (carries && present && (reached || plan_unit(state->plan, unit) == UNIT_CHUNK))
                state_serve_unit(state, h->job->layout, unit, h->job->x->ops);
}

static void update_run(struct offload_task *task, uint32_t worker)
{
        struct update_task *t = CONTAINER_OF(task, struct update_task, task);
        const struct plan_shard *shard = &t->replica->state->plan->shards[t->group];
        uint32_t chunks = shard->unit == UNIT_SHARD ? shard->n_chunks : 1;

        for (uint32_t unit = t->first; unit < t->end; unit += chunks)
                unit_run(t, unit, worker);
}

/* ---- the order of groups ---------------------------------------------------------- */

static void update_tell(struct replica *h)
{
        for_observers (h->job->x, o)
                if (o->updated)
                        o->updated(h);
}

static void done_tell(struct replica *h)
{
        Zero__LinkMessage m = job_message(h->job->name);
        Zero__Done done = ZERO__DONE__INIT;

        done.attempt = h->update->attempt;
        done.owner = h->owner;
        done.copy = h->copy;
        m.body_case = ZERO__LINK_MESSAGE__BODY_DONE;
        m.done = &done;
        fabric_send(h->job->x->fabric, h->job->coordinator, &m);
}

/* Nothing is ahead of the record. */
static void update_rest(struct replica *h)
{
        h->update->aim = AIM_NONE;
        h->updating = h->ahead = false;
}

static void lead_all(struct replica *h);

/* The old values are back, and no step was decided. */
static void undo_finish(struct replica *h)
{
        update_rest(h);
        update_tell(h);
        accumulator_updated(h);
        shard_settled(h->job);
        lead_all(h);
}

static void update_finish(struct replica *h)
{
        const struct owner_event e = { .kind = OWNER_UPDATED };
        struct owner_actions actions;
        struct owner o;

        job_waited(h->job, WAIT_update, h->owner, NO_GROUP, h->update->begun_ns);
        update_rest(h);
        owner_of_replica(h, &o);
        owner_step(&o, &e, &actions);
        for (uint32_t i = 0; i < actions.n; i++) {
                if (actions.items[i].kind == OWNER_TELL_DONE) {
                        done_tell(h);
                        continue;
                }
                crash_point(CRASH_UPDATE_FINISH); /* OWNER_FINISH */
                state_finish(h->state);
                assert(record_stands(h, &actions.items[i].record));
                crash_point(CRASH_UPDATE_DONE);
        }
        update_tell(h);
        if (!o.replicas[0].in_force)
                return;
        accumulator_updated(h);
        shard_settled(h->job);
        lead_all(h);
}

/* What there was to do for all groups is done. */
static void all_finish(struct replica *h)
{
        if (h->state->record->phase == ATTEMPT_DECIDED)
                update_finish(h);
        else
                undo_finish(h);
}

static void group_finish(struct replica *h, uint32_t group)
{
        static const char *const has[] = { [AIM_LEAD] = "has updated ahead",
                                           [AIM_CARRY_OUT] = "has updated",
                                           [AIM_UNDO] = "has put back" };
        struct update *u = h->update;
        struct update_group *g = &u->groups[group];
        enum update_aim aim = u->aim;
        bool last = aim != AIM_LEAD && --u->unfinished == 0, saved = g->saved;

        log_debug("job %s: owner %u %s group '%s'", h->job->name, h->owner, has[aim],
                  h->job->layout->groups[group].name);
        g->phase = GROUP_FINISHED;
        g->ahead = aim == AIM_LEAD;
        g->saved = false;
        h->unread[group] = false;
        deferred_release(STEAL(g->deferred));
        if (g->room)
                STEAL(g->room)->taken = false;
        directions_free(STEAL(g->directions));
        if (aim == AIM_CARRY_OUT && was_has(u->was, h, group) && !g->lost)
                coding_start(h, u->was, group, u->version, &g->coding);
        if (aim == AIM_CARRY_OUT)
                shard_ready(h, group, u->version);
        if (last)
                all_finish(h);
        else
                accumulator_advance(h, group);
        if (saved)
                save_end(h);
}

static void update_advance(struct replica *h);

/* The aim changed while tasks of the group ran: what they read may be overwritten now. */
static void group_again(struct replica *h, uint32_t group)
{
        struct update_group *g = &h->update->groups[group];

        g->again = false;
        g->phase = GROUP_PENDING;
        g->next_chunk = h->state->plan->shards[group].first_chunk;
        if (h->update->aim != AIM_UNDO)
                return;
        h->unread[group] = false;
        accumulator_advance(h, group);
}

static void update_done(struct offload_task *task)
{
        struct update_task *t = CONTAINER_OF(task, struct update_task, task);
        struct replica *h = t->replica;
        struct job *job = h->job;
        struct update_group *g = &h->update->groups[t->group];
        uint32_t group = t->group;

        g->lost = g->lost || t->lost;
        if (t->starved) {
                g->starved = true;
                g->next_chunk = t->first;
        }
        free(t);
        h->update->in_flight--;
        g->in_flight--;
        if (g->in_flight == 0 && g->again)
                group_again(h, group);
        else if (g->in_flight == 0 &&
                 g->next_chunk == h->state->plan->shards[group].first_chunk +
                                          h->state->plan->shards[group].n_chunks)
                group_finish(h, group);
        update_advance(h);
        job_unref(job);
}

static void direction_done(struct replica *h)
{
        h->update->in_flight--;
        update_advance(h);
}

/* NULL: all are taken. */
static struct launch_room *room_find(struct update *u)
{
        for (uint32_t i = 0; i < PLAN_DIRECTED; i++)
                if (!u->rooms[i].taken)
                        return &u->rooms[i];
        return NULL;
}

static void directions_lack(struct replica *h, uint32_t group)
{
        if (!h->update->told)
                log_warning_for(h->job->uid,
                                "job %s: its update waits for %llu bytes of memory, for matrices "
                                "of group '%s': let the node have them; the update then goes on",
                                h->job->name, (unsigned long long)h->state->plan->update_bytes,
                                h->job->layout->groups[group].name);
        h->update->told = true;
}

/*
 * Submits a task that computes directions of a group; false: none.  Sets *ret if the group has all
 * its directions, or needs none.
 */
static bool group_direct(struct replica *h, uint32_t group, bool *ret)
{
        struct update *u = h->update;
        struct update_group *g = &u->groups[group];
        const struct plan_shard *shard = &h->state->plan->shards[group];

        *ret = u->aim != AIM_CARRY_OUT || !shard->matrices;
        if (*ret || h->job->dead) /* who opens the state computes them again */
                return false;
        if (!g->room) {
                struct launch_room *room = h->pins[group] ? NULL : room_find(u);

                if (!room)
                        return false;
                if (shard->unit == UNIT_CHUNK && directions_new(h, group, u->version, u->scalars,
                                                                direction_done, &g->directions)) {
                        directions_lack(h, group);
                        return false;
                }
                g->room = room;
                room->taken = true;
        }
        *ret = shard->unit == UNIT_SHARD; /* a launch computes them */
        if (*ret)
                return false;
        if (directions_submit(g->directions)) {
                u->in_flight++;
                return true;
        }
        if (directions_starve(g->directions))
                directions_lack(h, group);
        *ret = directions_values(g->directions);
        return false;
}

static bool group_submit(struct replica *h, uint32_t group)
{
        struct update_group *g = &h->update->groups[group];
        const struct plan_shard *shard = &h->state->plan->shards[group];
        uint32_t end = shard->first_chunk + shard->n_chunks;
        uint32_t most = shard->unit == UNIT_SHARD ? shard->n_chunks : TASK_CHUNKS;
        const struct update *u = h->update;
        bool leads = u->aim == AIM_LEAD, directed;
        struct update_task *t;

        if (g->phase == GROUP_FINISHED || g->again || g->starved || g->next_chunk == end)
                return false;
        /* who has waited for the delta may pin the group now, so the caller looks again */
        if (g->coding && u->aim == AIM_CARRY_OUT)
                return coding_stop(&g->coding);
        if (group_direct(h, group, &directed))
                return true;
        if (!directed || (g->phase == GROUP_PENDING && h->pins[group]))
                return false;
        t = sure_realloc(NULL, sizeof *t); /* the step is decided */
        if (g->phase == GROUP_PENDING && !g->saved)
                g->save_from = g->ahead ? UINT64_MAX : save_begin(h, group);
        g->saved = g->save_from != UINT64_MAX;
        if (leads)
                g->ahead = true;
        h->changing[group] = u->aim == AIM_CARRY_OUT; /* what is served is as before until then */
        *t = (struct update_task){
                .task = { .run = update_run, .done = update_done },
                .replica = h,
                .aim = u->aim,
                .update = { .version = u->version,
                            .ahead = leads,
                            .present = leads ? u->present : h->state->present,
                            .scalars = u->scalars,
                            .layout = h->job->layout,
                            .directions = g->directions ? directions_values(g->directions) : NULL },
                .group = group,
                .first = g->next_chunk,
                .end = end - g->next_chunk > most ? g->next_chunk + most : end,
                .save_from = g->save_from,
                .was = u->aim == AIM_CARRY_OUT && was_has(u->was, h, group) ? u->was : NULL
        };
        g->phase = GROUP_RUNNING;
        g->next_chunk = t->end;
        g->in_flight++;
        h->update->in_flight++;
        job_ref(h->job);
        job_compute(h->job, OFFLOAD_STEP, &t->task);
        return true;
}

/* There may be as many as groups, and a look at all of them after each task would take too long. */
static bool waits_for_room(const struct replica *h, uint32_t group)
{
        const struct update_group *g = &h->update->groups[group];

        return g->phase == GROUP_PENDING && !g->room && h->update->aim == AIM_CARRY_OUT &&
               h->state->plan->shards[group].matrices;
}

/* Keeps the workers busy, but no more than that, so that gathers get their turn. */
static void update_advance(struct replica *h)
{
        struct update *u = h->update;
        uint32_t limit = offload_workers(h->job->x->offload) + 1, n = h->job->layout->n_groups;

        if (u->aim == AIM_NONE)
                return;
        for (uint32_t i = 0, waiting = 0; u->in_flight < limit && i < n && waiting < LOOK;)
                if (!group_submit(h, h->order[i]))
                        waiting += waits_for_room(h, h->order[i++]);
}

/* ---- the decision -------------------------------------------------------------------- */

/* After a crash the record alone gives them, so the same update has the same bits. */
static void update_scalars(struct replica *h, const struct hyper_set *sets, double grad_scale,
                           uint32_t world_size)
{
        const struct state *state = h->state;

        for (uint32_t i = 0; i < state->plan->n_segments; i++) {
                const struct plan_segment *s = &state->plan->segments[i];
                double divisor =
                        layout_group_divisor(&h->job->layout->groups[s->group], world_size);
                uint64_t set = state->tensor_set[s->tensor];

                if (s->moment == UINT64_MAX)
                        continue;
                h->update->scalars[s->tensor] =
                        hyper_scalars(&sets[set], state->plan->shards[s->group].ema,
                                      state->plan->runs[s->run].formats[0] != FORMAT_FP32,
                                      state->tensor_step[s->tensor] + 1, grad_scale / divisor);
        }
}

/* Tasks of the last aim may still run: their groups begin anew when these have ended. */
static void aim_at(struct replica *h, enum update_aim aim, uint64_t version, bool all)
{
        struct update *u = h->update;

        free(STEAL(u->params)); /* nothing more is updated ahead in this attempt */
        u->aim = aim;
        u->version = version;
        u->unfinished = 1; /* until all groups have been looked at */
        u->told = false;
        h->updating = true;
        for (uint32_t i = 0; i < h->job->layout->n_groups; i++) {
                struct update_group *g = &u->groups[i];
                const struct plan_shard *shard = &h->state->plan->shards[i];
                bool work = g->ahead || (all && shard->n_chunks > 0);

                g->again = g->in_flight > 0;
                g->lost = false;
                g->next_chunk = shard->first_chunk;
                g->phase = !work ? GROUP_FINISHED : g->again ? GROUP_RUNNING : GROUP_PENDING;
                h->unread[i] = g->again || (work && aim == AIM_CARRY_OUT);
                u->unfinished += work;
        }
}

static void aim_begin(struct replica *h)
{
        update_advance(h);
        if (--h->update->unfinished == 0)
                all_finish(h);
}

void update_undo(struct replica *h)
{
        if (!h->ahead || h->updating)
                return;
        aim_at(h, AIM_UNDO, h->state->record->version, false);
        aim_begin(h);
}

/*
 * Whether somebody may want what the update changes.  An update that is taken up may have served
 * its values before.  A put has changed what is served without a delta: who has the values of
 * before must not get to the next version by one.
 */
static bool update_coded(struct replica *h, uint64_t version)
{
        bool put = h->update->puts != h->state->puts || state_putting(h->state);

        h->update->puts = h->state->puts;
        return !put && h->update->begun && h->state->id.epoch == h->job->placement.epoch &&
               replica_find(h->job, h->owner) == h && deltas_wanted(h->job, version);
}

void update_start(struct replica *h)
{
        const struct state_record *record = h->state->record;
        bool commit = record->commit;
        struct update *u = h->update;

        assert(record->phase == ATTEMPT_DECIDED);
        crash_point(CRASH_UPDATE_BEGIN);
        u->attempt = record->attempt;
        u->begun_ns = uv_hrtime();
        if (commit && !h->ahead) /* otherwise they are known, and tasks may be reading them */
                update_scalars(h, record->sets, record->grad_scale, record->world_size);
        aim_at(h, commit ? AIM_CARRY_OUT : AIM_UNDO, record->version + commit, commit);
        if (commit && update_coded(h, u->version))
                was_make(h, &u->was);
        else if (commit)
                was_free(&u->was);
        u->begun = false;
        for (uint32_t g = 0; commit && g < h->job->layout->n_groups; g++) {
                bool work = h->state->plan->shards[g].n_chunks > 0;

                u->groups[g].deferred = work ? deferred_take(h, g) : NULL;
                if (!work && u->was && h->state->plan->shards[g].range.count)
                        coding_nothing(h, g, u->version);
                if (!work && layout_group_trainable(h->job->layout, g))
                        shard_ready(h, g, u->version); /* this group has nothing to update here */
        }
        aim_begin(h);
}

/* ---- ahead of the decision ----------------------------------------------------------------- */

static void lead_group(struct replica *h, uint32_t group)
{
        const struct layout_group *l = &h->job->layout->groups[group];
        struct update *u = h->update;
        struct update_group *g = &u->groups[group];

        if (!u->params || u->lead_attempt != h->job->attempt || h->updating || !l->eager ||
            g->phase != GROUP_FINISHED || g->ahead || h->state->plan->shards[group].n_chunks == 0 ||
            !accumulator_summed(h, group, u->present))
                return;
        if (u->aim == AIM_NONE)
                update_scalars(h, u->params->sets, 1 / u->params->loss_scale, h->job->world_size);
        h->ahead = true; /* from now on: a reader may hold the group back, and the attempt end
                            meanwhile */
        u->aim = AIM_LEAD;
        u->version = h->state->record->version + 1;
        g->phase = GROUP_PENDING;
        g->next_chunk = h->state->plan->shards[group].first_chunk;
        h->unread[group] = true;
        update_advance(h);
}

static void lead_all(struct replica *h)
{
        for (uint32_t g = 0; g < h->job->layout->n_groups; g++)
                lead_group(h, g);
}

void update_lead(struct replica *h, const struct step_params *params)
{
        struct update *u = h->update;
        struct fault fault;

        /* the vote says what does not fit; without memory the decision is waited for */
        if (step_params_ahead(params, &fault) ||
            state_check_sets(h->state, params->sets, params->n_sets) != h->state->n_tensors)
                return;
        if (!u->params)
                u->params = malloc(sizeof *u->params);
        if (!u->params)
                return;
        *u->params = *params;
        u->lead_attempt = h->job->attempt;
        lead_all(h);
}

void update_led_as(struct replica *h, const struct step_params *params)
{
        struct update *u = h->update;
        char text[200];

        if (!u->params || u->lead_attempt != h->job->attempt || params->n_sets == 0 ||
            step_params_equal(u->params, params, text, sizeof text))
                return;
        log_error("job %s: the coordinator asks for a vote on another step than the one that was "
                  "updated ahead (%s): the old values go back",
                  h->job->name, text);
        update_undo(h);
        free(STEAL(u->params));
}

/* ---- steps ---------------------------------------------------------------------------------- */

static bool group_present(const struct replica *h, uint32_t group)
{
        const struct layout_group *g = &h->job->layout->groups[group];

        for (uint32_t i = 0; i < g->n_tensors; i++)
                if (h->state->present[g->first_tensor + i])
                        return true;
        return false;
}

/* Whether this owner has the group's first part: it speaks for the group. */
static bool speaks_for(const struct replica *h, uint32_t group)
{
        return h->copy == 0 && layout_group_trainable(h->job->layout, group) &&
               partition_owner(h->job->partition, group, 0) == h->owner;
}

/* A forgotten push looks like a missing gradient; only people can tell the difference. */
static void idle_groups(struct replica *h)
{
        const struct job *job = h->job;
        uint32_t first = 0, n = 0;

        h->committed++;
        for (uint32_t g = 0; g < job->layout->n_groups; g++) {
                h->idle[g] = group_present(h, g) ? 0 : h->idle[g] + 1;
                if (h->idle[g] != IDLE_STEPS || !speaks_for(h, g))
                        continue;
                first = n++ == 0 ? g : first;
        }
        if (n > 0)
                log_warning_for(
                        job->uid,
                        "job %s: no rank has pushed a gradient of group '%s'%s in the last %d "
                        "steps: its parameters stay as they are (zeroctl shards tells which "
                        "groups were updated)",
                        job->name, job->layout->groups[first].name, n > 1 ? " and others" : "",
                        IDLE_STEPS);
}

/* Once all nodes are of this release none goes back, and the state may have its format. */
static uint32_t decided_now(const struct replica *h)
{
        const struct engine *x = h->job->x;

        if (!state_keeps_times(h->state) && fabric_all_speak(x->fabric, MESSAGES_GOODBYE)) {
                int r = state_keep_times(h->state);

                if (r)
                        log_warning("job %s: its state cannot keep when steps are made: %s",
                                    h->job->name, strerror(-r));
        }
        return (uint32_t)time(NULL);
}

void update_begin(struct replica *h, const Zero__Decision *d, const struct owner_record *to)
{
        struct state_record record = *h->state->record;

        DECISION_COPY(&record, d);
        state_decide(h->state, &record, decided_now(h));
        assert(record_stands(h, to));
        if (d->commit)
                idle_groups(h);
        h->update->begun = true;
        update_start(h);
}

static void updates_retry(struct list *replicas)
{
        list_for_each (replicas, item) {
                struct replica *h = CONTAINER_OF(item, struct replica, link);

                for (uint32_t g = 0; g < h->job->layout->n_groups; g++)
                        h->update->groups[g].starved = false;
                update_advance(h);
                if (!h->updating && !deltas_wanted(h->job, h->job->version))
                        was_free(&h->update->was);
        }
}

/* If no task finds memory, nothing is in flight: only this tick resumes the update. */
static void updates_tick(struct engine *x)
{
        list_for_each (&x->jobs, item) {
                struct job *job = CONTAINER_OF(item, struct job, link);

                updates_retry(&job->replicas);
                updates_retry(&job->old_replicas);
        }
}

const struct module update_module = { .tick = updates_tick };
const struct shard_observer update_observer = {
        .made = update_new, .freed = update_free, .unpinned = update_advance, .summed = lead_group
};
