/* A whole training run over the zoo. */
#include "training.h"

#include <sodium.h>
#include <string.h>

#include "daemon/compute/device/gpu/gpu.h"
#include "check.h"

struct training training_default(void)
{
        return (struct training){ .net = { .nodes = 2, .owners = 2 },
                                  .part = 1,
                                  .ranks = 4,
                                  .node_of_rank = { 0, 0, 1, 1 },
                                  .steps = 3,
                                  .micro_batches = 2,
                                  .hold_groups = 1,
                                  .push_groups = 2,
                                  .grad_dtype = ZERO_FP32,
                                  .reduce_dtype = ZERO_FP32,
                                  .clip_norm = 0.5,
                                  .loss_scale = 1,
                                  .silent_rank = -1,
                                  .lacking_rank = -1,
                                  .seed = 1 };
}

/* ---- what ranks see ---- */

/* A hash of the tensors' bytes, without the gaps. */
static uint64_t view_hash(const layout *l, uint32_t group, const char *view)
{
        const struct layout_group *g = &l->groups[group];
        crypto_generichash_state state;
        uint64_t hash;

        crypto_generichash_init(&state, NULL, 0, sizeof hash);
        for (uint32_t i = 0; i < g->n_tensors; i++) {
                const struct layout_tensor *t = &l->tensors[g->first_tensor + i];
                size_t size = dtype_bytes(g->dtype, 1);

                if (t->elements)
                        crypto_generichash_update(&state, (const uint8_t *)view + t->offset * size,
                                                  t->elements * size);
        }
        crypto_generichash_final(&state, (uint8_t *)&hash, sizeof hash);
        return hash | 1;
}

static void session_heard(struct trainer *t, const struct op *op, int status, const char *text,
                          const struct request *r)
{
        struct session *s = t->arg;
        uint64_t version, hash, *seen;

        CHECK(status == 0, "rank %u, operation %d, group %u: %s: %s", t->needs.rank, op->kind,
              op->group, zero_status_name(status), text);
        if (op->kind != OP_FETCH)
                return;
        version = t->rank->job->version;
        hash = view_hash(s->layout, op->group, trainer_view(t, op->group));
        seen = &s->outcome.views[version][op->group];
        CHECK(*seen == 0 || *seen == hash, "rank %u sees other bytes of group %u at version %llu",
              t->needs.rank, op->group, (unsigned long long)version);
        *seen = hash;
}

/* ---- programs ---- */

static bool stays(const struct session *s)
{
        return s->training->hold_groups >= ZOO_GROUPS;
}

void session_fetches(struct session *s, uint32_t rank)
{
        struct trainer *t = &s->trainers[rank];
        bool backwards = s->training->opposite && rank % 2;

        for (uint32_t i = 0; i < ZOO_GROUPS; i++) {
                uint32_t g = backwards ? ZOO_GROUPS - 1 - i : i;

                if (g == ZOO_EMPTY && rank == 0)
                        continue;
                trainer_add(t, (struct op){ .kind = OP_FETCH, .group = g });
                if (s->training->prefetch && i + 1 < ZOO_GROUPS)
                        trainer_add(t, (struct op){ .kind = OP_PREFETCH,
                                                    .group = backwards ? g - 1 : g + 1 });
                if (!stays(s))
                        trainer_add(t, (struct op){ .kind = OP_RELEASE, .group = g });
        }
}

static const uint8_t *mask(struct session *s, uint32_t rank, uint32_t group, uint32_t step)
{
        uint8_t *m = s->masks[rank][group];

        if (!s->training->masks)
                return NULL;
        for (uint32_t i = 0; i < s->layout->groups[group].n_tensors; i++)
                m[i] = (rank / 2 + i + step) % 3 != 0;
        return m;
}

void session_pushes(struct session *s, uint32_t rank, uint32_t step)
{
        const struct training *training = s->training;
        uint32_t n = training->uneven && rank % 2 ? 1 : training->micro_batches;

        if ((int32_t)rank == training->silent_rank)
                return;
        for (uint32_t i = 0; i < ZOO_GROUPS * n; i++) {
                uint32_t g = training->deep ? i / n : i % ZOO_GROUPS;
                uint32_t mb = training->deep ? i % n : i / ZOO_GROUPS;

                g = ZOO_GROUPS - 1 - g;
                if (training->crossed && rank % 2)
                        g = (g ^ 1) < ZOO_GROUPS ? g ^ 1 : g;
                if (!layout_group_trainable(s->layout, g) ||
                    !layout_group_has_rank(&s->layout->groups[g], rank))
                        continue;
                trainer_add(&s->trainers[rank],
                            (struct op){ .kind = OP_PUSH,
                                         .group = g,
                                         .micro_batch = mb,
                                         .last = mb + 1 == n,
                                         .empty = (int32_t)rank == training->lacking_rank ||
                                                  (training->last_lacks && mb + 1 == n),
                                         .present = mask(s, rank, g, step),
                                         .poison = step == training->poisoned_step && rank == 1 &&
                                                   g == ZOO_FLOAT });
        }
}

void session_program(struct session *s, uint32_t step)
{
        for (uint32_t r = 0; r < s->training->ranks; r++) {
                struct trainer *t = &s->trainers[r];

                t->step = step;
                t->attempt = t->rank->job->attempt;
                t->from = t->rank->job->version;
                if (s->training->eager)
                        trainer_add(t, (struct op){ .kind = OP_AHEAD, .params = &s->params });
                session_fetches(s, r);
                session_pushes(s, r, step);
                if (s->training->norm)
                        trainer_add(t, (struct op){ .kind = OP_NORM });
                trainer_add(t, (struct op){ .kind = OP_STEP, .params = &s->params });
        }
}

void session_run(struct session *s)
{
        trainers_run(s->trainers, s->training->ranks, s->training->seed);
}

/* ---- a run ---- */

static void trainer_describe(struct session *s, uint32_t rank)
{
        const struct training *training = s->training;
        bool on_gpu = training->gpu_nodes >> training->node_of_rank[rank] & 1 &&
                      !(training->host_ranks >> rank & 1);
        uint32_t local = 0;

        for (uint32_t r = 0; r < training->ranks; r++)
                local += training->node_of_rank[r] == training->node_of_rank[rank];
        s->trainers[rank] = (struct trainer){
                .net = &s->net,
                .node = training->node_of_rank[rank],
                .needs = { .job = { .name = "zoo",
                                    .uid = 1000,
                                    .world_size = training->ranks,
                                    .reduce_dtype = training->reduce_dtype },
                           .pid = 100 + rank,
                           .rank = rank,
                           .local_world_size = local,
                           .hold_groups = training->hold_groups,
                           .push_groups = training->push_groups,
                           .timeout_ms = 60000,
                           .windows = on_gpu ? gpu_place(training->gpu_of_rank[rank]) : 0,
                           .keeps_slots = true,
                           .grad_dtype = training->grad_dtype },
                .layout = s->layout,
                .heard = session_heard,
                .arg = s
        };
}

void session_open(struct session *s, const struct training *training)
{
        memset(s, 0, sizeof *s);
        s->training = training;
        net_open(&s->net, &training->net);
        s->layout = zoo_layout(training->ranks, training->part);
        for (uint32_t g = 0; g < ZOO_GROUPS; g++)
                s->layout->groups[g].eager = training->eager;
        s->params = (struct step_params){ .n_sets = 2,
                                          .sets = { { .value = { 1e-2, 0.9, 0.999, 1e-8, 0.1 } },
                                                    { .value = { 3e-3, 0.8, 0.99, 1e-8, 0 } } },
                                          .clip_norm = training->clip_norm,
                                          .loss_scale = training->loss_scale,
                                          .growth_interval = training->growth_interval };
        for (uint32_t r = 0; r < training->ranks; r++)
                trainer_describe(s, r);
}

void session_attach(struct session *s)
{
        for (uint32_t r = 0; r < s->training->ranks; r++)
                trainer_add(&s->trainers[r], (struct op){ .kind = OP_ATTACH });
        session_run(s);
}

void session_push_ahead(struct session *s, uint32_t step)
{
        for (uint32_t r = 0; r < s->training->ranks; r++) {
                s->trainers[r].step = step;
                trainer_add(&s->trainers[r], (struct op){ .kind = OP_AHEAD, .params = &s->params });
                session_pushes(s, r, step);
        }
        session_run(s);
}

void session_close(struct session *s)
{
        for (uint32_t r = 0; r < s->training->ranks; r++)
                trainer_free(&s->trainers[r]);
        net_close(&s->net);
        layout_free(s->layout);
}

static void session_note(struct session *s, uint32_t step)
{
        struct outcome *o = &s->outcome;
        const struct trainer *first = &s->trainers[0];

        for (uint32_t r = 0; r < s->training->ranks; r++) {
                const struct trainer *t = &s->trainers[r];

                CHECK(t->version == first->version && t->skipped == first->skipped &&
                      memcmp(&t->grad_norm, &first->grad_norm, sizeof(double)) == 0 &&
                      t->loss_scale == first->loss_scale);
                if (s->training->norm && t->finite)
                        CHECK(t->norm / s->training->loss_scale == t->grad_norm);
        }
        o->version = first->version;
        o->grad_norm[step - 1] = first->grad_norm;
        o->loss_scale[step - 1] = first->loss_scale;
        o->skipped[step - 1] = first->skipped;
}

static void session_restart(struct session *s)
{
        for (uint32_t r = 0; r < s->training->ranks; r++)
                trainer_kill(&s->trainers[r]);
        net_stop(&s->net);
        net_restart(&s->net);
        session_attach(s);
}

static void session_count(struct session *s)
{
        for (uint32_t n = 0; n < s->net.options.nodes; n++) {
                const struct job *job = net_job(&s->net, n, "zoo");
                struct gather_info info;

                if (!job)
                        continue;
                gather_info(job, &info);
                s->outcome.received += info.elements_received;
        }
}

/* Leaves of each shard the first chunk, which has the version of all on a GPU. */
static void session_spoil_chunks(struct session *s)
{
        for (uint32_t n = 0; n < s->net.options.nodes; n++) {
                const struct job *job = net_job(&s->net, n, "zoo");

                if (!job)
                        continue;
                for_replicas (job, h)
                        for (uint32_t g = 0; g < ZOO_GROUPS; g++) {
                                const struct plan_shard *shard = &h->state->plan->shards[g];

                                for (uint32_t i = 1; i < shard->n_chunks; i++)
                                        h->state->plan->chunk_segments[shard->first_chunk + i] =
                                                UINT32_MAX;
                        }
        }
}

struct outcome training_run(const struct training *training)
{
        struct session s;

        session_open(&s, training);
        session_attach(&s);
        if (training->spoil_chunks)
                session_spoil_chunks(&s);
        for (uint32_t step = 1; step <= training->steps; step++) {
                session_program(&s, step);
                session_run(&s);
                session_note(&s, step);
                if (training->growth_interval)
                        s.params.loss_scale = s.trainers[0].loss_scale;
                if (step == training->restart_after)
                        session_restart(&s);
        }
        for (uint32_t r = 0; r < training->ranks; r++)
                session_fetches(&s, r);
        session_run(&s);
        s.outcome.sum = net_checksum(&s.net, "zoo");
        session_count(&s);
        session_close(&s);
        return s.outcome;
}

void outcome_same(const struct outcome *a, const struct outcome *b, const char *what)
{
        CHECK(a->version == b->version, "%s", what);
        CHECK(memcmp(a->grad_norm, b->grad_norm, sizeof a->grad_norm) == 0, "%s", what);
        CHECK(memcmp(a->skipped, b->skipped, sizeof a->skipped) == 0, "%s", what);
        CHECK(memcmp(&a->sum, &b->sum, sizeof a->sum) == 0, "%s", what);
        for (uint64_t v = 0; v <= a->version; v++)
                for (uint32_t g = 0; g < ZOO_GROUPS; g++)
                        CHECK(a->views[v][g] == b->views[v][g], "%s: group %u at version %llu",
                              what, g, (unsigned long long)v);
}
