/* Fills of states from other nodes: after a loss, for other owners, and fills that fail. */
#include <string.h>

#include "cases.h"
#include "check.h"
#include "daemon/cluster/reshard/reshard.h"
#include "daemon/step/update/update.h"
#include "daemon/store/file.h"
#include "proto/cleanup.h"
#include "training.h"

enum { STEPS = 2, PLANE_COUNT = 3 };

/* A job between two steps, without ranks, and what its owners hold. */
struct scene {
        struct training training;
        struct session s;
        Zero__Layout *message;
        Zero__Decision last;
        struct placement from, to;
        bool readable[HOLDER_MAX];
        uint64_t puts[HOLDER_MAX];
        uint64_t version, attempt;
        float *values[PLANE_COUNT]; /* [element of the layout] */
        uint64_t *base;             /* [group] */
        const struct state *any;    /* one of the states, for what all have */
};

struct ending {
        bool done;
        int status;
        char text[300];
        uint64_t version, attempt, puts;
};

/* ---- the job as it was ------------------------------------------------------------------- */

static struct engine *node_of(struct scene *s, uint32_t node)
{
        return &s->s.net.nodes[node].x;
}

static bool all_at_rest(void *arg)
{
        struct scene *s = arg;

        for (uint32_t n = 0; n < s->training.net.nodes; n++) {
                struct job *job = net_job(&s->s.net, n, "zoo");

                for_replicas (job, h)
                        if (h->state->record->phase != ATTEMPT_OPEN ||
                            h->state->record->version != STEPS)
                                return false;
        }
        return true;
}

static float *plane_of(const struct state *state, int plane)
{
        return plane == 0 ? state->in->master : (float *)state->in->moments[plane - 1];
}

/* Copies what a state holds into the values, or compares it with them. */
static void walk(struct scene *s, const struct state *state, bool compare)
{
        for (uint32_t i = 0; i < state->plan->n_segments; i++) {
                const struct plan_segment *seg = &state->plan->segments[i];

                for (int p = 0; p < PLANE_COUNT; p++) {
                        float *values = s->values[p] + s->base[seg->group] + seg->in_group;
                        uint64_t at = p == 0 ? seg->master : seg->moment;

                        if (at == UINT64_MAX)
                                continue;
                        if (compare)
                                CHECK(memcmp(values, plane_of(state, p) + at,
                                             seg->count * sizeof(float)) == 0,
                                      "plane %d, tensor %u", p, seg->tensor);
                        else
                                memcpy(values, plane_of(state, p) + at, seg->count * sizeof(float));
                }
        }
}

static void note_values(struct scene *s)
{
        const layout *l = s->s.layout;
        uint64_t n = 0;

        s->base = calloc(l->n_groups, sizeof *s->base);
        for (uint32_t g = 0; g < l->n_groups; g++) {
                s->base[g] = n;
                n += l->groups[g].elements;
        }
        for (int p = 0; p < PLANE_COUNT; p++)
                s->values[p] = calloc(n, sizeof(float));
        for (uint32_t h = 0; h < placement_holders(&s->from); h++) {
                struct job *job = net_job(&s->s.net, holder_node(&s->from, h), "zoo");
                const struct replica *replica =
                        replica_of_copy(job, holder_owner(&s->from, h), holder_copy(&s->from, h));

                walk(s, replica->state, holder_copy(&s->from, h) > 0);
                s->readable[h] = true;
                s->puts[h] = replica->state->puts;
                s->any = replica->state;
        }
}

static void note_record(struct scene *s)
{
        const struct state_record *r = s->any->record;

        zero__decision__init(&s->last);
        s->last.attempt = r->decided_attempt;
        DECISION_COPY(&s->last, r);
        s->version = r->version;
        s->attempt = r->attempt + 5;
}

static void scene_kill(struct scene *s)
{
        for (uint32_t r = 0; r < s->training.ranks; r++)
                trainer_kill(&s->s.trainers[r]);
}

/* The ranks stay. */
static void scene_train(struct scene *s, const struct training *training)
{
        *s = (struct scene){ .training = *training };
        session_open(&s->s, &s->training);
        session_attach(&s->s);
        for (uint32_t step = 1; step <= STEPS; step++) {
                session_program(&s->s, step);
                session_run(&s->s);
        }
        net_wait(&s->s.net, all_at_rest, s, "the updates to end");
        s->from = s->to = node_of(s, 0)->placement;
        note_values(s);
        note_record(s);
        CHECK(layout_to_message(s->s.layout, &s->message) == 0);
}

static void scene_open(struct scene *s, uint32_t nodes, uint32_t owners, bool mirror)
{
        struct training training = training_default();

        training.net.nodes = nodes;
        training.net.owners = owners;
        training.net.mirror = mirror;
        scene_train(s, &training);
        scene_kill(s);
}

static void scene_close(struct scene *s)
{
        zero__layout__free_unpacked(s->message, NULL);
        for (int p = 0; p < PLANE_COUNT; p++)
                free(s->values[p]);
        free(s->base);
        session_close(&s->s);
}

/* ---- what is done ------------------------------------------------------------------------- */

static void ended(void *arg, int status, const char *text, const Zero__Standing *standing)
{
        struct ending *e = arg;

        CHECK(!e->done, "it ends twice");
        e->done = true;
        e->status = status;
        snprintf(e->text, sizeof e->text, "%s", text);
        if (standing) {
                e->version = standing->version;
                e->attempt = standing->attempt;
                e->puts = standing->puts;
        }
}

static bool has_ended(void *arg)
{
        return ((struct ending *)arg)->done;
}

static struct fill *fill_begin(struct scene *s, uint32_t holder, struct ending *e)
{
        uint32_t coordinator = coordinator_of(node_of(s, 0), "zoo");
        const struct job *job = net_job(&s->s.net, coordinator, "zoo");
        struct fill_order order = { .job = &job->spec,
                                    .layout = s->message,
                                    .from = &s->from,
                                    .to = &s->to,
                                    .holder = holder,
                                    .version = s->version,
                                    .attempt = s->attempt,
                                    .last = &s->last,
                                    .puts = 77,
                                    .readable = s->readable,
                                    .source_puts = s->puts };
        struct fill *f;

        *e = (struct ending){ 0 };
        f = fill_start(node_of(s, coordinator), &order, ended, e);
        CHECK(f && !e->done);
        return f;
}

static void fill(struct scene *s, uint32_t holder, struct ending *e)
{
        fill_begin(s, holder, e);
        net_wait(&s->s.net, has_ended, e, "a fill");
}

static bool let_go(void *arg)
{
        const struct scene *s = arg;

        for (uint32_t n = 0; n < s->training.net.nodes; n++)
                if (!fill_target_module.idle(&s->s.net.nodes[n].x) || s->s.net.nodes[n].x.releases)
                        return false;
        return true;
}

static bool released(void *arg)
{
        return ((struct engine *)arg)->releases == 0;
}

/* Deletes all that the node has of the job; no node notices. */
static void lose(struct scene *s, uint32_t node)
{
        struct job *job = net_job(&s->s.net, node, "zoo");

        for (uint32_t h = 0; h < placement_holders(&s->from); h++)
                if (holder_node(&s->from, h) == node)
                        s->readable[h] = false;
        job->drop_state = true;
        job_detach(job);
        net_wait(&s->s.net, released, node_of(s, node), "the memory");
        CHECK(list_empty(&node_of(s, node)->dead_jobs) && store_used(node_of(s, node)->store) == 0);
}

/* Switches all nodes to another owner list; their states are of the list before. */
static void place(struct scene *s, const uint32_t *owners, uint32_t n)
{
        placement_init(&s->to, 9, owners, n, s->training.net.mirror);
        for (uint32_t i = 0; i < s->training.net.nodes; i++) {
                struct job *job = net_job(&s->s.net, i, "zoo");

                node_of(s, i)->placement = s->to;
                if (!job)
                        continue;
                job->placement = s->to;
                while (replica_first(job)) {
                        struct replica *h = replica_first(job);

                        list_remove(&h->link);
                        list_insert(&job->old_replicas, &h->link);
                }
                partition_free(job->partition);
                CHECK(partition_new(job->layout, n, &job->partition) == 0);
        }
}

/* ---- what must hold ----------------------------------------------------------------------- */

static void check_tensors(const struct scene *s, const struct state *state)
{
        for (uint32_t i = 0; i < state->plan->n_segments; i++) {
                uint32_t t = state->plan->segments[i].tensor;

                CHECK(state->tensor_set[t] == s->s.layout->tensors[t].set, "tensor %u", t);
                CHECK(state->tensor_step[t] == (s->s.layout->tensors[t].frozen ? 0 : STEPS),
                      "tensor %u: step %llu", t, (unsigned long long)state->tensor_step[t]);
        }
}

static void check_kept(struct scene *s, const struct state *state)
{
        for (uint32_t r = 0; r < s->training.ranks; r++) {
                size_t n;
                const char *blob = state_blob(state, r, &n);

                CHECK(n == TRAINER_BLOB && blob[0] == (char)r && blob[1] == STEPS, "rank %u", r);
        }
}

static void check_serve(const struct scene *s, const struct state *state)
{
        const struct plan_shard *shard = &state->plan->shards[ZOO_BIG];
        size_t bytes = shard->range.count * 2;
        uint8_t *serve = malloc(bytes + 1);

        s->s.net.nodes[0].x.ops->serve(ZERO_BF16, serve, state->in->master + shard->master,
                                       shard->range.count);
        CHECK(memcmp(serve, state->in->serve + state->plan->shards[ZOO_BIG].serve, bytes) == 0);
        free(serve);
}

static void check_filled(struct scene *s, uint32_t holder, const struct ending *e)
{
        struct job *job = net_job(&s->s.net, holder_node(&s->to, holder), "zoo");
        const struct replica *h;

        CHECK(e->status == ZERO_OK, "holder %u: %s", holder, e->text);
        CHECK(e->version == s->version && e->attempt == s->attempt && e->puts == 77);
        CHECK(job && !job->opening);
        h = replica_of_copy(job, holder_owner(&s->to, holder), holder_copy(&s->to, holder));
        CHECK(h && h->state->id.epoch == s->to.epoch && h->state->puts == 77);
        CHECK(h->state->record->grad_norm == s->last.grad_norm &&
              h->state->record->decided_attempt == s->last.attempt);
        for (uint32_t g = 0; g < job->layout->n_groups; g++)
                CHECK(h->shard_version[g] == group_version(job, g, s->version));
        walk(s, h->state, true);
        check_tensors(s, h->state);
        check_kept(s, h->state);
        check_serve(s, h->state);
}

/* ---- cases ----------------------------------------------------------------------------------- */

static void a_node_that_lost_its_states_gets_them_from_their_twins(void)
{
        struct scene s;
        struct ending e[HOLDER_MAX];
        uint32_t node;

        scene_open(&s, 3, 3, true);
        node = (coordinator_of(node_of(&s, 0), "zoo") + 1) % 3;
        lose(&s, node);
        for (uint32_t h = 0; h < placement_holders(&s.to); h++)
                if (holder_node(&s.to, h) == node)
                        fill_begin(&s, h, &e[h]);
        for (uint32_t h = 0; h < placement_holders(&s.to); h++)
                if (holder_node(&s.to, h) == node) {
                        net_wait(&s.s.net, has_ended, &e[h], "a fill");
                        check_filled(&s, h, &e[h]);
                }
        net_wait(&s.s.net, let_go, &s, "what is left of the fills");
        scene_close(&s);
}

static void move(uint32_t owners, bool mirror, const uint32_t *to, uint32_t n)
{
        struct scene s;
        struct ending e[HOLDER_MAX];

        scene_open(&s, 4, owners, mirror);
        place(&s, to, n);
        for (uint32_t h = 0; h < placement_holders(&s.to); h++)
                fill_begin(&s, h, &e[h]);
        for (uint32_t h = 0; h < placement_holders(&s.to); h++) {
                net_wait(&s.s.net, has_ended, &e[h], "a fill");
                check_filled(&s, h, &e[h]);
        }
        net_wait(&s.s.net, let_go, &s, "what is left of the fills");
        scene_close(&s);
}

static void other_owners_are_filled_from_those_before(void)
{
        static const uint32_t lists[][4] = { { 0, 2, 1, 3 }, { 3, 1 }, { 2 }, { 1, 0, 2 } };
        static const uint32_t lengths[] = { 4, 2, 1, 3 };

        for (uint32_t owners = 1; owners <= 4; owners++)
                for (int mirror = 0; mirror < 2; mirror++)
                        move(owners, mirror, lists[owners - 1], lengths[owners - 1]);
}

/* Two of three owners take over the shards of the third, whose node is gone. */
static void the_shards_of_a_node_that_is_gone_are_taken_over(void)
{
        struct scene s;
        struct ending e;

        scene_open(&s, 3, 3, true);
        lose(&s, 1);
        s.from.node[1] = NO_NODE;
        place(&s, (uint32_t[]){ 0, 2 }, 2);
        for (uint32_t h = 0; h < placement_holders(&s.to); h++) {
                fill(&s, h, &e);
                check_filled(&s, h, &e);
        }
        scene_close(&s);
}

/* Checks that the fill fails with the reason and leaves nothing. */
static void in_vain(struct scene *s, uint32_t node, uint32_t holder, int status, const char *why)
{
        struct ending e;

        fill(s, holder, &e);
        CHECK(e.status == status, "%s: %d, %s", why, e.status, e.text);
        net_wait(&s->s.net, let_go, s, "what is left of the fill");
        CHECK(store_used(node_of(s, node)->store) == 0, "%s", why);
        CHECK(!net_job(&s->s.net, node, "zoo"), "%s", why);
        CHECK(list_empty(&node_of(s, node)->dead_jobs), "%s", why);
}

static void a_source_in_another_state_than_expected_refuses(void)
{
        struct scene s;
        uint32_t node, holder;
        struct ending e;

        scene_open(&s, 3, 3, true);
        node = (coordinator_of(node_of(&s, 0), "zoo") + 1) % 3;
        lose(&s, node);
        holder = holder_of(&s.to, node, 0);
        for (uint32_t h = 0; h < HOLDER_MAX; h++)
                s.puts[h]++;
        in_vain(&s, node, holder, ZERO_EABORTED, "other puts");
        for (uint32_t h = 0; h < HOLDER_MAX; h++)
                s.puts[h]--;
        s.version++;
        in_vain(&s, node, holder, ZERO_EABORTED, "another version");
        s.version--;
        s.last.attempt++;
        in_vain(&s, node, holder, ZERO_EABORTED, "another decision");
        s.last.attempt--;
        s.to.epoch++;
        in_vain(&s, node, holder, ZERO_ECONFLICT, "another placement");
        s.to.epoch--;
        s.readable[holder_of(&s.from, node, 1)] = false;
        in_vain(&s, node, holder, ZERO_ECONFLICT, "nobody has it");
        s.readable[holder_of(&s.from, node, 1)] = true;
        fill(&s, holder, &e);
        check_filled(&s, holder, &e);
        scene_close(&s);
}

static void a_fill_that_is_broken_off_leaves_nothing(void)
{
        struct scene s;
        struct ending e;
        struct fill *f;
        uint32_t node, holder;

        scene_open(&s, 3, 3, true);
        node = (coordinator_of(node_of(&s, 0), "zoo") + 1) % 3;
        lose(&s, node);
        holder = holder_of(&s.to, node, 0);
        f = fill_begin(&s, holder, &e);
        fill_cancel(f);
        net_wait(&s.s.net, has_ended, &e, "the end of a fill");
        CHECK(e.status == ZERO_EABORTED, "%s", e.text);
        net_wait(&s.s.net, let_go, &s, "what is left of the fill");
        CHECK(!net_job(&s.s.net, node, "zoo") && store_used(node_of(&s, node)->store) == 0);
        fill(&s, holder, &e);
        check_filled(&s, holder, &e);
        scene_close(&s);
}

static void a_mirror_that_missed_a_put_is_filled_anew(void)
{
        struct scene s;
        struct ending e;
        uint32_t node, holder;
        struct replica *h;

        scene_open(&s, 3, 3, true);
        node = (coordinator_of(node_of(&s, 0), "zoo") + 1) % 3;
        holder = holder_of(&s.to, (node + 2) % 3, 1);
        CHECK(holder_node(&s.to, holder) == node);
        h = replica_of_copy(net_job(&s.s.net, node, "zoo"), (node + 2) % 3, 1);
        state_put_begin(h->state);
        h->state->in->master[0] += 1;
        state_put_end(h->state, 1);
        s.readable[holder] = false;
        fill(&s, holder, &e);
        check_filled(&s, holder, &e);
        fill(&s, holder, &e);
        check_filled(&s, holder, &e);
        scene_close(&s);
}

static bool is_ahead(void *arg)
{
        const struct replica *h = arg;

        return h->ahead;
}

static bool is_back(void *arg)
{
        return !is_ahead(arg);
}

/* Nobody decides the step any more that the replica is ahead of. */
static void a_replica_that_is_ahead_of_a_decision_is_filled_anew(void)
{
        struct training training = training_default();
        struct replica *target, *source;
        struct scene s;
        struct ending e;
        uint32_t holder;

        training.net.nodes = training.net.owners = 3;
        training.net.mirror = training.eager = true;
        training.clip_norm = 0;
        scene_train(&s, &training);
        holder = holder_of(&s.to, 1, 1);
        target = replica_of_copy(net_job(&s.s.net, holder_node(&s.to, holder), "zoo"), 1, 1);
        source = net_own(net_job(&s.s.net, 1, "zoo"));
        CHECK(target && source->owner == 1);
        session_push_ahead(&s.s, STEPS + 1);
        net_wait(&s.s.net, is_ahead, source, "an update ahead");
        net_wait(&s.s.net, is_ahead, target, "the mirror's");
        update_undo(source);
        net_wait(&s.s.net, is_back, source, "the old values");
        CHECK(target->ahead);
        s.readable[holder] = false;
        fill(&s, holder, &e);
        check_filled(&s, holder, &e);
        scene_kill(&s);
        scene_close(&s);
}

const struct test_case fill_cases[] = {
        { "a-node-that-lost-its-states-gets-them-from-their-twins",
          a_node_that_lost_its_states_gets_them_from_their_twins },
        { "other-owners-are-filled-from-those-before", other_owners_are_filled_from_those_before },
        { "the-shards-of-a-node-that-is-gone-are-taken-over",
          the_shards_of_a_node_that_is_gone_are_taken_over },
        { "a-source-in-another-state-than-expected-refuses",
          a_source_in_another_state_than_expected_refuses },
        { "a-fill-that-is-broken-off-leaves-nothing", a_fill_that_is_broken_off_leaves_nothing },
        { "a-mirror-that-missed-a-put-is-filled-anew", a_mirror_that_missed_a_put_is_filled_anew },
        { "a-replica-that-is-ahead-of-a-decision-is-filled-anew",
          a_replica_that_is_ahead_of_a_decision_is_filled_anew },
        { NULL, NULL },
};
