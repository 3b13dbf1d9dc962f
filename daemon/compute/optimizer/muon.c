/*
 * Muon (K. Jordan and others, "Muon: an optimizer for hidden layers in neural networks", 2024), as
 * the code of torch.optim.Muon computes it: the momentum buffer is an average, where torch's
 * documentation says a sum.
 *
 *   b = b + (g - b) (1 - momentum)
 *   u = b + (g - b) (1 - momentum) with Nesterov, else b
 *   d = the orthogonal matrix next to u, by Newton-Schulz (daemon/compute/matrix)
 *   p = p (1 - lr weight_decay) - lr' d
 *
 * Elements change by two rules, each in a pass over a chunk: MOMENTUM changes b, DIRECTION p.  u
 * follows from the new b and g.  So an update that a crash interrupts finds the same d, whatever
 * chunks have their new b already.
 */
#include "daemon/compute/optimizer/optimizer.h"

#include <float.h>
#include <math.h>

enum { LR, MOMENTUM, WEIGHT_DECAY, NESTEROV, ADJUST_LR, NS_A, NS_B, NS_C, NS_EPS, NS_STEPS };
enum { ORIGINAL, MATCH_RMS_ADAMW, SPECTRAL_UNCLAMPED, ADJUSTMENTS };

static struct update_scalars muon_scalars(const double *x, uint64_t t, double grad_scale)
{
        return (struct update_scalars){
                .grad_scale = (float)grad_scale,
                .muon = { .decay = (float)(1.0 - x[LR] * x[WEIGHT_DECAY]),
                          .lr = (float)x[LR],
                          .one_minus_momentum = (float)(1.0 - x[MOMENTUM]),
                          .adjust = (uint32_t)x[ADJUST_LR] },
        };
}

const struct optimizer optimizer_muon = {
        .name = "muon",
        .rule = UPDATE_DIRECTION,
        .moments = { "momentum_buffer" },
        .values = { [LR] = { "lr", HYPER_FP32 },
                    [MOMENTUM] = { "momentum", HYPER_UNIT },
                    [WEIGHT_DECAY] = { "weight_decay", HYPER_DECAY },
                    [NESTEROV] = { "nesterov", HYPER_COUNT, 1 },
                    [ADJUST_LR] = { "adjust_lr", HYPER_COUNT, ADJUSTMENTS - 1 },
                    [NS_A] = { "ns_a", HYPER_SIGNED },
                    [NS_B] = { "ns_b", HYPER_SIGNED },
                    [NS_C] = { "ns_c", HYPER_SIGNED },
                    [NS_EPS] = { "ns_eps", HYPER_NORM },
                    [NS_STEPS] = { "ns_steps", HYPER_COUNT, ORTHO_STEPS } },
        .scalars = muon_scalars,
        .matrices = true,
};

struct muon muon_of(const struct hyper_set *set)
{
        struct hyper_values values = hyper_values(set);
        const double *x = values.value;

        return (struct muon){ .ns = { .a = (float)x[NS_A],
                                      .b = (float)x[NS_B],
                                      .c = (float)x[NS_C],
                                      .eps = (float)x[NS_EPS],
                                      .steps = (uint32_t)x[NS_STEPS] },
                              .nesterov = x[NESTEROV] != 0 };
}

/* sqrt() of a double is correctly rounded, so all owners get the same number. */
struct update_scalars muon_direction(const struct update_scalars *s, uint64_t rows, uint64_t cols)
{
        struct update_scalars ret = *s;
        double a = (double)rows, b = (double)cols, factor = 1;

        switch (s->muon.adjust) {
        case ORIGINAL:
                factor = sqrt(a > b ? a / b : 1);
                break;
        case MATCH_RMS_ADAMW:
                factor = 0.2 * sqrt(a > b ? a : b);
                break;
        case SPECTRAL_UNCLAMPED:
                factor = sqrt(a / b);
                break;
        }
        factor *= (double)s->muon.lr;
        ret.muon.lr = factor <= (double)FLT_MAX ? (float)factor : FLT_MAX;
        ret.grad_scale = 1;
        return ret;
}
