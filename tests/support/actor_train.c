/*
 * Whole training steps, deterministic: a rank's gradients depend on the parameters it fetched
 * and on (seed, step, rank, micro-batch) alone.
 *
 * {"do": "train", "steps", "micro_batches", "seed", "first_step", "stage", "scale",
 * "pull", and those of
 * "step"}.  Stage 3 fetches each group for the forward and again for the backward pass and
 * releases it after use; the others keep every group for the whole step.
 */
#include "actor.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

struct training {
        struct actor *actor;
        struct noise noise;
        uint32_t stage, micro_batches;
        uint64_t first_step; /* of the noise, where the job is at version 0 */
        float pull;
        uint64_t hash; /* of all that was fetched in the forward passes */
};

void step_params(const json_t *command, struct zero_adamw *sets, struct zero_step *ret)
{
        const json_t *list = json_object_get(command, "sets"), *item;
        size_t i;

        *ret = (struct zero_step){
                .sets = sets,
                .n_sets = 1,
                .clip_norm = field_number(command, "clip", 0),
                .loss_scale = field_number(command, "loss_scale", 0),
                .growth_interval = (uint32_t)field_count(command, "growth_interval", 0),
        };
        sets[0] = (struct zero_adamw){ field_number(command, "lr", 1e-3), 0.9, 0.999, 1e-8, 0.01 };
        if (list)
                ret->n_sets = (uint32_t)json_array_size(list);
        json_array_foreach(list, i, item)
        {
                double *field[] = { &sets[i % ZERO_SET_MAX].lr, &sets[i % ZERO_SET_MAX].beta1,
                                    &sets[i % ZERO_SET_MAX].beta2, &sets[i % ZERO_SET_MAX].eps,
                                    &sets[i % ZERO_SET_MAX].weight_decay };

                for (size_t k = 0; k < 5; k++)
                        *field[k] = json_number_value(json_array_get(item, k));
        }
}

static int hold(struct training *t, uint32_t group)
{
        struct actor *a = t->actor;

        if (a->views[group])
                return ZERO_OK;
        return zero_fetch(a->client, group, NULL, &a->views[group]);
}

static int let_go(struct training *t, uint32_t group)
{
        struct actor *a = t->actor;

        if (t->stage < 3 || !a->views[group])
                return ZERO_OK;
        a->views[group] = NULL;
        return zero_release(a->client, group, NULL);
}

static int forward(struct training *t)
{
        struct actor *a = t->actor;
        int r = ZERO_OK;

        for (uint32_t g = 0; !r && g < a->n_groups; g++) {
                r = hold(t, g);
                if (!r && g + 1 < a->n_groups)
                        r = zero_prefetch(a->client, g + 1);
                if (r)
                        return r;
                t->hash = (t->hash ^ view_hash(a, g, a->views[g])) * 0x100000001b3;
                r = let_go(t, g);
        }
        return r;
}

static bool trainable(const struct actor *a, uint32_t group)
{
        const struct zero_layout *l = actor_known_layout(a);
        uint32_t first, n = zero_layout_group_tensors(l, group, &first);

        for (uint32_t i = first; i < first + n; i++)
                if (!zero_layout_tensor_frozen(l, i))
                        return true;
        return false;
}

static int backward_group(struct training *t, uint32_t group, bool last)
{
        struct actor *a = t->actor;
        void *grad = NULL;
        int r = hold(t, group);

        if (!r && trainable(a, group) && actor_in_group(a, group)) {
                r = zero_grad(a->client, group, &grad);
                if (!r) {
                        gradient_fill(a, &t->noise, group, a->views[group], t->pull, grad);
                        r = zero_push(a->client, group, NULL, last, NULL);
                }
        }
        return r ? r : let_go(t, group);
}

static int backward(struct training *t, bool last)
{
        int r = ZERO_OK;

        for (uint32_t g = t->actor->n_groups; !r && g-- > 0;)
                r = backward_group(t, g, last);
        return r;
}

static int whole_step(struct training *t, const struct zero_step *step,
                      struct zero_result *ret_result)
{
        struct actor *a = t->actor;
        int r = ZERO_OK;

        t->noise.step = t->first_step + zero_version(a->client);
        for (uint32_t m = 0; !r && m < t->micro_batches; m++) {
                t->noise.micro_batch = m;
                r = forward(t);
                if (!r)
                        r = backward(t, m + 1 == t->micro_batches);
        }
        if (!r)
                r = zero_step(a->client, step, ret_result);
        memset(a->views, 0, a->n_groups * sizeof *a->views);
        return r;
}

int actor_train(struct actor *actor, const json_t *command, json_t *ret)
{
        struct training t = {
                .actor = actor,
                .noise = { field_count(command, "seed", 1), 0, actor->rank, 0,
                           field_number(command, "scale", 1) },
                .stage = (uint32_t)field_count(command, "stage", 3),
                .micro_batches = (uint32_t)field_count(command, "micro_batches", 1),
                .first_step = field_count(command, "first_step", 0),
                .pull = (float)field_number(command, "pull", 0.125),
                .hash = 0xcbf29ce484222325,
        };
        uint64_t steps = field_count(command, "steps", 1), skipped = 0;
        struct zero_adamw sets[ZERO_SET_MAX];
        struct zero_result result = { 0 };
        struct zero_step step;
        char hex[17];
        int r = ZERO_OK;

        step_params(command, sets, &step);
        for (uint64_t i = 0; !r && i < steps; i++) {
                r = whole_step(&t, &step, &result);
                skipped += result.skipped;
        }
        snprintf(hex, sizeof hex, "%016" PRIx64, t.hash);
        json_object_set_new(ret, "hash", json_string(hex));
        json_object_set_new(ret, "version", json_integer((json_int_t)zero_version(actor->client)));
        json_object_set_new(ret, "skipped", json_integer((json_int_t)skipped));
        json_object_set_new(ret, "grad_norm", json_real(result.grad_norm));
        return r;
}
