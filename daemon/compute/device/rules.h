/*
 * rules.h - what an update computes for each element: the contract of the kernels.
 *
 * A rule changes the master weight and the moments of an element by its gradient.  Each device has
 * a kernel a rule (daemon/compute/device, cuda), and all agree to the bit with the scalar one.  g
 * below is the gradient times grad_scale.  In the order written:
 *
 *   ADAMW  p = p * decay                      (in the order of torch.optim.AdamW)
 *          m = m + (g - m) * one_minus_beta1
 *          v = v * beta2 + (g * g) * one_minus_beta2
 *          p = p - step_size * (m / (sqrt(v) / sqrt_bias2 + eps))
 *
 *   ADAM   g = g + p * decay; then as ADAMW from m on
 *
 *   LION   c = m * beta1 + g * one_minus_beta1
 *          p = p * decay - (lr with the sign of c; c itself where that is 0 or NaN)
 *          m = m * beta2 + g * one_minus_beta2
 *
 *   SGD    p = p - lr * (g + p * weight_decay)
 *
 *   SGD_MOMENTUM
 *          d = g + p * weight_decay
 *          b = b * momentum + d * one_minus_dampening
 *          p = p - lr * (d * g_part + b * b_part)
 *
 *   MOMENTUM (of Muon, which keeps b as plane 0)
 *          b = b + (g - b) * one_minus_momentum
 *
 *   DIRECTION (of Muon: g is the direction of the matrix, and grad_scale 1)
 *          p = p * decay - lr * g
 *
 * Where ema_rate is not 0, an average e follows any rule, as the last plane, with the new p:
 *
 *          e = e + (p - e) * ema_rate
 *
 * Where moments are in another format than fp32 (formats.h), sqrt_bias2 is 1, and step_size and
 * eps have it as a factor.  That is the same but for rounding.  Vector kernels then leave one
 * division out, and divisions are most of what such an update takes.  With moments in fp32, memory
 * takes that time anyway.
 *
 * The optimizer (optimizer.h) computes the scalars in double and rounds each once to fp32, so a
 * repeated update has the same bits.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

/* X(rule, function, planes: master and moments) */
#define UPDATE_RULE_MAP(X)               \
        X(ADAMW, adamw, 3)               \
        X(LION, lion, 2)                 \
        X(SGD, sgd, 1)                   \
        X(SGD_MOMENTUM, sgd_momentum, 2) \
        X(ADAM, adam, 3)                 \
        X(MOMENTUM, momentum, 1)         \
        X(DIRECTION, direction, 1)

enum update_rule {
#define X(rule, function, planes) UPDATE_##rule,
        UPDATE_RULE_MAP(X)
#undef X
                UPDATE_RULES,
};

enum { UPDATE_PLANES = 4 }; /* of any update: master, the moments, the average */

struct adam_scalars {
        float decay; /* ADAMW: 1 - lr * weight_decay; ADAM: weight_decay */
        float one_minus_beta1;
        float beta2, one_minus_beta2;
        float step_size;  /* lr / (1 - beta1^t) */
        float sqrt_bias2; /* sqrt(1 - beta2^t) */
        float eps;
};

struct lion_scalars {
        float decay; /* 1 - lr * weight_decay */
        float lr;
        float beta1, one_minus_beta1;
        float beta2, one_minus_beta2;
};

struct sgd_scalars {
        float weight_decay, lr;
        float momentum, one_minus_dampening; /* 0 and 1 at a tensor's first update */
        float g_part, b_part;                /* 0 and 1; 1 and momentum with Nesterov */
};

struct muon_scalars {
        float decay; /* 1 - lr * weight_decay */
        float lr;    /* of the matrix */
        float one_minus_momentum;
        uint32_t adjust; /* how lr follows from a matrix's shape (optimizer/muon.h) */
};

struct update_scalars {
        float grad_scale; /* clip factor / (divisor * loss scale); negative: ascend */
        float ema_rate;   /* 0: no average; 1 - decay; 1 at a tensor's first update */
        union {
                struct adam_scalars adam;
                struct lion_scalars lion;
                struct sgd_scalars sgd;
                struct muon_scalars muon;
        };
};

/* Master and moments of a rule. */
static inline uint32_t rule_planes(enum update_rule rule)
{
        switch (rule) {
#define X(rule, function, planes) \
        case UPDATE_##rule:       \
                return planes;
                UPDATE_RULE_MAP(X)
#undef X
        case UPDATE_RULES:
                break;
        }
        return 0;
}

static inline bool update_has_ema(const struct update_scalars *s)
{
        return s->ema_rate > 0;
}

/* The planes that an update reads and writes. */
static inline uint32_t update_planes(enum update_rule rule, const struct update_scalars *s)
{
        return rule_planes(rule) + update_has_ema(s);
}

/* The rules for an element, x[] of each plane.  The scalar kernel and CUDA's define RULE_FUNCTION:
 * what stands before a function there. */
#ifdef RULE_FUNCTION
#include <math.h>

RULE_FUNCTION void adam_step(const struct adam_scalars *s, float g, float *x)
{
        x[1] = x[1] + (g - x[1]) * s->one_minus_beta1;
        x[2] = x[2] * s->beta2 + (g * g) * s->one_minus_beta2;
        x[0] -= s->step_size * (x[1] / (sqrtf(x[2]) / s->sqrt_bias2 + s->eps));
}

RULE_FUNCTION void adamw(const struct update_scalars *scalars, float g, float *x)
{
        x[0] = x[0] * scalars->adam.decay;
        adam_step(&scalars->adam, g, x);
}

RULE_FUNCTION void adam(const struct update_scalars *scalars, float g, float *x)
{
        adam_step(&scalars->adam, g + x[0] * scalars->adam.decay, x);
}

RULE_FUNCTION void lion(const struct update_scalars *scalars, float g, float *x)
{
        const struct lion_scalars *s = &scalars->lion;
        float c = x[1] * s->beta1 + g * s->one_minus_beta1;

        x[0] = x[0] * s->decay - (c > 0 || c < 0 ? copysignf(s->lr, c) : c);
        x[1] = x[1] * s->beta2 + g * s->one_minus_beta2;
}

RULE_FUNCTION void sgd(const struct update_scalars *scalars, float g, float *x)
{
        const struct sgd_scalars *s = &scalars->sgd;

        x[0] -= s->lr * (g + x[0] * s->weight_decay);
}

RULE_FUNCTION void sgd_momentum(const struct update_scalars *scalars, float g, float *x)
{
        const struct sgd_scalars *s = &scalars->sgd;
        float d = g + x[0] * s->weight_decay;

        x[1] = x[1] * s->momentum + d * s->one_minus_dampening;
        x[0] -= s->lr * (d * s->g_part + x[1] * s->b_part);
}

RULE_FUNCTION void momentum(const struct update_scalars *scalars, float g, float *x)
{
        x[0] = x[0] + (g - x[0]) * scalars->muon.one_minus_momentum;
}

RULE_FUNCTION void direction(const struct update_scalars *scalars, float g, float *x)
{
        x[0] = x[0] * scalars->muon.decay - scalars->muon.lr * g;
}
#endif
