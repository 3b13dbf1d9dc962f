/* The decision of a step: clipping, overflow, loss scale, and which parameters are refused. */
#include <criterion/criterion.h>
#include <float.h>
#include <math.h>
#include <string.h>

#include "client/include/zero.h"
#include "steps.h"

static struct decision decide_on(double squared_norm, bool finite, const struct step_params *params)
{
        struct votes v = steps_vote(squared_norm, finite);

        return decide(&v, params, 0);
}

Test(decide, commits_without_clipping_by_default)
{
        struct step_params p = steps_params();
        struct decision d = decide_on(9, true, &p);

        cr_assert(d.commit && d.finite && !d.overflow);
        cr_assert_float_eq(d.grad_norm, 3, 1e-15);
        cr_assert_eq(d.grad_scale, 1);
}

Test(decide, clips_to_the_norm_with_the_scale_taken_out)
{
        struct step_params p = steps_params();
        struct decision d;

        p.loss_scale = 1024;
        p.clip_norm = 0.5;
        d = decide_on(4.0 * 1024 * 1024, true, &p);
        cr_assert_float_eq(d.grad_norm, 2, 1e-15);
        cr_assert_float_eq(d.grad_scale * 1024 * d.grad_norm, 0.5, 1e-6);
}

Test(decide, never_enlarges_a_small_gradient)
{
        struct step_params p = steps_params();

        p.clip_norm = 10;
        cr_assert_eq(decide_on(1e-6, true, &p).grad_scale, 1);
        cr_assert_eq(decide_on(0, true, &p).grad_scale, 1);
}

Test(decide, the_scale_of_a_gradient_takes_clip_and_loss_scale_out)
{
        struct step_params p = steps_params();

        p.loss_scale = 8;
        cr_assert_eq(decide_on(1, true, &p).grad_scale, 0.125);
        p.clip_norm = 0.5;
        cr_assert_float_eq(decide_on(64, true, &p).grad_scale, 0.5 / 8, 1e-7);
}

Test(decide, skips_what_is_not_finite)
{
        struct step_params p = steps_params();
        struct decision d = decide_on(1, false, &p);

        cr_assert(!d.commit && d.overflow && !d.finite);
        cr_assert(isnan(d.grad_norm));
}

Test(decide, skips_a_norm_beyond_double)
{
        struct step_params p = steps_params();
        struct votes v = steps_vote(DBL_MAX, true);

        for (int i = 0; i < 4; i++) {
                struct votes again = v;

                exact_sum_merge(&v.norm, &again.norm);
        }
        cr_assert(decide(&v, &p, 0).overflow);
}

Test(decide, skips_without_overflow_where_no_sets_are_given)
{
        struct step_params p = steps_params();
        struct decision d;

        p.n_sets = 0;
        p.growth_interval = 1;
        p.loss_scale = 8;
        d = decide_on(4, true, &p);
        cr_assert(!d.commit && !d.overflow && d.finite);
        cr_assert_eq(d.loss_scale, 8);
        cr_assert_eq(d.good_steps, 0);
}

Test(decide, halves_the_scale_on_overflow_down_to_a_minimum)
{
        struct step_params p = steps_params();
        struct votes bad = steps_vote(0, false);

        p.growth_interval = 3;
        p.loss_scale = 4;
        cr_assert_eq(decide(&bad, &p, 2).loss_scale, 2);
        cr_assert_eq(decide(&bad, &p, 2).good_steps, 0);
        p.loss_scale = 1.0 / 65536;
        cr_assert_eq(decide(&bad, &p, 0).loss_scale, 1.0 / 65536);
}

Test(decide, doubles_the_scale_after_the_interval_up_to_a_maximum)
{
        struct step_params p = steps_params();
        struct votes good = steps_vote(1, true);
        uint32_t steps = 0;

        p.growth_interval = 3;
        p.loss_scale = 4;
        for (int i = 0; i < 2; i++) {
                struct decision d = decide(&good, &p, steps);

                cr_assert_eq(d.loss_scale, 4);
                steps = d.good_steps;
        }
        cr_assert_eq(decide(&good, &p, steps).loss_scale, 8);
        cr_assert_eq(decide(&good, &p, steps).good_steps, 0);
        p.loss_scale = 16777216;
        cr_assert_eq(decide(&good, &p, 2).loss_scale, 16777216);
}

Test(decide, keeps_the_scale_without_an_interval)
{
        struct step_params p = steps_params();

        p.loss_scale = 4;
        cr_assert_eq(decide_on(0, false, &p).loss_scale, 4);
        cr_assert_eq(decide_on(1, true, &p).loss_scale, 4);
}

/* ---- parameters from outside ---- */

struct message {
        Zero__StepParams params;
        Zero__HyperSet set;
        Zero__HyperSet *sets[1];
        double values[7];
};

static void message_init(struct message *m)
{
        zero__step_params__init(&m->params);
        zero__hyper_set__init(&m->set);
        memset(m->values, 0, sizeof m->values);
        m->values[3] = 1e-8; /* adam's eps */
        m->set.optimizer = "adamw";
        m->set.n_values = 7;
        m->set.values = m->values;
        m->sets[0] = &m->set;
        m->params.n_sets = 1;
        m->params.sets = m->sets;
}

/* Whether the message is refused with EINVAL and a sentence about `field`. */
static bool refused(const struct message *m, const char *field)
{
        struct step_params p = { .n_sets = 77 };
        struct fault fault = { 0 };
        int r = step_params_given(&m->params, &p, &fault);

        return r == ZERO_EINVAL && fault.status == r && strstr(fault.text, field) && p.n_sets == 77;
}

static const double wrong[] = { NAN, INFINITY, -INFINITY, -1, -DBL_MIN };

#define EACH_WRONG_IS_REFUSED(field, name)                               \
        for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {    \
                struct message m;                                        \
                                                                         \
                message_init(&m);                                        \
                m.field = wrong[i];                                      \
                cr_assert(refused(&m, name), "%s = %g", name, wrong[i]); \
        }

Test(params, nan_infinite_and_negative_are_refused)
{
        EACH_WRONG_IS_REFUSED(values[0], "lr");
        EACH_WRONG_IS_REFUSED(values[1], "beta1");
        EACH_WRONG_IS_REFUSED(values[2], "beta2");
        EACH_WRONG_IS_REFUSED(values[3], "eps");
        EACH_WRONG_IS_REFUSED(values[4], "weight_decay");
        EACH_WRONG_IS_REFUSED(params.clip_norm, "clip_norm");
        EACH_WRONG_IS_REFUSED(params.loss_scale, "loss_scale");
}

Test(params, a_beta_of_one_is_refused)
{
        struct message m;

        message_init(&m);
        m.values[2] = 1;
        cr_assert(refused(&m, "beta"));
}

Test(params, a_flag_is_zero_or_one)
{
        struct message m;

        message_init(&m);
        m.values[5] = 0.5;
        cr_assert(refused(&m, "maximize"));
}

Test(params, an_unknown_optimizer_is_refused_with_those_that_there_are)
{
        struct message m;

        message_init(&m);
        m.set.optimizer = "newton";
        cr_assert(refused(&m, "newton"));
        cr_assert(refused(&m, "only adamw, lion, sgd, sgd-momentum, adam"));
}

Test(params, a_group_that_names_no_optimizer_is_equal_to_one_that_names_the_first)
{
        layout *l = NULL, *unnamed = NULL, *named = NULL;
        Zero__Layout *m = NULL;
        uint32_t group;
        char why[256];

        cr_assert(layout_new(&l) == 0 &&
                  layout_add_group(l, "g", ZERO_BF16, NULL, 0, 0, &group, NULL) == 0 &&
                  layout_to_message(l, &m) == 0);
        cr_assert_eq(optimizer_layout(m, &unnamed, NULL), 0);
        zero__layout__free_unpacked(m, NULL);
        cr_assert(layout_set_optimizer(l, group, "adamw", NULL) == 0 &&
                  layout_to_message(l, &m) == 0);
        cr_assert_eq(optimizer_layout(m, &named, NULL), 0);
        zero__layout__free_unpacked(m, NULL);
        cr_assert(layout_equal(unnamed, named, why, sizeof why), "%s", why);
        layout_free(l);
        layout_free(unnamed);
        layout_free(named);
}

Test(params, too_few_hyperparameters_are_refused)
{
        struct message m;

        message_init(&m);
        m.set.n_values = 6;
        cr_assert(refused(&m, "7 hyperparameters, not 6"));
        m.set.n_values = 1000;
        cr_assert(refused(&m, "7 hyperparameters, not 1000"));
}

Test(params, what_fp32_cannot_hold_is_refused)
{
        struct message m;

        message_init(&m);
        m.values[0] = 1e39;
        cr_assert(refused(&m, "lr"));
        message_init(&m);
        m.values[0] = m.values[4] = 1e30;
        cr_assert(refused(&m, "weight_decay"));
        message_init(&m);
        m.params.loss_scale = 1e-39;
        cr_assert(refused(&m, "loss_scale"));
}

Test(params, a_hyperparameter_of_adam_out_of_range_is_refused)
{
        static const struct {
                double value;
                const char *name;
        } flaws[] = { { -1, "lr" },      { 1, "beta1" },           { 1, "beta2" },
                      { -1, "eps" },     { 1e39, "weight_decay" }, { 0.5, "maximize" },
                      { 1, "ema_decay" } };
        struct step_params p;
        struct message m;

        for (size_t i = 0; i < sizeof(flaws) / sizeof(flaws[0]); i++) {
                message_init(&m);
                m.set.optimizer = "adam";
                m.values[i] = flaws[i].value;
                cr_assert(refused(&m, flaws[i].name), "%s", flaws[i].name);
        }
        message_init(&m);
        m.set.optimizer = "adam";
        m.values[0] = m.values[4] = 1e30; /* no product with lr: the decay is not AdamW's */
        cr_assert_eq(step_params_from_message(&m.params, &p, NULL), 0);
}

/* As the release before has it, on links and disks: another name and number, and the same set. */
Test(params, a_set_that_averages_weights_keeps_its_name)
{
        static struct step_params_message again;
        struct step_params p, plain;
        struct message m;
        char text[160];

        message_init(&m);
        m.set.optimizer = "adam-ema";
        m.values[6] = 0.5;
        cr_assert_eq(step_params_from_message(&m.params, &p, NULL), 0);
        cr_assert_eq(p.sets[0].optimizer, 9);
        cr_assert(hyper_fits(&p.sets[0], &optimizer_adam));
        step_params_to_message(&p, &again);
        cr_assert_str_eq(again.message.sets[0]->optimizer, "adam-ema");
        cr_assert_eq(again.message.sets[0]->n_values, 7);
        m.set.optimizer = "adam";
        cr_assert_eq(step_params_from_message(&m.params, &plain, NULL), 0);
        cr_assert(step_params_equal(&p, &plain, text, sizeof text));
        plain.sets[0].value[6] = 0.25;
        cr_assert_not(step_params_equal(&p, &plain, text, sizeof text));
        cr_assert_str_eq(text, "set 0: ema_decay 0.5 and 0.25");
}

Test(params, an_average_begins_as_the_first_weights)
{
        struct hyper_set set = { .value = { 1e-3, 0.9, 0.999, 1e-8, 0, 0, 0.75 } };

        cr_assert_eq(hyper_scalars(&set, true, false, 1, 1).ema_rate, 1);
        cr_assert_eq(hyper_scalars(&set, true, false, 2, 1).ema_rate, 0.25);
        cr_assert_eq(hyper_scalars(&set, false, false, 2, 1).ema_rate, 0);
}

/* p - step * (m / (r / b + eps)) = p - step b * (m / (r + eps b)), for all r and m. */
Test(params, narrow_moments_have_the_bias_in_the_step)
{
        struct hyper_set set = { .value = { 1e-3, 0.9, 0.999, 1e-8 } };
        struct adam_scalars wide = hyper_scalars(&set, false, false, 3, 1).adam;
        struct adam_scalars narrow = hyper_scalars(&set, false, true, 3, 1).adam;

        cr_assert_lt(wide.sqrt_bias2, 0.1f);
        cr_assert_eq(narrow.sqrt_bias2, 1);
        cr_assert_eq(narrow.step_size, wide.step_size * wide.sqrt_bias2);
        cr_assert_eq(narrow.eps, wide.eps * wide.sqrt_bias2);
        cr_assert_eq(narrow.decay, wide.decay);
        set.value[3] = (double)FLT_TRUE_MIN;
        cr_assert_gt(hyper_scalars(&set, false, true, 3, 1).adam.eps, 0);
        set.value[3] = 0;
        cr_assert_eq(hyper_scalars(&set, false, true, 3, 1).adam.eps, 0);
}

Test(params, an_eps_that_is_0_in_fp32_is_refused)
{
        static const char *const adams[] = { "adamw", "adam", "adamw-ema", "adam-ema" };
        struct message m;

        for (size_t i = 0; i < sizeof(adams) / sizeof(adams[0]); i++) {
                message_init(&m);
                m.set.optimizer = (char *)adams[i];
                m.values[3] = 0;
                cr_assert(refused(&m, "eps"), "%s", adams[i]);
                m.values[3] = 1e-46;
                cr_assert(refused(&m, "eps"), "%s", adams[i]);
        }
}

/* A node or a disk of an earlier release may tell of such a step. */
Test(params, an_eps_of_0_is_refused_of_ranks_alone)
{
        struct step_params p;
        struct message m;

        message_init(&m);
        m.values[3] = 0;
        cr_assert_eq(step_params_from_message(&m.params, &p, NULL), 0);
        cr_assert_eq(step_params_given(&m.params, &p, NULL), ZERO_EINVAL);
}

Test(params, too_many_sets_are_refused_before_they_are_read)
{
        struct message m;

        message_init(&m);
        m.params.n_sets = ZERO_SET_MAX + 1;
        cr_assert(refused(&m, "sets"));
}

Test(params, a_loss_scale_of_zero_means_one)
{
        struct step_params p;
        struct message m;

        message_init(&m);
        cr_assert_eq(step_params_from_message(&m.params, &p, NULL), 0);
        cr_assert_eq(p.loss_scale, 1);
}

Test(params, survive_the_way_through_a_message)
{
        struct step_params_message m;
        struct step_params p = steps_params(), q;
        char text[240];

        p.n_sets = ZERO_SET_MAX;
        for (uint32_t i = 0; i < p.n_sets; i++)
                p.sets[i] = (struct hyper_set){ .value = { 1e-3 * i, 0.5, 0.25, 1e-8, 0.125 * i } };
        p.clip_norm = 3;
        p.growth_interval = 7;
        cr_assert_eq(step_params_from_message(step_params_to_message(&p, &m), &q, NULL), 0);
        cr_assert(step_params_equal(&p, &q, text, sizeof text));
}

Test(params, the_first_difference_is_named)
{
        struct step_params p = steps_params(), q = steps_params();
        char text[240];

        p.n_sets = q.n_sets = 2;
        q.sets[1].value[2] = 0.5;
        cr_assert(!step_params_equal(&p, &q, text, sizeof text));
        cr_assert_str_eq(text, "set 1: beta2 0 and 0.5");
        q.clip_norm = 1;
        cr_assert(!step_params_equal(&p, &q, text, sizeof text));
        cr_assert_str_eq(text, "clip_norm 0 and 1");
}

static bool is_in_header(const char *name)
{
#define X(text, set, ...)            \
        if (strcmp(name, text) == 0) \
                return true;
        ZERO_OPTIMIZER_MAP(X)
#undef X
        return false;
}

static void check_optimizer(const char *name, size_t n_values, const char *const *moments)
{
        const struct optimizer *o = optimizer_find(name);

        cr_assert(o && n_values < OPTIMIZER_VALUES + OPTIMIZER_COUNTS);
        cr_assert(o->values[n_values - 1].name && !o->values[n_values].name);
        for (uint32_t i = 0; i < OPTIMIZER_MOMENTS; i++)
                cr_assert(moments[i] == o->moments[i] || strcmp(moments[i], o->moments[i]) == 0);
}

/* The last member of zero_muon points to numbers. */
static size_t values_of(const char *name, size_t bytes)
{
        size_t n = bytes / sizeof(double);

        return strcmp(name, "muon") == 0
                       ? n - 1 + sizeof(struct zero_newton_schulz) / sizeof(double)
                       : n;
}

Test(optimizers, are_those_of_zero_h)
{
#define X(name, set, ...)                                          \
        check_optimizer(name, values_of(name, sizeof(struct set)), \
                        (const char *[OPTIMIZER_MOMENTS]){ __VA_ARGS__ });
        ZERO_OPTIMIZER_MAP(X)
#undef X
#define X(text, of) cr_assert(is_in_header(of.name));
        OPTIMIZER_MAP(X)
#undef X
}
