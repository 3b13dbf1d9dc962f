/*
 * zero_sets.h - hyperparameters of a step, a structure an optimizer.  Included by zero.h, which a program includes.
 */
#pragma once

/*
 * The members of "adamw": Adam with decoupled weight decay (arXiv 1711.05101), as torch.optim.AdamW computes it.
 * The moments are ZERO_PLANE_EXP_AVG m and ZERO_PLANE_EXP_AVG_SQ v.  g is the gradient, negated with maximize.
 * t counts the tensor's updates (ZERO_PLANE_STEP), this one included:
 *
 *   p = p (1 - lr weight_decay);  m = beta1 m + (1 - beta1) g;  v = beta2 v + (1 - beta2) g^2
 *   p = p - lr / (1 - beta1^t) m / (sqrt(v / (1 - beta2^t)) + eps)
 *
 * "adam" (arXiv 1412.6980, as torch.optim.Adam computes it) has the same members and moments.  There the decay is a
 * part of the gradient: g = g + weight_decay p in the place of p = p (1 - lr weight_decay).
 */
struct zero_adamw {
        double lr, beta1, beta2;
        double eps; /* > 0 as an fp32 number */
        double weight_decay;
        double maximize; /* 0 or 1 */
};
#define ZERO_PLANE_EXP_AVG ZERO_PLANE_MOMENT1
#define ZERO_PLANE_EXP_AVG_SQ ZERO_PLANE_MOMENT2

/*
 * The members of "lion" (arXiv 2302.06675, algorithm 2).  The one moment is ZERO_PLANE_EXP_AVG m, and g is as above.
 * The paper has beta1 0.9 and beta2 0.99, and an lr of a third to a tenth of AdamW's:
 *
 *   p = p (1 - lr weight_decay) - lr sign(beta1 m + (1 - beta1) g);  m = beta2 m + (1 - beta2) g
 */
struct zero_lion {
        double lr, beta1, beta2, weight_decay;
        double maximize; /* 0 or 1 */
};

/*
 * The members of "sgd" and "sgd-momentum": stochastic gradient descent as torch.optim.SGD computes it.  "sgd" has no
 * moment, and its members that are marked as sgd-momentum's are 0.  "sgd-momentum" has ZERO_PLANE_MOMENTUM_BUFFER b.
 * g is as above:
 *
 *   d = g + weight_decay p;  b = momentum b + (1 - dampening) d, but d at a tensor's first update
 *   p = p - lr (d, without momentum; d + momentum b, with nesterov; else b)
 */
struct zero_sgd {
        double lr;
        double momentum, dampening; /* of sgd-momentum alone */
        double weight_decay;
        double nesterov; /* 0 or 1, of sgd-momentum alone */
        double maximize; /* 0 or 1 */
};
#define ZERO_PLANE_MOMENTUM_BUFFER ZERO_PLANE_MOMENT1

/* The polynomial of Newton-Schulz, X = a X + (b G + c G G) X with G = X X', and how often it is applied. */
struct zero_newton_schulz {
        double a, b, c;
        double eps;   /* > 0: the least norm that X is divided by at first */
        double steps; /* 0 to 99 */
};

/* By what the learning rate of a matrix of rows x cols is multiplied, as adjust_lr_fn of torch.optim.Muon. */
enum zero_adjust_lr {
        ZERO_ADJUST_ORIGINAL = 0,           /* sqrt(max(1, rows / cols)) */
        ZERO_ADJUST_MATCH_RMS_ADAMW = 1,    /* 0.2 sqrt(max(rows, cols)): AdamW's lr and decay go on to fit */
        ZERO_ADJUST_SPECTRAL_UNCLAMPED = 2, /* sqrt(rows / cols) */
};

/*
 * The members of "muon" (K. Jordan and others, 2024), which updates whole matrices (zero_layout_matrices()), as the
 * code of torch.optim.Muon computes it.  The moment is ZERO_PLANE_MOMENTUM_BUFFER b.  Torch's documentation has another b,
 * 1 / (1 - momentum) times this one; its code and its checkpoints have this one.  g is the gradient of the step: of all
 * micro-batches, clipped by its own norm.
 *
 *   b = momentum b + (1 - momentum) g;  u = momentum b + (1 - momentum) g, with nesterov; else b
 *   X = u in bf16, divided by its norm; then Newton-Schulz, in bf16 with sums in fp32
 *   p = p (1 - lr weight_decay) - lr' X;  lr' is lr by adjust_lr
 */
struct zero_muon {
        double lr, momentum, weight_decay;
        double nesterov;                     /* 0 or 1 */
        double adjust_lr;                    /* enum zero_adjust_lr */
        const struct zero_newton_schulz *ns; /* NULL: torch's, 3.4445, -4.7750, 2.0315, 1e-7, 5 */
};

/*
 * Hyperparameters of the tensors of one set.  All of them have this optimizer.
 *
 * A group of zero_layout_ema() averages its weights as torch.optim.swa_utils.AveragedModel does with
 * get_ema_multi_avg_fn(ema_decay).  With the new p, and ema_decay in [0, 1), which a step may change as it may lr:
 *
 *   e = ema_decay e + (1 - ema_decay) p, but p at a tensor's first update
 *
 * Where a step changes no weight, as a skipped step or a tensor without a gradient, e stays as it is.  Until a
 * tensor's first update e is the tensor's first values, and a write to MASTER writes e too.  The average e is
 * ZERO_PLANE_EMA of zero_get() and zero_put(); zero_tensor_norms() knows it as the moment behind the optimizer's own.
 */
struct zero_set {
        const char *optimizer; /* as in zero_layout_optimizer(); NULL: "adamw" */
        union {
                struct zero_adamw adamw, adam;
                struct zero_lion lion;
                struct zero_sgd sgd;
                struct zero_muon muon;
        };
        double ema_decay; /* of groups that keep an average: one of their sets has it */
};

/*
 * Sets with the papers' values, as initialisers; members may be changed afterwards.  The papers leave open the weight
 * decay: 0.01 of AdamW and 0.1 of Muon are torch's, the others have none.  A set that is only zeroed is refused: with
 * eps 0 a gradient of 0 would make NaN of a weight.  C++17 has no designators, so all numbers go through the union's first
 * member.
 *
 *   struct zero_set set = ZERO_ADAMW(1e-3);
 *   set.adamw.weight_decay = 0.1;
 */
#define ZERO_ADAMW(lr) { "adamw", { { (lr), 0.9, 0.999, 1e-8, 0.01, 0 } }, 0 }
#define ZERO_ADAM(lr) { "adam", { { (lr), 0.9, 0.999, 1e-8, 0, 0 } }, 0 }
#define ZERO_LION(lr) { "lion", { { (lr), 0.9, 0.99, 0, 0, 0 } }, 0 }
#define ZERO_SGD(lr) { "sgd", { { (lr), 0, 0, 0, 0, 0 } }, 0 }
#define ZERO_MUON(lr) { "muon", { { (lr), 0.95, 0.1, 1, ZERO_ADJUST_ORIGINAL, 0 } }, 0 }
#define ZERO_SGD_MOMENTUM(lr, momentum) { "sgd-momentum", { { (lr), (momentum), 0, 0, 0, 0 } }, 0 }
