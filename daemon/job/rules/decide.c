/* The decision of a step.  Pure. */
#include "daemon/job/rules/decide.h"

#include <float.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

/* as in torch.nn.utils.clip_grad_norm_ */
static const double clip_epsilon = 1e-6;
static const double loss_scale_min = 1.0 / 65536, loss_scale_max = 16777216;

double votes_norm(const struct votes *votes)
{
        return votes->finite ? sqrt(exact_sum_value(&votes->norm)) : NAN;
}

bool votes_equal(const struct votes *a, const struct votes *b)
{
        struct exact_sum x = a->norm, y = b->norm;

        exact_sum_normalize(&x);
        exact_sum_normalize(&y);
        return a->finite == b->finite && (!a->finite || memcmp(x.bin, y.bin, sizeof x.bin) == 0);
}

/* Dynamic loss scaling: halve on overflow, double after growth_interval good steps. */
static void decide_loss_scale(struct decision *d, const struct step_params *params)
{
        if (params->growth_interval == 0)
                return;
        if (d->overflow) {
                d->loss_scale = fmax(params->loss_scale / 2, loss_scale_min);
                d->good_steps = 0;
        } else if (d->commit && ++d->good_steps >= params->growth_interval) {
                d->loss_scale = fmin(params->loss_scale * 2, loss_scale_max);
                d->good_steps = 0;
        }
}

struct decision decide(const struct votes *votes, const struct step_params *params,
                       uint32_t good_steps)
{
        double norm = votes_norm(votes) / params->loss_scale;
        struct decision d = {
                .finite = votes->finite && isfinite(norm),
                .grad_norm = norm,
                .grad_scale = 1 / params->loss_scale,
                .loss_scale = params->loss_scale,
                .good_steps = good_steps,
        };

        d.overflow = !d.finite;
        d.commit = d.finite && params->n_sets > 0;
        if (d.finite && params->clip_norm > 0)
                d.grad_scale =
                        fmin(1, params->clip_norm / (norm + clip_epsilon)) / params->loss_scale;
        decide_loss_scale(&d, params);
        return d;
}

int step_params_from_message(const Zero__StepParams *m, struct step_params *ret,
                             struct fault *fault)
{
        struct step_params p = { .clip_norm = m->clip_norm,
                                 .loss_scale = m->loss_scale == 0 ? 1 : m->loss_scale,
                                 .growth_interval = m->growth_interval };

        if (m->n_sets > ZERO_SET_MAX)
                return fault_set(fault, ZERO_EINVAL,
                                 "%zu hyperparameter sets: at most %d are possible", m->n_sets,
                                 ZERO_SET_MAX);
        for (size_t i = 0; i < m->n_sets; i++) {
                int r = hyper_from_message(m->sets[i], i, &p.sets[i], fault);
                if (r)
                        return r;
        }
        if (!isfinite(p.clip_norm) || p.clip_norm < 0)
                return fault_set(fault, ZERO_EINVAL, "clip_norm %g is not a number >= 0",
                                 p.clip_norm);
        if (!fp32_holds(p.loss_scale) || !fp32_holds(1 / p.loss_scale))
                return fault_set(fault, ZERO_EINVAL, "loss_scale %g is not an fp32 number > 0",
                                 p.loss_scale);
        p.n_sets = (uint32_t)m->n_sets;
        *ret = p;
        return 0;
}

int step_params_given(const Zero__StepParams *m, struct step_params *ret, struct fault *fault)
{
        struct step_params p;
        int r = step_params_from_message(m, &p, fault);

        for (uint32_t i = 0; !r && i < p.n_sets; i++)
                r = hyper_given(&p.sets[i], i, fault);
        if (!r)
                *ret = p;
        return r;
}

int step_params_ahead(const struct step_params *params, struct fault *fault)
{
        if (params->n_sets == 0)
                return fault_set(fault, ZERO_EINVAL,
                                 "zero_ahead() got no hyperparameter sets: a step without sets "
                                 "updates nothing");
        if (params->clip_norm > 0)
                return fault_set(fault, ZERO_EINVAL,
                                 "clip_norm %g: eager groups are updated before the norm of all "
                                 "gradients is known; do without clipping or without eager groups",
                                 params->clip_norm);
        if (params->loss_scale != 1 || params->growth_interval)
                return fault_set(fault, ZERO_EINVAL,
                                 "loss_scale %g, growth_interval %u: eager groups are updated "
                                 "before an overflow is known; do without loss scaling or without "
                                 "eager groups",
                                 params->loss_scale, params->growth_interval);
        return 0;
}

Zero__StepParams *step_params_to_message(const struct step_params *params,
                                         struct step_params_message *ret)
{
        zero__step_params__init(&ret->message);
        for (uint32_t i = 0; i < params->n_sets; i++) {
                hyper_to_message(&params->sets[i], &ret->values[i], &ret->sets[i]);
                ret->pointers[i] = &ret->sets[i];
        }
        ret->message.n_sets = params->n_sets;
        ret->message.sets = ret->pointers;
        ret->message.clip_norm = params->clip_norm;
        ret->message.loss_scale = params->loss_scale;
        ret->message.growth_interval = params->growth_interval;
        return &ret->message;
}

static bool same(const char *what, double a, double b, char *text, size_t size)
{
        if (memcmp(&a, &b, sizeof a) == 0)
                return true;
        snprintf(text, size, "%s %.17g and %.17g", what, a, b);
        return false;
}

bool step_params_equal(const struct step_params *a, const struct step_params *b, char *text,
                       size_t size)
{
        if (!same("number of hyperparameter sets", a->n_sets, b->n_sets, text, size) ||
            !same("clip_norm", a->clip_norm, b->clip_norm, text, size) ||
            !same("loss_scale", a->loss_scale, b->loss_scale, text, size) ||
            !same("growth_interval", a->growth_interval, b->growth_interval, text, size))
                return false;
        for (uint32_t i = 0; i < a->n_sets; i++) {
                char part[160] = "";

                if (hyper_equal(&a->sets[i], &b->sets[i], part, sizeof part))
                        continue;
                snprintf(text, size, "set %u: %s", i, part);
                return false;
        }
        return true;
}
